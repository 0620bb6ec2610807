"""What whoever operates this watches, over the API: ingest, and the installation."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict

from app.api.frame.routers import api_router
from app.db.states import SessionState
from app.door.here import Here
from app.services.ingest.read import ingest_health
from app.services.installation.overview import overview

DAY: Final = timedelta(days=1)


class ReadBody(BaseModel):
    """What is answered with attributes of what a service returns: `model_validate` takes it."""

    model_config = ConfigDict(from_attributes=True)


class OpenSessionBody(ReadBody):
    """A session that takes chunks; `missing` are producers that its metadata list."""

    id: uuid.UUID
    job: str
    number: int
    received_at: datetime
    last_chunk_at: datetime
    chunks: int
    producers: int
    operations: int
    cells: int
    covered: int
    longest_gap_s: float
    refused: int
    missing: list[str]


class LaggingBody(ReadBody):
    """A producer of an open session, and how far it is behind the session's latest chunk."""

    job: str
    session: uuid.UUID
    number: int
    producer: str
    chunks: int
    last_at: datetime
    behind: timedelta
    final: bool


class RefusalBody(ReadBody):
    """Bodies that were refused for good for one reason; the job is as its sender called it."""

    code: str
    bodies: int
    bytes: int
    last_at: datetime
    last_job: str


class JobIntakeBody(ReadBody):
    """What came of a job; `silence` are sessions that only silence sealed."""

    job: str
    sessions: int
    analyzed: int
    no_verdict: int
    discarded: int
    failed: int
    underway: int
    silence: int
    refused: int
    last_at: datetime


class IngestBody(ReadBody):
    """How ingest is doing; lists hold a hundred at most."""

    now: datetime
    since: datetime
    sessions: int
    bytes: int
    operations: int
    last_at: datetime | None
    open_count: int
    open: list[OpenSessionBody]
    lagging: list[LaggingBody]
    refusals: list[RefusalBody]
    job_count: int
    jobs: list[JobIntakeBody]


class QueueBody(ReadBody):
    """Work of a kind that waits, runs or is given up."""

    kind: str
    queue: str
    queued: int
    running: int
    dead: int
    oldest_s: float | None


class WorkerBody(ReadBody):
    """A worker process and how long ago it was seen."""

    id: uuid.UUID
    host: str
    pid: int
    queues: str
    seen_age_s: float
    alive: bool


class TableBody(ReadBody):
    """A table with its indices; rows are PostgreSQL's estimate."""

    name: str
    bytes: int
    rows: int


class UseBody(ReadBody):
    """What a project has used of its quotas."""

    sessions_this_hour: int
    bytes: int
    operations: int
    open_sessions: int
    producers: int
    jobs: int
    attempts: int
    tensor_groups: int


class InstallationBody(BaseModel):
    """An installation as its operator sees it."""

    now: datetime
    instance: str
    version: str
    revision: str | None
    expected_revision: str | None
    postgres: str
    sessions: dict[SessionState, int]
    queues: list[QueueBody]
    workers: list[WorkerBody]
    database_bytes: int
    tables: list[TableBody]
    projects: dict[str, UseBody]


def router() -> APIRouter:
    """Return the routes of operation."""
    routes = api_router("operation", "/api/v1")

    @routes.get("/ingest", summary="How ingest is doing")
    def get_ingest(
        container: Here,
        since: Annotated[
            AwareDatetime | None,
            Query(alias="from", description="From then on; a day where it is not said."),
        ] = None,
    ) -> IngestBody:
        with container.reading() as tx:
            found = ingest_health(tx, since or tx.now - DAY)
        return IngestBody.model_validate(found)

    @routes.get("/installation", summary="Queues, workers, storage and quotas")
    def get_installation(container: Here) -> InstallationBody:
        with container.everywhere().reading() as tx:
            found = overview(container, tx)
        return InstallationBody(
            now=found.now,
            instance=found.instance,
            version=found.version,
            revision=found.revision,
            expected_revision=found.expected,
            postgres=found.postgres,
            sessions=dict(found.status.sessions),
            queues=[QueueBody.model_validate(one) for one in found.queues],
            workers=[WorkerBody.model_validate(one) for one in found.status.workers],
            database_bytes=found.database_bytes,
            tables=[TableBody.model_validate(one) for one in found.tables],
            projects={name: UseBody.model_validate(use) for name, use in found.uses.items()},
        )

    return routes
