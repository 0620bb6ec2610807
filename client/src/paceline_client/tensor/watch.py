"""Measurement of the time of a step's matrix products, and of the step without waits.

Neither the device nor the training waits: on a GPU, events are recorded on the stream of the
products and read after the device has passed them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class StepTime:
    """The times of one rank in a step."""

    step: int
    time_s: float  # without waiting at collectives: T of the paper's Eq. 1
    matmul_s: float  # in matrix products: M


class Watch(Protocol):
    """The interface that measures the parts of a step."""

    def matmul(self, flops: int) -> AbstractContextManager[None]:
        """Measure a matrix product with this number of floating-point operations."""

    def waiting(self) -> AbstractContextManager[None]:
        """Measure a wait of this rank for collectives, transfers or other ranks."""

    def end_step(self, step: int) -> None:
        """End a step and begin the next."""

    def finished(self) -> list[StepTime]:
        """Return the steps whose times are known, each only once; never waits."""


class NoWatch:
    """A watch that measures nothing."""

    def matmul(self, flops: int) -> AbstractContextManager[None]:
        """Do nothing."""
        del flops
        return nullcontext()

    def waiting(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def end_step(self, step: int) -> None:
        """Do nothing."""

    def finished(self) -> list[StepTime]:
        """Return nothing."""
        return []


@dataclass(slots=True)
class Pace:
    """The duration of matrix products on an emulated slow processor."""

    s_per_flop: float  # of a healthy processor, seconds per floating-point operation (c)
    slowdown: float = 1.0  # relative to it (χ); may change while the job runs

    def duration_s(self, flops: int) -> float:
        """Return the duration of a product."""
        return flops * self.s_per_flop * self.slowdown


class CpuWatch:
    """A watch that measures with the clock of a CPU.

    With `pace`, each product is prolonged by sleeping, and times are those of the emulated
    processor: products have their planned duration, and the rest is this thread's CPU time, without
    other load of the machine. `clock`, in nanoseconds, replaces the default clock.
    """

    def __init__(self, pace: Pace | None = None, clock: Callable[[], int] | None = None) -> None:
        self.pace = pace
        self._clock = clock or (time.perf_counter_ns if pace is None else time.thread_time_ns)
        self._began_ns = self._clock()
        self._matmul_ns = 0
        self._in_products_ns = 0
        self._waited_ns = 0
        self._overslept_s = 0.0
        self._waits = 0
        self._finished: deque[StepTime] = deque(maxlen=64)

    @contextmanager
    def matmul(self, flops: int) -> Iterator[None]:
        """Measure a product, and prolong it according to `pace`."""
        began_s, began_ns = time.perf_counter(), self._clock()
        yield
        taken_ns = self._clock() - began_ns
        self._in_products_ns += taken_ns
        if self.pace is not None:
            duration_s = self.pace.duration_s(flops)
            self._sleep_until(began_s + duration_s)
            taken_ns = max(taken_ns, round(duration_s * 1e9))
        self._matmul_ns += taken_ns

    def _sleep_until(self, end_s: float) -> None:
        """Sleep until a time; an excess is subtracted from the next sleep."""
        left_s = end_s - self._overslept_s - time.perf_counter()
        if left_s <= 0:
            self._overslept_s = min(self._overslept_s, -left_s)
            return
        woken_s = time.perf_counter() + left_s
        time.sleep(left_s)
        self._overslept_s = max(0.0, time.perf_counter() - woken_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure a wait, including nested waits."""
        self._waits += 1
        began_ns = self._clock()
        try:
            yield
        finally:
            self._waits -= 1
        if not self._waits:
            self._waited_ns += self._clock() - began_ns

    def end_step(self, step: int) -> None:
        """End a step, and compute its times."""
        now_ns = self._clock()
        rest_ns = now_ns - self._began_ns - self._waited_ns - self._in_products_ns
        time_ns = rest_ns + self._matmul_ns
        self._finished.append(StepTime(step, time_ns / 1e9, self._matmul_ns / 1e9))
        self._began_ns = now_ns
        self._matmul_ns = self._in_products_ns = self._waited_ns = 0

    def finished(self) -> list[StepTime]:
        """Return the steps that ended since the last call."""
        ended = list(self._finished)
        self._finished.clear()
        return ended


class Event(Protocol):
    """The interface of `torch.cuda.Event` that is used here."""

    def record(self) -> None:
        """Record the time at which the stream reaches this point."""

    def query(self) -> bool:
        """Return whether the stream has reached this point."""

    def elapsed_time(self, end_event: Any) -> float:  # noqa: ANN401 - of the same class
        """Return the time from this event to another event in milliseconds."""


@dataclass(slots=True)
class _Recorded:
    """The recorded events of a step: pairs around products and waits."""

    began: Event
    products: list[tuple[Event, Event]]
    waits: list[tuple[Event, Event]]


class CudaWatch:
    """A watch that measures with events from a pool, recorded on the current stream.

    `new_event` is ``lambda: torch.cuda.Event(enable_timing=True)``. If more than `most_steps` steps
    are outstanding, the oldest are dropped.
    """

    def __init__(self, new_event: Callable[[], Event], most_steps: int = 8) -> None:
        self._new_event = new_event
        self._most_steps = most_steps
        self._pool: list[Event] = []
        self._outstanding: deque[tuple[int, _Recorded, Event]] = deque()
        self._waiting = False
        self._now = _Recorded(self._record(), [], [])

    def _record(self) -> Event:
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        return event

    @contextmanager
    def matmul(self, flops: int) -> Iterator[None]:
        """Record events before and after a product."""
        del flops
        began = self._record()
        yield
        self._now.products.append((began, self._record()))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Record events before and after a wait, including nested waits."""
        if self._waiting:
            yield
            return
        self._waiting = True
        began = self._record()
        try:
            yield
        finally:
            self._waiting = False
        self._now.waits.append((began, self._record()))

    def end_step(self, step: int) -> None:
        """Record the event that ends the step and begins the next."""
        ended = self._record()
        self._outstanding.append((step, self._now, ended))
        self._now = _Recorded(ended, [], [])
        while len(self._outstanding) > self._most_steps:
            _, dropped, _ = self._outstanding.popleft()
            self._release(dropped)

    def finished(self) -> list[StepTime]:
        """Return the steps whose last event the device has reached."""
        steps: list[StepTime] = []
        while self._outstanding and self._outstanding[0][2].query():
            step, recorded, ended = self._outstanding.popleft()
            whole_ms = recorded.began.elapsed_time(ended)
            waited_ms = _sum_ms(recorded.waits)
            matmul_ms = _sum_ms(recorded.products)
            steps.append(StepTime(step, (whole_ms - waited_ms) / 1e3, matmul_ms / 1e3))
            self._release(recorded)
        return steps

    def _release(self, recorded: _Recorded) -> None:
        self._pool.append(recorded.began)
        for pair in (*recorded.products, *recorded.waits):
            self._pool.extend(pair)


def _sum_ms(pairs: list[tuple[Event, Event]]) -> float:
    return sum(began.elapsed_time(ended) for began, ended in pairs)
