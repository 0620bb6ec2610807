"""The state of all hooks: the switch, the current step, and the clock of the device."""

from __future__ import annotations

import logging
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
# What a rank does between steps; no part of a step wherever it is.
DATA_LOADING: Final = "data-loading"
CHECKPOINT: Final = "checkpoint"

# Operation, start and duration in nanoseconds since the epoch, step, microbatch, model chunk.
Sink = Callable[[str, int, int, int, "int | None", "int | None"], None]


class Timeline(Protocol):
    """The clock of a device; only the timeline that made a mark with `now` can read it."""

    name: str

    def now(self) -> Any:
        """Mark this point of the training's stream."""

    def add(  # noqa: PLR0913, PLR0917 - the coordinates of an operation
        self, sink: Sink, op: str, start: Any, end: Any, step: int, mb: int | None, mc: int | None
    ) -> None:
        """Pass an operation between two marks to `sink`, at once or later."""

    def watch(self, done: Callable[[Any], None], work: Any) -> Any:
        """Call `done` with the mark at which `work` completes; return what to wait for instead."""

    def begin(self) -> None:
        """Relate the clock to the host's, at the begin of a session."""

    def end_step(self) -> None:
        """End a step."""

    def settle(self, timeout_s: float) -> None:
        """Wait until all operations have reached their sink; not on the training's thread."""

    def measured(self) -> dict[str, int]:
        """Return measurements of the clock for the session's metadata."""


class Tap:
    """The switch that all hooks check first."""

    def __init__(self, timeline: Timeline) -> None:
        self.on = False  # if not, hooks call the original function only
        self.step = 0  # the current one
        self.sink: Sink | None = None  # takes operations; None while the hooks warm up
        self.depth = 0  # nested computations that are running
        # The mark at the end of what the step recorded last; None if that is nothing.
        self.ended: Any = None
        self.timeline = timeline
        self.now = timeline.now
        self.quiet = 0  # above 0, another hook records the collectives that are called
        self._waited: tuple[str, Any, Any] | None = None  # an operation that may go on

    def add(
        self, op: str, start: Any, end: Any, mb: int | None = None, mc: int | None = None
    ) -> None:
        """Record an operation between two marks."""
        if self._waited is not None:
            self.flush()
        self.ended = end
        self.add_aside(op, start, end, mb, mc)

    def add_aside(
        self, op: str, start: Any, end: Any, mb: int | None = None, mc: int | None = None
    ) -> None:
        """Record an operation that other ranks may not have, such as a garbage collection."""
        sink = self.sink
        if sink is not None:
            self.timeline.add(sink, op, start, end, self.step, mb, mc)

    def add_waiting(self, op: str, start: Any, end: Any) -> None:
        """Record that the training waited for a collective.

        Outside of computations, collectives of one type that follow one another are recorded as
        one: a loop over parameters makes hundreds.
        """
        if self.depth:
            self.add(op, start, end)
            return
        if self._waited is not None and self._waited[0] == op:
            start = self._waited[1]
        else:
            self.flush()
        self._waited = (op, start, end)

    def flush(self) -> None:
        """Record what may have gone on until now."""
        waited, self._waited = self._waited, None
        if waited is not None:
            self.add(*waited)

    def end_step(self) -> None:
        """End a step in which the hooks are on."""
        self.flush()
        self.ended = None
        self.timeline.end_step()

    def span(self, op: str, mb: int | None = None, mc: int | None = None) -> Span:
        """Record the code inside as one operation, the collectives in it included."""
        return Waiting(self, op, mb, mc)

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Leave the collectives inside to the hook that calls this."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def computing(self, op: str, mb: int | None, mc: int | None) -> Span:
        """Record the code inside as a computation, in which collectives are nested."""
        return Computing(self, op, mb, mc)

    def between(self, op: str) -> Span:
        """Record the code inside as something done between steps, and nothing in it."""
        return Between(self, op, None, None)

    def watch(
        self, op: str, work: Any, start: Any, mb: int | None = None, mc: int | None = None
    ) -> Any:
        """Record asynchronous work from a mark until it completes; return what to wait for."""
        sink, step = self.sink, self.step
        if sink is None or work is None:
            return work
        timeline = self.timeline
        return timeline.watch(lambda end: timeline.add(sink, op, start, end, step, mb, mc), work)


class Span:
    """An operation from entering to leaving the context; not recorded if the code raises."""

    __slots__ = ("_mb", "_mc", "_op", "_start", "_tap")

    def __init__(self, tap: Tap, op: str, mb: int | None, mc: int | None) -> None:
        self._tap = tap
        self._op = op
        self._mb = mb
        self._mc = mc
        self._start: Any = None

    def __enter__(self) -> None:
        if self._tap.on:
            self._start = self._tap.now()

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


class Waiting(Span):
    """A span of collectives that no other hook records."""

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


class Computing(Span):
    """A span in which collectives are nested."""

    __slots__ = ()

    def __enter__(self) -> None:
        self._tap.depth += 1
        super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tap.depth -= 1
        super().__exit__(kind, error, trace)


class Between(Span):
    """A span of what a rank does between steps.

    What is computed or sent in it, as by an evaluation, belongs to no step and is not recorded.
    """

    __slots__ = ("_sink", "_step")

    def __enter__(self) -> None:
        super().__enter__()
        tap = self._tap
        self._sink, self._step = tap.sink, tap.step
        tap.sink = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tap = self._tap
        if tap.step == self._step and tap.sink is None:
            # A step that ended meanwhile may have ended the session.
            tap.sink = self._sink
        super().__exit__(kind, error, trace)

    def _record(self, end: Any) -> None:
        self._tap.add_aside(self._op, self._start, end)
