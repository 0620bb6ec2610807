"""API of hosts: lists by cost, sessions, repair log, and probes."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Final, Self
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, AliasPath, BaseModel, ConfigDict, Field

from app.access.guard import RequestContainer, api_router
from app.analysis.replay.metrics import STRAGGLING
from app.errors import NotFoundError
from app.hosts.costs import HOSTS, HostRow, Show, Span
from app.hosts.detail import host_view
from app.hosts.listed import list_hosts
from app.hosts.probes import (
    Measure,
    ProbedDevice,
    ProbeOutcome,
    ProbeView,
    latest_probe,
    note_probe,
    sentence_of,
)
from app.hosts.repairs import Outcome, note_repair
from app.platform.validation import Moment, printable
from app.web.addresses import server_address
from app.web.bodies import ReadBody
from app.web.lists import PageRequest

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
CREATED: Final = 201

Since = Annotated[
    Moment | None, Query(alias="from", description="Only sessions received since then.")
]
Until = Annotated[Moment | None, Query(alias="to", description="Only those until then.")]


class HostListBody(BaseModel):
    """Hosts, sorted by cost, most expensive first; `total` is the number of all matching hosts."""

    hosts: list[HostRow]
    total: int
    page: int


class GpuBody(ReadBody):
    """A GPU of a host in a session; `slow` if a cause names the GPU."""

    gpu: str
    slowdown: float
    computing: float | None
    slow: bool
    uuid: str | None = None


class HostSessionBody(ReadBody):
    """A host in a session; `cause` is null if no cause blames it.

    `other_cause` is the leading cause that names the host without blaming the machine.
    """

    session: uuid.UUID
    number: int
    job: str
    received_at: datetime
    ranks: int
    workers: int
    slowdown: float
    computing: float | None
    cause: str | None
    other_cause: str | None
    cost_gpu_hours: float
    gpus: list[GpuBody]


class RepairBody(ReadBody):
    """A repair and its effect, from the medians of up to five sessions before and after it."""

    at: datetime
    gpu: str | None
    what: str
    by: str
    outcome: Outcome
    slowdown_before: float | None
    slowdown_after: float | None
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
    """A move of a GPU between nodes; `at` is when the new node was first seen with it."""

    gpu: str
    before: str
    after: str
    last_seen: datetime
    at: datetime


class HostDetailBody(ReadBody):
    """A host with its sessions, incidents, repairs and moved GPUs, each sequence newest first.

    `guessed`: the host's name may be the name of a container.
    """

    host: str
    guessed: bool
    last_seen: datetime | None
    sessions: list[HostSessionBody]
    incidents: list[HostIncidentBody]
    repairs: list[RepairBody]
    moves: list[MoveBody]


class NewRepairBody(BaseModel, extra="forbid"):
    """A repair of a host, to be stored."""

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
    """Return the router of hosts."""
    routes = api_router("hosts", "/api/v1/hosts")

    @routes.get("", summary="Hosts, the one that cost most first")
    def get_hosts(  # noqa: PLR0913 - what may be asked for
        container: RequestContainer,
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
            hosts = list_hosts(
                tx,
                Span(since, until),
                PageRequest(sort, page, limit),
                show=show,
                words=q,
                brief=True,
                alike_from=STRAGGLING,
            )
        return HostListBody(
            hosts=list(hosts.page.rows), total=hosts.page.total, page=hosts.page.number
        )

    @routes.get("/{host}", summary="A host")
    def get_host(
        container: RequestContainer, host: str, since: Since = None, until: Until = None
    ) -> HostDetailBody:
        with container.reading() as tx:
            view = host_view(tx, host, Span(since, until))
        return HostDetailBody.model_validate(view)

    @routes.post("/{host}/repairs", status_code=CREATED, summary="Note a repair")
    def post_repair(container: RequestContainer, host: str, body: NewRepairBody) -> HostDetailBody:
        """Store a repair; the sessions before and after it show whether it helped."""
        note_repair(container, host, what=body.what, gpu=body.gpu, at=body.at, by=body.by)
        with container.reading() as tx:
            view = host_view(tx, host, Span())
        return HostDetailBody.model_validate(view)

    return routes


# Largest number of devices in a probe, more than any machine has.
MOST_DEVICES: Final = 256
_LONGEST_NAME: Final = 255
_LONGEST_FAULT: Final = 1000
# Upper limit of measured values, far beyond any device.
_LARGEST: Final = 1e9


Name = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME), AfterValidator(printable)]
Figure = Annotated[float | None, Field(gt=0, le=_LARGEST, allow_inf_nan=False, strict=True)]


class MeasuresBody(BaseModel):
    """Measured values of a device; a larger value is faster."""

    model_config = ConfigDict(extra="forbid")

    matmul_tflops: Figure = None
    memory_copy_gbs: Figure = None
    host_to_device_gbs: Figure = None
    device_to_host_gbs: Figure = None
    all_reduce_gbs: Figure = None


class DeviceBody(BaseModel):
    """A device of a probe."""

    model_config = ConfigDict(extra="forbid")

    index: Name
    model: Name = Field(description="What it is compared by: `NVIDIA H200`.")
    uuid: Name | None = None
    pci: Name | None = None
    measures: MeasuresBody
    fault: Annotated[str, Field(min_length=1, max_length=_LONGEST_FAULT)] | None = None


class NewProbeBody(BaseModel):
    """A probe of a host, as `paceline probe` sends it."""

    model_config = ConfigDict(extra="forbid")

    id: uuid.UUID = Field(description="Chosen by who measured: the same one twice is one entry.")
    at: Moment
    guessed: Annotated[bool, Field(description="Whether the name may be that of a container.")] = (
        False
    )
    torch: Annotated[str, Field(max_length=_LONGEST_NAME)] = ""
    devices: Annotated[list[DeviceBody], Field(min_length=1, max_length=MOST_DEVICES)]


class FigureBody(BaseModel):
    """A measured value of a device, compared with the median of devices of the same model."""

    model_config = ConfigDict(from_attributes=True)

    value: float
    ratio: float | None = Field(description="Null without enough of its like.")
    peers: int
    outcome: ProbeOutcome


class JudgedDeviceBody(BaseModel):
    """Verdict of a probe on a device."""

    model_config = ConfigDict(from_attributes=True)

    index: str
    model: str
    gpu: str | None = Field(description="Its UUID.")
    fault: str | None
    outcome: ProbeOutcome
    measures: dict[Measure, FigureBody]


class ProbeBody(BaseModel):
    """The latest probe of a host."""

    host: str
    at: datetime
    outcome: ProbeOutcome
    sentence: str
    url: str = Field(description="The host's page.")
    devices: list[JudgedDeviceBody]

    @classmethod
    def of(cls, view: ProbeView, url: str) -> Self:
        """Return the body of a probe; `url` is the host's page."""
        return cls(
            host=view.host,
            at=view.at,
            outcome=view.outcome,
            sentence=sentence_of(view),
            url=url,
            devices=[JudgedDeviceBody.model_validate(device) for device in view.devices],
        )


HostName = Annotated[str, Path(max_length=_LONGEST_NAME), AfterValidator(printable)]


def probes_router() -> APIRouter:
    """Return the router of probes."""
    routes = api_router("hosts", "/api/v1/hosts")

    @routes.post("/{host}/probes", status_code=CREATED, summary="Note a probe")
    def post_probe(
        container: RequestContainer, request: Request, host: HostName, body: NewProbeBody
    ) -> ProbeBody:
        """Store a probe, and return it compared with devices of the same model on other hosts."""
        note_probe(
            container,
            host,
            [
                ProbedDevice(
                    device.index,
                    device.model,
                    device.uuid,
                    device.fault,
                    {
                        measure: value
                        for measure in Measure
                        if (value := getattr(device.measures, measure)) is not None
                    },
                )
                for device in body.devices
            ],
            probe_id=body.id,
            at=body.at,
            guessed=body.guessed,
        )
        return _latest(container, request, host)

    @routes.get("/{host}/probe", summary="The latest probe of a host")
    def get_probe(container: RequestContainer, request: Request, host: HostName) -> ProbeBody:
        return _latest(container, request, host)

    return routes


def _latest(container: RequestContainer, request: Request, host: str) -> ProbeBody:
    with container.reading() as tx:
        view = latest_probe(tx, host)
    if view is None:
        raise NotFoundError(f"There is no probe of host {host}.")
    pages = server_address(request, container.settings) + container.pages_at
    return ProbeBody.of(view, f"{pages}/hosts/{quote(host, safe='')}")
