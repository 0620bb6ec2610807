"""Garbage collected on all workers at once: how often, how long each pause will be, and its gain.

Every worker collects as often as one stalls now, so that memory grows no further than it does. All
wait for the longest of the pauses, which is longer than the mean one, and the longer the more
workers there are. (What-if paper, section 5.4.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.figures import Stalls
from app.analysis.diagnosis.finding import Cause
from app.analysis.mitigation.fix import Fix, PlannedCollections
from app.analysis.wording import percent

# Steps with stalls that tell a trend, and by how many standard errors it must stand out.
_MIN_STEPS: Final = 8
_SURE: Final = 2.0
# A pause is no shorter at the start than this share of what it is at the end.
_LEAST_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Pauses:
    """Pauses as a session shows them, lengths in seconds."""

    count: int
    workers: int
    mean_s: float
    longest_s: float
    grown: float  # how many times as long they are at the end as on average

    def together_s(self) -> float:
        """Return how long the longest of all workers' is, on average.

        The largest of many normal values lies as far from the mean as `_above` says, so that the
        largest of those that were seen tells the largest of another number.
        """
        most = max(self.longest_s / (self.mean_s * self.grown), 1.0)
        share = _above(self.workers) / _above(max(self.count, self.workers, 2))
        return self.mean_s * (1 + (most - 1) * share)


def _above(count: int) -> float:
    """Return how many standard deviations the largest of some normal values lies above their mean.

    Blom 1958.
    """
    from statistics import NormalDist  # noqa: PLC0415 - slow to load, and rarely asked for

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def plan_collections(cause: Cause, now_s: float) -> Fix | None:
    """Return planned collections in place of those of a cause; None where no pauses are known.

    A pause before the first operation of all workers moves all of a step: with it the step without
    stalls takes as much longer. `now_s` is today's mean step.
    """
    pauses = _seen(cause)
    if pauses is None or cause.saves is None or not isinstance(cause.figure, Stalls):
        return None
    steps = len(cause.figure.by_step_s)
    every = max(1, round(steps * pauses.workers / pauses.count))
    plan = PlannedCollections(every, pauses.together_s())
    gain = cause.saves - plan.pause_s / every / now_s
    often = "in every step" if every == 1 else f"every {every} steps"
    return Fix(
        "plan_garbage_collection",
        f"Collect garbage on all workers at once, {often}",
        f"Replayed without the stalls, with a common pause of {plan.pause_s:.2f} s {often}: as "
        "often as a worker stalls now, and as long as the longest of all workers' is likely to "
        f"be. paceline_client.PlannedGC(every={every}). Less often, as far as memory allows, it "
        f"saves up to {percent(cause.saves)} of a step.",
        now_s * (1 - gain),
        gain,
        cause=cause.cause,
        collections=plan,
    )


def _seen(cause: Cause) -> _Pauses | None:
    if not isinstance(cause.figure, Stalls):
        return None
    by_worker = np.array(cause.figure.by_worker)
    total_s, count = float(np.sum(cause.figure.by_step_s)), int(by_worker.sum())
    if count == 0 or total_s <= 0:
        return None
    return _Pauses(
        count, by_worker.size, total_s / count, cause.figure.longest_s, _grown(cause.figure)
    )


def _grown(stalls: Stalls) -> float:
    """Return how many times as long stalls are at the end as on average, if they surely grow."""
    by_step = np.array(stalls.by_step_s)
    if np.count_nonzero(by_step) < _MIN_STEPS:
        return 1.0
    step = np.arange(len(by_step)) - (len(by_step) - 1) / 2
    mean, slope = by_step.mean(), (step @ by_step) / (step @ step)
    residual = by_step - mean - slope * step
    error = np.sqrt((residual @ residual) / (len(step) - 2) / (step @ step))
    if slope <= _SURE * error:
        return 1.0
    return float(min(1 + slope * step[-1] / mean, 1 / _LEAST_SHARE))
