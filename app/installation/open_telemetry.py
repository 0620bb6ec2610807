"""Send the metrics of `/metrics` by OTLP every minute; record a span for each request.

The sent metrics are the families of `/metrics`, read from the same registry, so that no metric is
declared twice; only the server sends metrics, as only the server has `/metrics`.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import StartupError
from app.installation.metrics import METHODS, OTHER_METHOD, route_of
from app.platform.telemetry import (
    EXPORTS,
    METRICS,
    STOP_S,
    TRACEPARENT,
    Role,
    is_on,
    resource,
    span,
    usable,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, MetricsData, NumberDataPoint
    from opentelemetry.sdk.metrics.export import Metric as SentMetric
    from opentelemetry.sdk.resources import Resource


INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
DEFAULT_INTERVAL_MS: Final = 60_000.0  # of the specification
UNITS: Final = {"_seconds": "s", "_bytes": "By"}

log = structlog.get_logger(__name__)


class ExportCounts(Collector):
    """Counts of this process's OTLP exports by outcome."""

    def describe(self) -> list[Metric]:
        """Return no families, so that registration does not collect any."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of the counts."""
        exports = CounterMetricFamily(
            "paceline_otlp_exports",
            "Batches of traces and metrics sent by OTLP, by outcome.",
            labels=("signal", "outcome"),
        )
        for labels, count in EXPORTS.by_outcome.items():
            exports.add_metric(labels, count)
        yield exports
        dropped = CounterMetricFamily(
            "paceline_otlp_dropped_spans", "Spans for which there was no room to wait."
        )
        dropped.add_metric((), EXPORTS.dropped)
        yield dropped
        waiting = GaugeMetricFamily(
            "paceline_otlp_waiting_spans", "Spans that wait to be sent by OTLP."
        )
        waiting.add_metric((), EXPORTS.waiting)
        yield waiting


@contextlib.contextmanager
def sending_metrics(registry: CollectorRegistry) -> Iterator[None]:
    """Export the metrics of a registry periodically from a thread, if a receiver is configured.

    Raises
    ------
    StartupError
        If a variable of the SDK cannot be used.
    """
    if not usable(METRICS):
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415 - an extra
        OTLPMetricExporter,
    )
    from opentelemetry.sdk.metrics.export import MetricExportResult  # noqa: PLC0415 - an extra

    try:
        interval_s = float(os.environ.get(INTERVAL) or DEFAULT_INTERVAL_MS) / 1000
        if not 0 < interval_s <= threading.TIMEOUT_MAX:
            message = f"{INTERVAL} must be above 0"
            raise ValueError(message)  # noqa: TRY301 - as the SDK says of its own
        exporter = OTLPMetricExporter()
    except ValueError as error:
        raise StartupError(f"OpenTelemetry cannot use its variables OTEL_…: {error}") from error
    named, since_ns, done = resource("serve"), time.time_ns(), threading.Event()

    def send() -> None:
        while not done.wait(interval_s):
            try:
                families = list(registry.collect())
                result = exporter.export(as_otlp(families, named, since_ns, time.time_ns()))
            except Exception:
                log.exception("metrics not sent")
                EXPORTS.note(METRICS, exported=False)
            else:
                EXPORTS.note(METRICS, exported=result is MetricExportResult.SUCCESS)

    thread = threading.Thread(target=send, name="paceline-otlp-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(STOP_S)


def as_otlp(families: Iterable[Metric], named: Resource, since_ns: int, now_ns: int) -> MetricsData:
    """Return Prometheus metric families as OTLP metrics; sums are cumulative.

    Parameters
    ----------
    named : Resource
        The process that the metrics describe.
    since_ns, now_ns : int
        Unix times, ns, of the start of counting and of the values.
    """
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - an extra
        MetricsData,
        ResourceMetrics,
        ScopeMetrics,
    )
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    metrics = [sent for family in families if (sent := _sent(family, since_ns, now_ns)) is not None]
    scope = ScopeMetrics(InstrumentationScope("paceline"), metrics, "")
    return MetricsData([ResourceMetrics(named, [scope], "")])


def _sent(family: Metric, since_ns: int, now_ns: int) -> SentMetric | None:
    """Return a metric family as an OTLP metric; None if the family has no sample."""
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - an extra
        AggregationTemporality,
        Gauge,
        Histogram,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as SentMetric  # noqa: PLC0415 - an extra

    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    if not samples:
        return None
    data: Gauge | Histogram | Sum
    if family.type == "histogram":
        data = Histogram(
            _distributions(samples, since_ns, now_ns), AggregationTemporality.CUMULATIVE
        )
    elif family.type == "counter":
        data = Sum(
            _numbers(samples, since_ns, now_ns),
            AggregationTemporality.CUMULATIVE,
            is_monotonic=True,
        )
    else:
        data = Gauge(_numbers(samples, since_ns, now_ns))
    unit = next((unit for end, unit in UNITS.items() if family.name.endswith(end)), "")
    return SentMetric(family.name, family.documentation, unit, data)


def _numbers(samples: Sequence[Sample], since_ns: int, now_ns: int) -> list[NumberDataPoint]:
    from opentelemetry.sdk.metrics.export import NumberDataPoint  # noqa: PLC0415 - an extra

    return [NumberDataPoint(sample.labels, since_ns, now_ns, sample.value) for sample in samples]


def _distributions(
    samples: Sequence[Sample], since_ns: int, now_ns: int
) -> list[HistogramDataPoint]:
    """Return OTLP histograms: counts within buckets, from Prometheus' counts up to bounds."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint  # noqa: PLC0415 - an extra

    up_to: dict[tuple[tuple[str, str], ...], dict[float, float]] = defaultdict(dict)
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple(sorted((name, text) for name, text in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            up_to[labels][float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    points = []
    for labels, counts in up_to.items():
        bounds = sorted(counts)
        below = [0.0, *(counts[bound] for bound in bounds[:-1])]
        within = [int(counts[b] - less) for b, less in zip(bounds, below, strict=True)]
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=since_ns,
                time_unix_nano=now_ns,
                count=int(counts[bounds[-1]]),
                sum=sums.get(labels, 0.0),
                bucket_counts=within,
                explicit_bounds=[bound for bound in bounds if not math.isinf(bound)],
                # Prometheus stores no minimum and no maximum; the encoder omits fields that are
                # None.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
        )
    return points


# Spans of requests: each starts a trace or continues the caller's. OpenTelemetry's ASGI
# instrumentation is not used: it names spans before the route is known, records two more spans for
# each part of a body, and stores URLs with their queries.


# Orchestrators and Prometheus request these every few seconds: spans of them would fill the traces.
UNTRACED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
SERVER_ERROR: Final = 500


class RequestSpans:
    """ASGI middleware that records a span for each request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request within its span."""
        if scope["type"] != "http" or scope["path"] in UNTRACED or not is_on():
            await self.app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
        path, status = scope["path"], SERVER_ERROR

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with span(
            method, Role.SERVER, _caller(scope), http__request__method=method, url__path=path
        ) as made:
            try:
                await self.app(scope, receive, observed_send)
            finally:
                route = route_of(scope)
                made.rename(f"{method} {route}")
                made.set(http__route=route, http__response__status_code=status)
                if status >= SERVER_ERROR:
                    made.fail(str(status))


def _caller(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == TRACEPARENT.encode():
            return str(value.decode("latin-1"))
    return None
