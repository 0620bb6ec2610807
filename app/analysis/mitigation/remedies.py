"""For each named cause the change that removes it: what its diagnosis has replayed already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from app.analysis.diagnosis.figures import Stalls
from app.analysis.diagnosis.finding import (
    DATA_LOADING,
    FALSE_DEPENDENCY,
    GARBAGE_COLLECTION,
    MEMORY_FRAGMENTATION,
    NETWORK,
    SEQUENCE_LENGTHS,
    TENSOR_PARALLEL,
    Cause,
)
from app.analysis.diagnosis.places import Worker
from app.analysis.mitigation.fix import Fix, named
from app.analysis.wording import percent


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where ranks run, as far as that is known.

    Parameters
    ----------
    of_rank : mapping of int to str
    ranks : nested sequence of int
        The traced rank of each worker, [dp][pp].
    """

    of_rank: Mapping[int, str]
    ranks: Sequence[Sequence[int]]

    def on(self, rank: int) -> str:
        """Return " on " and the host of a rank, or nothing."""
        host = self.of_rank.get(rank)
        return f" on {host}" if host else ""

    def on_of(self, worker: Worker) -> str:
        """Return the same of a worker."""
        dp, pp = worker
        return self.on(self.ranks[dp][pp])


@dataclass(frozen=True, slots=True)
class _Remedy:
    """A change in words, and time that it adds to a mean step."""

    action: str
    title: str
    detail: str
    adds_s: float = 0.0


def remedies(causes: Sequence[Cause], hosts: Hosts, now_s: float) -> list[Fix]:
    """Return what removes each cause, with what the session replayed without it gains.

    Slow workers and heavy stages are not among them: those are replayed with late launches.
    """
    fixes = []
    for cause in causes:
        describe = _REMEDIES.get(cause.cause)
        if describe is None or cause.saves is None:
            continue
        remedy = describe(cause, hosts)
        gain = cause.saves - remedy.adds_s / now_s
        step_time_s = now_s * (1 - gain)
        fixes.append(Fix(remedy.action, remedy.title, remedy.detail, step_time_s, gain))
    return fixes


def _link(cause: Cause, hosts: Hosts) -> _Remedy:
    workers = cause.where.workers
    if not workers:
        what = f"network of stage {cause.where.stage}"
    elif len(workers) == 1:
        what = f"link of {_worker_named(workers, hosts)}"
    else:
        what = f"links of {_worker_named(workers, hosts)}"
    return _Remedy(
        "repair_link",
        f"Repair the {what}",
        "Replayed with its transfers at the median of their type.",
    )


def _collections(cause: Cause, hosts: Hosts) -> _Remedy:
    """Plan collections as often as a worker stalls now, so that memory does not grow beyond that.

    A common pause lasts as long as that of the slowest worker.
    """
    del hosts
    figure = cast("Stalls", cause.figure)
    steps = len(figure.by_step_s)
    cells = [count for row in figure.by_worker for count in row]
    every = max(1, round(steps * len(cells) / sum(cells)))
    pause_s = figure.longest_s
    often = "in every step" if every == 1 else f"every {every} steps"
    return _Remedy(
        "plan_garbage_collection",
        f"Collect garbage on all workers at once, {often}",
        f"Replayed without the stalls, with one common pause of {pause_s:.2f} s {often}: as often "
        "as a worker stalls now, and as long as the longest stall. Less often, as far as "
        f"memory allows, it saves up to {percent(cause.saves or 0.0)} of a step.",
        pause_s / every,
    )


def _batches(cause: Cause, hosts: Hosts) -> _Remedy:
    del hosts
    dp = cause.where.dp
    return _Remedy(
        "load_ahead",
        "Load batches ahead" if dp is None else f"Load the batches of DP rank {dp} ahead",
        "Replayed with the first operations of each step launched when they may be: its batch is "
        "there before it begins.",
    )


def _lengths(cause: Cause, hosts: Hosts) -> _Remedy:
    del cause, hosts
    return _Remedy(
        "even_microbatches",
        "Even out the sequence lengths of microbatches",
        "Replayed with every microbatch taking the mean time: the most that dividing sequences "
        "better over DP ranks and microbatches can bring.",
    )


def _memory(cause: Cause, hosts: Hosts) -> _Remedy:
    return _Remedy(
        "defragment_memory",
        f"Stop the memory fragmentation of {_worker_named(cause.where.workers, hosts)}",
        "Replayed with no rank waiting for another of its tensor-parallel group. Expandable "
        "segments of the CUDA allocator keep memory in one piece.",
    )


def _kernels(cause: Cause, hosts: Hosts) -> _Remedy:
    del cause, hosts
    return _Remedy(
        "separate_kernels",
        "Keep reduce-scatters from holding up computations",
        "Replayed with computations launched when they may be. A larger "
        "CUDA_DEVICE_MAX_CONNECTIONS can keep the two in different hardware queues.",
    )


def _tensor_rank(cause: Cause, hosts: Hosts) -> _Remedy:
    ranks = cause.where.ranks
    where = hosts.on(ranks[0]) if len(ranks) == 1 else ""
    return _Remedy(
        "replace_rank",
        f"Replace {named('rank', [str(rank) for rank in ranks])}{where}",
        "Replayed with no rank waiting for another of its tensor-parallel group.",
    )


def _worker_named(workers: Sequence[Worker], hosts: Hosts) -> str:
    where = hosts.on_of(workers[0]) if len(workers) == 1 else ""
    return named("worker", [f"({dp}, {pp})" for dp, pp in workers]) + where


_REMEDIES: Final[Mapping[str, Callable[[Cause, Hosts], _Remedy]]] = {
    NETWORK: _link,
    GARBAGE_COLLECTION: _collections,
    DATA_LOADING: _batches,
    SEQUENCE_LENGTHS: _lengths,
    MEMORY_FRAGMENTATION: _memory,
    FALSE_DEPENDENCY: _kernels,
    TENSOR_PARALLEL: _tensor_rank,
}
