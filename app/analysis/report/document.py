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
    Redistribution,
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
    """Name of the cause, such as ``slow_worker``; ``unknown`` for the unexplained remainder."""
    contribution: float | None
    """Fair share of the lost time within and between steps (Shapley value); None for an alternative
    of the previous cause, whose share covers both.
    """
    cost_s: float | None
    """Time lost to the cause in a mean step with the gap before it, seconds."""
    confidence: float | None
    """Confidence that the cause is present, 0 to 1; None for ``unknown``."""
    evidence: tuple[str, ...]
    """Evidence of the cause, as sentences."""
    views: tuple[View | None, ...]
    """View of the session's page that shows the evidence, for each sentence."""
    where: Where
    """Places of the cause in the job."""
    figure: FigureData | None
    """Data of the cause's figure."""
    runner_up: str | None
    """Name of the cause that is the next best explanation."""
    between_s: float = field(default=0.0, metadata=OMITTED)
    """Part of `cost_s` between steps; no key if it is 0."""


@dataclass(frozen=True, slots=True)
class UnjudgedCause:
    """A cause that this session cannot show, with the reason."""

    cause: str
    """Name of the cause."""
    reason: str
    """Reason in words: the data that the session lacks."""


@dataclass(frozen=True, slots=True)
class DiagnosisSummary:
    """Results of the diagnosis other than the named causes."""

    ruled_out: tuple[str, ...]
    """Names of causes without a sign in the data, or with nearly no cost."""
    cannot_judge: tuple[UnjudgedCause, ...]
    """Causes that the session lacks the data to judge."""
    lost_s: float
    """Lost time of a mean step, seconds, with the late launches of causes, without gaps between
    steps.
    """
    slowdown: float
    """Step time ÷ step time without the loss: S if no launches are late, corrected if the ideal
    contains the straggler.
    """
    turn_s: float = field(default=0.0, metadata=OMITTED)
    """Mean time of a step with the gap before it, seconds, over steps that follow a recorded step;
    no key if there are none.
    """


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A fix and its gain predicted by a replay."""

    action: str
    """Stable code of the fix, such as ``replace_worker``."""
    title: str
    """Fix in words."""
    predicted_step_time: float
    """Mean step time with the fix, seconds."""
    predicted_gain: float
    """Share of today's step time that the fix saves."""
    detail: str
    """Description of the replay of the fix."""
    cause: str | None = field(default=None, metadata=OMITTED)
    """Name of the cause that the fix removes; None if it removes none."""
    at_most: bool = field(default=False, metadata=OMITTED)
    """Whether the gain is an upper bound; then `detail` states what is unknown."""
    division: Division | None = field(default=None, metadata=OMITTED)
    """Division of the layers, if this is the fix."""
    collections: PlannedCollections | None = field(default=None, metadata=OMITTED)
    """Steps in which all workers collect garbage, if this is the fix."""
    balancing: Balancing | None = field(default=None, metadata=OMITTED)
    """Division of sequences over DP ranks and microbatches, if this is the fix."""
    redistribution: Redistribution | None = field(default=None, metadata=OMITTED)
    """Numbers of microbatches of the DP ranks, if this is the fix."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The duration of each analyzed step."""

    recorded: Numbers
    """Time from the first start to the last end of each step, seconds."""
    simulated: Numbers
    """Time of each step replayed with the recorded durations and without launch delays, seconds."""
    ideal: Numbers
    """Time of each step replayed with ideal durations, seconds."""


@dataclass(frozen=True, slots=True)
class PerStep:
    """The slowdowns of each analyzed step."""

    by_optype: dict[str, Numbers]
    """Slowdown if only this operation type kept its recorded durations, by type, then by step."""
    by_dp: tuple[Numbers, ...]
    """Slowdown if only this DP rank kept its recorded durations, [dp][step]."""
    by_pp: tuple[Numbers, ...]
    """Slowdown if only this pipeline stage kept its recorded durations, [pp][step]."""
    launch_slowdown: Numbers
    """Recorded ÷ simulated step time of each step."""


@dataclass(frozen=True, slots=True)
class WorstWorker:
    """A worker, its slowdown and the interval of the slowdown."""

    worker: Worker
    """Place of the worker: (DP rank, stage)."""
    slowdown: float
    """Slowdown if only this worker kept its recorded durations."""
    ci95: Interval | None
    """95 % interval of the slowdown; None for fewer than 5 steps."""


@dataclass(frozen=True, slots=True)
class ByWorker:
    """The slowdown of every worker, [dp][pp]."""

    exact: ByCell
    """Slowdown if only this worker kept its recorded durations."""
    approximate: ByCell
    """S_w of the what-if paper: the smaller of the slowdowns of the worker's DP rank and stage."""
    forward_ratio: PartialByCell
    """Mean forward time of each worker ÷ median of its stage's other DP ranks; None with one DP
    rank.
    """
    backward_ratio: PartialByCell
    """Mean backward time of each worker ÷ median of its stage's other DP ranks; None with one DP
    rank.
    """
    worst: tuple[WorstWorker, ...]
    """Slowest workers, the slowest first."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The share of the lost time for which a set of workers accounts (paper, section 5)."""

    rem: float | None
    """Share of the lost time that is recovered if these workers are ideal (attribution by removal);
    None if less than 1 % of a step is lost.
    """
    add: float | None
    """Share of the lost time that remains if only these workers keep their recorded durations
    (attribution by addition).
    """
    ci95: Interval | None
    """95 % interval of `rem`."""
    trem_s: float
    """Mean step time if these workers are ideal, seconds."""
    tadd_s: float
    """Mean step time if all other workers are ideal, seconds."""


@dataclass(frozen=True, slots=True)
class WorkersRecovery(Recovery):
    """The share of the lost time for which the slowest 3 % of the workers account."""

    workers: tuple[Worker, ...]
    """These workers, the slowest first: (DP rank, stage)."""


@dataclass(frozen=True, slots=True)
class RankedRecovery(WorkersRecovery):
    """M_W by two rankings of the workers: by exact slowdown, and by the paper's approximation."""

    published: WorkersRecovery | None = field(default=None, metadata=OMITTED)
    """M_W as the paper computes it: the workers are ranked by `by_worker.approximate`; no key in
    reports of earlier versions.
    """


@dataclass(frozen=True, slots=True)
class CorrelationSample:
    """An even sample of the microbatches of a correlation."""

    forward_s: Numbers
    """Forward time of each sampled microbatch, seconds."""
    backward_s: Numbers
    """Backward time of each sampled microbatch, seconds."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Correlation of forward and backward times over microbatches (paper, section 5.3)."""

    pearson: float | None
    """Pearson's r; None if one of the times does not vary, or for fewer than 3 microbatches."""
    stage: int
    """Stage on which the times were measured: 1, or 0 if the job has one stage."""
    points: int
    """Number of compared microbatches."""
    sample: CorrelationSample
    """Even sample of at most 700 of the compared microbatches."""


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
    """Number of data-parallel ranks."""
    pp: int
    """Number of pipeline stages."""
    tp: int
    """Number of tensor-parallel ranks."""
    cp: int
    """Number of context-parallel ranks."""
    vpp: int
    """Number of virtual stages (model chunks) on each pipeline stage."""
    world: int
    """Number of GPUs of the job."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers of the job, one for each DP rank and stage; one rank of each worker is traced."""

    rank: CountByCell
    """Global rank of each worker that was traced, [dp][pp]."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The training steps that the report covers."""

    analyzed: tuple[int, ...]
    """Numbers of the analyzed steps, ascending."""
    dropped: tuple[DroppedStep, ...]
    """Recorded steps that are not complete."""
    odd: tuple[DroppedStep, ...] = field(default=(), metadata=OMITTED)
    """Complete steps that differ from the other steps on all ranks, such as warm-up, recompilation
    or a profiler's first step; they are not part of the slowdown and its causes. No key if there
    are none.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a session."""

    schema: Literal["paceline.report/1"] = SCHEMA
    """Name and version of the document's schema."""
    revision: int = REVISION
    """Revision of the fields within the schema."""
    job: str | None = None
    """Name of the job; None if a file was analyzed."""
    session: str | None = None
    """Id of the session; None if a file was analyzed."""
    trial_name: str | None
    """Name of the trial in the metadata; None without one."""
    sizes: JobSizes
    """Parallel sizes of the job."""
    hosts: dict[int, str]
    """Host of each global rank, as far as the metadata contain it."""
    gpus: dict[int, str]
    """GPU of each global rank, as far as the metadata contain it."""
    workers: Workers
    """Traced ranks of the workers."""
    steps: Steps
    """Analyzed and excluded steps."""
    coverage: Coverage
    """Received, repaired and excluded parts of the recording."""
    clocks: Clocks
    """Offsets of the ranks' clocks."""
    fidelity: Fidelity
    """Difference between the replay and the recording."""
    headline: Headline
    """Slowdown that users are shown: against the job without its causes."""
    slowdown: float
    """S, the slowdown of the what-if paper: simulated ÷ ideal step time."""
    slowdown_ci95: Interval | None
    """95 % interval of S; None for fewer than 5 steps."""
    waste: float
    """Share of the step time that is lost according to S, 1 - 1/S."""
    waste_ci95: Interval | None
    """95 % interval of `waste`; None for fewer than 5 steps."""
    gpu_hours_lost: float
    """GPU-hours that all GPUs together lose in the analyzed steps."""
    gpu_hours_lost_per_hour: float
    """GPU-hours that all GPUs together lose per hour of the job."""
    launch_slowdown: float
    """Mean recorded ÷ mean simulated step time, the cost of late launches."""
    launch_by_optype: dict[str, float]
    """Cost of late launches by operation type, as a share of the recorded step time. Each type is
    replayed alone, so overlapping delays count in each type.
    """
    k50: int | None
    """Fewest workers, by exact slowdown, that recover half of the lost time if they are ideal; None
    if less than 1 % of a step is lost, or if no number of workers recovers half.
    """
    step_times: StepTimes
    """Recorded, simulated and ideal time of each step."""
    step_slowdown: Numbers
    """Simulated ÷ ideal time of each step."""
    by_optype: dict[str, float]
    """Slowdown by operation type, if only this type kept its recorded durations."""
    waste_by_optype: dict[str, float]
    """Share of the step time lost to each operation type alone, 1 - 1/S of the type."""
    by_dp: Numbers
    """Slowdown by DP rank, if only this rank kept its recorded durations."""
    by_pp: Numbers
    """Slowdown by pipeline stage, if only this stage kept its recorded durations."""
    per_step: PerStep
    """Slowdowns of each step by operation type, DP rank and stage."""
    by_worker: ByWorker
    """Slowdown of each worker."""
    m_w: RankedRecovery
    """M_W of the what-if paper: recovery by the slowest 3 % of the workers, ranked by their exact
    slowdown.
    """
    m_s: Recovery
    """M_S of the what-if paper: recovery by the last stage; 0 with one stage."""
    fb_correlation: Correlation
    """Correlation of forward and backward times."""
    causes: tuple[NamedCause, ...]
    """Causes of the lost time, the most expensive first."""
    diagnosis: DiagnosisSummary
    """Causes that were ruled out or cannot be judged, and the lost time."""
    recommendations: tuple[Recommendation, ...]
    """Changes that make the job faster, the largest gain first."""
    template: PlannedTemplate | WithheldTemplate | None
    """Better division of the layers; None if no cause calls for one."""
    verdict: Verdict
    """Sentence that states how slow the job is, and why."""
    whereabouts: Whereabouts = field(default=NOWHERE, metadata=OMITTED)
    """Further locations of the ranks according to the metadata."""
    moved: tuple[MovedGpu, ...] = field(default=(), metadata=OMITTED)
    """GPUs that were on other nodes before, GPUs that causes name first."""
    tensor: TensorAdvice | None = field(default=None, metadata=OMITTED)
    """Work to take off the slow ranks of tensor-parallel groups, if such a rank is a cause."""
    budget: Budget | None = field(default=None, metadata=OMITTED)
    """Budget of the session's time; no key in reports of earlier versions."""
    computing: Computing | None = field(default=None, metadata=OMITTED)
    """Computing times of the workers, the baseline of the job's later sessions; no key in reports
    of earlier versions.
    """
    arrivals: Arrivals | None = field(default=None, metadata=OMITTED)
    """Late arrivals and waits at collectives; no key if ranks share no recorded collective, and in
    reports of earlier versions.
    """
    breakdown: Breakdown | None = field(default=None, metadata=OMITTED)
    """Breakdown of each rank's step time; no key in reports of earlier versions."""

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

        Without arrivals, return that of the rank that computes longest, and of the ranks of its
        stage. None without a breakdown.
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
