"""Verdict kept of a stored report, for lists, rules, costs and messages.

Includes the measures of the figures of sections 4 and 5 of the what-if paper.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
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

# ---- What the figures of a fleet take from a report (the paper, sections 4 and 5) --------------


# Kinds of operations, as the paper's figure 5 has them, and the names that reports use.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "forward computing": ("forward-compute",),
    "backward computing": ("backward-compute",),
    "pipeline transfers": ("forward-pp-comm", "backward-pp-comm"),
    "data-parallel collectives": ("params-all-gather", "grads-reduce-scatter"),
}
# Of a session's steps: enough to draw their distribution, however many there are.
QUANTILES: Final = 21
# Metadata that say how long sequences may be, and how long the recorded ones were.
_LONGEST: Final = "seq_length"
_RECORDED: Final = "sequence_lengths"
_FURTHEST: Final = 2**31


@dataclass(frozen=True, slots=True)
class PaperMeasures:
    """What the figures of a fleet are drawn from."""

    # m_w, m_s: by removal; None where under 1 % of a step is lost
    m_w: float | None
    m_s: float | None
    fb_correlation: float | None  # Pearson's r of forward and backward times
    context: int | None  # the longest sequence, tokens; None where metadata do not say
    # share of the step time that each of `KINDS` wastes alone; empty without a verdict
    waste: Mapping[str, float]
    # evenly spaced quantiles of a step's slowdown ÷ S; empty without a verdict
    steps: tuple[float, ...]


def measures_of(report: Report, metadata: Mapping[str, Any]) -> PaperMeasures:
    """Return what the figures of a fleet take from a report.

    Parameters
    ----------
    metadata : mapping
        Of the session, as it was sent.
    """
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
    )


def longest_sequence(metadata: Mapping[str, Any]) -> int | None:
    """Return how long sequences may be, or else how long the longest recorded one was, tokens.

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
    if stated is not None:
        return stated
    return max(_lengths(metadata.get(_RECORDED)), default=None)


def _lengths(value: object) -> list[int]:
    """Return all lengths in what was recorded, however deep: metadata may hold anything."""
    found: list[int] = []
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping):
            pending.extend(one.values())
        elif isinstance(one, (list, tuple)):
            pending.extend(one)
        elif (length := _length(one)) is not None:
            found.append(length)
    return found


def _length(value: object) -> int | None:
    """Return a length, where a value is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 < value < _FURTHEST else None


# ---- What stays of a report once it is stored: all that lists, rules, costs and messages say of it


# Of each as many are kept as a message has room for.
WORST_WORKERS: Final = 3
CAUSES: Final = 5
STEPS: Final = 64
# A place that many workers share is named by the first ones; the rest is in the report.
PLACES: Final = 16


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How slow a session is, and what that costs."""

    slowdown: float
    ci95: tuple[float, float] | None
    """None where it is not known."""
    gpu_hours_lost: float
    """In the analyzed steps, by all ranks together."""
    kind: HeadlineKind
    """Against the job without its causes (where S is withheld by late launches), or S."""

    @property
    def waste(self) -> float:
        """Return the share of a step that is lost."""
        return 1 - 1 / self.slowdown


@dataclass(frozen=True, slots=True)
class KnownLoss:
    """What the named causes cost where the replay supports no verdict: at least that is lost."""

    waste: float
    """The share of a recorded step."""
    gpu_hours_lost: float
    """In the analyzed steps, by all ranks together."""

    @property
    def slowdown(self) -> float:
        """Return the recorded step time ÷ the same without the causes."""
        return 1 / (1 - self.waste)


@dataclass(frozen=True, slots=True)
class BlamedGpu:
    """A GPU at fault; or a worker of several, of which one is traced.

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
    """Global rank: of the GPU at fault, or the traced one of its worker."""
    host: str | None
    """Of that rank, where it is known."""
    gpu: str | None
    """As the metadata name it, where they do."""
    one_of: int = 1
    """GPUs of the worker that may be at fault; 1 where it is this one."""
    guessed: bool = False
    """Whether the host's name may be that of a container."""
    uuid: str | None = None
    """UUID of the GPU; None also where it is one of several."""
    pci: str | None = None
    """Its PCI address; likewise."""
    pod: str | None = None
    """Pod of the rank."""
    local_rank: int | None = None
    """Number of the rank on its node."""
    moved_from: str | None = None
    """The node on which the GPU was before, where it is another one."""

    @property
    def host_words(self) -> str:
        """Return what is known of the host; empty where that is nothing."""
        return node_label(self.host, guessed=self.guessed) if self.host else ""

    @property
    def gpu_words(self) -> str:
        """Return what is known of the GPU."""
        return _gpu_words(self.gpu, self.one_of)

    @property
    def rank_words(self) -> str:
        """Return the rank, and that it is one of several where it is; and which GPU it has."""
        pod = "" if self.pod is None else f"pod {self.pod}"
        if self.one_of > 1:
            return ", ".join(filter(None, (f"only rank {self.rank} is traced", pod)))
        uuid = "" if self.uuid == self.gpu else short_uuid(self.uuid)
        moved = "" if self.moved_from is None else f"moved from {self.moved_from}"
        return ", ".join(filter(None, (uuid, f"rank {self.rank}", pod, moved)))

    @property
    def words(self) -> str:
        """Return host, GPU and rank, as far as they are known."""
        joint = ": " if self.one_of > 1 else " "
        where = joint.join(filter(None, (self.host_words, self.gpu_words)))
        return f"{where} ({self.rank_words})" if where else self.rank_words


@dataclass(frozen=True, slots=True)
class SuspectedCause:
    """A cause, as a rule compares it and a message names it."""

    cause: str  # as in the report: ``slow_worker``, ``stage_imbalance``…
    # Hosts, workers or stages that are blamed, the worst first; empty where there is no place, or
    # where the cause is the job's own and shows at workers.
    where: tuple[str, ...] = ()
    # confidence, contribution: shares, 0 to 1; None where the report does not say
    confidence: float | None = None
    contribution: float | None = None
    evidence: tuple[str, ...] = ()  # sentences
    # of the workers at fault, the worst first; at most `PLACES`
    gpus: tuple[BlamedGpu, ...] = ()


@dataclass(frozen=True, slots=True)
class VerdictCause(SuspectedCause):
    """A `NamedCause` without the data of its figure."""

    cost_s: float | None = None
    views: tuple[View | None, ...] = ()
    place: Where = Where()  # noqa: RUF009 - frozen
    runner_up: str | None = None
    host: str | None = None
    """Of the first of `gpus`."""


@dataclass(frozen=True, slots=True)
class VerdictWorker:
    """A worker (cell of DP and PP rank), its host where known, and its own slowdown."""

    dp: int
    pp: int
    host: str | None
    slowdown: float
    guessed: bool = False
    """Whether the host's name may be that of a container."""


@dataclass(frozen=True, slots=True)
class VerdictFix:
    """The best recommendation; `gain` is the share of the step time that it is to save.

    With `at_most` it is the most that such a change can.
    """

    title: str
    gain: float
    step_time_s: float | None
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class SessionVerdict:
    """A report, as far as more than its own page needs it."""

    sentence: str
    level: Level
    sizes: JobSizes
    discrepancy: float
    """Of the replay from the recording."""
    headline: Slowdown | None
    """What people are told; None where the replay supports no verdict."""
    published: Slowdown | None
    """S; None where it is withheld, which it also is where late launches alone tell the rest."""
    step_time_s: float | None
    """The median recorded step, seconds; None without a verdict."""
    measured_s: float | None
    """How long the analyzed steps took, seconds; None where no loss is known."""
    causes: tuple[VerdictCause, ...]
    """The leading one first."""
    lost_by_cause: Mapping[str, float]
    """GPU-hours that each cause costs in each hour of running; they may overlap."""
    worst: tuple[VerdictWorker, ...]
    """The slowest first."""
    worst_rank: int
    """The traced rank of the slowest."""
    worst_step: int | None
    """The training step of the largest slowdown; None without a verdict."""
    top_optype: str
    """The operation type that costs most."""
    fix: VerdictFix | None
    measures: PaperMeasures
    withheld: KnownLoss | None = None
    """None with a verdict, and where no cause is named without one."""
    steps_s: tuple[float, ...] = ()
    """Recorded steps, seconds, evenly picked; empty without a verdict, and in older documents."""
    computing: Computing | None = None
    """What later sessions are held against; None in older documents."""
    shares: Shares | None = None
    """Where the time goes; None in older documents."""
    lost_between: float | None = None
    """The share of the time that is lost between steps, as the sentence says it; None where the
    shares are not known, and in older documents: what is above the usual there."""

    @property
    def losses(self) -> Losses | None:
        """Return what of the time is lost to what; None where that is not known."""
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
        """Return the largest share that is known to be lost, to whatever: what is said first.

        That of a step where stragglers lose it; of the time where all workers do, from as much on
        as is worth saying. None where nothing is known.
        """
        known = [] if self.known is None else [self.known.waste]
        losses = self.losses
        if losses is not None:
            of_all = (losses.between, losses.together)
            known += [share for share in of_all if share >= WORTH_SAYING]
        return max(known, default=None)

    @property
    def known(self) -> Slowdown | KnownLoss | None:
        """Return what is known to be lost, with or without a verdict."""
        return self.headline or self.withheld

    @property
    def layout(self) -> str:
        """Return the sizes of the job; sessions of different sizes are not compared."""
        sizes = self.sizes
        return f"dp={sizes.dp} pp={sizes.pp} tp={sizes.tp} cp={sizes.cp} vpp={sizes.vpp}"


def verdict_of(report: Report, metadata: Mapping[str, Any]) -> SessionVerdict:
    """Return what stays of a report.

    Parameters
    ----------
    metadata : mapping
        Of the session, as it was sent.
    """
    known, waste = report.has_verdict, report.known_waste
    trusted = report.fidelity.verdict
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
        if known
        else None,
        published=Slowdown(
            report.slowdown, report.slowdown_ci95, report.gpu_hours_lost, HeadlineKind.PUBLISHED
        )
        if trusted
        else None,
        step_time_s=statistics.median(report.step_times.recorded) if known else None,
        measured_s=None if waste is None else measured_s,
        causes=tuple(_cause(report, cause) for cause in report.causes[:CAUSES]),
        lost_by_cause={} if waste is None else _lost_by_cause(report),
        worst=tuple(
            _worker(report, dp, pp, value)
            for value, dp, pp in report.ranked_workers()[:WORST_WORKERS]
        ),
        worst_rank=report.workers.rank[dp][pp],
        worst_step=report.steps.analyzed[slowdowns.index(max(slowdowns))] if trusted else None,
        top_optype=max(report.by_optype, key=report.by_optype.__getitem__),
        fix=_fix(report),
        measures=measures_of(report, metadata),
        withheld=None
        if known or waste is None
        else KnownLoss(waste, report.sizes.world * measured_s * waste / SECONDS_AN_HOUR),
        steps_s=_picked(report.step_times.recorded) if known else (),
        computing=report.computing,
        shares=shares,
        lost_between=None
        if shares is None
        else lost_between(
            shares, sum(cause.between_s for cause in report.causes), report.diagnosis.turn_s
        ),
    )


def _worker(report: Report, dp: int, pp: int, slowdown: float) -> VerdictWorker:
    machine = report.machine(report.rank_of((dp, pp)))
    return VerdictWorker(dp, pp, machine.node, slowdown, machine.guessed)


def _picked(steps_s: Numbers) -> tuple[float, ...]:
    """Return at most `STEPS` of the steps, evenly picked, to the microsecond."""
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
    """Name hosts rather than workers: the same host is slow in whatever cell it works next.

    What is the job's own shows at other workers in each session, and is one thing all the same.
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


def _lost_by_cause(report: Report) -> dict[str, float]:
    lost: dict[str, float] = {}
    for cause in report.causes:
        cost = report.sizes.world * report.waste_of(cause)
        lost[cause.cause] = lost.get(cause.cause, 0.0) + cost
    return lost


def _fix(report: Report) -> VerdictFix | None:
    best = max(report.recommendations, key=lambda fix: fix.predicted_gain, default=None)
    if best is None:
        return None
    return VerdictFix(best.title, best.predicted_gain, best.predicted_step_time, best.at_most)


def blamed_gpus(report: Report, where: Where) -> tuple[BlamedGpu, ...]:
    """Return the GPUs of a cause's workers, the worst first; nothing where it blames none."""
    if where.ranks:
        return tuple(_gpu(report, rank, 1) for rank in where.ranks)
    one_of = gpus_of_worker(report)
    return tuple(_gpu(report, report.rank_of(worker), one_of) for worker in where.workers)


def gpus_of_worker(report: Report) -> int:
    """Return how many GPUs a worker has: its tensor- and context-parallel ranks."""
    return report.sizes.tp * report.sizes.cp


class GpuOfWorker:
    """Names the GPU of each worker: that at fault, or which of its GPUs is traced."""

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
        """Return what is known of it in words: of thousands at once."""
        rank, one_of = self._rank(worker)
        return _gpu_words(self._report.gpus.get(rank), one_of)

    def _rank(self, worker: Worker) -> tuple[int, int]:
        """Return the rank of a worker's GPU, and of how many it is one."""
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
