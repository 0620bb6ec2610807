"""A job over time: its sessions, what happened beside them, and the changes that lasted."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.api.frame.routers import api_router
from app.door.here import Here
from app.services.history.axis import MarkKind, Measure, job_axis
from app.services.history.notes import known_job


class PointBody(BaseModel):
    """A session on the time axis; what is not known of it is null."""

    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    number: int
    attempt: int
    received_at: datetime
    slowdown: float | None
    low: float | None
    high: float | None
    published: float | None
    step_time_s: float | None = Field(description="Median of its recorded steps.")
    gpu_hours_lost_per_hour: float | None
    tokens_per_s: float | None = Field(
        description="Where metadata say `global_batch_size` and `seq_length`."
    )
    cause: str | None


class MarkBody(BaseModel):
    """Something that happened; `path` is the page about it, and `note` the id of one."""

    model_config = ConfigDict(from_attributes=True)

    at: datetime
    until: datetime | None
    kind: MarkKind
    words: str
    path: str | None
    author: str | None
    note: int | None


class ChangeBody(BaseModel):
    """A change that lasted, of the slowdown or the step time in seconds: medians on both sides.

    `cause` leads most sessions on its slow side and not on the other; `beside` is the last mark
    between the sessions around it.
    """

    model_config = ConfigDict(from_attributes=True)

    measure: Measure
    at: datetime
    session: uuid.UUID
    number: int
    before: float
    after: float
    p: float
    cause: str | None
    beside: str | None


class HistoryBody(BaseModel):
    """A job over a time: sessions oldest first, at most the latest 1,000; the rest newest first."""

    model_config = ConfigDict(from_attributes=True)

    points: list[PointBody]
    marks: list[MarkBody]
    changes: list[ChangeBody]


def router() -> APIRouter:
    """Return the route of a job's history."""
    routes = api_router("jobs", "/api/v1")

    @routes.get("/jobs/{job}/history", summary="A job over time")
    def get_history(
        container: Here,
        job: Annotated[str, Path(description="Name of the job.")],
        since: Annotated[AwareDatetime | None, Query(alias="from")] = None,
        until: Annotated[AwareDatetime | None, Query(alias="to")] = None,
    ) -> HistoryBody:
        """Return what its sessions measured, what happened, and which changes lasted."""
        with container.reading() as tx:
            known_job(tx, job)
            found = job_axis(tx, job, since=since, until=until)
        return HistoryBody.model_validate(found)

    return routes
