"""Collect garbage on all ranks in the same steps, and nowhere else.

Python collects garbage when it likes, each process at another time, and while one is paused the
others wait for it. Paused together they lose as much as one:

    with PlannedGC(every=50) as collections:
        for step in range(steps):
            train(step)
            collections.step(step)

Every rank calls `step` once a step, at the same place, with the number of the step: ranks that
count alike collect alike, without a word between them. How rarely collections may come depends on
what a job leaves behind. Without `every` the first steps are watched, and the rarest interval is
taken with which the heap grows by no more than `max_growth_bytes`; ranks may leave differently much
behind, so `agree` lets them take the least of what each would:

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
# Rarer collections than this bring nothing that anybody could measure.
MOST_STEPS = 500
# Where the system does not tell a process's memory, an object counts as this number of bytes.
_BYTES_OF_AN_OBJECT = 200
# A heap that outgrows its allowance by so much is collected at once.
_BEYOND = 2.0


@dataclass(frozen=True)
class HeapGrowth:
    """What a step leaves behind for the collector."""

    objects: float  # containers
    bytes: float  # memory of the process


@dataclass(frozen=True)
class Collection:
    """One collection."""

    step: int  # after which it came
    # start_ns, duration_ns: when, on the clock of `time.time_ns`, and for how long the process
    # was paused
    start_ns: int
    duration_ns: int
    found: int  # unreachable objects
    # Whether all ranks made it, and not this one for itself because its heap outgrew all plans.
    planned: bool


def advised_interval(
    growth: HeapGrowth, *, max_growth_bytes: int = 1 << 30, most: int = MOST_STEPS
) -> int:
    """Return every how many steps garbage should be collected.

    Parameters
    ----------
    growth : HeapGrowth
        What a step leaves behind.
    max_growth_bytes : int
        How much larger a process may become between two collections.
    most : int
        The largest interval.

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
    """Collects garbage at a fixed interval of steps, and keeps Python from doing so by itself.

    Parameters
    ----------
    every : int, optional
        Steps between two collections, the same on all ranks. By default what `advised_interval`
        says of the first `watch` steps.
    max_growth_bytes : int
        How much larger a process may become between two collections. One that becomes twice as
        much larger collects by itself, and warns: it may leave less behind elsewhere.
    agree : callable, optional
        Given this rank's interval returns that of all. Called once, on every rank in the same step.
    watch : int
        Steps that are watched where `every` is not given.
    freeze : bool
        Whether what is there at the start is never looked at again: modules and models live as
        long as the process, and collections become shorter.
    on_collection : callable, optional
        Is given each `Collection`; a recorder can write it down as ``gc``.

    Raises
    ------
    ValueError
        A number is below 1.
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
            raise ValueError("intervals, steps and bytes are at least 1")
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
        """Start."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def start(self) -> PlannedGC:
        """Collect once and keep Python from collecting by itself from now on."""
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
        """Let Python collect as it did before."""
        if self._running:
            self._running = False
            if self._freeze:
                gc.unfreeze()
            if self._was_enabled:
                gc.enable()

    def step(self, number: int | None = None) -> bool:
        """Say that a step is over; return whether garbage was collected.

        Parameters
        ----------
        number : int, optional
            Of the step, which decides: ranks that were restarted keep in time with the others. By
            default steps are counted since the start.
        """
        if not self._running:
            return False
        self._counted += 1
        step = self._counted if number is None else number
        if self.every is None:
            if self._counted < self._watch:
                return self._unless_outgrown(step)
            self._advise()
            self._collect(step, planned=True)
            return True
        if step % self.every == 0:
            self._collect(step, planned=True)
            return True
        return self._unless_outgrown(step)

    def _advise(self) -> None:
        objects, size = _heap()
        self.growth = HeapGrowth(
            objects=max(objects - self._objects, 0) / self._counted,
            bytes=max(size - self._bytes, 0) / self._counted,
        )
        own = advised_interval(self.growth, max_growth_bytes=self._max_growth_bytes)
        self.every = max(1, own if self._agree is None else self._agree(own))

    def _unless_outgrown(self, step: int) -> bool:
        """Collect where the heap outgrew what collections were planned for."""
        grown = (_containers() - self._objects) * _BYTES_OF_AN_OBJECT
        if grown <= _BEYOND * self._max_growth_bytes:
            return False
        _LOG.warning(
            "the heap grew beyond what collections every %s steps are planned for: this rank "
            "collects by itself after step %d; plan them more often",
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
    """Return containers that were made since the last collection, and bytes of the process."""
    return _containers(), _resident_bytes()


def _containers() -> int:
    return gc.get_count()[0]


def _resident_bytes() -> int:
    """Return the memory of the process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0
