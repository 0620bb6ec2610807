"""One sentence: how slow a job is, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

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
from app.analysis.wording import percent

# From this slowdown on a job counts as straggling (paper, section 4).
STRAGGLING: Final = 1.1
# A second cause with this share of the lost time is worth naming in the same sentence.
_BESIDE: Final = 0.25

Document = Mapping[str, Any]


def verdict(document: Document, causes: Sequence[Cause], slowdown: float) -> dict[str, str]:
    """Say in one sentence how slow the job is and why.

    Parameters
    ----------
    document : mapping
        The report so far.
    causes : sequence of Cause
    slowdown : float
        As the diagnosis has it; counts where S alone is below the threshold.

    Returns
    -------
    dict
        ``sentence`` and ``level``: ``slow``, ``ok``, or ``none`` where there is no verdict.
    """
    fidelity = document["fidelity"]
    if not fidelity["verdict"]:
        sentence = (
            "No verdict: the replay differs from the recording by "
            f"{percent(fidelity['discrepancy'])}, the limit is {percent(fidelity['limit'], 0)}"
        )
        if causes:
            sentence += f"; {_because(document, causes).removeprefix('because ')}"
        return {"sentence": sentence, "level": "none"}
    shown = document["slowdown"] if document["slowdown"] >= STRAGGLING else slowdown
    if shown < STRAGGLING:
        return {
            "sentence": f"{document['slowdown']:.2f}× the ideal step time: no straggler to act on",
            "level": "ok",
        }
    why = _because(document, causes) if causes else _for_nobody(document)
    return {"sentence": f"{shown:.2f}× slower than ideal {why}", "level": "slow"}


def _because(document: Document, causes: Sequence[Cause]) -> str:
    first, *rest = causes
    text = _REASONS[first.cause](document, first)
    second = next((cause for cause in rest if cause.cause != UNKNOWN), None)
    if first.cause != UNKNOWN and second and (second.contribution or 0.0) >= _BESIDE:
        text += f", and {_REASONS[second.cause](document, second).removeprefix('because ')}"
    return text


def _slow_worker(document: Document, cause: Cause) -> str:
    workers = cause.where["workers"]
    dp, pp = workers[0]
    who = _named(document, dp, pp)
    if len(workers) > 1:
        return f"because {len(workers)} workers are slow, {who} most of all"
    spells = cause.where.get("spells")
    if spells:
        return (
            f"because {who} computes {spells['times']:.1f}× slower than its peers in "
            f"{spells['steps']} of {spells['of']} steps"
        )
    forward = document["by_worker"]["forward_ratio"][dp][pp]
    backward = document["by_worker"]["backward_ratio"][dp][pp]
    if forward is None or backward is None:
        return f"because {who} is slow"
    return f"because {who} computes {(forward + backward) / 2:.1f}× slower than its peers"


def _stage(document: Document, cause: Cause) -> str:
    stage = cause.where["stage"]
    if stage == document["sizes"]["pp"] - 1:
        return f"because the last stage ({stage}) is heavier than the others"
    return f"because stage {stage} is heavier than the others"


def _network(document: Document, cause: Cause) -> str:
    workers = cause.where.get("workers")
    if not workers:
        return f"because the network of stage {cause.where['stage']} is slow"
    if len(workers) > 1:
        return f"because the network links of {len(workers)} workers are slow"
    return f"because the network link of {_named(document, *workers[0])} is slow"


def _tensor_rank(document: Document, cause: Cause) -> str:
    rank, (dp, pp) = cause.where["ranks"][0], cause.where["workers"][0]
    host = document["hosts"].get(str(rank))
    who = f"rank {rank}" + (f" on {host}" if host else "")
    return f"because {who} keeps its tensor-parallel group at ({dp}, {pp}) waiting"


def _fragmentation(document: Document, cause: Cause) -> str:
    who = _named(document, *cause.where["workers"][0])
    return f"because ranks of {who} launch late by turns, as with fragmented memory"


def _sequences(document: Document, cause: Cause) -> str:
    del document, cause
    return "because microbatches differ in length, on all workers alike"


def _pauses(document: Document, cause: Cause) -> str:
    del document, cause
    return "because forwards stall on random workers, as with garbage collection"


def _kernels(document: Document, cause: Cause) -> str:
    del document, cause
    return "because computations wait for reduce-scatters that they do not need"


def _data(document: Document, cause: Cause) -> str:
    del document, cause
    return "because steps wait for their data"


def _unknown(document: Document, cause: Cause) -> str:
    del cause
    return _for_nobody(document)


def _for_nobody(document: Document) -> str:
    by_type = document["by_optype"]
    name = max(by_type, key=by_type.__getitem__)
    return f"for no single worker or stage; {name} costs most"


def _named(document: Document, dp: int, pp: int) -> str:
    host = document["hosts"].get(str(document["workers"]["rank"][dp][pp]))
    return f"worker ({dp}, {pp})" + (f" on {host}" if host else "")


_REASONS: Final[Mapping[str, Callable[[Document, Cause], str]]] = {
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
