"""Pages of ingest health and of the installation, and their CSV files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import Here
from app.installation.overview import Overview, Queue, TableSize, overview
from app.installation.readiness import WorkerStatus
from app.platform.settings import Settings
from app.quotas.pages import quota_lines
from app.quotas.usage import QUOTAS
from app.sessions.arriving import (
    GuessingJob,
    IngestHealth,
    JobIntake,
    Lagging,
    OpenSession,
    Refusal,
    ingest_health,
)
from app.web.format import age, byte_size, count, plural
from app.web.links import Address
from app.web.pages import Pages
from app.web.tables import Table, csv_file, one_of
from app.web.time_ranges import Range, TimeQueryParam, range_choices

# CSV file name → function that returns its table from ingest health.
INGEST: Final[Mapping[str, Callable[[IngestHealth], Table]]] = {
    "open": lambda found: Table.of(OpenSession, found.open),
    "producers": lambda found: Table.of(Lagging, found.lagging),
    "refused": lambda found: Table.of(Refusal, found.refusals),
    "jobs": lambda found: Table.of(JobIntake, found.jobs),
    "guesses": lambda found: Table.of(GuessingJob, found.guessing),
}


def _sessions(found: Overview, _settings: Settings) -> Table:
    return Table(("state", "sessions"), found.status.sessions.items())


def _quotas(found: Overview, settings: Settings) -> Table:
    return Table(
        ("project", "quota", "used", "limit"),
        (
            (project, quota.name, quota.used(use), quota.limit(settings))
            for project, use in found.uses.items()
            for quota in QUOTAS
        ),
    )


# CSV file name → function that returns its table from the installation's state.
INSTALLATION: Final[Mapping[str, Callable[[Overview, Settings], Table]]] = {
    "queues": lambda found, _: Table.of(Queue, found.queues),
    "workers": lambda found, _: Table.of(WorkerStatus, found.status.workers),
    "storage": lambda found, _: Table.of(TableSize, found.tables),
    "sessions": _sessions,
    "quotas": _quotas,
}


def ingest_heading(found: IngestHealth, about: Range) -> str:
    """Return the heading of the page of ingest health."""
    missing = [session for session in found.open if session.missing]
    if missing:
        one = missing[0]
        names = ", ".join(one.missing[:3])
        return (
            f"{one.job}, session {one.number} waits for {plural(len(one.missing), 'producer')}: "
            f"{names}"
        )
    if found.refusals:
        first = found.refusals[0]
        bodies = sum(one.bodies for one in found.refusals)
        words = "body was" if bodies == 1 else "bodies were"
        return f"{count(bodies)} {words} refused, most often {first.code}"
    if not found.sessions:
        return f"Nothing arrived in {about.words}"
    return (
        f"{plural(found.sessions, 'session')} of {plural(found.job_count, 'job')} arrived in "
        f"{about.words}, and nothing was refused"
    )


def installation_heading(found: Overview) -> str:
    """Return the heading of the page of the installation."""
    alive = [worker for worker in found.status.workers if worker.alive]
    if found.behind:
        return f"The schema is at {found.revision}, and this program needs {found.expected}"
    if not any("analysis" in worker.queues.split(",") for worker in alive):
        return "No live worker takes analyses"
    dead = sum(queue.dead for queue in found.queues)
    if dead:
        return f"{plural(dead, 'piece')} of work {'was' if dead == 1 else 'were'} given up"
    queued = sum(queue.queued for queue in found.queues)
    waits = max((queue.oldest_s for queue in found.queues if queue.oldest_s), default=0.0)
    behind = f", the oldest for {age(waits)}" if queued else ""
    return (
        f"{plural(len(alive), 'worker')} alive, {count(queued)} waiting{behind}, "
        f"{byte_size(found.database_bytes)} stored"
    )


_DAY: Final = timedelta(days=1)


def add_operation_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of ingest health and of the installation to the dashboard."""

    @routes.get("/ingest")
    def ingest_route(container: Here, time: TimeQueryParam) -> Response:
        about = time.about()
        with pages.reading(container) as (tx, nav):
            found = ingest_health(tx, about.since(tx.now) or tx.now - _DAY)
        return pages.render(
            "installation/ingest.html",
            nav,
            found=found,
            now=found.now,
            heading=ingest_heading(found, about),
            range=range_choices(about),
            about=about,
            query=Address("", time.parameters).but(),
        )

    @routes.get("/ingest/{name}.csv")
    def ingest_file_route(container: Here, name: str, time: TimeQueryParam) -> Response:
        make = one_of(INGEST, name)
        with container.reading() as tx:
            found = ingest_health(tx, time.about().since(tx.now) or tx.now - _DAY)
        return csv_file(f"paceline-ingest-{name}.csv", make(found))

    @routes.get("/installation")
    def installation_route(container: Here) -> Response:
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            found = overview(container, tx)
        return pages.render(
            "installation/installation.html",
            nav,
            found=found,
            now=found.now,
            heading=installation_heading(found),
            quotas={name: quota_lines(use, container.settings) for name, use in found.uses.items()},
        )

    @routes.get("/installation/{name}.csv")
    def installation_file_route(container: Here, name: str) -> Response:
        make = one_of(INSTALLATION, name)
        with container.everywhere().reading() as tx:
            found = overview(container, tx)
        return csv_file(f"paceline-installation-{name}.csv", make(found, container.settings))
