"""A training job of several processes that wait for each other and produce garbage."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Barrier
from typing import Any

from paceline_client import PlannedGC

WAIT_S = 60


@dataclass
class RankLog:
    """The garbage collections of a rank.

    Parameters
    ----------
    automatic : list of int
        Steps in which Python collected automatically.
    planned : list of (step, objects found)
    every : int or None
        The interval at the end.
    most_objects : int
        Maximum number of containers that waited for a collection.
    enabled_again : bool
        Whether automatic collection is on after the job.
    """

    automatic: list[int] = field(default_factory=list)
    planned: list[tuple[int, int]] = field(default_factory=list)
    every: int | None = None
    most_objects: int = 0
    enabled_again: bool = False


def leave_garbage(rings: int) -> None:
    """Create reference cycles, which only the garbage collector frees."""
    for _ in range(rings):
        ring: list[object] = []
        ring.append([ring])


def train(
    rank: int, steps: int, rings: int, barrier: Barrier, settings: dict[str, Any] | None
) -> RankLog:
    """Run a rank; `settings` are those of `PlannedGC`, None without planned collections."""
    log, step = RankLog(), 0
    ours = False

    def watch(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and not ours:
            log.automatic.append(step)

    plan = None if settings is None else PlannedGC(**settings)
    if plan is not None:
        plan.start()
    gc.callbacks.append(watch)
    try:
        for step in range(1, steps + 1):
            leave_garbage(rings * (1 + rank))
            log.most_objects = max(log.most_objects, gc.get_count()[0])
            if plan is not None:
                ours = True
                if plan.step(step) and plan.last is not None:
                    log.planned.append((step, plan.last.found))
                ours = False
            barrier.wait(WAIT_S)
    finally:
        gc.callbacks.remove(watch)
    if plan is not None:
        plan.stop()
        log.every = plan.every
    log.enabled_again = gc.isenabled()
    return log


def _least(shared: SynchronizedArray[int], rank: int, barrier: Barrier, own: int) -> int:
    """Return the least interval of all ranks."""
    shared[rank] = own
    barrier.wait(WAIT_S)
    return min(shared[:])


def _rank(  # noqa: PLR0917 - a process's arguments
    rank: int,
    steps: int,
    rings: int,
    barrier: Barrier,
    shared: SynchronizedArray[int],
    settings: dict[str, Any] | None,
    results: Any,  # noqa: ANN401 - a queue has no type that can be named here
) -> None:
    if settings is not None and settings.get("every") is None:
        settings = settings | {"agree": lambda own: _least(shared, rank, barrier, own)}
    results.put((rank, train(rank, steps, rings, barrier, settings)))


def run_job(ranks: int, steps: int, rings: int, settings: dict[str, Any] | None) -> list[RankLog]:
    """Run a job of several processes; rank r produces r + 1 times as much garbage as rank 0."""
    context = get_context("spawn")
    barrier, results = context.Barrier(ranks), context.Queue()
    shared = context.Array("i", ranks)
    processes = [
        context.Process(target=_rank, args=(r, steps, rings, barrier, shared, settings, results))
        for r in range(ranks)
    ]
    for process in processes:
        process.start()
    logs = dict(results.get(timeout=WAIT_S) for _ in processes)
    for process in processes:
        process.join(WAIT_S)
    return [logs[rank] for rank in range(ranks)]
