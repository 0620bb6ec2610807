"""Pages of ingest health and of the installation, and their CSV files."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response
from markupsafe import Markup

from app.access.guard import RequestContainer
from app.installation.overview import Overview, Queue, TableSize, overview
from app.installation.readiness import WorkerStatus
from app.platform.settings import Settings
from app.quotas.pages import QuotaUse, quota_uses
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
from app.web.html import glyph, link
from app.web.links import Address, job_url
from app.web.moments import ago
from app.web.pages import Pages
from app.web.tables import Listed, Shown, csv_file, one_of
from app.web.time_ranges import Range, TimeQueryParam, range_choices

# Producers without a chunk that a row names.
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class SessionsInState:
    """The number of sessions of all projects in one state."""

    state: str
    sessions: int


def ingest_tables(health: IngestHealth) -> Mapping[str, Listed[Any]]:
    """Return the tables of ingest health, by the names of their CSV files."""
    now = health.now
    return {
        "open": Listed[OpenSession](
            OpenSession,
            health.open,
            (
                Shown("Session", lambda row: _session(row, row.id), of_cells="grow"),
                Shown("Last chunk", lambda row: ago(row.last_chunk_at, now), classes="num"),
                Shown("Chunks", lambda row: count(row.chunks), classes="num opt"),
                Shown("Producers", lambda row: count(row.producers), classes="num"),
                Shown(
                    "Cells",
                    lambda row: f"{count(row.covered)} of {count(row.cells)}",
                    classes="num",
                ),
                Shown("Operations", lambda row: count(row.operations), classes="num opt"),
                Shown("Refused", lambda row: count(row.refused), classes="num opt"),
                Shown("Not heard of", _missing, classes="opt", of_cells="grow"),
            ),
        ),
        "producers": Listed[Lagging](
            Lagging,
            health.lagging,
            (
                Shown("Producer", lambda row: row.producer, of_cells="grow"),
                Shown("Session", lambda row: _session(row, row.session), of_cells="grow"),
                Shown("Behind", lambda row: age(row.behind.total_seconds()), classes="num"),
                Shown("Last chunk", lambda row: ago(row.last_at, now), classes="num"),
                Shown("Chunks", lambda row: count(row.chunks), classes="num opt"),
                Shown("Done", lambda row: "yes" if row.final else "", classes="opt"),
            ),
        ),
        "refused": Listed[Refusal](
            Refusal,
            health.refusals,
            (
                Shown("Reason", lambda row: link("/docs/http-api/", row.code), of_cells="grow"),
                Shown("Bodies", lambda row: count(row.bodies), classes="num"),
                Shown("Size", lambda row: byte_size(row.bytes), classes="num opt"),
                Shown("Last, sent as", lambda row: row.last_job, of_cells="grow"),
                Shown("When", lambda row: ago(row.last_at, now), classes="num"),
            ),
        ),
        "jobs": Listed[JobIntake](
            JobIntake,
            health.jobs,
            (
                Shown("Job", lambda row: link(job_url(row.job), row.job), of_cells="grow"),
                Shown("Sessions", lambda row: count(row.sessions), classes="num"),
                Shown("Verdicts", lambda row: count(row.analyzed), classes="num"),
                Shown("No verdict", lambda row: count(row.no_verdict), classes="num opt"),
                Shown("Discarded", lambda row: count(row.discarded), classes="num opt"),
                Shown("Failed", lambda row: count(row.failed), classes="num opt"),
                Shown("In progress", lambda row: count(row.underway), classes="num opt"),
                Shown("Sealed by silence", lambda row: count(row.silence), classes="num opt w2"),
                Shown("Refused chunks", lambda row: count(row.refused), classes="num opt w2"),
                Shown("Last", lambda row: ago(row.last_at, now), classes="num"),
            ),
        ),
        "guesses": Listed[GuessingJob](
            GuessingJob,
            health.guessing,
            (
                Shown("Job", lambda row: link(job_url(row.job), row.job), of_cells="grow"),
                Shown(
                    "Guessed hosts",
                    lambda row: f"{count(row.guessed)} of {count(row.hosts)}",
                    classes="num",
                ),
                Shown("Such as", lambda row: row.example, classes="opt", of_cells="grow"),
                Shown("Last", lambda row: ago(row.last_at, now), classes="num"),
            ),
        ),
    }


def _session(row: OpenSession | Lagging, session: uuid.UUID) -> Markup:
    return link(f"/sessions/{session}", f"{row.job}, session {count(row.number)}")


def _missing(row: OpenSession) -> str:
    names, more = ", ".join(row.missing[:_NAMED]), len(row.missing) - _NAMED
    return f"{names} and {count(more)} more" if more > 0 else names


def installation_tables(state: Overview, settings: Settings) -> Mapping[str, Listed[Any]]:
    """Return the tables of the installation's state, by the names of their CSV files."""
    return {
        "queues": Listed[Queue](
            Queue,
            state.queues,
            (
                Shown("Kind", lambda row: row.kind.replace("_", " "), of_cells="grow"),
                Shown("Queue", lambda row: row.queue, classes="opt"),
                Shown("Waiting", lambda row: count(row.queued), classes="num"),
                Shown("Running", lambda row: count(row.running), classes="num"),
                Shown("Given up", lambda row: count(row.dead), classes="num"),
                Shown(
                    "Oldest",
                    lambda row: "" if row.oldest_s is None else age(row.oldest_s),
                    classes="num",
                ),
            ),
        ),
        "workers": Listed[WorkerStatus](
            WorkerStatus,
            state.status.workers,
            (
                Shown("Host", lambda row: row.host, of_cells="grow"),
                Shown("Process", lambda row: row.pid, classes="num opt"),
                Shown("Queues", lambda row: row.queues),
                Shown(
                    "State",
                    lambda row: glyph("done", "Alive") if row.alive else glyph("warn", "Gone"),
                ),
                Shown("Seen", lambda row: age(row.seen_age_s), classes="num"),
            ),
        ),
        "storage": Listed[TableSize](
            TableSize,
            state.tables,
            (
                Shown("Table", lambda row: row.name, of_cells="grow"),
                Shown("Size", lambda row: byte_size(row.bytes), classes="num"),
                Shown("Rows", lambda row: count(row.rows), classes="num"),
            ),
        ),
        "sessions": Listed[SessionsInState](
            SessionsInState,
            [SessionsInState(*item) for item in state.status.sessions.items()],
            (
                Shown("State", lambda row: row.state.replace("_", " "), of_cells="grow"),
                Shown("Sessions", lambda row: count(row.sessions), classes="num"),
            ),
        ),
        "quotas": Listed[QuotaUse](
            QuotaUse,
            [
                row
                for project, use in state.uses.items()
                for row in quota_uses(project, use, settings)
            ],
            (
                Shown("Project", lambda row: row.project, of_cells="nowrap"),
                Shown("Quota", lambda row: row.title, of_cells="grow"),
                Shown("Used", lambda row: count(row.used), classes="num"),
                Shown("Limit", lambda row: row.limit_text, classes="num"),
                Shown("Share", lambda row: row.share, classes="num opt"),
            ),
        ),
    }


def ingest_heading(health: IngestHealth, about: Range) -> str:
    """Return the heading of the page of ingest health."""
    missing = [session for session in health.open if session.missing]
    if missing:
        session = missing[0]
        names = ", ".join(session.missing[:3])
        return (
            f"{session.job}, session {session.number} waits for "
            f"{plural(len(session.missing), 'producer')}: {names}"
        )
    if health.refusals:
        first = health.refusals[0]
        bodies = sum(refusal.bodies for refusal in health.refusals)
        words = "body was" if bodies == 1 else "bodies were"
        return f"{count(bodies)} {words} refused, most often {first.code}"
    if not health.sessions:
        return f"Nothing arrived in {about.words}"
    return (
        f"{plural(health.sessions, 'session')} of {plural(health.job_count, 'job')} arrived in "
        f"{about.words}, and nothing was refused"
    )


def installation_heading(state: Overview) -> str:
    """Return the heading of the page of the installation."""
    alive = [worker for worker in state.status.workers if worker.alive]
    if state.behind:
        return f"The schema is at {state.revision}, and this program needs {state.expected}"
    if not any("analysis" in worker.queues.split(",") for worker in alive):
        return "No live worker takes analyses"
    dead = sum(queue.dead for queue in state.queues)
    if dead:
        return f"{plural(dead, 'piece')} of work {'was' if dead == 1 else 'were'} given up"
    queued = sum(queue.queued for queue in state.queues)
    waits = max((queue.oldest_s for queue in state.queues if queue.oldest_s), default=0.0)
    behind = f", the oldest for {age(waits)}" if queued else ""
    return (
        f"{plural(len(alive), 'worker')} alive, {count(queued)} waiting{behind}, "
        f"{byte_size(state.database_bytes)} stored"
    )


_DAY: Final = timedelta(days=1)


def add_operation_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of ingest health and of the installation to the dashboard."""

    @routes.get("/ingest")
    def ingest_route(container: RequestContainer, time: TimeQueryParam) -> Response:
        about = time.about()
        with pages.reading(container) as (tx, nav):
            health = ingest_health(tx, about.since(tx.now) or tx.now - _DAY)
        query = Address("", time.parameters).but()
        return pages.render(
            "installation/ingest.html",
            nav,
            health=health,
            now=health.now,
            heading=ingest_heading(health, about),
            range=range_choices(about),
            about=about,
            query=query,
            tables={
                name: table.drawn(f"/ingest/{name}.csv{query}", "plain fleet")
                for name, table in ingest_tables(health).items()
            },
        )

    @routes.get("/ingest/{name}.csv")
    def ingest_file_route(container: RequestContainer, name: str, time: TimeQueryParam) -> Response:
        with container.reading() as tx:
            health = ingest_health(tx, time.about().since(tx.now) or tx.now - _DAY)
        table = one_of(ingest_tables(health), name).table
        return csv_file(f"paceline-ingest-{name}.csv", table)

    @routes.get("/installation")
    def installation_route(container: RequestContainer) -> Response:
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            state = overview(container, tx)
        return pages.render(
            "installation/installation.html",
            nav,
            state=state,
            now=state.now,
            heading=installation_heading(state),
            tables={
                name: table.drawn(f"/installation/{name}.csv", "plain fleet")
                for name, table in installation_tables(state, container.settings).items()
            },
        )

    @routes.get("/installation/{name}.csv")
    def installation_file_route(container: RequestContainer, name: str) -> Response:
        with container.everywhere().reading() as tx:
            state = overview(container, tx)
        table = one_of(installation_tables(state, container.settings), name).table
        return csv_file(f"paceline-installation-{name}.csv", table)
