"""Parts of a report: times and slowdowns."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.diagnosis.places import Worker
from app.analysis.report.shapes import ByCell, Interval, Numbers, PartialByCell


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What each analyzed step takes.

    Parameters
    ----------
    recorded : tuple of float
        From the first start to the last end, seconds.
    simulated : tuple of float
        Replayed with the recorded durations and no launch delays, seconds.
    ideal : tuple of float
        Replayed with all durations ideal, seconds.
    """

    recorded: Numbers
    simulated: Numbers
    ideal: Numbers


@dataclass(frozen=True, slots=True)
class PerStep:
    """The slowdowns of each analyzed step.

    Parameters
    ----------
    by_optype : mapping of str to tuple of float
        Slowdown if only this operation type kept its recorded durations, by type, then by step.
    by_dp : tuple of tuple of float
        The same of each DP rank, [dp][step].
    by_pp : tuple of tuple of float
        The same of each stage, [pp][step].
    launch_slowdown : tuple of float
        Recorded ÷ simulated step time of each step.
    """

    by_optype: dict[str, Numbers]
    by_dp: tuple[Numbers, ...]
    by_pp: tuple[Numbers, ...]
    launch_slowdown: Numbers


@dataclass(frozen=True, slots=True)
class WorstWorker:
    """A worker with the interval of its slowdown.

    Parameters
    ----------
    worker : (DP rank, stage)
        Its place.
    slowdown : float
        Slowdown if only this worker kept its recorded durations.
    ci95 : (float, float)
        Its 95 % interval.
    """

    worker: Worker
    slowdown: float
    ci95: Interval


@dataclass(frozen=True, slots=True)
class ByWorker:
    """The slowdown of every worker, [dp][pp].

    Parameters
    ----------
    exact : tuple of tuple of float
        Slowdown if only this worker kept its recorded durations.
    approximate : tuple of tuple of float
        The smaller one of its DP rank's and its stage's slowdown, as the paper has it.
    forward_ratio, backward_ratio : tuple of tuple of float or None
        Mean forward or backward time ÷ the median of its stage's other DP ranks; None where
        there is one DP rank.
    worst : tuple of WorstWorker
        The slowest ones, the slowest first.
    """

    exact: ByCell
    approximate: ByCell
    forward_ratio: PartialByCell
    backward_ratio: PartialByCell
    worst: tuple[WorstWorker, ...]


@dataclass(frozen=True, slots=True)
class Recovery:
    """How much of the lost time a set of workers accounts for (paper, section 5).

    Parameters
    ----------
    rem : float or None
        The share of the lost time that is back with the set ideal, the removal attribution; None
        where under 1 % of a step is lost.
    add : float or None
        The share that is lost with the set alone as recorded, the addition attribution.
    ci95 : (float, float) or None
        95 % interval of `rem`.
    trem_s : float
        Mean step time with the set ideal, seconds.
    tadd_s : float
        Mean step time with all but the set ideal, seconds.
    """

    rem: float | None
    add: float | None
    ci95: Interval | None
    trem_s: float
    tadd_s: float


@dataclass(frozen=True, slots=True)
class WorkersRecovery(Recovery):
    """The same of the slowest 3 % of the workers.

    Parameters
    ----------
    workers : tuple of (DP rank, stage)
        The slowest ones, by exact slowdown.
    """

    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class CorrelationSample:
    """An even sample of the microbatches of a correlation.

    Parameters
    ----------
    forward_s, backward_s : tuple of float
        Forward and backward time of the same microbatch, seconds.
    """

    forward_s: Numbers
    backward_s: Numbers


@dataclass(frozen=True, slots=True)
class Correlation:
    """Forward against backward time over microbatches (paper, section 5.3).

    Parameters
    ----------
    pearson : float or None
        Pearson's r; None where one of them does not vary or there are under 3 microbatches.
    stage : int
        Where it was measured: stage 1, or 0 where there is no other.
    points : int
        Microbatches that were compared.
    sample : CorrelationSample
        At most 700 of them.
    """

    pearson: float | None
    stage: int
    points: int
    sample: CorrelationSample
