"""Spans of what a request causes: one trace from an upload to the message about it.

Between processes the context travels in durable rows, as the header ``traceparent`` writes it
(W3C Trace Context); messages of the broker hold none. Without a receiver all of this does nothing.
"""

from __future__ import annotations

import contextlib
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry import trace
    from structlog.typing import EventDict, WrappedLogger

TRACEPARENT: Final = "traceparent"

Value = str | int | float | bool


class Role(enum.Enum):
    """What a span is to the other side; names are those of the API."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    CONSUMER = "CONSUMER"


class _Tracing:
    """Of this process: None until `begin`."""

    tracer: trace.Tracer | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """What is under way; without tracing nothing."""

    _span: trace.Span | None = None

    def set(self, **attributes: Value) -> None:
        """Set attributes; ``__`` in a name stands for its dot."""
        if self._span is not None:
            self._span.set_attributes(dotted(attributes))

    def rename(self, name: str) -> None:
        """Give it the name that is known only now."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, kind: str) -> None:
        """Mark it as failed, with a stable word for why: what was said is in the log."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - an extra

            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR))


NOTHING: Final = Span()


def begin(tracer: trace.Tracer | None) -> None:
    """Make spans by a tracer from now on; None: none any more."""
    _Tracing.tracer = tracer


def is_on() -> bool:
    """Return whether spans are made in this process."""
    return _Tracing.tracer is not None


@contextlib.contextmanager
def span(
    name: str, role: Role = Role.INTERNAL, parent: str | None = None, **attributes: Value
) -> Iterator[Span]:
    """Make a span of what happens within; an error that leaves it marks it as failed.

    Parameters
    ----------
    name : str
        One of few: no ids and no names of jobs.
    parent : str, optional
        What ``traceparent`` says of the span that caused this one; without it, the one under way
        here, if there is one.
    **attributes
        ``__`` in a name stands for its dot.
    """
    if _Tracing.tracer is None:
        yield NOTHING
        return
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - an extra
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - an extra

    context = None
    if parent is not None:
        propagator = tracecontext.TraceContextTextMapPropagator()
        context = propagator.extract({TRACEPARENT: parent})
    with _Tracing.tracer.start_as_current_span(
        name,
        context=context,
        kind=SpanKind[role.value],
        attributes=dotted(attributes),
        # The text of an error may quote what was sent.
        record_exception=False,
        set_status_on_exception=False,
    ) as started:
        made = Span(started)
        try:
            yield made
        except Exception as error:
            made.fail(type(error).__name__)
            raise


def current() -> str | None:
    """Return what ``traceparent`` says of the span that is under way; None where there is none."""
    if _Tracing.tracer is None:
        return None
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - an extra

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT)


def with_ids(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the ids of trace and span to a line of the log: a processor of structlog."""
    if (under_way := current()) is not None:
        _, event["trace_id"], event["span_id"], _ = under_way.split("-")
    return event


def dotted(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Return attributes by the names of OpenTelemetry's conventions."""
    return {name.replace("__", "."): value for name, value in attributes.items()}
