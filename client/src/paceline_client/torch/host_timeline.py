"""The timeline of a job on CPUs: the host's clock, and threads that wait for asynchronous work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from paceline_client.torch.tap import Sink

# The most threads. Work beyond that is recorded when the job waits for it.
_MOST_WAITERS: Final = 96


class HostTimeline:
    """Marks are readings of the monotonic clock."""

    name = "host"

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._waiters = _Waiters()
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
        if not self._waiters.run(watched.complete):
            watched.on_wait = True
        return watched

    def begin(self) -> None:
        """Read both clocks."""
        self._offset_ns = self._offset()

    def end_step(self) -> None:
        """Do nothing: operations are passed on at once."""

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
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    def run(self, job: Callable[[], None]) -> bool:
        """Run it on a thread now; return False if all are busy, as work may wait for other work."""
        with self._lock:
            if self._busy >= _MOST_WAITERS:
                return False
            self._busy += 1
            if self._busy > self._threads:
                self._threads += 1
                threading.Thread(target=self._work, name="paceline-waiter", daemon=True).start()
        self._jobs.put(job)
        return True

    def settle(self, timeout_s: float) -> None:
        """Wait until no thread is busy."""
        with self._quiet:
            self._quiet.wait_for(lambda: self._busy == 0, timeout_s)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            job()
            with self._quiet:
                self._busy -= 1
                self._quiet.notify_all()
