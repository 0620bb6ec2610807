"""One sentence: how slow a job is, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from app.analysis.diagnosis.finding import (
    DATA_LOADING,
    FALSE_DEPENDENCY,
    GARBAGE_COLLECTION,
    MEMORY_FRAGMENTATION,
    NETWORK,
    SEQUENCE_LENGTHS,
    SLOW_WORKER,
    STAGE_IMBALANCE,
    TENSOR_PARALLEL,
    UNKNOWN,
    Cause,
)
from app.analysis.diagnosis.places import JobFacts
from app.analysis.replay.metrics import Metrics
from app.analysis.wording import percent

# From this slowdown on a job counts as straggling (paper, section 4).
STRAGGLING: Final = 1.1
# A second cause with this share of the lost time is worth naming in the same sentence.
_BESIDE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Verdict:
    """How slow a job is and why.

    Parameters
    ----------
    sentence : str
    level : ``slow``, ``ok`` or ``none``
        ``none`` where there is no verdict.
    """

    sentence: str
    level: Literal["slow", "ok", "none"]


def verdict(
    job: JobFacts, metrics: Metrics, causes: Sequence[Cause], slowdown: float, limit: float
) -> Verdict:
    """Say in one sentence how slow the job is and why.

    Parameters
    ----------
    job : JobFacts
    metrics : Metrics
    causes : sequence of Cause
    slowdown : float
        As the diagnosis has it; counts where S alone is below the threshold.
    limit : float
        A discrepancy above it withholds the verdict.
    """
    if metrics.discrepancy > limit:
        sentence = (
            "No verdict: the replay differs from the recording by "
            f"{percent(metrics.discrepancy)}, the limit is {percent(limit, 0)}"
        )
        if causes:
            sentence += f"; {_because(job, causes).removeprefix('because ')}"
        return Verdict(sentence, "none")
    shown = metrics.slowdown if metrics.slowdown >= STRAGGLING else slowdown
    if shown < STRAGGLING:
        sentence = f"{metrics.slowdown:.2f}× the ideal step time: no straggler to act on"
        return Verdict(sentence, "ok")
    why = _because(job, causes) if causes else _for_nobody(job)
    return Verdict(f"{shown:.2f}× slower than ideal {why}", "slow")


def _because(job: JobFacts, causes: Sequence[Cause]) -> str:
    first, *rest = causes
    text = _REASONS[first.cause](job, first)
    second = next((cause for cause in rest if cause.cause != UNKNOWN), None)
    if first.cause != UNKNOWN and second and (second.contribution or 0.0) >= _BESIDE:
        text += f", and {_REASONS[second.cause](job, second).removeprefix('because ')}"
    return text


def _slow_worker(job: JobFacts, cause: Cause) -> str:
    workers = cause.where.workers
    dp, pp = workers[0]
    who = job.named(workers[0])
    if len(workers) > 1:
        return f"because {len(workers)} workers are slow, {who} most of all"
    spells = cause.where.spells
    if spells:
        return (
            f"because {who} computes {spells.times:.1f}× slower than its peers in "
            f"{spells.steps} of {spells.of} steps"
        )
    forward, backward = job.forward_ratio[dp][pp], job.backward_ratio[dp][pp]
    if forward is None or backward is None:
        return f"because {who} is slow"
    return f"because {who} computes {(forward + backward) / 2:.1f}× slower than its peers"


def _stage(job: JobFacts, cause: Cause) -> str:
    stage = cause.where.stage
    if stage == job.last_stage:
        return f"because the last stage ({stage}) is heavier than the others"
    return f"because stage {stage} is heavier than the others"


def _network(job: JobFacts, cause: Cause) -> str:
    workers = cause.where.workers
    if not workers:
        return f"because the network of stage {cause.where.stage} is slow"
    if len(workers) > 1:
        return f"because the network links of {len(workers)} workers are slow"
    return f"because the network link of {job.named(workers[0])} is slow"


def _tensor_rank(job: JobFacts, cause: Cause) -> str:
    rank, (dp, pp) = cause.where.ranks[0], cause.where.workers[0]
    return (
        f"because rank {rank}{job.on(rank)} keeps its tensor-parallel group at ({dp}, {pp}) waiting"
    )


def _fragmentation(job: JobFacts, cause: Cause) -> str:
    who = job.named(cause.where.workers[0])
    return f"because ranks of {who} launch late by turns, as with fragmented memory"


def _sequences(job: JobFacts, cause: Cause) -> str:
    del job, cause
    return "because microbatches differ in length, on all workers alike"


def _pauses(job: JobFacts, cause: Cause) -> str:
    del job, cause
    return "because forwards stall on random workers, as with garbage collection"


def _kernels(job: JobFacts, cause: Cause) -> str:
    del job, cause
    return "because computations wait for reduce-scatters that they do not need"


def _data(job: JobFacts, cause: Cause) -> str:
    del job, cause
    return "because steps wait for their data"


def _unknown(job: JobFacts, cause: Cause) -> str:
    del cause
    return _for_nobody(job)


def _for_nobody(job: JobFacts) -> str:
    name = max(job.by_optype, key=job.by_optype.__getitem__)
    return f"for no single worker or stage; {name} costs most"


_REASONS: Final[Mapping[str, Callable[[JobFacts, Cause], str]]] = {
    SLOW_WORKER: _slow_worker,
    STAGE_IMBALANCE: _stage,
    SEQUENCE_LENGTHS: _sequences,
    GARBAGE_COLLECTION: _pauses,
    MEMORY_FRAGMENTATION: _fragmentation,
    FALSE_DEPENDENCY: _kernels,
    NETWORK: _network,
    DATA_LOADING: _data,
    TENSOR_PARALLEL: _tensor_rank,
    UNKNOWN: _unknown,
}
