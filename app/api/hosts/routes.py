"""Hosts over the API: what each cost, its sessions, and its repair log."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import AliasPath, AwareDatetime, BaseModel, Field

from app.analysis.replay.metrics import STRAGGLING
from app.api.frame.answers import ReadBody
from app.api.frame.routers import api_router
from app.auth.here import Here
from app.inputs.values import Moment
from app.lists.listing import PageRequest
from app.services.hosts.costs import Span
from app.services.hosts.listed import HOSTS, HostRow, Show
from app.services.hosts.one import host_view
from app.services.hosts.outcomes import Outcome
from app.services.hosts.read import list_hosts
from app.services.hosts.repairs import note_repair

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
CREATED: Final = 201

Since = Annotated[
    AwareDatetime | None, Query(alias="from", description="Only sessions received since then.")
]
Until = Annotated[AwareDatetime | None, Query(alias="to", description="Only those until then.")]


class HostListBody(BaseModel):
    """Hosts, the one that cost most first; `total` are all that match."""

    hosts: list[HostRow]
    total: int
    page: int


class GpuBody(ReadBody):
    """A GPU of a host in a session; `slow` where a cause names it."""

    gpu: str
    slowdown: float
    computing: float | None
    slow: bool
    uuid: str | None = None


class HostSessionBody(ReadBody):
    """A host in a session; `cause` is null where no cause names it."""

    session: uuid.UUID
    number: int
    job: str
    received_at: datetime
    ranks: int
    workers: int
    slowdown: float
    computing: float | None
    cause: str | None
    cost_gpu_hours: float = Field(validation_alias="cost")
    gpus: list[GpuBody]


class RepairBody(ReadBody):
    """A repair, and what came of it: medians of up to five sessions before and after."""

    at: datetime
    gpu: str | None
    what: str
    by: str
    outcome: Outcome = Field(validation_alias=AliasPath("judged", "outcome"))
    slowdown_before: float | None = Field(validation_alias=AliasPath("judged", "before"))
    slowdown_after: float | None = Field(validation_alias=AliasPath("judged", "after"))
    sessions_before: int = Field(validation_alias=AliasPath("judged", "sessions_before"))
    sessions_after: int = Field(validation_alias=AliasPath("judged", "sessions_after"))


class HostIncidentBody(ReadBody):
    """An incident that names the host."""

    id: uuid.UUID
    job: str
    cause: str
    state: str
    fired_at: datetime
    resolved_at: datetime | None


class MoveBody(ReadBody):
    """A GPU that went from one node to another; `at` is when it was first seen there."""

    gpu: str
    before: str
    after: str
    last_seen: datetime
    at: datetime


class HostDetailBody(ReadBody):
    """A host with its sessions, incidents, repairs and moved GPUs, the newest first.

    `guessed` where its name may be that of a container.
    """

    host: str
    guessed: bool
    last_seen: datetime | None
    sessions: list[HostSessionBody]
    incidents: list[HostIncidentBody]
    repairs: list[RepairBody]
    moves: list[MoveBody]


class NewRepairBody(BaseModel, extra="forbid"):
    """What was done to a host."""

    what: Annotated[str, Field(min_length=1, max_length=2000, examples=["replaced GPU 5"])]
    gpu: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="As metadata name it; else the host."),
    ] = None
    at: Annotated[Moment | None, Field(description="Time; default: now.")] = None
    by: Annotated[
        str | None,
        Field(
            min_length=1, max_length=200, description="Taken from the sign-in where there is one."
        ),
    ] = None


def router() -> APIRouter:
    """Return the routes of hosts."""
    routes = api_router("hosts", "/api/v1/hosts")

    @routes.get("", summary="Hosts, the one that cost most first")
    def get_hosts(  # noqa: PLR0913 - what may be asked for
        container: Here,
        *,
        since: Since = None,
        until: Until = None,
        show: Annotated[Show, Query(description="Only blamed or repaired ones.")] = Show.ALL,
        q: Annotated[
            str, Query(max_length=200, description="Words in the host, a job or a cause.")
        ] = "",
        sort: Annotated[
            str,
            Query(pattern=f"^-?({'|'.join(HOSTS.sorts)})$", description="A minus: largest first."),
        ] = HOSTS.default_sort,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    ) -> HostListBody:
        with container.reading() as tx:
            found = list_hosts(
                tx,
                Span(since, until),
                PageRequest(sort, page, limit),
                show=show,
                words=q,
                brief=True,
                alike_from=STRAGGLING,
            )
        return HostListBody(
            hosts=list(found.page.rows), total=found.page.total, page=found.page.number
        )

    @routes.get("/{host}", summary="A host")
    def get_host(
        container: Here, host: str, since: Since = None, until: Until = None
    ) -> HostDetailBody:
        with container.reading() as tx:
            view = host_view(tx, host, Span(since, until))
        return HostDetailBody.model_validate(view)

    @routes.post("/{host}/repairs", status_code=CREATED, summary="Note a repair")
    def post_repair(container: Here, host: str, body: NewRepairBody) -> HostDetailBody:
        """Whether it helped is measured by the sessions before and after it."""
        note_repair(container, host, what=body.what, gpu=body.gpu, at=body.at, by=body.by)
        with container.reading() as tx:
            view = host_view(tx, host, Span())
        return HostDetailBody.model_validate(view)

    return routes
