"""What hooks record with: one switch, the current step, and the clock of the device."""

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
    """The clock of a device.

    A mark is whatever `now` returns; only the timeline that made it can read it.
    """

    name: str

    def now(self) -> Any:
        """Mark this point of the training's own stream."""

    def add(  # noqa: PLR0913, PLR0917 - an operation has that many coordinates
        self,
        sink: Sink,
        op: str,
        start: Any,
        end: Any,
        step: int,
        mb: int | None,
        mc: int | None,
    ) -> None:
        """Hand an operation between two marks to `sink`, at once or later."""

    def watch(self, done: Callable[[Any], None], work: Any) -> Any:
        """Call `done` with the mark at which asynchronous work completes.

        Returns
        -------
        object
            To be waited for in the work's stead.
        """

    def begin(self) -> None:
        """Relate the clock to the host's: a session begins."""

    def end_step(self) -> None:
        """Read what can be read of the step that ended."""

    def settle(self, timeout_s: float) -> None:
        """Wait until everything added and watched has come to its sink; not for the training."""

    def measured(self) -> dict[str, int]:
        """Return what the session should say of its clock, in addition to its times."""


class Tap:
    """The switch that all hooks look at first.

    Attributes
    ----------
    on : bool
        Hooks call through where it is False.
    step : int
        The step under way.
    sink : callable or None
        Takes operations; None while the hooks warm up.
    depth : int
        Computations under way, one inside the other.
    computed : object
        The mark at which the latest recorded computation ended.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.on = False
        self.step = 0
        self.sink: Sink | None = None
        self.depth = 0
        self.computed: Any = None
        self.timeline = timeline
        self.now = timeline.now
        self.quiet = 0

    def add(
        self,
        op: str,
        start: Any,
        end: Any,
        mb: int | None = None,
        mc: int | None = None,
    ) -> None:
        """Record an operation between two marks."""
        sink = self.sink
        if sink is not None:
            self.timeline.add(sink, op, start, end, self.step, mb, mc)

    def span(self, op: str, mb: int | None = None, mc: int | None = None) -> Span:
        """Record what runs inside as one operation."""
        return Span(self, op, mb, mc)

    def computing(self, op: str, mb: int | None, mc: int | None) -> Span:
        """Record what runs inside as a computation; what it waits for there is nested in it."""
        return Computing(self, op, mb, mc)

    def watch(
        self,
        op: str,
        work: Any,
        start: Any,
        mb: int | None = None,
        mc: int | None = None,
    ) -> Any:
        """Record asynchronous work from a mark until it completes; return what to wait for."""
        sink, step = self.sink, self.step
        if sink is None or work is None:
            return work
        timeline = self.timeline
        return timeline.watch(lambda end: timeline.add(sink, op, start, end, step, mb, mc), work)


class Span:
    """An operation from entering to leaving; what raises inside is no operation."""

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
    """A span inside of which collectives count as nested."""

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
