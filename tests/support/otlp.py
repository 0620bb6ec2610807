"""A receiver of OTLP over HTTP, which decodes all requests."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from benchmarks.support.receiver import Got, PostServer, Reply

Values = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class GotSpan:
    """A received span."""

    name: str
    trace: str
    id: str
    parent: str
    process: str
    attributes: Values


class OtlpReceiver(PostServer):
    """Stores spans and metrics; with `hangs`, it answers nothing until the context ends."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self.spans: list[GotSpan] = []
        self.metrics: dict[str, Metric] = {}
        self.asked = 0
        self._let_go = threading.Event()
        if not hangs:
            self._let_go.set()
        self._lock = threading.Lock()

    @property
    def environment(self) -> dict[str, str]:
        """Return environment variables with which a process exports to this receiver soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }

    def let_go(self) -> None:
        """Answer all requests from now on."""
        self._let_go.set()

    def take(self, got: Got) -> Reply:
        with self._lock:
            self.asked += 1
        self._let_go.wait(300)
        with self._lock:
            if got.path == "/v1/traces":
                self.spans += _spans(ExportTraceServiceRequest.FromString(got.body))
            elif got.path == "/v1/metrics":
                request = ExportMetricsServiceRequest.FromString(got.body)
                self.metrics = {
                    metric.name: metric
                    for resource in request.resource_metrics
                    for scope in resource.scope_metrics
                    for metric in scope.metrics
                }
            else:
                return Reply(404)
        return Reply(headers={"Content-Type": "application/x-protobuf"})


def _spans(request: ExportTraceServiceRequest) -> list[GotSpan]:
    return [
        GotSpan(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            str(_values(resource.resource.attributes)["paceline.process"]),
            _values(span.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Iterable[KeyValue]) -> Values:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in attributes
    }
