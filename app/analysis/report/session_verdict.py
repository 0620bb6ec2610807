"""Verdict of a session: the part of its report for lists, alert rules, costs and messages.

The module also computes the measures for the fleet's figures, after sections 4 and 5 of the what-if
paper.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.analysis.budget.split import WORTH_SAYING, Losses, Shares
from app.analysis.diagnosis.causes.registry import blames_machine
from app.analysis.diagnosis.earlier_sessions import Computing
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.diagnosis.locations import View, Where, Worker
from app.analysis.diagnosis.verdict import Level, lost_between
from app.analysis.report.coverage import Numbers
from app.analysis.report.document import SECONDS_AN_HOUR, JobSizes, NamedCause, Report
from app.analysis.trace.rank_metadata import node_label, short_uuid

# Kinds of operations in figure 5 of the paper, each with its operation types.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "forward computing": ("forward-compute",),
    "backward computing": ("backward-compute",),
    "pipeline transfers": ("forward-pp-comm", "backward-pp-comm"),
    "data-parallel collectives": ("params-all-gather", "grads-reduce-scatter"),
}
QUANTILES: Final = 21  # of a session's steps, enough to draw their distribution
_LONGEST: Final = "seq_length"  # metadata: the longest sequence of the job
_RECORDED: Final = "sequence_lengths"  # metadata: those of the recorded microbatches
_FURTHEST: Final = 2**31


@dataclass(frozen=True, slots=True)
class PaperMeasures:
    """Measures of a session that the figures of the fleet show."""

    # Shares of the loss by removal of the slowest workers (M_W) and of the last stage (M_S); None
    # if less than 1 % of a step is lost.
    m_w: float | None
    m_s: float | None
    fb_correlation: float | None  # Pearson's r of forward and backward times
    context: int | None  # the longest sequence, tokens; None if unknown
    # waste by each kind of `KINDS` alone, as a share of the step time; empty without a verdict
    waste: Mapping[str, float]
    # evenly spaced quantiles of the steps' slowdown ÷ the session's S; empty without a verdict
    steps: tuple[float, ...]
    # M_W as the paper ranks workers; None also in sessions of earlier versions
    m_w_published: float | None = None
    # recorded sequences by length: (shortest length of a class that doubles, number); empty also in
    # sessions of earlier versions
    lengths: tuple[tuple[int, int], ...] = ()


def measures_of(report: Report, metadata: Mapping[str, Any]) -> PaperMeasures:
    """Return a report's measures for the figures of the fleet; the session sent `metadata`."""
    waste: dict[str, float] = {}
    steps: tuple[float, ...] = ()
    if report.fidelity.verdict:
        of = report.waste_by_optype
        waste = {
            kind: sum(max(0.0, of.get(name, 0.0)) for name in names)
            for kind, names in KINDS.items()
        }
        quantiles = np.quantile(np.asarray(report.step_slowdown), np.linspace(0, 1, QUANTILES))
        steps = tuple((quantiles / report.slowdown).tolist())
    return PaperMeasures(
        m_w=report.m_w.rem,
        m_s=report.m_s.rem,
        fb_correlation=report.fb_correlation.pearson,
        context=longest_sequence(metadata),
        waste=waste,
        steps=steps,
        lengths=count_lengths(_recorded_lengths(metadata)),
        m_w_published=None if report.m_w.published is None else report.m_w.published.rem,
    )


def longest_sequence(metadata: Mapping[str, Any]) -> int | None:
    """Return the longest sequence in tokens: the stated length, or else the longest recorded.

    Examples
    --------
    >>> longest_sequence({"seq_length": 4096})
    4096
    >>> longest_sequence({"sequence_lengths": {"7": [[[120, 8], [64]]]}})
    120
    >>> longest_sequence({}) is None
    True
    """
    stated = _length(metadata.get(_LONGEST))
    return stated if stated is not None else max(_recorded_lengths(metadata), default=None)


def _recorded_lengths(metadata: Mapping[str, Any]) -> list[int]:
    # Metadata may be nested in any way, so all numbers within count as lengths.
    lengths: list[int] = []
    pending: list[object] = [metadata.get(_RECORDED)]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
        elif (length := _length(value)) is not None:
            lengths.append(length)
    return lengths


def count_lengths(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the numbers of sequences in classes of doubling length: (shortest length, number).

    Examples
    --------
    >>> count_lengths([120, 100, 8])
    ((8, 1), (64, 2))
    """
    if not len(lengths):
        return ()
    # The logarithm of a 32-bit integer is exact enough to be rounded down.
    exponents, counts = np.unique(
        np.floor(np.log2(np.asarray(lengths, dtype=float))).astype(int), return_counts=True
    )
    return tuple(zip((1 << exponents).tolist(), counts.tolist(), strict=True))


def _length(value: object) -> int | None:
    """Return a value as a length in tokens; None if the value is no length."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 < value < _FURTHEST else None


# Highest numbers of workers, causes, steps and places that a verdict keeps; the report has all.
WORST_WORKERS: Final = 3
CAUSES: Final = 5
STEPS: Final = 64
PLACES: Final = 16  # workers or hosts of a cause


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The slowdown of a session and its cost."""

    slowdown: float
    ci95: tuple[float, float] | None
    """95 % interval of the slowdown; None if unknown."""
    gpu_hours_lost: float
    """GPU-hours that all ranks together lose in the analyzed steps."""
    kind: HeadlineKind
    """Reference of the slowdown: the job without its causes (also if late launches withhold S), or
    the ideal of S.
    """

    @property
    def waste(self) -> float:
        """Return the share of a step that is lost."""
        return 1 - 1 / self.slowdown


@dataclass(frozen=True, slots=True)
class KnownLoss:
    """Cost of the named causes, which is a lower bound of the loss if there is no verdict."""

    waste: float
    """Share of a recorded step that the named causes lose."""
    gpu_hours_lost: float
    """GPU-hours that all ranks together lose in the analyzed steps."""

    @property
    def slowdown(self) -> float:
        """Return the recorded step time ÷ the step time without the causes."""
        return 1 / (1 - self.waste)


@dataclass(frozen=True, slots=True)
class BlamedGpu:
    """A GPU at fault, or the traced GPU of a worker of several GPUs.

    Examples
    --------
    >>> BlamedGpu(35, "node-4", "3").words
    'node-4 GPU 3 (rank 35)'
    >>> BlamedGpu(80, "node-10", "0", one_of=8).words
    'node-10: one of 8 GPUs (only rank 80 is traced)'
    >>> BlamedGpu(3, "node-4", "3", uuid="GPU-5a3f1c2e-0000", moved_from="node-9").words
    'node-4 GPU 3 (GPU-5a3f1c2e…, rank 3, moved from node-9)'
    """

    rank: int
    """Global rank of the GPU at fault, or the traced rank of its worker."""
    host: str | None
    """Host of the rank; None if unknown."""
    gpu: str | None
    """GPU as the metadata name it; None if they do not."""
    one_of: int = 1
    """Number of GPUs of the worker that may be at fault; 1 if it is this GPU."""
    guessed: bool = False
    """Whether the host's name may be that of a container."""
    uuid: str | None = None
    """UUID of the GPU; None if unknown, or if any of several GPUs may be at fault."""
    pci: str | None = None
    """PCI address of the GPU; None if unknown, or if any of several GPUs may be at fault."""
    pod: str | None = None
    """Pod of the rank."""
    local_rank: int | None = None
    """Number of the rank on its node."""
    moved_from: str | None = None
    """Node on which the GPU was in earlier sessions, if it was another node."""

    @property
    def host_words(self) -> str:
        """Return the words for the GPU's host; empty if unknown."""
        return node_label(self.host, guessed=self.guessed) if self.host else ""

    @property
    def gpu_words(self) -> str:
        """Return the words for the GPU's number on its host; empty if unknown."""
        return _gpu_words(self.gpu, self.one_of)

    @property
    def rank_words(self) -> str:
        """Return the words for the rank, the UUID of its GPU, its pod and its earlier node."""
        pod = "" if self.pod is None else f"pod {self.pod}"
        if self.one_of > 1:
            return ", ".join(filter(None, (f"only rank {self.rank} is traced", pod)))
        uuid = "" if self.uuid == self.gpu else short_uuid(self.uuid)
        moved = "" if self.moved_from is None else f"moved from {self.moved_from}"
        return ", ".join(filter(None, (uuid, f"rank {self.rank}", pod, moved)))

    @property
    def words(self) -> str:
        """Return the words for host, GPU and rank, as far as known."""
        joint = ": " if self.one_of > 1 else " "
        where = joint.join(filter(None, (self.host_words, self.gpu_words)))
        return f"{where} ({self.rank_words})" if where else self.rank_words


@dataclass(frozen=True, slots=True)
class SuspectedCause:
    """A cause, in the form that alert rules compare and messages name."""

    cause: str  # as in the report: ``slow_worker``, ``stage_imbalance``…
    # Hosts, workers or stages at fault, the worst first; empty for a cause without a place, and for
    # a cause of the job itself, whose affected workers change.
    where: tuple[str, ...] = ()
    # confidence, contribution: shares, 0 to 1; None if the report does not contain them
    confidence: float | None = None
    contribution: float | None = None
    evidence: tuple[str, ...] = ()  # sentences
    # GPUs of the workers at fault, the worst first; at most `PLACES`
    gpus: tuple[BlamedGpu, ...] = ()


@dataclass(frozen=True, slots=True)
class VerdictCause(SuspectedCause):
    """A `NamedCause` without its figure's data."""

    cost_s: float | None = None
    views: tuple[View | None, ...] = ()
    place: Where = Where()  # noqa: RUF009 - frozen
    runner_up: str | None = None
    host: str | None = None
    """Host of the first GPU of `gpus`."""


@dataclass(frozen=True, slots=True)
class VerdictWorker:
    """A worker (DP rank and stage), its host if known, and its own slowdown."""

    dp: int
    pp: int
    host: str | None
    slowdown: float
    guessed: bool = False
    """Whether the host's name may be that of a container."""


@dataclass(frozen=True, slots=True)
class VerdictFix:
    """The best recommendation; `gain` is the share of the step time that it is predicted to save.

    If `at_most` is set, `gain` is an upper bound.
    """

    title: str
    gain: float
    step_time_s: float | None
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class SessionVerdict:
    """The verdict of a session, used in all places except the session's own page."""

    sentence: str
    level: Level
    sizes: JobSizes
    discrepancy: float
    """|recorded ÷ replayed step time - 1|."""
    headline: Slowdown | None
    """Slowdown that users are shown; None without a verdict."""
    published: Slowdown | None
    """S; None if S is withheld, also if only a replay with late launches is valid."""
    step_time_s: float | None
    """Median recorded step time, seconds; None without a verdict."""
    measured_s: float | None
    """Total duration of the analyzed steps, seconds; None if no loss is known."""
    causes: tuple[VerdictCause, ...]
    """Causes of the lost time, the most expensive first."""
    lost_by_cause: Mapping[str, float]
    """GPU-hours lost to each cause per hour of the job; the losses of causes may overlap."""
    worst: tuple[VerdictWorker, ...]
    """Slowest workers, the slowest first."""
    worst_rank: int
    """Traced rank of the slowest worker."""
    worst_step: int | None
    """Number of the training step with the largest slowdown; None without a verdict."""
    top_optype: str
    """Operation type that costs most."""
    fix: VerdictFix | None
    measures: PaperMeasures
    withheld: KnownLoss | None = None
    """Known loss without a verdict; None with a verdict, or if no cause is named."""
    steps_s: tuple[float, ...] = ()
    """Even sample of recorded step times, seconds; empty without a verdict, and in older documents.
    """
    computing: Computing | None = None
    """Computing times, the baseline of later sessions; None in older documents."""
    shares: Shares | None = None
    """Budget of the session's time; None in older documents."""
    lost_between: float | None = None
    """Share of the time lost between steps, as the sentence states it; None in older documents, and
    if the budget is unknown.
    """

    @property
    def losses(self) -> Losses | None:
        """Return the losses by kind as shares of the time; None if the budget is unknown."""
        if self.shares is None:
            return None
        between = self.lost_between
        return Losses(
            self.shares.stragglers,
            self.shares.between_steps_above if between is None else between,
            self.shares.slow_together,
        )

    @property
    def lost(self) -> float | None:
        """Return the largest known loss, the first loss that the sentence mentions.

        The loss is a share of a step for stragglers, and a share of the time for losses of all
        workers, if worth mentioning. None if unknown.
        """
        shares = [] if self.known is None else [self.known.waste]
        losses = self.losses
        if losses is not None:
            of_all = (losses.between, losses.together)
            shares += [share for share in of_all if share >= WORTH_SAYING]
        return max(shares, default=None)

    @property
    def known(self) -> Slowdown | KnownLoss | None:
        """Return the headline; without a verdict, the loss to the named causes."""
        return self.headline or self.withheld

    @property
    def layout(self) -> str:
        """Return the sizes of the job as a key, as only sessions of equal sizes are compared."""
        sizes = self.sizes
        return f"dp={sizes.dp} pp={sizes.pp} tp={sizes.tp} cp={sizes.cp} vpp={sizes.vpp}"


def verdict_of(report: Report, metadata: Mapping[str, Any]) -> SessionVerdict:
    """Return the verdict of a report; the session sent `metadata`."""
    has_verdict, waste = report.has_verdict, report.known_waste
    trusted = report.fidelity.verdict
    best = max(report.recommendations, key=lambda fix: fix.predicted_gain, default=None)
    lost_by_cause: dict[str, float] = {}
    for cause in report.causes if waste is not None else ():
        cost = report.sizes.world * report.waste_of(cause)
        lost_by_cause[cause.cause] = lost_by_cause.get(cause.cause, 0.0) + cost
    measured_s = sum(report.step_times.recorded)
    _, dp, pp = report.worst_worker()
    shown = report.headline
    slowdowns = report.step_slowdown
    shares = None if report.budget is None else report.budget.shares
    return SessionVerdict(
        sentence=report.verdict.sentence,
        level=report.verdict.level,
        sizes=report.sizes,
        discrepancy=report.fidelity.discrepancy,
        headline=Slowdown(shown.slowdown, shown.ci95, report.lost_gpu_hours, shown.kind)
        if has_verdict
        else None,
        published=Slowdown(
            report.slowdown, report.slowdown_ci95, report.gpu_hours_lost, HeadlineKind.PUBLISHED
        )
        if trusted
        else None,
        step_time_s=statistics.median(report.step_times.recorded) if has_verdict else None,
        measured_s=None if waste is None else measured_s,
        causes=tuple(_cause(report, cause) for cause in report.causes[:CAUSES]),
        lost_by_cause=lost_by_cause,
        worst=tuple(
            VerdictWorker(dp, pp, machine.node, slowdown, machine.guessed)
            for slowdown, dp, pp in report.ranked_workers()[:WORST_WORKERS]
            for machine in [report.machine(report.rank_of((dp, pp)))]
        ),
        worst_rank=report.workers.rank[dp][pp],
        worst_step=report.steps.analyzed[slowdowns.index(max(slowdowns))] if trusted else None,
        top_optype=max(report.by_optype, key=report.by_optype.__getitem__),
        fix=None
        if best is None
        else VerdictFix(best.title, best.predicted_gain, best.predicted_step_time, best.at_most),
        measures=measures_of(report, metadata),
        withheld=None
        if has_verdict or waste is None
        else KnownLoss(waste, report.sizes.world * measured_s * waste / SECONDS_AN_HOUR),
        steps_s=_picked(report.step_times.recorded) if has_verdict else (),
        computing=report.computing,
        shares=shares,
        lost_between=None
        if shares is None
        else lost_between(
            shares, sum(cause.between_s for cause in report.causes), report.diagnosis.turn_s
        ),
    )


def _picked(steps_s: Numbers) -> tuple[float, ...]:
    """Return at most `STEPS` step times, evenly sampled and rounded to microseconds, in seconds."""
    most = min(STEPS, len(steps_s))
    return tuple(round(steps_s[i * len(steps_s) // most], 6) for i in range(most))


def _cause(report: Report, cause: NamedCause) -> VerdictCause:
    gpus = blamed_gpus(report, cause.where)[:PLACES]
    return VerdictCause(
        cause=cause.cause,
        where=_places(report, cause)[:PLACES],
        confidence=cause.confidence,
        contribution=cause.contribution,
        evidence=cause.evidence,
        cost_s=cause.cost_s,
        views=cause.views,
        place=cause.where,
        runner_up=cause.runner_up,
        gpus=gpus,
        host=gpus[0].host if gpus else None,
    )


def _places(report: Report, cause: NamedCause) -> tuple[str, ...]:
    """Return the names of a cause's places: hosts instead of workers, whose hosts may change.

    A cause of the job itself affects other workers in each session, so it has no place.
    """
    where = cause.where
    if where.workers:
        if not blames_machine(cause.cause):
            return ()
        gpus = blamed_gpus(report, where)
        named = (
            gpu.host or f"worker ({dp}, {pp})"
            for gpu, (dp, pp) in zip(gpus, where.workers, strict=False)
        )
        return tuple(dict.fromkeys(named))
    return () if where.stage is None else (f"stage {where.stage}",)


def blamed_gpus(report: Report, where: Where) -> tuple[BlamedGpu, ...]:
    """Return the GPUs of a cause's ranks or workers, the worst first."""
    if where.ranks:
        return tuple(_gpu(report, rank, 1) for rank in where.ranks)
    one_of = gpus_of_worker(report)
    return tuple(_gpu(report, report.rank_of(worker), one_of) for worker in where.workers)


def gpus_of_worker(report: Report) -> int:
    """Return the number of GPUs of a worker: its tensor- and context-parallel ranks."""
    return report.sizes.tp * report.sizes.cp


class GpuOfWorker:
    """The GPU of each worker: the GPU at fault, or the traced GPU of several."""

    def __init__(self, report: Report) -> None:
        self._report, self._one_of = report, gpus_of_worker(report)
        self._at_fault = {
            worker: rank
            for cause in reversed(report.causes)
            for worker, rank in zip(cause.where.workers, cause.where.ranks, strict=False)
        }

    def __call__(self, worker: Worker) -> BlamedGpu:
        """Return the GPU of a worker."""
        return _gpu(self._report, *self._rank(worker))

    def words(self, worker: Worker) -> str:
        """Return the words for a worker's GPU; builds no `BlamedGpu`, as lists have thousands."""
        rank, one_of = self._rank(worker)
        return _gpu_words(self._report.gpus.get(rank), one_of)

    def _rank(self, worker: Worker) -> tuple[int, int]:
        """Return the rank of a worker's GPU, and the number of GPUs of which it may be any."""
        rank = self._at_fault.get(worker)
        return (self._report.rank_of(worker), self._one_of) if rank is None else (rank, 1)


def _gpu_words(gpu: str | None, one_of: int) -> str:
    if one_of > 1:
        return f"one of {one_of} GPUs"
    if gpu is None:
        return ""
    return f"GPU {gpu}" if gpu.isdecimal() else gpu


def _gpu(report: Report, rank: int, one_of: int) -> BlamedGpu:
    at = report.machine(rank)
    mine = one_of == 1
    return BlamedGpu(
        rank,
        at.node,
        at.gpu,
        one_of,
        guessed=at.guessed,
        uuid=at.uuid if mine else None,
        pci=at.pci if mine else None,
        pod=at.pod,
        local_rank=at.local_rank if mine else None,
        moved_from=next((gpu.before for gpu in report.moved if gpu.rank == rank and mine), None),
    )
