"""Parts of a report: times and slowdowns."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.diagnosis.places import Worker
from app.analysis.report.shapes import ByCell, Interval, Numbers, PartialByCell


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What each analyzed step takes."""

    recorded: Numbers
    """From the first start to the last end, seconds."""
    simulated: Numbers
    """Replayed with the recorded durations and no launch delays, seconds."""
    ideal: Numbers
    """Replayed with all durations ideal, seconds."""


@dataclass(frozen=True, slots=True)
class PerStep:
    """The slowdowns of each analyzed step."""

    by_optype: dict[str, Numbers]
    """Slowdown if only this operation type kept its recorded durations, by type, then by step."""
    by_dp: tuple[Numbers, ...]
    """The same of each DP rank, [dp][step]."""
    by_pp: tuple[Numbers, ...]
    """The same of each stage, [pp][step]."""
    launch_slowdown: Numbers
    """Recorded ÷ simulated step time of each step."""


@dataclass(frozen=True, slots=True)
class WorstWorker:
    """A worker with the interval of its slowdown."""

    worker: Worker
    """Its place: (DP rank, stage)."""
    slowdown: float
    """Slowdown if only this worker kept its recorded durations."""
    ci95: Interval | None
    """Its 95 % interval; None of fewer than 5 steps."""


@dataclass(frozen=True, slots=True)
class ByWorker:
    """The slowdown of every worker, [dp][pp]."""

    exact: ByCell
    """Slowdown if only this worker kept its recorded durations."""
    approximate: ByCell
    """The smaller one of its DP rank's and its stage's slowdown, as the paper has it."""
    forward_ratio: PartialByCell
    """Mean forward or backward time ÷ the median of its stage's other DP ranks; None where there is
    one DP rank."""
    backward_ratio: PartialByCell
    """Mean forward or backward time ÷ the median of its stage's other DP ranks; None where there is
    one DP rank."""
    worst: tuple[WorstWorker, ...]
    """The slowest ones, the slowest first."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How much of the lost time a set of workers accounts for (paper, section 5)."""

    rem: float | None
    """The share of the lost time that is back with the set ideal, the removal attribution; None
    where under 1 % of a step is lost."""
    add: float | None
    """The share that is lost with the set alone as recorded, the addition attribution."""
    ci95: Interval | None
    """95 % interval of `rem`."""
    trem_s: float
    """Mean step time with the set ideal, seconds."""
    tadd_s: float
    """Mean step time with all but the set ideal, seconds."""


@dataclass(frozen=True, slots=True)
class WorkersRecovery(Recovery):
    """The same of the slowest 3 % of the workers."""

    workers: tuple[Worker, ...]
    """The slowest ones, by exact slowdown: (DP rank, stage)."""


@dataclass(frozen=True, slots=True)
class CorrelationSample:
    """An even sample of the microbatches of a correlation."""

    forward_s: Numbers
    """Forward and backward time of the same microbatch, seconds."""
    backward_s: Numbers
    """Forward and backward time of the same microbatch, seconds."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Forward against backward time over microbatches (paper, section 5.3)."""

    pearson: float | None
    """Pearson's r; None where one of them does not vary or there are under 3 microbatches."""
    stage: int
    """Where it was measured: stage 1, or 0 where there is no other."""
    points: int
    """Microbatches that were compared."""
    sample: CorrelationSample
    """At most 700 of them."""
