"""Routes of retention: rules, exports, deletion, pins, and repeated analysis of sessions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from app.access.guard import RequestContainer, api_router
from app.platform.container import Container
from app.platform.database.states import SessionState
from app.retention.delete import delete_job, delete_session
from app.retention.export import (
    Again,
    ManyAgain,
    Selection,
    analyze_again,
    analyze_many_again,
    export_job,
    export_project,
    export_session,
)
from app.retention.models import RetentionRules, retention_rules
from app.retention.rules import (
    archive_job,
    losses_of,
    pin_session,
    rename_job,
    rules_of,
    set_rules,
    uses_of,
)
from app.web import problems

MAX_AT_ONCE: Final = 1000
_NEW: Final = RetentionRules()


class SelectionBody(BaseModel):
    """Sessions to analyze again: those in these states, of one job or of all jobs."""

    model_config = ConfigDict(extra="forbid")

    states: Annotated[
        list[Literal["failed", "discarded", "no_verdict", "analyzed"]], Field(min_length=1)
    ] = ["failed"]
    job: str | None = Field(default=None, description="Null: of all jobs.")
    before: datetime | None = Field(
        default=None,
        description="Only those whose state is older: the time of an update. Null: now.",
    )
    limit: Annotated[int, Field(ge=1, le=MAX_AT_ONCE)] = 100


class JobChangeBody(BaseModel):
    """Changes of a job; properties that are not named stay as they are."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(default=None, description="Another name.")
    archived: bool | None = Field(
        default=None, description="Whether the fleet leaves it out, until it sends again."
    )


class UseBody(BaseModel):
    """Number and bytes of the stored items of a kind."""

    model_config = ConfigDict(from_attributes=True)

    count: int
    bytes: int
    oldest: datetime | None


class KeepBody(BaseModel):
    """Limits of a kind's age and size; the oldest items are deleted first; null means no limit."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    days: int | None = None
    bytes: int | None = None


class KeepRowsBody(BaseModel):
    """The same limits for rows that arrive each second; `days` may be a fraction, 1 h at least."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    days: float | None = None
    bytes: int | None = None


class RetentionBody(BaseModel):
    """Retention rules of a project; a kind that is not named gets the rule of a new project."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    traces: KeepBody = KeepBody()
    heatmaps: KeepBody = KeepBody()
    reports: KeepBody = KeepBody()
    hangs: KeepBody = KeepBody(days=_NEW.hangs.days)
    pulse_rows: KeepRowsBody = KeepRowsBody(days=_NEW.pulse_rows.days)
    pulse_spans: KeepBody = KeepBody(days=_NEW.pulse_spans.days)
    probes: KeepBody = KeepBody(days=_NEW.probes.days)
    task_runs: KeepBody = KeepBody(days=_NEW.task_runs.days)
    deliveries: KeepBody = KeepBody(days=_NEW.deliveries.days)
    audit: KeepBody = KeepBody(days=_NEW.audit.days)


class LossesBody(BaseModel):
    """Number of items of each kind that the rules would delete now; zeros are left out."""

    losses: dict[str, int]


class RetentionStateBody(BaseModel):
    """Retention rules of a project, and the number and bytes of the stored items of each kind."""

    rules: RetentionBody
    uses: dict[str, UseBody]


ACCEPTED: Final = 202
NO_CONTENT: Final = 204
TAR: Final = "application/x-tar"

JobName = Annotated[str, Path(description="Name of the job.")]


def router() -> APIRouter:
    """Return the routes of retention."""
    routes = api_router("retention", "/api/v1")
    _sessions(routes)
    _jobs(routes)
    _retention(routes)
    _exports(routes)
    return routes


def _sessions(routes: APIRouter) -> None:
    @routes.post("/sessions/analyze", status_code=ACCEPTED, summary="Analyze sessions again")
    def post_many(container: RequestContainer, body: SelectionBody) -> ManyAgain:
        """Queue the selected sessions, newest first, for example after an update."""
        selection = Selection(
            tuple(SessionState(state) for state in body.states), body.job, body.before
        )
        return analyze_many_again(container, selection, body.limit)

    @routes.post(
        "/sessions/{session}/analyze",
        status_code=ACCEPTED,
        summary="Analyze a session again",
        responses={409: problems.described("Its operations still arrive, or are gone")},
    )
    def post_again(container: RequestContainer, session: uuid.UUID) -> Again:
        """Queue another analysis; the session's report stays until the new report replaces it."""
        return analyze_again(container, session)

    @routes.put("/sessions/{session}/pin", status_code=NO_CONTENT, summary="Pin a session")
    def put_pin(container: RequestContainer, session: uuid.UUID) -> Response:
        """Exempt the session from the retention rules."""
        pin_session(container, session, pinned=True)
        return Response(status_code=NO_CONTENT)

    @routes.delete("/sessions/{session}/pin", status_code=NO_CONTENT, summary="Unpin a session")
    def delete_pin(container: RequestContainer, session: uuid.UUID) -> Response:
        """Subject the session to the retention rules again."""
        pin_session(container, session, pinned=False)
        return Response(status_code=NO_CONTENT)

    @routes.delete("/sessions/{session}", status_code=NO_CONTENT, summary="Delete a session")
    def remove_session(container: RequestContainer, session: uuid.UUID) -> Response:
        """Hide the session at once; its storage is freed within minutes."""
        delete_session(container, session)
        return Response(status_code=NO_CONTENT)


def _jobs(routes: APIRouter) -> None:
    @routes.patch("/jobs/{job}", status_code=NO_CONTENT, summary="Rename or archive a job")
    def patch_job(container: RequestContainer, job: JobName, body: JobChangeBody) -> Response:
        """Rename or archive a job; sessions sent under its old name form another job."""
        if body.archived is not None:
            archive_job(container, job, archived=body.archived)
        if body.name is not None:
            rename_job(container, job, body.name)
        return Response(status_code=NO_CONTENT)

    @routes.delete("/jobs/{job}", status_code=NO_CONTENT, summary="Delete a job")
    def remove_job(container: RequestContainer, job: JobName) -> Response:
        """Delete the job with its sessions, reports, incidents and tensor-parallel groups."""
        delete_job(container, job)
        return Response(status_code=NO_CONTENT)


def _retention(routes: APIRouter) -> None:
    @routes.get("/retention", summary="What the project keeps")
    def get_retention(container: RequestContainer) -> RetentionStateBody:
        """Return the retention rules, and the number and bytes of the stored items of each kind."""
        return _state(container)

    @routes.put(
        "/retention",
        summary="Change the project&#39;s retention rules",
        responses={422: problems.described("A rule cannot be used")},
    )
    def put_retention(container: RequestContainer, body: RetentionBody) -> RetentionStateBody:
        """Store the rules; items that exceed them are deleted within minutes, the oldest first."""
        set_rules(container, retention_rules(body.model_dump()))
        return _state(container)

    @routes.post(
        "/retention/preview",
        summary="What retention rules would take away now",
        responses={422: problems.described("A rule cannot be used")},
    )
    def post_preview(container: RequestContainer, body: RetentionBody) -> LossesBody:
        """Count the items that the rules would delete; nothing is changed."""
        rules = retention_rules(body.model_dump())
        with container.reading() as tx:
            return LossesBody(losses=losses_of(tx, rules))


def _state(container: Container) -> RetentionStateBody:
    with container.reading() as tx:
        rules, uses = rules_of(tx), uses_of(tx)
    return RetentionStateBody(
        rules=RetentionBody.model_validate(rules),
        uses={name: UseBody.model_validate(use) for name, use in uses.items()},
    )


def _exports(routes: APIRouter) -> None:
    answers: dict[int | str, dict[str, Any]] = {
        200: {"description": "A folder for each session", "content": {TAR: {}}}
    }

    @routes.get(
        "/sessions/{session}/export",
        summary="A session as a tar file",
        response_class=Response,
        responses=answers,
    )
    def get_session_export(container: RequestContainer, session: uuid.UUID) -> StreamingResponse:
        """Return a tar file with metadata, operations as Parquet, report and heatmaps."""
        return _download(export_session(container, session), f"paceline-session-{session}")

    @routes.get(
        "/jobs/{job}/export",
        summary="A job as a tar file",
        response_class=Response,
        responses=answers,
    )
    def get_job_export(container: RequestContainer, job: JobName) -> StreamingResponse:
        """Return all sessions of the job as a tar file, the oldest first."""
        return _download(export_job(container, job), "paceline-job")

    @routes.get(
        "/export",
        summary="The whole project as a tar file",
        response_class=Response,
        responses=answers,
    )
    def get_project_export(container: RequestContainer) -> StreamingResponse:
        """Return all sessions of the project as a tar file, the oldest first."""
        return _download(export_project(container), "paceline-project")


def _download(pieces: Iterator[bytes], name: str) -> StreamingResponse:
    return StreamingResponse(
        pieces,
        media_type=TAR,
        headers={
            "Content-Disposition": f'attachment; filename="{name}.tar"',
            "Cache-Control": "no-store",
        },
    )
