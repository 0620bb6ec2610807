"""Probes of hosts over the API: what their devices reach while no job runs on them."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Final, Self
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.api.frame.routers import api_router
from app.auth.addresses import server_address
from app.auth.here import Here
from app.errors import NotFoundError
from app.inputs.values import Moment, printable
from app.services.probes.note import ProbedDevice, note_probe
from app.services.probes.read import ProbeView, latest_probe
from app.services.probes.verdict import Measure, ProbeOutcome
from app.services.probes.words import sentence_of

CREATED: Final = 201
# More than any machine has.
MOST_DEVICES: Final = 256
_LONGEST_NAME: Final = 255
_LONGEST_FAULT: Final = 1000
# Far beyond what devices reach.
_LARGEST: Final = 1e9


Name = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME), AfterValidator(printable)]
Figure = Annotated[float | None, Field(gt=0, le=_LARGEST, allow_inf_nan=False, strict=True)]


class MeasuresBody(BaseModel):
    """What was measured of a device; more is faster."""

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
    """A figure of a device against the median of its like."""

    model_config = ConfigDict(from_attributes=True)

    value: float
    ratio: float | None = Field(description="Null without enough of its like.")
    peers: int
    outcome: ProbeOutcome


class JudgedDeviceBody(BaseModel):
    """What a probe says of a device."""

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
        """Return what is said of a probe."""
        return cls(
            host=view.host,
            at=view.at,
            outcome=view.outcome,
            sentence=sentence_of(view),
            url=url,
            devices=[JudgedDeviceBody.model_validate(device) for device in view.devices],
        )


HostName = Annotated[str, Path(max_length=_LONGEST_NAME), AfterValidator(printable)]


def router() -> APIRouter:
    """Return the routes."""
    routes = api_router("hosts", "/api/v1/hosts")

    @routes.post("/{host}/probes", status_code=CREATED, summary="Note a probe")
    def post_probe(
        container: Here, request: Request, host: HostName, body: NewProbeBody
    ) -> ProbeBody:
        """Return the latest probe of the host, against its like elsewhere."""
        note_probe(
            container,
            host,
            [
                ProbedDevice(
                    one.index,
                    one.model,
                    one.uuid,
                    one.fault,
                    {
                        measure: value
                        for measure in Measure
                        if (value := getattr(one.measures, measure)) is not None
                    },
                )
                for one in body.devices
            ],
            probe_id=body.id,
            at=body.at,
            guessed=body.guessed,
        )
        return _latest(container, request, host)

    @routes.get("/{host}/probe", summary="The latest probe of a host")
    def get_probe(container: Here, request: Request, host: HostName) -> ProbeBody:
        return _latest(container, request, host)

    return routes


def _latest(container: Here, request: Request, host: str) -> ProbeBody:
    with container.reading() as tx:
        view = latest_probe(tx, host)
    if view is None:
        raise NotFoundError(f"There is no probe of host {host}.")
    pages = server_address(request, container.settings) + container.pages_at
    return ProbeBody.of(view, f"{pages}/hosts/{quote(host, safe='')}")
