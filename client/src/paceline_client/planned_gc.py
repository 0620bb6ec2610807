"""Collect garbage on all ranks in the same steps, and at no other time.

Python collects garbage in each process at a different time, and the other ranks wait for the paused
one. If all ranks pause together, they lose one pause only:

    with PlannedGC(every=50) as collections:
        for step in range(steps):
            train(step)
            collections.step(step)

Every rank calls `step` once per step, at the same place, with the number of the step, so ranks
collect in the same steps without communication. Without `every`, the longest interval is used with
which the heap of the first steps grows by at most `max_growth_bytes`. Ranks can differ in this, so
`agree` lets them use the shortest of their intervals:

    def agree(every):  # with PyTorch, on every rank
        least = torch.tensor([every])
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
        return int(least)

(Paper: "Understanding Stragglers in Large Model Training Using What-if Analysis", section 5.4.)
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["Collection", "HeapGrowth", "PlannedGC", "advised_interval"]

_LOG = logging.getLogger("paceline_client")
# Maximum interval in steps; longer intervals have no measurable gain.
MOST_STEPS = 500
# Assumed size in bytes of an object if the system does not report a process's memory.
_BYTES_OF_AN_OBJECT = 200
# A heap whose growth exceeds the planned growth by this factor is collected at once.
_BEYOND = 2.0


@dataclass(frozen=True)
class HeapGrowth:
    """Growth of the heap per step."""

    objects: float  # containers
    bytes: float  # memory of the process


@dataclass(frozen=True)
class Collection:
    """A garbage collection."""

    step: int  # after which it ran
    start_ns: int  # by `time.time_ns`
    duration_ns: int  # of the pause
    found: int  # unreachable objects
    planned: bool  # on all ranks; False if only this rank collected, because its heap grew too much


def advised_interval(
    growth: HeapGrowth, *, max_growth_bytes: int = 1 << 30, most: int = MOST_STEPS
) -> int:
    """Return the interval in steps such that the heap grows by `max_growth_bytes` in between.

    Examples
    --------
    >>> advised_interval(HeapGrowth(objects=5_000, bytes=16 * 2**20))
    64
    """
    grown = max(growth.bytes, growth.objects * _BYTES_OF_AN_OBJECT)
    if grown <= 0:
        return most
    return max(1, min(most, int(max_growth_bytes / grown)))


class PlannedGC:
    """Collects garbage at a fixed interval of steps; automatic collection is off meanwhile.

    Parameters
    ----------
    every : int, optional
        Steps between two collections, the same on all ranks. By default `advised_interval` of the
        first `watch` steps.
    max_growth_bytes : int
        Growth of the process between two collections. A rank that grows twice as much collects
        alone and logs a warning.
    agree : callable, optional
        Takes this rank's interval and returns that of all; called once, on every rank in the same
        step.
    watch : int
        Steps whose growth is measured if `every` is not given.
    freeze : bool
        Exclude the objects that exist at the start, such as modules and models, from collections,
        which makes these shorter.
    on_collection : callable, optional
        Receives each `Collection`; a recorder can record it as ``gc``.
    """

    def __init__(  # noqa: PLR0913 - settings
        self,
        every: int | None = None,
        *,
        max_growth_bytes: int = 1 << 30,
        agree: Callable[[int], int] | None = None,
        watch: int = 10,
        freeze: bool = True,
        on_collection: Callable[[Collection], None] | None = None,
    ) -> None:
        if min(1 if every is None else every, max_growth_bytes, watch) < 1:
            raise ValueError("intervals, steps and bytes must be at least 1")
        self.every = every
        self.growth: HeapGrowth | None = None
        self.last: Collection | None = None
        self._max_growth_bytes = max_growth_bytes
        self._agree, self._watch, self._freeze = agree, watch, freeze
        self._on_collection = on_collection
        self._was_enabled = False
        self._running = False
        self._counted = 0
        self._objects = self._bytes = 0

    def __enter__(self) -> PlannedGC:  # noqa: PYI034 - Python 3.10 has no Self
        """Call `start`."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call `stop`."""
        self.stop()

    def start(self) -> PlannedGC:
        """Collect once and switch automatic collection off."""
        if not self._running:
            self._was_enabled, self._running = gc.isenabled(), True
            gc.disable()
            gc.collect()
            if self._freeze:
                gc.freeze()
            self._counted = 0
            self._objects, self._bytes = _heap()
        return self

    def stop(self) -> None:
        """Restore automatic collection."""
        if self._running:
            self._running = False
            if self._freeze:
                gc.unfreeze()
            if self._was_enabled:
                gc.enable()

    def step(self, number: int | None = None) -> bool:
        """End a step; return whether garbage was collected.

        `number` is the number of the step, counted from the start by default; with it, restarted
        ranks collect in the same steps as the others.
        """
        if not self._running:
            return False
        self._counted += 1
        step = self._counted if number is None else number
        if self.every is None:
            if self._counted < self._watch:
                return self._unless_outgrown(step)
            objects, size = _heap()
            self.growth = HeapGrowth(
                objects=max(objects - self._objects, 0) / self._counted,
                bytes=max(size - self._bytes, 0) / self._counted,
            )
            own = advised_interval(self.growth, max_growth_bytes=self._max_growth_bytes)
            self.every = max(1, own if self._agree is None else self._agree(own))
            self._collect(step, planned=True)
            return True
        if step % self.every == 0:
            self._collect(step, planned=True)
            return True
        return self._unless_outgrown(step)

    def _unless_outgrown(self, step: int) -> bool:
        """Collect if the heap has grown beyond the planned growth times `_BEYOND`."""
        grown = (_containers() - self._objects) * _BYTES_OF_AN_OBJECT
        if grown <= _BEYOND * self._max_growth_bytes:
            return False
        _LOG.warning(
            "the heap grew more than planned for collections every %s steps: this rank "
            "collects alone after step %d; use a shorter interval",
            self.every,
            step,
        )
        self._collect(step, planned=False)
        return True

    def _collect(self, step: int, *, planned: bool) -> None:
        start_ns, began_ns = time.time_ns(), time.perf_counter_ns()
        found = gc.collect()
        duration_ns = time.perf_counter_ns() - began_ns
        self._objects, self._bytes = _heap()
        self.last = Collection(step, start_ns, duration_ns, found, planned)
        if self._on_collection is not None:
            self._on_collection(self.last)


def _heap() -> tuple[int, int]:
    """Return the containers allocated since the last collection, and the process's bytes.

    The bytes are 0 if the system does not report the memory of a process.
    """
    containers = _containers()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return containers, pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return containers, 0


def _containers() -> int:
    return gc.get_count()[0]
