"""Prometheus metrics: counters of this process, and gauges read from the database at a scrape.

Each process of a server writes its metrics into its own file every second; the process that answers
a scrape adds the other processes' files to its own metrics. Metrics about a process itself
(``process_…``, ``python_…``) are those of the answering process.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

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
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.exposition import generate_latest as exposition_generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.guard import api_router
from app.access.projects import list_projects
from app.installation.models import analysis_durations
from app.installation.readiness import OpenWork, installation_status, open_work
from app.platform.container import Container
from app.platform.database.states import InboxKind
from app.platform.resources import Place
from app.platform.settings import Settings
from app.pulse.live import RunningJob, running_jobs
from app.quotas.usage import QUOTAS, Use, uses
from app.sessions.chunks.inbox import Backlog, backlog

WRITE_EVERY_S: Final = 1.0
# Metrics with the same value in every process, which are not summed: all processes share the disk.
_ALIKE: Final = frozenset({"paceline_spool_free_bytes"})


class MetricsOfAll:
    """Writes the metrics of this process to its file, and sums the metrics of all processes.

    The library's own multiprocess mode is not used: it is chosen for a whole process when the
    library is imported, shares values among the applications of a process, and keeps the gauges of
    a process that has died until its supervisor removes them.

    Parameters
    ----------
    place : Place
        The place of this process among those of the server.
    registry : CollectorRegistry
        The metrics that this process counts.
    """

    def __init__(self, place: Place, registry: CollectorRegistry) -> None:
        self._place = place
        self._registry = registry
        self._thread = threading.Thread(target=self._run, name="paceline-metrics", daemon=True)

    def start(self) -> None:
        """Start the thread that writes the metrics until the server ends."""
        self._thread.start()

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, summed over all processes."""
        texts = [generate_latest(self._registry).decode()]
        for number in range(self._place.of):
            path = self._place.directory / f"metrics-{number}"
            if number != self._place.number and path.exists():
                texts.append(path.read_text())
        yield from added(list(text_string_to_metric_families(text)) for text in texts)

    def _run(self) -> None:
        path = self._place.directory / f"metrics-{self._place.number}"
        written = path.with_suffix(".new")
        while True:
            time.sleep(WRITE_EVERY_S)
            content = generate_latest(self._registry)
            try:
                written.write_bytes(content)
                written.replace(path)
            except FileNotFoundError:
                return


def added(processes: Iterable[list[Metric]]) -> list[Metric]:
    """Return the metric families with their samples summed over processes."""
    sums: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    families: dict[str, Metric] = {}
    for families_of_process in processes:
        for family in families_of_process:
            # Unix times at which processes began to count: a sum of them has no meaning.
            if family.name.endswith("_created"):
                continue
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                key = (family.name, sample.name, tuple(sorted(sample.labels.items())))
                if family.name in _ALIKE:
                    sums[key] = sample.value
                else:
                    sums[key] += sample.value
    for (family_name, name, labels), value in sums.items():
        families[family_name].add_sample(name, dict(labels), value)
    return list(families.values())


# `training_job` is the job's name. `job` is kept for one version: Prometheus gives this label to
# all metrics of a server, and renames ours to `exported_job`.
_JOB = ("project", "job", "training_job")


def pulse_metrics(running: Sequence[RunningJob], waits: Backlog, now: datetime) -> Iterator[Metric]:
    """Yield metrics of jobs in their last whole minute, and of pulses that wait for a worker."""
    bodies = GaugeMetricFamily("paceline_pulse_waiting", "Bodies of pulses that wait.")
    bodies.add_metric((), waits.bodies)
    yield bodies
    age = GaugeMetricFamily(
        "paceline_pulse_oldest_seconds", "Age of the oldest pulse that waits; 0 without one."
    )
    since = 0.0 if waits.oldest_at is None else (now - waits.oldest_at).total_seconds()
    age.add_metric((), max(since, 0.0))
    yield age
    step = GaugeMetricFamily(
        "paceline_job_step_seconds", "Median step time of the last minute.", labels=_JOB
    )
    tokens = GaugeMetricFamily(
        "paceline_job_tokens_per_second", "Tokens a second of the last minute.", labels=_JOB
    )
    lost = CounterMetricFamily(
        "paceline_job_gpu_hours_lost",
        "GPU-hours in which ranks waited for the one that computes longest against its peers.",
        labels=_JOB,
    )
    ratio = GaugeMetricFamily(
        "paceline_rank_compute_ratio",
        "Computing of the slowest ranks of the last minute against the median of their peers.",
        labels=(*_JOB, "node", "gpu"),
    )
    for job in running:
        labels = job.project, job.job, job.job
        step.add_metric(labels, job.step_s)
        if job.tokens_per_s is not None:
            tokens.add_metric(labels, job.tokens_per_s)
        lost.add_metric(labels, job.lost_gpu_hours)
        for slow in job.slowest:
            node = slow.host or f"rank-{slow.rank}"
            ratio.add_metric((*labels, node, str(slow.gpu)), slow.ratio)
    yield from (step, tokens, lost, ratio)


log = structlog.get_logger(__name__)

# A client may send any method name, and a label must have few values: other methods share a label.
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD: Final = "other"

DURATION_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Exposition:
    """The metrics of one application in a separate registry, so that tests can build many."""

    def __init__(self, container: Container, place: Place | None = None) -> None:
        # `registry` holds the metrics that this process counts, `exposed` all metrics that a scrape
        # returns.
        self.registry = CollectorRegistry()
        self.exposed = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.exposed)
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
        self.exposed.register(_DatabaseCollector(container))
        self.exposed.register(_Counted(self.registry, place))


class _Counted(Collector):
    """Collector of the metrics of this process, or of all processes of its server."""

    def __init__(self, registry: CollectorRegistry, place: Place | None) -> None:
        self._registry = registry
        self._all = None if place is None else MetricsOfAll(place, registry)
        if self._all is not None:
            self._all.start()

    def describe(self) -> list[Metric]:
        # Without this the registry would collect the metrics at start.
        return []

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect() if self._all is None else self._all.collect()


class RequestMetrics:
    """ASGI middleware that counts and times requests by the template of their route."""

    def __init__(self, app: ASGIApp, metrics: Exposition) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request and count it."""
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
            # No status: an exception passed through, which a middleware outside of this one answers
            # with 500.
            self.metrics.requests.labels(method, route_of(scope), status or 500).inc()


class _DatabaseCollector(Collector):
    """Collector of queues, sessions and workers, read from the database at each scrape."""

    def __init__(self, container: Container) -> None:
        self._container = container

    def describe(self) -> list[Metric]:
        # Without this the registry would query the database at start.
        return []

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("paceline_database_up", "Whether the database answers.")
        try:
            with self._container.everywhere().reading() as tx:
                status = installation_status(tx, self._container.settings)
                work = open_work(tx, self._container.kinds)
                waits = backlog(tx)
                pulses = backlog(tx, InboxKind.PULSE)
                running = running_jobs(tx)
                now = tx.now
                durations = analysis_durations(tx)
                uses_of_projects = uses(tx)
                used = {project.name: uses_of_projects[project.id] for project in list_projects(tx)}
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


def _inbox(waits: Backlog, now: datetime) -> Iterator[Metric]:
    bodies = GaugeMetricFamily("paceline_inbox_chunks", "Chunks that wait to be decoded.")
    bodies.add_metric((), waits.bodies)
    yield bodies
    size = GaugeMetricFamily("paceline_inbox_bytes", "Bytes of chunks that wait to be decoded.")
    size.add_metric((), waits.bytes)
    yield size
    age = GaugeMetricFamily(
        "paceline_inbox_oldest_seconds", "Age of the oldest chunk that waits; 0 without one."
    )
    # A chunk that arrives during the reading transaction is later than the transaction's `now`.
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
    newer = GaugeMetricFamily(
        "paceline_newer_tasks",
        "Tasks that wait for a worker of a later version than this server's.",
    )
    newer.add_metric((), work.newer_tasks)
    yield newer
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
        return Response(exposition_generate_latest(metrics.exposed), media_type=CONTENT_TYPE_LATEST)

    return routes


def route_of(scope: Scope) -> str:
    """Return the route template of a request: as a label it has few values."""
    return getattr(scope.get("route"), "path", "unmatched")
