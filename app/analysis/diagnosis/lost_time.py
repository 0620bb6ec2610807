"""Lost time of a mean step, and the findings that explain enough of it to be named."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from app.analysis.diagnosis.counterfactual import Counterfactuals
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.robust_statistics import mean

# More causes than this are not replayed in all their combinations.
_MOST_CAUSES: Final = 4
_DRAWS: Final = 500


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides which findings are worth naming."""

    # A session whose steps lose less than this share has nothing to explain.
    worth_a_look: float = 0.03
    named_cost: float = 0.025  # A cause that costs less than this share of a step is not named.
    named_share: float = 0.1  # …nor one that has less than this share of the lost time
    # With a larger share of the loss unexplained the job without its causes is not known.
    most_unknown: float = 0.1
    # The confidence of a cause that stands out in every draw but has next to no share (scored).
    alone: float = 0.85
    worth: float = 0.025  # A draw has the cause when it costs this share of a step.


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What steps lose against a reference, seconds; `unknown_s` of it has no known cause."""

    reference_s: FloatArray
    lost_s: float
    unknown_s: float


def loses_little(slowdown: float) -> bool:
    """Return whether steps are so near the ideal that there is nothing to explain."""
    return slowdown < 1 + THRESHOLDS.worth_a_look


def is_explained(unknown_share: float) -> bool:
    """Return whether so little of the loss is unexplained that the job without causes is known."""
    return unknown_share <= THRESHOLDS.most_unknown


def named_loss(
    replays: Counterfactuals,
    count: int,
    ideal_s: FloatArray,
    published: float,
    chance_s: float = 0.0,
) -> tuple[tuple[int, ...], Loss]:
    """Return the findings that are worth naming, and what is lost.

    The reference is the session without them, where that is as good as a healthy one: all healthy
    jobs lose a little against the ideal, and against the job without its causes that is no loss.
    Where more remains, the reference is ideal, and what no cause explains is unknown; but not where
    the causes alone weigh more than S, which knows no late launches. Nor is unknown what ranks lose
    by chance, `chance_s` of a mean step: it hides behind causes, and stays without them.
    """
    numbers = _that_matter(replays, count)
    mean_s = replays.mean_s(frozenset())
    best_s = min(ideal_s, replays.without(frozenset(numbers)), key=np.mean)
    lost_s = max(mean_s - float(mean(best_s)), 1e-12)
    worth = max(THRESHOLDS.named_cost * mean_s, THRESHOLDS.named_share * lost_s)
    costs = zip(numbers, replays.shares(numbers).mean(axis=1).tolist(), strict=True)
    cost_s = {number: cost for number, cost in costs if cost >= worth}
    named = tuple(cost_s)
    residual_s = max(lost_s - sum(cost_s.values()), 0.0)
    without_s = replays.without(frozenset(named))
    healthy = loses_little(float(mean(without_s)) / float(mean(ideal_s)))
    beyond = mean_s >= published * float(mean(without_s))
    by_chance = 0 < residual_s <= chance_s
    if named and (healthy or beyond or by_chance or is_explained(residual_s / lost_s)):
        lost_s = max(mean_s - float(mean(without_s)), 1e-12)
        return named, Loss(without_s, lost_s, 0.0)
    return named, Loss(best_s, lost_s, residual_s)


def one_or_all(count: int) -> list[frozenset[int]]:
    """Return no finding, all of them, each alone, and all but each."""
    everything = frozenset(range(count))
    each = [frozenset({number}) for number in range(count)]
    return [frozenset(), everything, *each, *(everything - one for one in each)]


def _that_matter(replays: Counterfactuals, count: int) -> list[int]:
    """Return the findings whose removal alone, or as the last one, saves anything worth naming."""
    everything = frozenset(range(count))
    replays.replay(one_or_all(count))
    mean_s = replays.mean_s(frozenset())
    saved = {
        number: max(
            replays.gain(frozenset({number})),
            replays.gain(everything) - replays.gain(everything - {number}),
        )
        for number in range(count)
    }
    worth = [number for number in saved if saved[number] >= THRESHOLDS.named_cost * mean_s / 2]
    return sorted(sorted(worth, key=lambda number: -saved[number])[:_MOST_CAUSES])


def confidence(cost_s: FloatArray, step_s: FloatArray, lost_s: float) -> float:
    """Return how surely a cause costs what makes it worth naming, 0 to 1."""
    draws = _draws(len(cost_s))
    drawn_s = np.mean(cost_s[draws], axis=1)
    stable = float(np.mean(drawn_s >= THRESHOLDS.worth * np.mean(step_s[draws], axis=1)))
    share = min(max(float(mean(cost_s)) / lost_s, 0.0), 1.0)
    return stable * (THRESHOLDS.alone + (1 - THRESHOLDS.alone) * share)


@lru_cache(maxsize=4)
def _draws(steps: int) -> IntArray:
    """Return the steps that each draw takes, shape (draws, steps)."""
    drawn: IntArray = np.random.default_rng(0).integers(steps, size=(_DRAWS, steps))
    # shared by all causes
    drawn.flags.writeable = False
    return drawn
