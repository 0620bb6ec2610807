"""The state that all hooks share: the switch, the current step, and the device's clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Protocol

_log = logging.getLogger("paceline_client")

FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
PARAMETERS: Final = "params-all-gather"
GRADIENTS: Final = "grads-reduce-scatter"
OPTIMIZER: Final = "optimizer"
GC: Final = "gc"
# Operations between steps, which are not part of a step wherever they occur.
DATA_LOADING: Final = "data-loading"
CHECKPOINT: Final = "checkpoint"
EVALUATION: Final = "evaluation"
# Operations that are neither computing nor waiting; only the pulse contains them.
COMPILE: Final = "compile"
# Prefixes of the types of operations among tensor-, context- and expert-parallel ranks.
SHARED: Final = ("tp-", "cp-", "ep-")

# Parameters: operation type, start and duration in nanoseconds since the epoch, step, microbatch,
# model chunk.
Sink = Callable[[str, int, int, int, "int | None", "int | None"], None]


# Parameters: end of a step in nanoseconds since the epoch, its duration in nanoseconds, and its end
# by the operations' clock.
StepEnded = Callable[[int, int, int], None]


class PulseSink(Protocol):
    """Receives all operations of all steps, timed by the clock of the end in `StepEnded`."""

    def inside(self, op: str, start_ns: int, duration_ns: int, *where: int | None) -> None:
        """Add an operation inside a computation."""

    def outside(self, op: str, start_ns: int, duration_ns: int, *where: int | None) -> None:
        """Add a computation, or an operation outside of computations."""

    def between(self, op: str, start_ns: int, duration_ns: int, *where: int | None) -> None:
        """Add an operation between steps."""


class Timeline(Protocol):
    """The clock of a device; a mark can only be read by the timeline whose `now` returned it."""

    name: str

    def now(self) -> Any:
        """Return a mark of the present point in the training's stream."""

    def add(  # noqa: PLR0913, PLR0917 - the coordinates of an operation
        self, sink: Sink, op: str, start: Any, end: Any, step: int, mb: int | None, mc: int | None
    ) -> None:
        """Pass an operation between two marks to `sink`, at once or later."""

    def watch(self, done: Callable[[Any], None], work: Any) -> Any:
        """Call `done` with the mark of `work`'s completion; return the object to wait for."""

    def begin(self) -> None:
        """Relate the device's clock to the host's clock, at the start of a session."""

    def end_step(self, ended: StepEnded | None = None) -> int:
        """End a step, and return the number of its operations.

        `ended` is called when all of them have reached their sink, at once or later.
        """

    def settle(self, timeout_s: float) -> None:
        """Wait until all operations have reached their sink; not for the training's thread."""

    def measured(self) -> dict[str, int]:
        """Return measurements of the clock, for the session's metadata."""


class Tap:
    """The state that all hooks share: whether they record, and the current step and operation."""

    def __init__(self, timeline: Timeline) -> None:
        self.on = False  # if not, hooks call the original function only
        self.step = 0  # the current one
        self.sink: Sink | None = None  # takes operations; None while the hooks warm up
        self.depth = 0  # nested computations that are running
        # The mark at the end of the step's last recorded operation; None if there is none
        self.ended: Any = None
        self.timeline = timeline
        self.now = timeline.now
        # On the host, marks are nanoseconds of the monotonic clock
        self._on_host = timeline.name == "host"
        self.quiet = 0  # above 0, another hook records the collectives that are called
        # A wait as (type, start, end), which a directly following wait of the same type prolongs
        self._wait: tuple[str, Any, Any] | None = None
        # The sink for the pulse, which gets operations between sessions as well
        self.pulse: PulseSink | None = None
        self.aside = 0  # above 0, the running code is no part of a step
        # Number of tokens of this rank in the step, if hooks can count them
        self.tokens = 0
        # Operations whose types have these prefixes are sent to the pulse only
        self.hidden: tuple[str, ...] = ()
        # Type and monotonic start time of the operation that began last
        self.phase: tuple[str, int] | None = None
        # Outside of sessions, one of this number of microbatches is measured
        self.every = 1
        self.skipped: dict[str, int] = {}  # the step's operations that were not measured, by type
        self.skips = False  # whether the running computation is not measured
        self._works = 0  # counts works of unknown microbatches

    @property
    def takes(self) -> bool:
        """Whether operations that start now are recorded."""
        return self.sink is not None or (self.pulse is not None and not self.aside)

    def begins(self, op: str, mb: int | None = None) -> Any:
        """Return a mark of the start of an operation, or None if it is not measured."""
        if self._on_host:
            start = self.now()
            self.phase = op, start
            return start
        self.phase = op, time.monotonic_ns()
        if self.every > 1 and self.sink is None:
            if self.skips:
                return None
            if mb is not None and mb % self.every:
                self.skipped[op] = self.skipped.get(op, 0) + 1
                return None
        return self.now()

    def resumes(self, op: str) -> None:
        """Record that an outer operation continues, because the nested operation has ended."""
        self.phase = op, time.monotonic_ns()

    def ends(self, op: str, start: Any, mb: int | None = None, mc: int | None = None) -> None:
        """Record an operation from the mark that `begins` returned until now."""
        if start is not None:
            self.add(op, start, self.now(), mb, mc)

    def ends_waiting(self, op: str, start: Any) -> None:
        """Record a wait of the training for a collective that ends now; see `add_waiting`."""
        if start is not None:
            self.add_waiting(op, start, self.now())

    def add(
        self, op: str, start: Any, end: Any, mb: int | None = None, mc: int | None = None
    ) -> None:
        """Record an operation between two marks."""
        if self._wait is not None:
            self.flush()
        self.ended = end
        sink = self.sink
        if sink is not None and not (self.hidden and op.startswith(self.hidden)):
            self.timeline.add(sink, op, start, end, self.step, mb, mc)
        if self.pulse is not None and not self.aside:
            self.add_to_pulse(op, start, end)

    def add_aside(
        self, op: str, start: Any, end: Any, mb: int | None = None, mc: int | None = None
    ) -> None:
        """Record an operation that other ranks may lack, such as a garbage collection."""
        sink = self.sink
        if sink is not None and not (self.hidden and op.startswith(self.hidden)):
            self.timeline.add(sink, op, start, end, self.step, mb, mc)
        if self.pulse is not None and not self.aside:
            self.add_to_pulse(op, start, end)

    def add_to_pulse(self, op: str, start: Any, end: Any) -> None:
        """Pass an operation, or a wait inside a recorded operation, to the pulse only."""
        pulse = self.pulse
        if pulse is None:
            return
        if not self._on_host:
            taken = pulse.inside if self.depth else pulse.outside
            self.timeline.add(taken, op, start, end, self.step, None, None)
        elif self.depth:
            pulse.inside(op, start, end - start)
        else:
            pulse.outside(op, start, end - start)

    def add_between(self, op: str, start: Any, end: Any) -> None:
        """Record an operation between steps."""
        sink, pulse = self.sink, self.pulse
        if sink is not None:
            self.timeline.add(sink, op, start, end, self.step, None, None)
        if pulse is None or self.aside:
            return
        if self._on_host:
            pulse.between(op, start, end - start)
        else:
            self.timeline.add(pulse.between, op, start, end, self.step, None, None)

    def add_waiting(self, op: str, start: Any, end: Any) -> None:
        """Record a wait of the training for a collective.

        Outside of computations, successive waits for collectives of one type are recorded as one: a
        loop over parameters has hundreds.
        """
        if self.depth:
            self.add(op, start, end)
            return
        if self._wait is not None and self._wait[0] == op:
            start = self._wait[1]
        else:
            self.flush()
        self._wait = (op, start, end)

    def flush(self) -> None:
        """Record the stored wait, which no further wait prolongs."""
        wait, self._wait = self._wait, None
        if wait is not None:
            self.add(*wait)

    def end_step(self, ended: StepEnded | None = None) -> int:
        """End a step in which the hooks are on; return its number of operations."""
        self.flush()
        self.ended = None
        return self.timeline.end_step(ended)

    def span(self, op: str, mb: int | None = None, mc: int | None = None) -> Span:
        """Record the code inside the context as one operation, including its collectives."""
        return _CollectiveSpan(self, op, mb, mc)

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Disable other hooks on collectives inside the context; the calling hook records them."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def computing(self, op: str, mb: int | None, mc: int | None) -> Span:
        """Record the code inside the context as a computation with nested collectives."""
        return _ComputeSpan(self, op, mb, mc)

    def between(self, op: str) -> Span:
        """Record the code inside as one operation between steps, without nested operations."""
        return _BetweenSpan(self, op, None, None)

    def watch(
        self, op: str, work: Any, start: Any, mb: int | None = None, mc: int | None = None
    ) -> Any:
        """Record asynchronous work from a mark to its completion; return an object to wait for."""
        sink, step = self.sink, self.step
        if work is None:
            return work
        if sink is not None and not (self.hidden and op.startswith(self.hidden)):
            timeline = self.timeline
            work = timeline.watch(
                lambda end: timeline.add(sink, op, start, end, step, mb, mc), work
            )
        if self.pulse is not None and not self.aside:
            if mb is None:
                self._works += 1
            work = _PulseWork(self, op, work, self._works if mb is None else mb)
        return work


class _PulseWork:
    """A proxy of a work that passes the waits for the work to the pulse."""

    def __init__(self, tap: Tap, op: str, work: Any, mb: int) -> None:
        self._tap = tap
        self._op = op
        self._work = work
        self._mb = mb

    def wait(self, *timeout: Any) -> Any:
        """Wait like `Work.wait`."""
        tap = self._tap
        if not tap.on or tap.pulse is None or tap.aside:
            return self._work.wait(*timeout)
        start = tap.begins(self._op, self._mb)
        result = self._work.wait(*timeout)
        if start is not None and not tap.aside:
            tap.add_to_pulse(self._op, start, tap.now())
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class Span:
    """An operation from entry to exit of the context; not recorded if the code inside raises."""

    __slots__ = ("_mb", "_mc", "_op", "_start", "_tap")

    def __init__(self, tap: Tap, op: str, mb: int | None, mc: int | None) -> None:
        self._tap = tap
        self._op = op
        self._mb = mb
        self._mc = mc
        self._start: Any = None

    def __enter__(self) -> None:
        if self._tap.on:
            self._start = self._tap.begins(self._op, self._mb)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tap = self._tap
        if self._start is not None and tap.on and kind is None:
            self._record(tap.now())

    def _record(self, end: Any) -> None:
        self._tap.add(self._op, self._start, end, self._mb, self._mc)


class _CollectiveSpan(Span):
    """A span of collectives, inside of which no other hook records."""

    __slots__ = ()

    def __enter__(self) -> None:
        self._tap.quiet += 1
        super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tap.quiet -= 1
        super().__exit__(kind, error, trace)


class _ComputeSpan(Span):
    """A span of a computation with nested collectives."""

    __slots__ = ("_skips",)

    def __enter__(self) -> None:
        tap = self._tap
        self._skips = False
        if tap.on:
            self._start = tap.begins(self._op, self._mb)
            if self._start is None and not tap.skips:
                # Operations nested in a computation that is not measured are not measured either.
                self._skips = tap.skips = True
        tap.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tap = self._tap
        tap.depth -= 1
        if self._skips:
            tap.skips = False
        if self._start is not None and tap.on and kind is None:
            tap.add(self._op, self._start, tap.now(), self._mb, self._mc)


class _BetweenSpan(Span):
    """A span of an operation between steps.

    Operations inside, such as those of an evaluation, belong to no step and are not recorded.
    """

    __slots__ = ("_before", "_sink", "_step")

    def __enter__(self) -> None:
        tap = self._tap
        self._before = tap.phase
        super().__enter__()
        self._sink, self._step = tap.sink, tap.step
        tap.sink = None
        tap.aside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tap = self._tap
        tap.aside -= 1
        if self._before is not None:
            # The operation that follows is not known yet.
            tap.resumes(self._before[0])
        if tap.step == self._step and tap.sink is None:
            # Restore the sink, unless a step has ended inside, because this may have ended the
            # session.
            tap.sink = self._sink
        super().__exit__(kind, error, trace)

    def _record(self, end: Any) -> None:
        self._tap.add_between(self._op, self._start, end)
