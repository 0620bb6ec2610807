"""The state of all hooks: the switch, the current step, and the clock of the device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol

_log = logging.getLogger("paceline_client")

FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
PARAMETERS: Final = "params-all-gather"
GRADIENTS: Final = "grads-reduce-scatter"
OPTIMIZER: Final = "optimizer"
GC: Final = "gc"

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
        self.computed: Any = None  # the mark at the end of the latest recorded computation
        self.timeline = timeline
        self.now = timeline.now
        self.quiet = 0  # above 0, FSDP's hooks do not record

    def add(
        self, op: str, start: Any, end: Any, mb: int | None = None, mc: int | None = None
    ) -> None:
        """Record an operation between two marks."""
        sink = self.sink
        if sink is not None:
            self.timeline.add(sink, op, start, end, self.step, mb, mc)

    def span(self, op: str, mb: int | None = None, mc: int | None = None) -> Span:
        """Record the code inside as one operation."""
        return Span(self, op, mb, mc)

    def computing(self, op: str, mb: int | None, mc: int | None) -> Span:
        """Record the code inside as a computation, in which collectives are nested."""
        return Computing(self, op, mb, mc)

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

    def _record(self, end: Any) -> None:
        self._tap.computed = end
        super()._record(end)
