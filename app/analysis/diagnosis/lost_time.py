"""Lost time of a mean step, and the findings that explain enough of this time to be named."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from app.analysis.diagnosis.counterfactual import Counterfactuals
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.robust_statistics import mean

_MOST_CAUSES: Final = 4  # causes that are replayed in all combinations, 2^n replays
_DRAWS: Final = 500


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide which findings are worth naming."""

    # Steps that lose less than this share of the ideal time have no loss to explain.
    worth_a_look: float = 0.03
    named_cost: float = 0.025  # A cause that costs less than this share of a step is not named.
    named_share: float = 0.1  # …nor one that has less than this share of the lost time
    # If more than this share of the loss is unexplained, the step time without the causes is
    # unknown.
    most_unknown: float = 0.1
    # Confidence of a cause that every bootstrap draw contains, but whose share is nearly 0 (fitted
    # to jobs with known causes).
    alone: float = 0.85
    worth: float = 0.025  # A draw has the cause when it costs this share of a step.


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """Loss of a mean step against a reference, s; the part `unknown_s` has no known cause."""

    reference_s: FloatArray
    lost_s: float
    unknown_s: float


def loses_little(slowdown: float) -> bool:
    """Return whether a slowdown is too small for causes to be looked for."""
    return slowdown < 1 + THRESHOLDS.worth_a_look


def is_explained(unknown_share: float) -> bool:
    """Return whether causes explain enough of the loss to know the step time without them."""
    return unknown_share <= THRESHOLDS.most_unknown


def named_loss(
    replays: Counterfactuals,
    count: int,
    ideal_s: FloatArray,
    published: float,
    chance_s: float = 0.0,
) -> tuple[tuple[int, ...], Loss]:
    """Return the numbers of the findings worth naming, and the loss of a mean step.

    The reference is the session without these findings, if it is about as fast as a healthy session
    (which loses a little against the ideal, too). Otherwise the reference is the ideal, and the
    remaining loss is unknown, unless the slowdown by the causes alone exceeds the published S
    (which ignores late launches), or the remainder is at most `chance_s`, the loss of a mean step
    by chance.

    Parameters
    ----------
    count : int
        Number of findings.
    ideal_s : FloatArray
        Ideal time of each step.
    published : float
        S, the slowdown of the what-if paper.
    """
    everything = frozenset(range(count))
    replays.replay(one_or_all(count))
    saved = {
        number: max(
            replays.gain(frozenset({number})),
            replays.gain(everything) - replays.gain(everything - {number}),
        )
        for number in range(count)
    }
    least_s = THRESHOLDS.named_cost * replays.mean_s(frozenset()) / 2
    by_gain = sorted(
        (number for number in saved if saved[number] >= least_s), key=lambda number: -saved[number]
    )
    numbers = sorted(by_gain[:_MOST_CAUSES])
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
    """Return sets of findings to remove: none, all, each one alone, and all except each one."""
    everything = frozenset(range(count))
    each = [frozenset({number}) for number in range(count)]
    return [frozenset(), everything, *each, *(everything - single for single in each)]


def confidence(cost_s: FloatArray, step_s: FloatArray, lost_s: float) -> float:
    """Return the bootstrap confidence, 0 to 1, that a cause costs enough to be named."""
    draws = _draws(len(cost_s))
    drawn_s = np.mean(cost_s[draws], axis=1)
    stable = float(np.mean(drawn_s >= THRESHOLDS.worth * np.mean(step_s[draws], axis=1)))
    share = min(max(float(mean(cost_s)) / lost_s, 0.0), 1.0)
    return stable * (THRESHOLDS.alone + (1 - THRESHOLDS.alone) * share)


@lru_cache(maxsize=4)
def _draws(steps: int) -> IntArray:
    """Return the indices of the steps in each bootstrap draw, shape (draws, steps)."""
    drawn: IntArray = np.random.default_rng(0).integers(steps, size=(_DRAWS, steps))
    # Read-only, as the array is cached and all causes share it.
    drawn.flags.writeable = False
    return drawn
