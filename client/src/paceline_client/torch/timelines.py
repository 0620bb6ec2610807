"""Clocks for operations: the clock of the host, and the clock of a GPU through stream events."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Final

import torch

from paceline_client.torch.tap import Sink, StepEnded

_log = logging.getLogger("paceline_client")

# Maximum number of threads; further work is recorded when the job waits for it.
_MOST_WAITERS: Final = 96
# Time limits in seconds at the end of the process: for work to complete, and for threads to return.
_GRACE_S: Final = 1.0
_NO_TIME: Final = timedelta(milliseconds=1)
# The tag of a receive operation to which no rank ever sends.
_UNUSED_TAG: Final = (1 << 31) - 1


class HostTimeline:
    """The timeline of a job on CPUs, whose marks are readings of the monotonic clock.

    Threads wait for asynchronous work. Before Python 3.14, an interpreter that ends while a thread
    is inside PyTorch's `wait` ends with SIGABRT as soon as that returns; so work that a thread
    still waits for when the process ends is given a timeout.
    """

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
        """Wait for the work on a thread, and return a proxy for the work.

        Gloo's transfers can be waited for only once, and do not report completion before.
        """
        awaited = _AwaitedWork(work, done)
        if not self._waiters.run(awaited):
            awaited.on_wait = True
        return awaited

    def begin(self) -> None:
        """Read the monotonic clock and the time since the epoch."""
        self._offset_ns = self._offset()

    def end_step(self, ended: StepEnded | None = None) -> int:
        """Call `ended` with the end of the step; the number of operations is not counted."""
        began, self._step_began = self._step_began, time.monotonic_ns()
        if ended is not None:
            end = self._step_began
            ended(end + self._offset_ns, end - began, end)
        return 0

    def settle(self, timeout_s: float) -> None:
        """Wait for incomplete work."""
        self._waiters.settle(timeout_s)

    def measured(self) -> dict[str, int]:
        """Return the adjustment of the host's clock since the session began."""
        return {"clock_set_ns": self._offset() - self._offset_ns}

    @staticmethod
    def _offset() -> int:
        # Use the median of three, because the thread may lose the CPU between two readings.
        readings = sorted(time.time_ns() - time.monotonic_ns() for _ in range(3))
        return readings[1]


class _AwaitedWork:
    """A proxy for a `torch.distributed.Work` that a thread waits for."""

    def __init__(self, work: Any, done: Callable[[int], None]) -> None:
        self._work = work
        self._completed = threading.Event()
        self._done = done
        self._result: Any = None
        self._error: BaseException | None = None
        self.on_wait = False

    def complete(self) -> None:
        """Wait for the work, and report the time of its completion."""
        try:
            self._result = self._work.wait()
            self._done(time.monotonic_ns())
        except BaseException as error:  # noqa: BLE001 - the job's own thread raises it
            self._error = error
        finally:
            self._completed.set()

    def end(self) -> None:
        """End the work with a timeout, after which gloo's transfers fail with an error."""
        try:
            self._work.wait(_NO_TIME)
        except Exception as error:  # noqa: BLE001 - the timeout
            _log.debug("ended at exit: %s", error)

    def wait(self, *timeout: Any) -> Any:
        """Wait like `Work.wait` until the work is complete."""
        if self.on_wait:
            self.on_wait = False
            self.complete()
        if not self._completed.wait(timeout[0].total_seconds() if timeout else None):
            message = "the work did not complete in time"
            raise RuntimeError(message)
        if self._error is not None:
            raise self._error
        return self._result

    def is_completed(self) -> bool:
        """Return whether the work is complete."""
        return self._completed.is_set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _Waiters:
    """Threads that wait, each for one work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._jobs: SimpleQueue[_AwaitedWork] = SimpleQueue()
        self._threads = 0
        self._busy: set[_AwaitedWork] = set()
        self._pid = os.getpid()

    def run(self, job: _AwaitedWork) -> bool:
        """Wait for the work on a thread; return False if all are busy, instead of queuing it."""
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
        """Wait until no thread is busy; return False after the time limit."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, timeout_s)

    def _end(self) -> None:
        """End all awaited work, because the process ends and closes its connections."""
        if os.getpid() != self._pid or self.settle(_GRACE_S):
            # A forked child has no threads, and its copies of locks may never be released.
            return
        for end in (self._end_transfers, _end_groups):
            end()
            if self.settle(_GRACE_S):
                return

    def _end_transfers(self) -> None:
        with self._lock:
            busy = tuple(self._busy)
        for work in busy:
            work.end()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            job.complete()
            with self._idle:
                self._busy.discard(job)
                self._idle.notify_all()


def _end_groups() -> None:
    """End the collectives of gloo's groups, which have no timeout themselves.

    A receive that times out closes the connections of its group.
    """
    from torch.distributed import distributed_c10d  # noqa: PLC0415 - available if work was watched

    for group in tuple(distributed_c10d._world.pg_map):
        _end_group(group)


def _end_group(group: Any) -> None:
    try:
        backend = group._get_backend(torch.device("cpu"))
        if backend.name() == "gloo" and group.size() > 1:
            other = (group.rank() + 1) % group.size()
            backend.recv([torch.empty(1)], other, _UNUSED_TAG).wait(_NO_TIME)
    except Exception as error:  # noqa: BLE001 - the timeout
        _log.debug("a group ended at exit: %s", error)


_NS_PER_MS: Final = 1e6
# Number of streams that wait for asynchronous work instead of the training's stream.
_SIDE_STREAMS: Final = 8
# Time limit in seconds for the device to reach the last steps when the process ends.
_EXIT_WAIT_S: Final = 5.0


@dataclass
class _Operation:
    sink: Sink
    op: str
    start: Any
    end: Any
    step: int
    mb: int | None
    mc: int | None


@dataclass
class _Step:
    """The operations of a step, and its events."""

    operations: list[_Operation]
    end: Any  # the event at its end
    ended: StepEnded | None


class DeviceTimeline:
    """The timeline of a job on GPUs; marks are events, which a thread reads after their step.

    Each step is measured from an event at its start, so that single-precision milliseconds are
    exact. The thread compares the first and the last event of a session with `time.time_ns`, for
    the offset and the drift. The training's thread never waits for the device.
    """

    name = "device"

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._pool: deque[Any] = deque()
        self._side: list[Any] = []
        self._turn = 0
        self._pending: list[_Operation] = []
        self._start: Any = None
        self._steps: SimpleQueue[_Step | tuple[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._all_read = threading.Condition(self._lock)
        self._unread = 0
        self._drift_ns = 0
        self._thread: threading.Thread | None = None

    def now(self) -> Any:
        """Record an event on the current stream."""
        event = self._event()
        event.record()
        return event

    def add(  # noqa: PLR0913, PLR0917 - the coordinates of an operation
        self, sink: Sink, op: str, start: Any, end: Any, step: int, mb: int | None, mc: int | None
    ) -> None:
        """Keep an operation until its step ends."""
        self._pending.append(_Operation(sink, op, start, end, step, mb, mc))

    def watch(self, done: Callable[[Any], None], work: Any) -> Any:
        """Record an event after the work on a separate stream."""
        if len(self._side) < _SIDE_STREAMS:
            self._side.append(self._cuda.Stream())
        self._turn += 1
        side = self._side[self._turn % len(self._side)]
        with self._cuda.stream(side):
            work.wait()
            event = self._event()
            event.record(side)
        done(event)
        return work

    def begin(self) -> None:
        """Record the event at the start of the first step."""
        self._pending = []
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="paceline-reader", daemon=True)
            self._thread.start()
            self._pid = os.getpid()
            atexit.register(self._end)
        self._start = self.now()
        self._put((self._start,))

    def end_step(self, ended: StepEnded | None = None) -> int:
        """Pass the step's operations to the thread that reads events."""
        if self._start is None:
            return 0
        operations, self._pending = self._pending, []
        self._put(_Step(operations, self.now(), ended))
        return len(operations)

    def settle(self, timeout_s: float) -> None:
        """Wait until the thread has read all events."""
        with self._all_read:
            self._all_read.wait_for(lambda: self._unread == 0, timeout_s)

    def measured(self) -> dict[str, int]:
        """Return the drift of the device's clock relative to the host's during the session."""
        return {"clock_drift_ns": self._drift_ns}

    def _end(self) -> None:
        """End the thread, as the interpreter must not end while the thread is in PyTorch."""
        if self._thread is not None and os.getpid() == self._pid:
            self._steps.put(None)
            self._thread.join(_EXIT_WAIT_S)

    def _put(self, item: _Step | tuple[Any]) -> None:
        with self._lock:
            self._unread += 1
        self._steps.put(item)

    def _event(self) -> Any:
        try:
            return self._pool.popleft()
        except IndexError:
            # Blocking events, because a thread that waits for another kind of event keeps a
            # processor busy.
            return self._cuda.Event(enable_timing=True, blocking=True)

    def _read(self) -> None:
        reference: Any = None
        at_ns = 0
        while (item := self._steps.get()) is not None:
            if isinstance(item, tuple):
                reference = item[0]
                reference.synchronize()
                at_ns = time.time_ns()
            else:
                item.end.synchronize()
                seen_ns = time.time_ns()
                self._pass_on(item, reference, at_ns)
                step_ns = round(reference.elapsed_time(item.end) * _NS_PER_MS)
                self._pool.append(reference)
                reference, at_ns = item.end, at_ns + step_ns
                self._drift_ns = seen_ns - at_ns
                if item.ended is not None:
                    item.ended(at_ns, step_ns, at_ns)
            with self._all_read:
                self._unread -= 1
                self._all_read.notify_all()

    def _pass_on(self, step: _Step, reference: Any, at_ns: int) -> None:
        used = {}
        for operation in step.operations:
            operation.end.synchronize()
            # Both times are relative to the same event: times are single-precision, and an
            # operation must not start before its predecessor ends.
            start_ns = round(reference.elapsed_time(operation.start) * _NS_PER_MS)
            end_ns = round(reference.elapsed_time(operation.end) * _NS_PER_MS)
            operation.sink(
                operation.op,
                at_ns + start_ns,
                max(0, end_ns - start_ns),
                operation.step,
                operation.mb,
                operation.mc,
            )
            used[id(operation.start)] = operation.start
            used[id(operation.end)] = operation.end
        self._pool.extend(used.values())
