"""OpenTelemetry: spans of the program, and their export in a thread of the SDK.

The trace context travels between processes in durable rows, in the form of a ``traceparent`` header
(W3C Trace Context). The export queue is bounded (``OTEL_BSP_MAX_QUEUE_SIZE``); spans beyond the
bound are dropped and counted. A failing receiver is logged once, and once more when it works again.
Without a configured receiver none of this has an effect.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import structlog
from structlog.typing import EventDict, WrappedLogger

from app.errors import StartupError

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


TRACEPARENT: Final = "traceparent"

Value = str | int | float | bool


class Role(enum.Enum):
    """Kind of a span; the values are OpenTelemetry's names."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    CONSUMER = "CONSUMER"


class _Tracing:
    """The tracer of this process; None until `begin`."""

    tracer: trace.Tracer | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A running span; without tracing, all its methods do nothing."""

    _span: trace.Span | None = None

    def set(self, **attributes: Value) -> None:
        """Set attributes; ``__`` in a keyword becomes the dot of the attribute's name."""
        if self._span is not None:
            self._span.set_attributes(dotted(attributes))

    def rename(self, name: str) -> None:
        """Rename the span, if its name was not known at its start."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, kind: str) -> None:
        """Mark the span as failed, with a stable word for the reason; details are in the log."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - an extra

            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR))


NOTHING: Final = Span()


def begin(tracer: trace.Tracer | None) -> None:
    """Set the tracer of this process; None turns tracing off."""
    _Tracing.tracer = tracer


def is_on() -> bool:
    """Return whether this process records spans."""
    return _Tracing.tracer is not None


@contextlib.contextmanager
def span(
    name: str, role: Role = Role.INTERNAL, parent: str | None = None, **attributes: Value
) -> Iterator[Span]:
    """Record a span around a block; an exception marks it as failed.

    Parameters
    ----------
    name : str
        Name from a small set: without ids and names of jobs.
    parent : str, optional
        The ``traceparent`` of the span that caused this span; default: the running span, if any.
    **attributes
        Attributes of the span; ``__`` in a keyword becomes the dot of the attribute's name.
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
        # The text of an error may quote data that a user sent.
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
    """Return the running span as a ``traceparent`` header; None without a span."""
    if _Tracing.tracer is None:
        return None
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - an extra

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT)


def with_ids(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the ids of the trace and the span to a log entry: a structlog processor."""
    if (under_way := current()) is not None:
        _, event["trace_id"], event["span_id"], _ = under_way.split("-")
    return event


def dotted(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Return attributes with the dotted names of OpenTelemetry's conventions."""
    return {name.replace("__", "."): value for name, value in attributes.items()}


TRACES: Final = "traces"
METRICS: Final = "metrics"

QUEUE_SIZE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
DEFAULT_QUEUE_SIZE: Final = 2048  # of the specification
SPOKEN: Final = "http/protobuf"
# Time for which a stopping process waits for the receiver.
STOP_S: Final = 2.0

log = structlog.get_logger(__name__)


@dataclass
class Exports:
    """Counts of exports by outcome, of waiting spans and of dropped spans."""

    by_outcome: Counter[tuple[str, str]] = field(default_factory=Counter)  # signal, outcome
    waiting: int = 0  # spans
    dropped: int = 0  # spans
    _failing: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, most: int) -> bool:
        """Return whether one more span may wait for export, and count the span."""
        with self._lock:
            if self.waiting >= most:
                self.dropped += 1
                return False
            self.waiting += 1
            return True

    def taken(self, count: int) -> None:
        """Count spans that no longer wait for export."""
        with self._lock:
            self.waiting -= count

    def note(self, signal: str, *, exported: bool) -> None:
        """Count an export, and log its outcome if the outcome changed."""
        with self._lock:
            self.by_outcome[signal, "exported" if exported else "failed"] += 1
            news = exported == (signal in self._failing)
            if exported:
                self._failing.discard(signal)
            else:
                self._failing.add(signal)
        if news and exported:
            log.info("telemetry exported again", signal=signal, dropped_spans=self.dropped)
        elif news:
            log.warning("telemetry not exported, trying on", signal=signal)


EXPORTS: Final = Exports()
_stops: Final[list[Callable[[], None]]] = []


def wanted(signal: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment configures a receiver for a signal.

    Parameters
    ----------
    signal : str
        ``traces`` or ``metrics``.
    """
    upper = signal.upper()
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get(f"OTEL_{upper}_EXPORTER", "otlp") != "otlp":
        return False
    return any(
        environment.get(name)
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT")
    )


def usable(signal: str) -> bool:
    """Return whether a signal is configured and can be exported; log the obstacle if not."""
    if not wanted(signal):
        return False
    if (reason := obstacle(signal)) is not None:
        log.warning("no telemetry", signal=signal, why=reason)
        return False
    return True


def obstacle(signal: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why a configured signal cannot be exported; None if it can."""
    spoken = environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", SPOKEN
    )
    if spoken != SPOKEN:
        return f"OTEL_EXPORTER_OTLP_PROTOCOL is {spoken}; {SPOKEN} is what is spoken here"
    if importlib.util.find_spec("opentelemetry.exporter") is None:
        return 'the extra is not installed: pip install "paceline[otel]"'
    return None


def resource(process: str) -> Resource:
    """Return the OpenTelemetry resource of this process; ``OTEL_…`` variables take precedence."""
    from opentelemetry.sdk.resources import (  # noqa: PLC0415 - an extra
        OTELResourceDetector,
        Resource,
    )

    ours = {
        "service.name": "paceline",
        "service.version": version("paceline"),
        "paceline.process": process,
    }
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def start(process: str) -> None:
    """Start to record and export spans in this process, if a receiver is configured.

    Call this function after a fork, since threads do not survive a fork.

    Parameters
    ----------
    process : str
        Value of the attribute ``paceline.process``: ``serve``, ``worker analysis``…

    Raises
    ------
    StartupError
        If a variable of the SDK cannot be used.
    """
    if is_on() or not usable(TRACES):
        return
    # This module counts and logs failures; the SDK would log every batch.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra

    try:
        provider = TracerProvider(resource=resource(process), shutdown_on_exit=False)
        provider.add_span_processor(_processor(OTLPSpanExporter()))
    except ValueError as error:
        raise StartupError(f"OpenTelemetry cannot use its variables OTEL_…: {error}") from error
    begin(provider.get_tracer("paceline", version("paceline")))

    def stop_tracing() -> None:
        begin(None)
        provider.shutdown()

    on_stop(stop_tracing)


def _processor(exporter: SpanExporter) -> SpanProcessor:
    """Return the span processor that passes spans to the SDK's thread, within the queue's limit."""
    from opentelemetry.sdk.trace import SpanProcessor  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415 - an extra
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    most = int(os.environ.get(QUEUE_SIZE) or DEFAULT_QUEUE_SIZE)

    class Counting(SpanExporter):
        def export(self, batch: Sequence[ReadableSpan]) -> SpanExportResult:
            EXPORTS.taken(len(batch))
            result = exporter.export(batch)
            EXPORTS.note(TRACES, exported=result is SpanExportResult.SUCCESS)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    class Bounded(SpanProcessor):
        def __init__(self) -> None:
            self._behind = BatchSpanProcessor(Counting(), max_queue_size=most)

        def on_end(self, span: ReadableSpan) -> None:
            sampled = span.context is not None and span.context.trace_flags.sampled
            if sampled and EXPORTS.admit(most):
                self._behind.on_end(span)

        def shutdown(self) -> None:
            self._behind.shutdown()  # type: ignore[no-untyped-call]  # the SDK leaves it without

    return Bounded()


def on_stop(action: Callable[[], None]) -> None:
    """Register a function that `stop` calls."""
    _stops.append(action)


def stop() -> None:
    """Export the waiting spans, for at most `STOP_S`; a second call is harmless."""
    # Daemon threads, so that a hanging export does not keep the process alive.
    threads = [threading.Thread(target=action, daemon=True) for action in _stops]
    _stops.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STOP_S)
