"""The timeline of a job on CPUs: the host's clock, and threads that wait for asynchronous work.

Before Python 3.14, an interpreter that ends while a thread is inside PyTorch's `wait` ends with
SIGABRT as soon as that returns. So work that is still waited for when the process ends is ended.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Final

import torch

from paceline_client.torch.tap import Sink, StepEnded

_log = logging.getLogger("paceline_client")

# The most threads. Work beyond that is recorded when the job waits for it.
_MOST_WAITERS: Final = 96
# When the process ends: for work that others are about to complete, and for threads to come back.
_GRACE_S: Final = 1.0
_AT_ONCE: Final = timedelta(milliseconds=1)
# Of a receive that no rank ever sends to.
_NO_TAG: Final = (1 << 31) - 1


class HostTimeline:
    """Marks are readings of the monotonic clock."""

    name = "host"

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._waiters = _Waiters()
        self._step_began = time.monotonic_ns()
        self.now = time.monotonic_ns

    def add(  # noqa: PLR0913, PLR0917 - the coordinates of an operation
        self, sink: Sink, op: str, start: int, end: int, step: int, mb: int | None, mc: int | None
    ) -> None:
        """Pass an operation to its sink."""
        sink(op, start + self._offset_ns, end - start, step, mb, mc)

    def watch(self, done: Callable[[int], None], work: Any) -> Any:
        """Wait for the work in a thread, and return a proxy for it.

        Gloo's transfers can be waited for only once, and do not report completion before.
        """
        watched = _Watched(work, done)
        if not self._waiters.run(watched):
            watched.on_wait = True
        return watched

    def begin(self) -> None:
        """Read both clocks."""
        self._offset_ns = self._offset()

    def end_step(self, ended: StepEnded | None = None) -> int:
        """Say when the step ended; its operations are passed on at once, and not counted."""
        began, self._step_began = self._step_began, time.monotonic_ns()
        if ended is not None:
            end = self._step_began
            ended(end + self._offset_ns, end - began, end)
        return 0

    def settle(self, timeout_s: float) -> None:
        """Wait for incomplete work."""
        self._waiters.settle(timeout_s)

    def measured(self) -> dict[str, int]:
        """Return how much the host's clock was adjusted since the session began."""
        return {"clock_set_ns": self._offset() - self._offset_ns}

    @staticmethod
    def _offset() -> int:
        # The median of three: the thread may lose the CPU between two readings.
        readings = sorted(time.time_ns() - time.monotonic_ns() for _ in range(3))
        return readings[1]


class _Watched:
    """A proxy for a `torch.distributed.Work` that a thread waits for."""

    def __init__(self, work: Any, done: Callable[[int], None]) -> None:
        self._work = work
        self._over = threading.Event()
        self._tell = done
        self._result: Any = None
        self._error: BaseException | None = None
        self.on_wait = False

    def complete(self) -> None:
        """Wait for the work and report the time."""
        try:
            self._result = self._work.wait()
            self._tell(time.monotonic_ns())
        except BaseException as error:  # noqa: BLE001 - the job's own thread raises it
            self._error = error
        finally:
            self._over.set()

    def end(self) -> None:
        """Let the time for the work be up: gloo's transfers then end with an error."""
        try:
            self._work.wait(_AT_ONCE)
        except Exception as error:  # noqa: BLE001 - the time is up
            _log.debug("ended at exit: %s", error)

    def wait(self, *timeout: Any) -> Any:
        """Wait until the work is complete, as `Work.wait` does."""
        if self.on_wait:
            self.on_wait = False
            self.complete()
        if not self._over.wait(timeout[0].total_seconds() if timeout else None):
            message = "the work did not complete in time"
            raise RuntimeError(message)
        if self._error is not None:
            raise self._error
        return self._result

    def is_completed(self) -> bool:
        """Return whether the work is complete."""
        return self._over.is_set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _Waiters:
    """Threads, one for each work that is waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._jobs: SimpleQueue[_Watched] = SimpleQueue()
        self._threads = 0
        self._busy: set[_Watched] = set()
        self._pid = os.getpid()

    def run(self, job: _Watched) -> bool:
        """Wait on a thread; return False if all are busy, as work may wait for other work."""
        with self._lock:
            if len(self._busy) >= _MOST_WAITERS:
                return False
            self._busy.add(job)
            if len(self._busy) > self._threads:
                if not self._threads:
                    atexit.register(self._end)
                self._threads += 1
                threading.Thread(target=self._work, name="paceline-waiter", daemon=True).start()
        self._jobs.put(job)
        return True

    def settle(self, timeout_s: float) -> bool:
        """Wait until no thread is busy; return whether that is so."""
        with self._quiet:
            return self._quiet.wait_for(lambda: not self._busy, timeout_s)

    def _end(self) -> None:
        """End what is waited for: the process ends, and its connections with it."""
        if os.getpid() != self._pid or self.settle(_GRACE_S):
            # A fork has no threads, and its locks may never be released.
            return
        for end in (self._end_transfers, _end_groups):
            end()
            if self.settle(_GRACE_S):
                return

    def _end_transfers(self) -> None:
        with self._lock:
            busy = tuple(self._busy)
        for one in busy:
            one.end()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            job.complete()
            with self._quiet:
                self._busy.discard(job)
                self._quiet.notify_all()


def _end_groups() -> None:
    """End the collectives of gloo's groups, whose own time cannot be up.

    A receive whose time is up closes the connections of its group.
    """
    from torch.distributed import distributed_c10d  # noqa: PLC0415 - available if work was watched

    for group in tuple(distributed_c10d._world.pg_map):
        _end_group(group)


def _end_group(group: Any) -> None:
    try:
        backend = group._get_backend(torch.device("cpu"))
        if backend.name() == "gloo" and group.size() > 1:
            other = (group.rank() + 1) % group.size()
            backend.recv([torch.empty(1)], other, _NO_TAG).wait(_AT_ONCE)
    except Exception as error:  # noqa: BLE001 - the time is up
        _log.debug("a group ended at exit: %s", error)
