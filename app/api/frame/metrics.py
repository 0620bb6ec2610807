"""Prometheus metrics: what this process counts, and what the database says at each scrape."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import structlog
from fastapi import APIRouter, Response
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from app.api.frame.metrics_of_all import MetricsOfAll
from app.api.frame.metrics_of_pulse import pulse_metrics
from app.api.frame.routers import api_router
from app.db.states import InboxKind
from app.services.access.projects import list_projects
from app.services.installation.open_work import open_work
from app.services.installation.status import installation_status
from app.services.pulse.running import running_jobs
from app.services.sessions.chunks.inbox import Waiting, waiting
from app.services.tasks.durations import analysis_durations
from app.services.usage.quotas import QUOTAS, uses

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from app.services.container import Container
    from app.services.installation.open_work import OpenWork
    from app.services.usage.quotas import Use
    from app.settings import Settings
    from app.system.shared import Place

log = structlog.get_logger(__name__)

# A label has few values: a peer may call a method whatever it likes.
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD: Final = "other"

DURATION_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Exposition:
    """The metrics of one application; a registry of its own lets tests build many."""

    def __init__(self, container: Container, place: Place | None = None) -> None:
        # What this process counts, and what is told.
        self.registry = CollectorRegistry()
        self.told = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.told)
        self.requests = Counter(
            "paceline_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.request_duration = Histogram(
            "paceline_http_request_duration_seconds",
            "From a request's head to the head of its answer.",
            ("method", "route"),
            buckets=DURATION_BUCKETS_S,
            registry=self.registry,
        )
        self.ingest_bytes = Counter(
            "paceline_ingest_bytes", "Bytes of bodies received.", registry=self.registry
        )
        self.ingest_rows = Counter(
            "paceline_ingest_rows", "Operations stored.", registry=self.registry
        )
        self.ingest_sessions = Counter(
            "paceline_ingest_sessions",
            "Accepted bodies, by whether the session was new or known.",
            ("outcome",),
            registry=self.registry,
        )
        self.ingest_chunks = Counter(
            "paceline_ingest_chunks",
            "Accepted chunks, by whether they were new or known.",
            ("outcome",),
            registry=self.registry,
        )
        self.ingest_refusals = Counter(
            "paceline_ingest_refusals",
            "Bodies refused, by the code of the problem.",
            ("code",),
            registry=self.registry,
        )
        self.ingest_refused_bytes = Counter(
            "paceline_ingest_refused_bytes",
            "Bytes received of bodies that were refused.",
            registry=self.registry,
        )
        self.ingest_waiting = Gauge(
            "paceline_ingest_waiting",
            "Bodies that have arrived and wait to be stored.",
            registry=self.registry,
        )
        self.ingest_spooled = Gauge(
            "paceline_ingest_spooled_bytes",
            "Bytes reserved by bodies that are arriving or being stored.",
            registry=self.registry,
        )
        self.ingest_cut = Counter(
            "paceline_ingest_cut",
            "Bodies whose sender went away before their end.",
            registry=self.registry,
        )
        self.spool_free = Gauge(
            "paceline_spool_free_bytes",
            "Free bytes of the disk where bodies are spooled.",
            registry=self.registry,
        )
        self.event_streams = Gauge(
            "paceline_event_streams", "Open streams of events.", registry=self.registry
        )
        self.told.register(_DatabaseCollector(container))
        self.told.register(_Counted(self.registry, place))


class _Counted(Collector):
    """What this process counts, or all processes of its server."""

    def __init__(self, registry: CollectorRegistry, place: Place | None) -> None:
        self._registry = registry
        self._all = None if place is None else MetricsOfAll(place, registry)
        if self._all is not None:
            self._all.start()

    def describe(self) -> list[Metric]:
        # As below: nothing is collected at start.
        return []

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect() if self._all is None else self._all.collect()


class RequestMetrics:
    """ASGI middleware that counts and times requests by the route that answered them."""

    def __init__(self, app: ASGIApp, metrics: Exposition) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0
        method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.metrics.request_duration.labels(method, route_of(scope)).observe(
                    time.perf_counter() - started
                )
            await send(message)

        try:
            await self.app(scope, receive, observed_send)
        finally:
            # An exception that gets here is answered with 500 outside of this middleware.
            self.metrics.requests.labels(method, route_of(scope), status or 500).inc()


class _DatabaseCollector(Collector):
    """Queue, sessions and workers as the database has them when Prometheus asks."""

    def __init__(self, container: Container) -> None:
        self._container = container

    def describe(self) -> list[Metric]:
        # Without this the registry would ask the database at start.
        return []

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("paceline_database_up", "Whether the database answers.")
        try:
            with self._container.everywhere().reading() as tx:
                status = installation_status(tx, self._container.settings)
                work = open_work(tx, self._container.kinds)
                waits = waiting(tx)
                pulses = waiting(tx, InboxKind.PULSE)
                running = running_jobs(tx)
                now = tx.now
                durations = analysis_durations(tx)
                found = uses(tx)
                used = {project.name: found[project.id] for project in list_projects(tx)}
        except SQLAlchemyError as error:
            log.warning("metrics without the database", error=str(error).splitlines()[0])
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        sessions = GaugeMetricFamily("paceline_sessions", "Sessions by state.", labels=("state",))
        for state, count in status.sessions.items():
            sessions.add_metric((state,), count)
        yield sessions
        tasks = GaugeMetricFamily("paceline_tasks", "Task runs by state.", labels=("state",))
        for task_state, count in status.tasks.items():
            tasks.add_metric((task_state,), count)
        yield tasks
        oldest = GaugeMetricFamily(
            "paceline_oldest_queued_seconds", "Age of the oldest task that waits; 0 without one."
        )
        oldest.add_metric((), status.oldest_queued_s or 0.0)
        yield oldest
        yield from _inbox(waits, now)
        yield from pulse_metrics(running, pulses, now)
        workers = GaugeMetricFamily(
            "paceline_worker_heartbeat_age_seconds",
            "Time since a worker was last seen.",
            labels=("worker", "host", "queues"),
        )
        for worker in status.workers:
            workers.add_metric((str(worker.id), worker.host, worker.queues), worker.seen_age_s)
        yield workers
        yield from _open_work(work)
        yield HistogramMetricFamily(
            "paceline_analysis_duration_seconds",
            "From the start of an analysis to its stored report, over all workers.",
            buckets=[
                ("+Inf" if limit == math.inf else str(limit), n) for limit, n in durations.at_most
            ],
            sum_value=durations.total_s,
        )
        yield from _quotas(used, self._container.settings)


def _inbox(waits: Waiting, now: datetime) -> Iterator[Metric]:
    bodies = GaugeMetricFamily("paceline_inbox_chunks", "Chunks that wait to be decoded.")
    bodies.add_metric((), waits.bodies)
    yield bodies
    size = GaugeMetricFamily("paceline_inbox_bytes", "Bytes of chunks that wait to be decoded.")
    size.add_metric((), waits.bytes)
    yield size
    age = GaugeMetricFamily(
        "paceline_inbox_oldest_seconds", "Age of the oldest chunk that waits; 0 without one."
    )
    # One that comes while they are read is later than their time.
    since = 0.0 if waits.oldest_at is None else (now - waits.oldest_at).total_seconds()
    age.add_metric((), max(since, 0.0))
    yield age


def _open_work(work: OpenWork) -> Iterator[Metric]:
    tasks = GaugeMetricFamily(
        "paceline_open_tasks",
        "Tasks that wait (queued) or run, by kind and queue.",
        labels=("kind", "queue", "state"),
    )
    for labels, count in work.tasks.items():
        tasks.add_metric(labels, count)
    yield tasks
    deliveries = GaugeMetricFamily(
        "paceline_deliveries", "Deliveries of alerts that wait or are sent.", labels=("state",)
    )
    for delivery_state, count in work.deliveries.items():
        deliveries.add_metric((delivery_state,), count)
    yield deliveries
    failed = GaugeMetricFamily(
        "paceline_failed_deliveries", "Deliveries of the last 24 hours that were given up."
    )
    failed.add_metric((), work.failed_deliveries)
    yield failed
    incidents = GaugeMetricFamily(
        "paceline_incidents", "Incidents that are not resolved.", labels=("state",)
    )
    for incident_state, count in work.incidents.items():
        incidents.add_metric((incident_state,), count)
    yield incidents


def _quotas(by_project: Mapping[str, Use], settings: Settings) -> Iterator[Metric]:
    used = GaugeMetricFamily(
        "paceline_quota_used", "What a project has used.", labels=("project", "quota")
    )
    limits = GaugeMetricFamily(
        "paceline_quota_limit",
        "Limit of a project; absent without a limit.",
        labels=("project", "quota"),
    )
    for quota in QUOTAS:
        limit = quota.limit(settings)
        for project, use in by_project.items():
            used.add_metric((project, quota.name), quota.used(use))
            if limit is not None:
                limits.add_metric((project, quota.name), limit)
    yield used
    yield limits


def router(metrics: Exposition) -> APIRouter:
    """Return the route that Prometheus scrapes."""
    routes = api_router("operation")

    @routes.get("/metrics", response_class=Response, summary="Prometheus metrics")
    def scrape() -> Response:
        return Response(generate_latest(metrics.told), media_type=CONTENT_TYPE_LATEST)

    return routes


def route_of(scope: Scope) -> str:
    """Return the template of the route that took the request, so that a label has few values."""
    return getattr(scope.get("route"), "path", "unmatched")
