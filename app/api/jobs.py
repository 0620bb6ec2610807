"""Jobs over the API: how each stands by its latest session, as the fleet lists them."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from app.alerts.states import IncidentState
from app.analysis.replay.metrics import STRAGGLING
from app.api.frame.routers import api_router
from app.api.sessions.read import SessionBody, session_body
from app.auth.here import Here
from app.lists.listing import PageRequest
from app.services.fleet.listing import fleet_view
from app.services.fleet.rows import FLEET
from app.services.fleet.standing import FleetFilter, Loss, Moment, Show

if TYPE_CHECKING:
    from app.services.fleet.rows import Standing

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
# No row holds the character that the database takes none of.
Word = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00]*$")]


class JobIncidentBody(BaseModel):
    """The most pressing open incident of a job."""

    id: uuid.UUID
    state: IncidentState


class JobBody(BaseModel):
    """A job, and how it stands.

    `told` is the latest session that is through, whose verdict stands for the job; `latest` may
    still be under way. `finished` where the job said that it ended.
    """

    name: str
    labels: dict[str, str]
    finished: bool
    incident: JobIncidentBody | None
    latest_session: uuid.UUID
    latest_received_at: datetime
    told: SessionBody


class JobListBody(BaseModel):
    """Jobs, the one that loses most first; `total` are all that match."""

    jobs: list[JobBody]
    total: int = Field(description="With a session in the time.")
    page: int


def router() -> APIRouter:
    """Return the route of jobs."""
    routes = api_router("jobs", "/api/v1")

    @routes.get("/jobs", summary="Jobs, the one that loses most first")
    def get_jobs(  # noqa: PLR0913 - what may be asked for
        container: Here,
        *,
        q: Annotated[Word, Query(description="Words in a name, a label, a cause or a host.")] = "",
        show: Show = Show.ALL,
        owner: Word = "",
        label: Annotated[Word, Query(description="`name=value`, or the name of a label.")] = "",
        loss: Loss | None = None,
        since: Annotated[
            AwareDatetime | None,
            Query(alias="from", description="Only jobs with a session since then."),
        ] = None,
        sort: Annotated[
            str,
            Query(pattern=f"^-?({'|'.join(FLEET.sorts)})$", description="A minus: largest first."),
        ] = FLEET.default_sort,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    ) -> JobListBody:
        with container.reading() as tx:
            found = fleet_view(
                tx,
                Moment(since, None, True, STRAGGLING),  # noqa: FBT003 - incidents are those of now
                FleetFilter(" ".join(q.split()), show, owner, label.strip(), loss),
                page=PageRequest(sort, page, limit),
                brief=True,
            )
        rows = found.page
        return JobListBody(
            jobs=[_job(job) for job in rows.rows], total=rows.total, page=rows.number
        )

    return routes


def _job(job: Standing) -> JobBody:
    urgent = job.incident
    return JobBody(
        name=job.name,
        labels=dict(job.labels),
        finished=job.finished,
        incident=None if urgent is None else JobIncidentBody(id=urgent.id, state=urgent.state),
        latest_session=job.latest.id,
        latest_received_at=job.latest.received_at,
        told=session_body(job.told),
    )
