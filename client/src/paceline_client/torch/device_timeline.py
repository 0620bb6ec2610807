"""The timeline of a job on GPUs: events on the streams of the work, read later on a thread."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

from paceline_client.torch.tap import Sink, StepEnded

_NS_PER_MS: Final = 1e6
# Streams that wait for asynchronous work instead of the training's stream.
_SIDE_STREAMS: Final = 8
# When the process ends, for steps that the device has not reached.
_LEAVE_WITHIN_S: Final = 5.0


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
    """A step's operations."""

    operations: list[_Operation]
    end: Any  # the event at its end
    ended: StepEnded | None


class DeviceTimeline:
    """Marks are events of a pool; a thread reads them after the last event of their step.

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
        self._quiet = threading.Condition(self._lock)
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
        """Record an event after the work, on a separate stream."""
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
        """Pass the step's operations to the thread."""
        if self._start is None:
            return 0
        operations, self._pending = self._pending, []
        self._put(_Step(operations, self.now(), ended))
        return len(operations)

    def settle(self, timeout_s: float) -> None:
        """Wait until the thread has read everything."""
        with self._quiet:
            self._quiet.wait_for(lambda: self._unread == 0, timeout_s)

    def measured(self) -> dict[str, int]:
        """Return the drift of the device's clock against the host's over the session."""
        return {"clock_drift_ns": self._drift_ns}

    def _end(self) -> None:
        """End the thread: the interpreter must not end while it is inside PyTorch."""
        if self._thread is not None and os.getpid() == self._pid:
            self._steps.put(None)
            self._thread.join(_LEAVE_WITHIN_S)

    def _put(self, item: _Step | tuple[Any]) -> None:
        with self._lock:
            self._unread += 1
        self._steps.put(item)

    def _event(self) -> Any:
        try:
            return self._pool.popleft()
        except IndexError:
            # A thread that waits for an event without this burns a processor as long as it waits.
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
                self._hand_on(item, reference, at_ns)
                step_ns = round(reference.elapsed_time(item.end) * _NS_PER_MS)
                self._pool.append(reference)
                reference, at_ns = item.end, at_ns + step_ns
                self._drift_ns = seen_ns - at_ns
                if item.ended is not None:
                    item.ended(at_ns, step_ns, at_ns)
            with self._quiet:
                self._unread -= 1
                self._quiet.notify_all()

    def _hand_on(self, step: _Step, reference: Any, at_ns: int) -> None:
        used = {}
        for one in step.operations:
            one.end.synchronize()
            # Both from one event, or what follows an operation would begin before its end: times
            # are single-precision.
            start_ns = round(reference.elapsed_time(one.start) * _NS_PER_MS)
            end_ns = round(reference.elapsed_time(one.end) * _NS_PER_MS)
            one.sink(
                one.op,
                at_ns + start_ns,
                max(0, end_ns - start_ns),
                one.step,
                one.mb,
                one.mc,
            )
            used[id(one.start)] = one.start
            used[id(one.end)] = one.end
        self._pool.extend(used.values())
