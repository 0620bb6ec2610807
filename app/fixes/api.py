"""Routes of applied fixes: mark a fix, remove its mark, read predicted and measured gains."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.access.guard import RequestContainer, api_router
from app.analysis.report.fix_outcomes import Calibration
from app.fixes.applied import Realized, apply_fix, calibrations, realized_fixes, take_back

Title = Annotated[
    str | None, Field(max_length=500, description="Which one, where several have that code.")
]
Person = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=200,
        description="The user who acts; taken from the sign-in where there is one.",
    ),
]


class AppliedBody(BaseModel):
    """A fix of a session's report that was applied."""

    model_config = ConfigDict(extra="forbid")

    action: str = Field(max_length=100, description="The fix's code.")
    title: Title = None
    by: Person = None


class FixesBody(BaseModel):
    """Applied fixes, newest first, and the accuracy of the project's predictions."""

    fixes: list[Realized]
    calibration: Calibration | None
    by_action: dict[str, Calibration]


def router() -> APIRouter:
    """Return the routes of applied fixes."""
    routes = api_router("fixes", "/api/v1")

    @routes.get("/fixes", summary="Results of applied fixes")
    def get_fixes(
        container: RequestContainer,
        job: Annotated[str | None, Query(description="Of this job only.")] = None,
        session: Annotated[
            uuid.UUID | None, Query(description="Recommended or measured by this session.")
        ] = None,
    ) -> FixesBody:
        """Return the newest hundred applied fixes with their predicted and measured gains."""
        with container.reading() as tx:
            fixes = realized_fixes(tx, job=job, session=session)
            by_action = dict(calibrations(tx))
        return FixesBody(fixes=fixes, calibration=by_action.pop("", None), by_action=by_action)

    @routes.post(
        "/sessions/{session}/fixes",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Mark a recommended fix as applied",
    )
    def post_fix(container: RequestContainer, session: uuid.UUID, body: AppliedBody) -> None:
        """Mark the fix as applied (idempotent); the job's next session measures its gain."""
        apply_fix(container, session, body.action, body.title, body.by)

    @routes.delete(
        "/sessions/{session}/fixes/{action}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Remove the mark of an applied fix",
    )
    def delete_fix(
        container: RequestContainer,
        session: uuid.UUID,
        action: str,
        title: Annotated[str | None, Query(max_length=500)] = None,
        by: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    ) -> None:
        """Remove the mark of an applied fix, with its measurement."""
        take_back(container, session, action, title, by)

    return routes
