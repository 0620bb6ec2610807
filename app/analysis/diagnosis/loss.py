"""What steps lose, and which findings explain enough of it to be named."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from app.analysis.diagnosis.counterfactual import Counterfactuals
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.means import mean, means, share_of

# A session whose steps lose less than this share has nothing to explain.
WORTH_A_LOOK: Final = 0.03
# A cause that costs less than this share of a step is not named…
_NAMED_COST: Final = 0.025
# …nor one that has less than this share of the lost time.
_NAMED_SHARE: Final = 0.1
# More causes than this are not replayed in all their combinations.
_MOST_CAUSES: Final = 4
# With more of the loss unexplained the job without its causes is not known.
MOST_UNKNOWN: Final = 0.1
_DRAWS: Final = 500
# A cause that stands out in every draw, but has next to no share, is there this surely (scored).
_ALONE: Final = 0.85
# A cause is worth naming from this share of a step on.
_WORTH: Final = 0.025


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What steps lose against a reference, seconds; `unknown_s` of it has no known cause."""

    reference_s: FloatArray
    lost_s: float
    unknown_s: float


def named_loss(
    replays: Counterfactuals, count: int, ideal_s: FloatArray, published: float
) -> tuple[tuple[int, ...], Loss]:
    """Return the findings that are worth naming, and what is lost.

    The reference is the session without them, where that is as good as a healthy one: all healthy
    jobs lose a little against the ideal, and against the job without its causes that is no loss.
    Where more is left, the reference is ideal, and what no cause explains is unknown; but not where
    the causes alone weigh more than S, which knows no late launches.
    """
    numbers = _that_matter(replays, count)
    mean_s = replays.mean_s(frozenset())
    best_s = min(ideal_s, replays.without(frozenset(numbers)), key=mean)
    lost_s = max(mean_s - mean(best_s), 1e-12)
    worth = max(_NAMED_COST * mean_s, _NAMED_SHARE * lost_s)
    costs = zip(numbers, replays.shares(numbers).mean(axis=1).tolist(), strict=True)
    cost_s = {number: cost for number, cost in costs if cost >= worth}
    named = tuple(cost_s)
    left_s = max(lost_s - sum(cost_s.values()), 0.0)
    without_s = replays.without(frozenset(named))
    healthy = mean(without_s) < (1 + WORTH_A_LOOK) * mean(ideal_s)
    beyond = mean_s >= published * mean(without_s)
    if named and (healthy or beyond or left_s <= MOST_UNKNOWN * lost_s):
        lost_s = max(mean_s - mean(without_s), 1e-12)
        return named, Loss(without_s, lost_s, 0.0)
    return named, Loss(best_s, lost_s, left_s)


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
    worth = [number for number in saved if saved[number] >= _NAMED_COST * mean_s / 2]
    return sorted(sorted(worth, key=lambda number: -saved[number])[:_MOST_CAUSES])


def confidence(cost_s: FloatArray, step_s: FloatArray, lost_s: float) -> float:
    """Return how surely a cause costs what makes it worth naming, 0 to 1."""
    draws = _draws(len(cost_s))
    drawn_s = means(cost_s[draws], axis=1)
    stable = share_of(drawn_s >= _WORTH * means(step_s[draws], axis=1))
    share = min(max(mean(cost_s) / lost_s, 0.0), 1.0)
    return stable * (_ALONE + (1 - _ALONE) * share)


@lru_cache(maxsize=4)
def _draws(steps: int) -> IntArray:
    """Return the steps that each draw takes, shape (draws, steps)."""
    drawn: IntArray = np.random.default_rng(0).integers(steps, size=(_DRAWS, steps))
    # shared by all causes
    drawn.flags.writeable = False
    return drawn
