"""What is true of a scenario, as measured outside of the product, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

from tests.real_jobs.jobs import Place
from tests.real_jobs.scenarios import Scenario

# Steps of a healthy run that differ by more than this cannot hold a headline to within 5 %.
NOISY_SPREAD: Final = 0.06


@dataclass(frozen=True, slots=True)
class Truth:
    """What a report must say.

    Parameters
    ----------
    slowdown : float
        Mean measured step time over that of the same job without the fault, in the same launch.
    cause : str or None
        The report's name of what is wrong.
    worker : Place or None
        Who is to blame.
    stage : int or None
        The stage to blame, where no single worker is.
    one_dp_rank : bool
        A worker has no peers.
    at_an_end : bool
        What is to blame is on the first or the last stage.
    """

    slowdown: float
    cause: str | None
    worker: Place | None
    stage: int | None
    one_dp_rank: bool
    at_an_end: bool


def true_slowdown(step_times_s: Sequence[float], reference_s: Sequence[float]) -> float:
    """Return the ratio of the means."""
    return mean(step_times_s) / mean(reference_s)


def spread(step_times_s: Sequence[float]) -> float:
    """Return how far the steps of a run lie apart, over their median."""
    return (max(step_times_s) - min(step_times_s)) / median(step_times_s)


def truth_of(
    scenario: Scenario, step_times_s: Sequence[float], reference_s: Sequence[float]
) -> Truth:
    """Return what is true of a scenario that took so long, where its reference took that long."""
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
