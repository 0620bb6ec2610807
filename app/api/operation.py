"""What whoever operates this watches, over the API: ingest, and the installation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict

from app.api.frame.routers import api_router
from app.auth.here import Here
from app.db.states import SessionState
from app.services.ingest.read import IngestHealth, ingest_health
from app.services.installation.overview import Queue, TableSize, overview
from app.services.installation.status import WorkerStatus

DAY: Final = timedelta(days=1)


class UseBody(BaseModel):
    """What a project has used of its quotas."""

    model_config = ConfigDict(from_attributes=True)

    sessions_this_hour: int
    bytes: int
    operations: int
    open_sessions: int
    producers: int
    jobs: int
    attempts: int
    tensor_groups: int
    probed_devices: int


class InstallationBody(BaseModel):
    """An installation as its operator sees it."""

    now: datetime
    instance: str
    version: str
    revision: str | None
    expected_revision: str | None
    postgres: str
    sessions: dict[SessionState, int]
    queues: Sequence[Queue]
    workers: Sequence[WorkerStatus]
    database_bytes: int
    tables: Sequence[TableSize]
    projects: dict[str, UseBody]


def router() -> APIRouter:
    """Return the routes of operation."""
    routes = api_router("operation", "/api/v1")

    @routes.get("/ingest", summary="How ingest is doing")
    def get_ingest(
        container: Here,
        since: Annotated[
            AwareDatetime | None,
            Query(alias="from", description="Start; default: a day ago."),
        ] = None,
    ) -> IngestHealth:
        with container.reading() as tx:
            return ingest_health(tx, since or tx.now - DAY)

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
            queues=found.queues,
            workers=found.status.workers,
            database_bytes=found.database_bytes,
            tables=found.tables,
            projects={name: UseBody.model_validate(use) for name, use in found.uses.items()},
        )

    return routes
