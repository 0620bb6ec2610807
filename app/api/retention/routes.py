"""What is kept: analyzing again, pins, deleting, exports, retention."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse

from app.api.frame import problems
from app.api.frame.routers import api_router
from app.api.retention.bodies import (
    JobChangeBody,
    LossesBody,
    RetentionBody,
    RetentionStateBody,
    SelectionBody,
    UseBody,
)
from app.auth.here import Here
from app.db.states import SessionState
from app.inputs.retention import retention_rules
from app.services.retention.again import (
    Again,
    ManyAgain,
    Selection,
    analyze_again,
    analyze_many_again,
)
from app.services.retention.changes import archive_job, pin_session, rename_job
from app.services.retention.delete import delete_job, delete_session
from app.services.retention.export import export_job, export_project, export_session
from app.services.retention.rules import losses_of, rules_of, set_rules, uses_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.services.container import Container

ACCEPTED: Final = 202
NO_CONTENT: Final = 204
TAR: Final = "application/x-tar"

JobName = Annotated[str, Path(description="Name of the job.")]


def router() -> APIRouter:
    """Return the routes of what is kept."""
    routes = api_router("retention", "/api/v1")
    _sessions(routes)
    _jobs(routes)
    _retention(routes)
    _exports(routes)
    return routes


def _sessions(routes: APIRouter) -> None:
    @routes.post("/sessions/analyze", status_code=ACCEPTED, summary="Analyze sessions again")
    def post_many(here: Here, body: SelectionBody) -> ManyAgain:
        """Queue them, the newest first: after an update, or once what broke is repaired."""
        selection = Selection(
            tuple(SessionState(state) for state in body.states), body.job, body.before
        )
        return analyze_many_again(here, selection, body.limit)

    @routes.post(
        "/sessions/{session}/analyze",
        status_code=ACCEPTED,
        summary="Analyze a session again",
        responses={409: problems.described("Its operations still arrive, or are gone")},
    )
    def post_again(here: Here, session: uuid.UUID) -> Again:
        """Keep its report until the new one is there."""
        return analyze_again(here, session)

    @routes.put("/sessions/{session}/pin", status_code=NO_CONTENT, summary="Pin a session")
    def put_pin(here: Here, session: uuid.UUID) -> Response:
        """Retention leaves it alone from now on."""
        pin_session(here, session, pinned=True)
        return Response(status_code=NO_CONTENT)

    @routes.delete("/sessions/{session}/pin", status_code=NO_CONTENT, summary="Unpin a session")
    def delete_pin(here: Here, session: uuid.UUID) -> Response:
        """Let it go with the others of its age."""
        pin_session(here, session, pinned=False)
        return Response(status_code=NO_CONTENT)

    @routes.delete("/sessions/{session}", status_code=NO_CONTENT, summary="Delete a session")
    def remove_session(here: Here, session: uuid.UUID) -> Response:
        """Hide it at once; its storage is freed within minutes."""
        delete_session(here, session)
        return Response(status_code=NO_CONTENT)


def _jobs(routes: APIRouter) -> None:
    @routes.patch("/jobs/{job}", status_code=NO_CONTENT, summary="Rename or archive a job")
    def patch_job(here: Here, job: JobName, body: JobChangeBody) -> Response:
        """Make what is sent under the old name another job from now on."""
        if body.archived is not None:
            archive_job(here, job, archived=body.archived)
        if body.name is not None:
            rename_job(here, job, body.name)
        return Response(status_code=NO_CONTENT)

    @routes.delete("/jobs/{job}", status_code=NO_CONTENT, summary="Delete a job")
    def remove_job(here: Here, job: JobName) -> Response:
        """With its sessions, reports, incidents and tensor-parallel groups."""
        delete_job(here, job)
        return Response(status_code=NO_CONTENT)


def _retention(routes: APIRouter) -> None:
    @routes.get("/retention", summary="What the project keeps")
    def get_retention(here: Here) -> RetentionStateBody:
        """Return the rules, and what there is of each kind."""
        return _state(here)

    @routes.put(
        "/retention",
        summary="Change the project&#39;s retention rules",
        responses={422: problems.described("A rule cannot be used")},
    )
    def put_retention(here: Here, body: RetentionBody) -> RetentionStateBody:
        """Take away, within minutes, what is over the rules, the oldest first."""
        set_rules(here, retention_rules(body.model_dump()))
        return _state(here)

    @routes.post(
        "/retention/preview",
        summary="What retention rules would take away now",
        responses={422: problems.described("A rule cannot be used")},
    )
    def post_preview(here: Here, body: RetentionBody) -> LossesBody:
        """Count it; nothing is changed."""
        rules = retention_rules(body.model_dump())
        with here.reading() as tx:
            return LossesBody(losses=losses_of(tx, rules))


def _state(here: Container) -> RetentionStateBody:
    with here.reading() as tx:
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
    def get_session_export(here: Here, session: uuid.UUID) -> StreamingResponse:
        """Return metadata, operations as Parquet, report and heatmaps."""
        return _download(export_session(here, session), f"paceline-session-{session}")

    @routes.get(
        "/jobs/{job}/export",
        summary="A job as a tar file",
        response_class=Response,
        responses=answers,
    )
    def get_job_export(here: Here, job: JobName) -> StreamingResponse:
        """Return all its sessions, the oldest first."""
        return _download(export_job(here, job), "paceline-job")

    @routes.get(
        "/export",
        summary="The whole project as a tar file",
        response_class=Response,
        responses=answers,
    )
    def get_project_export(here: Here) -> StreamingResponse:
        """Return all its sessions, the oldest first."""
        return _download(export_project(here), "paceline-project")


def _download(pieces: Iterator[bytes], name: str) -> StreamingResponse:
    return StreamingResponse(
        pieces,
        media_type=TAR,
        headers={
            "Content-Disposition": f'attachment; filename="{name}.tar"',
            "Cache-Control": "no-store",
        },
    )
