"""The report of a session, ``paceline.report/1``: one class for each object of its JSON.

Fields are keys, in this order; parts of other modules are defined there. The reference
`docs/report.md` is generated from the docstrings. Lists by worker are [dp][pp]; lists by step are
in the order of `Steps.analyzed`. S is the slowdown of the what-if paper (section 3): simulated time
with recorded durations ÷ simulated time with ideal durations.
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


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A cause of the lost time."""

    cause: str
    """Its name, such as ``slow_worker``; ``unknown`` for the remainder."""
    contribution: float | None
    """Its fair share of the lost time, within steps and between them; None for an alternative of
    the cause before it, which has the share of both."""
    cost_s: float | None
    """That share, seconds of a mean step with the gap before it."""
    confidence: float | None
    """Confidence that the cause is present, 0 to 1; None for ``unknown``."""
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
    """The part of `cost_s` between steps; no key where there is none."""


@dataclass(frozen=True, slots=True)
class UnjudgedCause:
    """A cause that this session cannot show, with the reason."""

    cause: str
    """Its name."""
    reason: str
    """What is missing, in words."""


@dataclass(frozen=True, slots=True)
class DiagnosisSummary:
    """Results of the diagnosis other than the causes."""

    ruled_out: tuple[str, ...]
    """Causes without a sign in the data, or with next to no cost."""
    cannot_judge: tuple[UnjudgedCause, ...]
    """Causes that the session cannot show."""
    lost_s: float
    """Lost time of a mean step, seconds, with late launches of causes, without gaps of steps."""
    slowdown: float
    """Step time ÷ step time without the loss: S if no launches are late, corrected where the ideal
    contains the straggler."""
    turn_s: float = field(default=0.0, metadata=OMITTED)
    """Mean step with the gap before it, seconds, of steps that follow a recorded one; no key where
    there are none."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A fix and its gain predicted by a replay."""

    action: str
    """A code, such as ``replace_worker``."""
    title: str
    """The change in words."""
    predicted_step_time: float
    """Mean step time with the fix, seconds."""
    predicted_gain: float
    """The share of today's step time that it saves."""
    detail: str
    """How the fix was replayed."""
    cause: str | None = field(default=None, metadata=OMITTED)
    """The cause that the fix removes; None where it removes none."""
    at_most: bool = field(default=False, metadata=OMITTED)
    """Whether the gain is an upper bound; `detail` then says what is unknown."""
    division: Division | None = field(default=None, metadata=OMITTED)
    """The division of the layers, where that is the fix."""
    collections: PlannedCollections | None = field(default=None, metadata=OMITTED)
    """The steps in which all workers collect garbage, where that is the fix."""
    balancing: Balancing | None = field(default=None, metadata=OMITTED)
    """The division of sequences over DP ranks and microbatches, where that is the fix."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The duration of each analyzed step."""

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
    """A worker, its slowdown and the interval of the slowdown."""

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
    """The smaller one of its DP rank's and its stage's slowdown, S_w of the what-if paper."""
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
    """The share of the lost time for which a set of workers accounts (paper, section 5)."""

    rem: float | None
    """The share of the lost time that an ideal set of workers recovers, the removal attribution;
    None where under 1 % of a step is lost."""
    add: float | None
    """The share of the lost time with only the set as recorded, the addition attribution."""
    ci95: Interval | None
    """95 % interval of `rem`."""
    trem_s: float
    """Mean step time with the set ideal, seconds."""
    tadd_s: float
    """Mean step time with all but the set ideal, seconds."""


@dataclass(frozen=True, slots=True)
class WorkersRecovery(Recovery):
    """The share of the lost time for which the slowest 3 % of the workers account."""

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
    """Correlation of forward and backward times over microbatches (paper, section 5.3)."""

    pearson: float | None
    """Pearson's r; None where one of them does not vary or there are under 3 microbatches."""
    stage: int
    """Where it was measured: stage 1, or 0 where there is no other."""
    points: int
    """Microbatches that were compared."""
    sample: CorrelationSample
    """At most 700 of them."""


SCHEMA: Final = "paceline.report/1"
# Revision of the fields within the schema; reports of a lower revision are upgraded on reading.
REVISION: Final = 2
# Lowest readable revision: later revisions only added fields that may be missing.
OLDEST_REVISION: Final = 2
SECONDS_AN_HOUR: Final = 3600


@dataclass(frozen=True, slots=True)
class JobSizes:
    """The sizes of the job: its parallel dimensions and world size."""

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
    """The workers: one for each DP rank and stage; one rank of each worker is traced."""

    rank: CountByCell
    """Global rank that was traced, [dp][pp]."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The training steps that the report covers."""

    analyzed: tuple[int, ...]
    """Numbers of the analyzed steps, ascending."""
    dropped: tuple[DroppedStep, ...]
    """Steps that were recorded, but are not complete."""
    odd: tuple[DroppedStep, ...] = field(default=(), metadata=OMITTED)
    """Complete steps that differ from the others on all ranks, such as warm-up, recompilation or a
    profiler's first step: not part of the slowdown and its causes. No key where there are none."""


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
    """What was received and repaired."""
    clocks: Clocks
    """Offsets of the clocks."""
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
    """Mean recorded ÷ mean simulated step time, the cost of late launches."""
    launch_by_optype: dict[str, float]
    """Cost of one type's late launches, as a share of the recorded step time. Each type is replayed
    alone, so overlapping delays count in each."""
    k50: int | None
    """Fewest workers, by exact slowdown, whose idealization recovers half of the lost time; None
    where under 1 % of a step is lost, or no number of workers does."""
    step_times: StepTimes
    """The time of each step."""
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
    """Recovery by the slowest 3 % of the workers, M_W."""
    m_s: Recovery
    """Recovery by the last stage, M_S; 0 where there is one stage."""
    fb_correlation: Correlation
    """Forward against backward times."""
    causes: tuple[NamedCause, ...]
    """Why the job is slow, the most expensive cause first."""
    diagnosis: DiagnosisSummary
    """The causes that were ruled out or cannot be judged, and the loss."""
    recommendations: tuple[Recommendation, ...]
    """Changes that help, the best one first."""
    template: PlannedTemplate | WithheldTemplate | None
    """A better division of the layers; None where no cause needs one."""
    verdict: Verdict
    """How slow the job is and why, in a sentence."""
    whereabouts: Whereabouts = field(default=NOWHERE, metadata=OMITTED)
    """Further locations of the ranks in the metadata."""
    moved: tuple[MovedGpu, ...] = field(default=(), metadata=OMITTED)
    """GPUs that were on other nodes before; first, those that causes name."""
    tensor: TensorAdvice | None = field(default=None, metadata=OMITTED)
    """Which work to take off the slow ranks of tensor-parallel groups, where such a rank is a
    cause."""
    budget: Budget | None = field(default=None, metadata=OMITTED)
    """Budget of the time; no key in reports of earlier versions."""
    computing: Computing | None = field(default=None, metadata=OMITTED)
    """Computing times of the workers, the baseline of the job's later sessions; no key in reports
    of earlier versions."""
    arrivals: Arrivals | None = field(default=None, metadata=OMITTED)
    """Last arrivals and waits at collectives; no key where no ranks meet in recorded ones, and in
    reports of earlier versions."""
    breakdown: Breakdown | None = field(default=None, metadata=OMITTED)
    """Breakdown of each rank's step; no key in reports of earlier versions."""

    @property
    def lost_gpu_hours(self) -> float:
        """Return the loss against the headline's reference, in GPU-hours of all GPUs.

        The loss is the sum over the analyzed steps.
        """
        late = self.headline.kind is HeadlineKind.LAUNCHES
        steps_s = sum(self.step_times.recorded if late else self.step_times.simulated)
        return self.sizes.world * steps_s * self.headline.waste / SECONDS_AN_HOUR

    @property
    def lost_gpu_hours_per_hour(self) -> float:
        """Return the loss against the headline's reference, in GPU-hours per hour of the job."""
        return self.sizes.world * self.headline.waste

    @property
    def known_waste(self) -> float | None:
        """Return the known loss as a share of a step.

        This is the headline's loss; without a verdict, the share of the named causes. None if no
        cause is named either.
        """
        if self._headline_holds:
            return self.headline.waste
        return sum(map(self.waste_of, self.causes)) or None

    @property
    def has_verdict(self) -> bool:
        """Return whether the slowdown is known, against the ideal or the job without its causes.

        The slowdown against the job without its causes is also known if only a replay with late
        launches is near the recording.
        """
        return self.fidelity.verdict or self.headline.kind is HeadlineKind.LAUNCHES

    def waste_of(self, cause: NamedCause) -> float:
        """Return the share of a step that a cause loses; 0 for ``unknown`` without a verdict."""
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
        """Return whether the step time of the headline's reference is known.

        The replay without the causes contains late launches; the ideal of S does not.
        """
        return self.fidelity.verdict or self.headline.kind.without_causes

    def breakdown_of_worst(self) -> tuple[RankBreakdown, tuple[RankBreakdown, ...]] | None:
        """Return the breakdown of the rank that others wait for longest, and of its peers.

        Without arrivals, it is the breakdown of the rank that computes longest, and of the ranks of
        its stage. None without a breakdown.
        """
        if self.breakdown is None or not self.breakdown.ranks:
            return None
        by_rank = {item.rank: item for item in self.breakdown.ranks}
        worst = max(self.breakdown.ranks, key=lambda item: item.computing_s)
        if self.arrivals is None:
            met = {
                rank
                for stage in zip(*self.workers.rank, strict=True)
                if worst.rank in stage
                for rank in stage
            }
        else:
            recorded = (by_rank[at.rank] for at in self.arrivals.ranks if at.rank in by_rank)
            worst = next(recorded, worst)
            met = self.arrivals.met_by(worst.rank)
        peers = sorted(met & by_rank.keys() - {worst.rank})
        return worst, tuple(by_rank[rank] for rank in peers)

    def rank_of(self, worker: Worker) -> int:
        """Return the traced rank of a worker."""
        dp, pp = worker
        return self.workers.rank[dp][pp]

    def machine(self, rank: int) -> Machine:
        """Return the machine on which a rank runs."""
        return self.whereabouts.machine(rank, self.hosts, self.gpus)

    def host_of(self, worker: Worker) -> str | None:
        """Return the host of a worker; None if unknown."""
        return self.hosts.get(self.rank_of(worker))

    def ranked_workers(self) -> list[tuple[float, int, int]]:
        """Return (slowdown, dp, pp) of every worker, slowest first; equal slowdowns by (dp, pp)."""
        # A stable sort keeps workers of equal slowdown in the order of (dp, pp).
        return sorted(self._workers(), key=itemgetter(0), reverse=True)

    def worst_worker(self) -> tuple[float, int, int]:
        """Return (slowdown, dp, pp) of the slowest worker."""
        return max(self._workers(), key=itemgetter(0))

    def _workers(self) -> Iterator[tuple[float, int, int]]:
        """Yield (slowdown, dp, pp) of recorded workers, and of missing workers that came last."""
        left_out = {item.worker for item in self.coverage.missing if not item.came_last}
        return (
            (value, dp, pp)
            for dp, row in enumerate(self.by_worker.exact)
            for pp, value in enumerate(row)
            if (dp, pp) not in left_out
        )
