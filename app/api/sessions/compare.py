"""Two sessions side by side, over the API."""

from __future__ import annotations

import uuid

from fastapi import APIRouter
from pydantic import BaseModel

from app.api.frame.routers import api_router
from app.auth.here import Here
from app.services.compare.arrivals import ArrivalChange
from app.services.compare.changes import CauseChange, FieldChange
from app.services.compare.read import compare_sessions
from app.services.compare.step_times import Difference


class ComparisonBody(BaseModel):
    """What changed from one session to another.

    `step_times` is null, and `causes` is empty, unless both have a verdict; `arrivals` need none,
    but collectives over ranks in both. `metadata` are the fields that differ, `equal_fields` counts
    the others.
    """

    before: uuid.UUID
    after: uuid.UUID
    step_times: Difference | None
    causes: list[CauseChange]
    arrivals: list[ArrivalChange]
    metadata: list[FieldChange]
    equal_fields: int


def router() -> APIRouter:
    """Return the route of comparisons."""
    routes = api_router("sessions", "/api/v1")

    @routes.get("/sessions/{session}/compare/{other}", summary="What changed between two sessions")
    def get_comparison(container: Here, session: uuid.UUID, other: uuid.UUID) -> ComparisonBody:
        """`session` is the one before, `other` the one after."""
        with container.reading() as tx:
            found = compare_sessions(tx, session, other)
        return ComparisonBody(
            before=session,
            after=other,
            step_times=found.step_times,
            causes=list(found.causes),
            arrivals=list(found.arrivals),
            metadata=list(found.metadata.changed),
            equal_fields=found.metadata.equal,
        )

    return routes
