"""The report of a session, ``paceline.report/1``: one class for each object of its JSON.

Fields are keys, in this order; further parts are in the modules that make them. `docs/report.md` is
generated from the docstrings. Lists by worker are [dp][pp]; lists by step follow `Steps.analyzed`.
S is the slowdown of the what-if paper (section 3): simulated time with recorded durations ÷ with
all of them ideal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Literal

from app.analysis.arrivals.document import Arrivals, Breakdown, RankBreakdown
from app.analysis.budget.split import Budget
from app.analysis.diagnosis.earlier_sessions import Computing
from app.analysis.diagnosis.finding import UNKNOWN, FigureData
from app.analysis.diagnosis.headline import Headline, HeadlineKind
from app.analysis.diagnosis.locations import View, Where, Worker
from app.analysis.diagnosis.verdict import Verdict
from app.analysis.json_text import OMITTED
from app.analysis.mitigation.fixes import (
    Balancing,
    Division,
    PlannedCollections,
    PlannedTemplate,
    WithheldTemplate,
)
from app.analysis.mitigation.tensor.session_advice import TensorAdvice
from app.analysis.replay.layout.dense import DroppedStep
from app.analysis.report.coverage import (
    ByCell,
    Clocks,
    CountByCell,
    Coverage,
    Fidelity,
    Interval,
    Numbers,
    PartialByCell,
)
from app.analysis.trace.rank_metadata import NOWHERE, Machine, MovedGpu, Whereabouts

# ---- Parts of a report: why a job is slow, and what helps --------------------------------------


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A cause of the lost time."""

    cause: str
    """Its name, such as ``slow_worker``; ``unknown`` for the remainder."""
    contribution: float | None
    """Its fair share of the lost time, within steps and between them; None where the cause before
    it may be it instead, and has the share of both."""
    cost_s: float | None
    """That share, seconds of a mean step and what passes before it."""
    confidence: float | None
    """How sure it is that this cause holds, 0 to 1; None of ``unknown``."""
    evidence: tuple[str, ...]
    """Sentences."""
    views: tuple[View | None, ...]
    """For each sentence the view of the session's page that shows it."""
    where: Where
    """Its places."""
    figure: FigureData | None
    """The data of its small figure."""
    runner_up: str | None
    """The next best explanation: the name of a cause."""
    between_s: float = field(default=0.0, metadata=OMITTED)
    """The part of `cost_s` that passes between steps; no key where there is none."""


@dataclass(frozen=True, slots=True)
class UnjudgedCause:
    """A cause that the session cannot show."""

    cause: str
    """Its name."""
    reason: str
    """What is missing, in words."""


@dataclass(frozen=True, slots=True)
class DiagnosisSummary:
    """What the diagnosis holds in addition to its causes."""

    ruled_out: tuple[str, ...]
    """Causes whose sign is not there, or that cost next to nothing."""
    cannot_judge: tuple[UnjudgedCause, ...]
    """Causes that the session cannot show."""
    lost_s: float
    """Seconds that a mean step loses, late launches with a cause included; none between steps."""
    slowdown: float
    """Step time ÷ step time without what is lost: S where launches are not late, corrected where
    the ideal contains the straggler."""
    turn_s: float = field(default=0.0, metadata=OMITTED)
    """Seconds that a mean step takes with what passes before it, over steps that follow a recorded
    one; no key where there are none."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A change, and what its replay brings."""

    action: str
    """A code, such as ``replace_worker``."""
    title: str
    """The change in words."""
    predicted_step_time: float
    """Mean step time with it, seconds."""
    predicted_gain: float
    """The share of today's step time that it saves."""
    detail: str
    """How that was replayed."""
    cause: str | None = field(default=None, metadata=OMITTED)
    """The named cause that it removes; None where it is of none."""
    at_most: bool = field(default=False, metadata=OMITTED)
    """Whether the gain is the most that such a change can bring: what is missing to say what it
    will is in `detail`."""
    division: Division | None = field(default=None, metadata=OMITTED)
    """How the layers are to be divided, where that is the change."""
    collections: PlannedCollections | None = field(default=None, metadata=OMITTED)
    """When garbage is to be collected on all workers, where that is the change."""
    balancing: Balancing | None = field(default=None, metadata=OMITTED)
    """How sequences are to be divided over DP ranks and microbatches, where that is the change."""


# ---- Parts of a report: times and slowdowns ----------------------------------------------------


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


SCHEMA: Final = "paceline.report/1"
# Of the fields within the schema: a report that was stored with a lower one is upgraded on reading.
REVISION: Final = 2
# Reports of this and later ones are read: later ones only added fields that may be missing.
OLDEST_REVISION: Final = 2
SECONDS_AN_HOUR: Final = 3600


@dataclass(frozen=True, slots=True)
class JobSizes:
    """How the job is divided."""

    dp: int
    """Data-parallel ranks."""
    pp: int
    """Pipeline stages."""
    tp: int
    """Tensor-parallel ranks."""
    cp: int
    """Context-parallel ranks."""
    vpp: int
    """Virtual stages on each pipeline stage."""
    world: int
    """GPUs of the job."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers: one cell of DP rank and stage each, of which one rank is traced."""

    rank: CountByCell
    """Global rank that was traced, [dp][pp]."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Which training steps the report is about."""

    analyzed: tuple[int, ...]
    """Numbers of the analyzed steps, ascending."""
    dropped: tuple[DroppedStep, ...]
    """Steps that were recorded, but are not complete."""
    odd: tuple[DroppedStep, ...] = field(default=(), metadata=OMITTED)
    """Complete steps that are unlike the others on all ranks, as where they warm up, compile anew
    or come to a profiler's first step one after another: no part of the slowdown and its causes.
    No key where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a session."""

    schema: Literal["paceline.report/1"] = SCHEMA
    """Which document this is."""
    revision: int = REVISION
    """Which fields it has."""
    job: str | None = None
    """Name of the job; None where a file was analyzed."""
    session: str | None = None
    """Id of the session; None where a file was analyzed."""
    trial_name: str | None
    """As the metadata have it."""
    sizes: JobSizes
    """How the job is divided."""
    hosts: dict[int, str]
    """Host of each global rank, as far as the metadata say."""
    gpus: dict[int, str]
    """GPU of each global rank, as far as the metadata say."""
    workers: Workers
    """The workers."""
    steps: Steps
    """Analyzed and dropped steps."""
    coverage: Coverage
    """What arrived and what was repaired."""
    clocks: Clocks
    """How far clocks are apart."""
    fidelity: Fidelity
    """Whether the replay is near enough to the recording."""
    headline: Headline
    """The slowdown that people are shown: against the job without its causes."""
    slowdown: float
    """S."""
    slowdown_ci95: Interval | None
    """Its 95 % interval; None of fewer than 5 steps."""
    waste: float
    """Share of the step time that is lost, 1 - 1/S."""
    waste_ci95: Interval | None
    """Its 95 % interval; None of fewer than 5 steps."""
    gpu_hours_lost: float
    """In the analyzed steps, by all GPUs together."""
    gpu_hours_lost_per_hour: float
    """In each hour of running, by all GPUs together."""
    launch_slowdown: float
    """Mean recorded ÷ mean simulated step time: what late launches cost."""
    launch_by_optype: dict[str, float]
    """What late launches of one operation type add, as a share of the recorded step time. Each is
    replayed alone: delays that hide behind one another count in each."""
    k50: int | None
    """Fewest workers, by exact slowdown, whose idealization brings half of the lost time back; None
    where under 1 % of a step is lost, or no number of workers does."""
    step_times: StepTimes
    """What each step takes."""
    step_slowdown: Numbers
    """Simulated ÷ ideal time of each step."""
    by_optype: dict[str, float]
    """Slowdown if only this operation type kept its recorded durations."""
    waste_by_optype: dict[str, float]
    """The same as a share, 1 - 1/S of the type."""
    by_dp: Numbers
    """Slowdown if only this DP rank kept its recorded durations."""
    by_pp: Numbers
    """Slowdown if only this stage kept its recorded durations."""
    per_step: PerStep
    """The slowdowns of each step."""
    by_worker: ByWorker
    """The slowdowns of each worker."""
    m_w: WorkersRecovery
    """What the slowest 3 % of the workers account for, M_W."""
    m_s: Recovery
    """What the last stage accounts for, M_S; 0 where there is one stage."""
    fb_correlation: Correlation
    """Forward against backward times."""
    causes: tuple[NamedCause, ...]
    """Why the job is slow, the most expensive cause first."""
    diagnosis: DiagnosisSummary
    """What was ruled out, and what cannot be judged."""
    recommendations: tuple[Recommendation, ...]
    """Changes that help, the best one first."""
    template: PlannedTemplate | WithheldTemplate | None
    """A better division of the layers; None where no cause calls for one."""
    verdict: Verdict
    """How slow the job is and why, in a sentence."""
    whereabouts: Whereabouts = field(default=NOWHERE, metadata=OMITTED)
    """More of where ranks run, where the metadata say it."""
    moved: tuple[MovedGpu, ...] = field(default=(), metadata=OMITTED)
    """GPUs that were on other nodes before, those that causes name first."""
    tensor: TensorAdvice | None = field(default=None, metadata=OMITTED)
    """Which work to take off the slow ranks of tensor-parallel groups, where such a rank is a
    cause."""
    budget: Budget | None = field(default=None, metadata=OMITTED)
    """Where the time goes; no key in a report that an older version stored."""
    computing: Computing | None = field(default=None, metadata=OMITTED)
    """What workers compute, which the job's later sessions are held against; no key in a report
    that an older version stored."""
    arrivals: Arrivals | None = field(default=None, metadata=OMITTED)
    """Who comes last at collectives, and who waits; no key where no ranks meet in recorded ones,
    and in reports of earlier versions."""
    breakdown: Breakdown | None = field(default=None, metadata=OMITTED)
    """What a step of each rank passes with; no key in reports of earlier versions."""

    @property
    def lost_gpu_hours(self) -> float:
        """Return what people are told is lost, counted against the headline's reference.

        GPU-hours of all GPUs together in the analyzed steps.
        """
        late = self.headline.kind is HeadlineKind.LAUNCHES
        steps_s = sum(self.step_times.recorded if late else self.step_times.simulated)
        return self.sizes.world * steps_s * self.headline.waste / SECONDS_AN_HOUR

    @property
    def lost_gpu_hours_per_hour(self) -> float:
        """Return the same of each hour of running."""
        return self.sizes.world * self.headline.waste

    @property
    def known_waste(self) -> float | None:
        """Return the share of a step that is known to be lost.

        That of the headline; where the replay supports no verdict, what the named causes take.
        None where no cause is named either.
        """
        if self._headline_holds:
            return self.headline.waste
        return sum(map(self.waste_of, self.causes)) or None

    @property
    def has_verdict(self) -> bool:
        """Return whether it is known how slow the job is: S, or the job without its causes.

        The latter also where only a replay with late launches is near the recording.
        """
        return self.fidelity.verdict or self.headline.kind is HeadlineKind.LAUNCHES

    def waste_of(self, cause: NamedCause) -> float:
        """Return the share of a step that a cause takes; 0 of the unknown without a verdict."""
        between = cause.between_s / self.diagnosis.turn_s if cause.between_s else 0.0
        within_s = (cause.cost_s or 0.0) - cause.between_s
        if self._headline_holds:
            share = within_s / self.diagnosis.lost_s if self.diagnosis.lost_s > 0 else 0.0
            return self.headline.waste * max(0.0, share) + between
        if cause.cause == UNKNOWN:
            return 0.0
        recorded = self.step_times.recorded
        return within_s * len(recorded) / sum(recorded) + between

    @property
    def _headline_holds(self) -> bool:
        """Return whether it is known what the headline is counted against.

        Late launches with a cause are part of the replay without the causes, and not of S.
        """
        return self.fidelity.verdict or self.headline.kind.without_causes

    def breakdown_of_worst(self) -> tuple[RankBreakdown, tuple[RankBreakdown, ...]] | None:
        """Return the breakdown of the rank that others wait for longest, and of its peers.

        Of the rank that computes longest where no ranks meet; its peers are those of its stage.
        None without a breakdown.
        """
        if self.breakdown is None or not self.breakdown.ranks:
            return None
        by_rank = {one.rank: one for one in self.breakdown.ranks}
        one = max(self.breakdown.ranks, key=lambda rank: rank.computing_s)
        if self.arrivals is None:
            met = {
                rank
                for stage in zip(*self.workers.rank, strict=True)
                if one.rank in stage
                for rank in stage
            }
        else:
            recorded = (by_rank[at.rank] for at in self.arrivals.ranks if at.rank in by_rank)
            one = next(recorded, one)
            met = self.arrivals.met_by(one.rank)
        peers = sorted(met & by_rank.keys() - {one.rank})
        return one, tuple(by_rank[rank] for rank in peers)

    def rank_of(self, worker: Worker) -> int:
        """Return the traced rank of a worker."""
        dp, pp = worker
        return self.workers.rank[dp][pp]

    def machine(self, rank: int) -> Machine:
        """Return the machine of a rank."""
        return self.whereabouts.machine(rank, self.hosts, self.gpus)

    def host_of(self, worker: Worker) -> str | None:
        """Return the host of a worker, where it is known."""
        return self.hosts.get(self.rank_of(worker))

    def ranked_workers(self) -> list[tuple[float, int, int]]:
        """Return (slowdown, dp, pp) of every worker, slowest first, then by place."""
        # What is equal stays in order.
        return sorted(self._workers(), key=itemgetter(0), reverse=True)

    def worst_worker(self) -> tuple[float, int, int]:
        """Return the first of these."""
        return max(self._workers(), key=itemgetter(0))

    def _workers(self) -> Iterator[tuple[float, int, int]]:
        """Yield those that were recorded, and missing ones that others waited for."""
        left_out = {one.worker for one in self.coverage.missing if not one.came_last}
        return (
            (value, dp, pp)
            for dp, row in enumerate(self.by_worker.exact)
            for pp, value in enumerate(row)
            if (dp, pp) not in left_out
        )
