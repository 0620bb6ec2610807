"""The truth about a scenario, measured outside of the product, and its certainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

from tests.real_jobs.jobs import Place
from tests.real_jobs.scenarios import Scenario

# If the steps of a healthy run differ by more than this, a headline cannot be within 5 %.
NOISY_SPREAD: Final = 0.06


@dataclass(frozen=True, slots=True)
class Truth:
    """The content that a report must have.

    Parameters
    ----------
    slowdown : float
        Mean measured step time over that of the same job without the fault, in the same launch.
    cause : str or None
        The report's name of the fault.
    worker : Place or None
        The worker to blame.
    stage : int or None
        The stage to blame, if it is not a single worker.
    one_dp_rank : bool
        Whether workers have no peers.
    at_an_end : bool
        Whether the fault is on the first or the last stage.
    """

    slowdown: float
    cause: str | None
    worker: Place | None
    stage: int | None
    one_dp_rank: bool
    at_an_end: bool


def true_slowdown(step_times_s: Sequence[float], reference_s: Sequence[float]) -> float:
    """Return the ratio of the mean step times."""
    return mean(step_times_s) / mean(reference_s)


def spread(step_times_s: Sequence[float]) -> float:
    """Return the spread of a run's steps, relative to their median."""
    return (max(step_times_s) - min(step_times_s)) / median(step_times_s)


def truth_of(
    scenario: Scenario, step_times_s: Sequence[float], reference_s: Sequence[float]
) -> Truth:
    """Return the truth about a scenario from its step times and those of its reference."""
    fault, job = scenario.fault, scenario.job
    stage = fault.stage if fault.worker is None else fault.worker.pp
    return Truth(
        slowdown=true_slowdown(step_times_s, reference_s),
        cause=fault.cause,
        worker=fault.worker,
        stage=stage,
        one_dp_rank=job.dp == 1,
        at_an_end=stage in {0, job.pp - 1},
    )
