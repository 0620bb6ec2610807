"""What is kept of a job's pulse, and whether a project takes pulses."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.api.frame.routers import api_router
from app.auth.here import Here
from app.services.history.notes import known_job
from app.services.pulse.export import export_pulse
from app.services.pulse.receive import pulse_is_off, switch_pulse
from app.services.pulse.spans import RankMap, Resolution, SpanRow, rank_map, spans_of_job

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads

PARQUET: Final = "application/vnd.apache.parquet"
BYTES: Final = "application/octet-stream"
# Of which spans an answer is, where that is not said.
LAST: Final = timedelta(hours=12)

JobName = Annotated[str, Path(description="Name of the job.")]
Since = Annotated[
    AwareDatetime | None, Query(alias="from", description="Start; default: 12 hours before `to`.")
]
Until = Annotated[AwareDatetime | None, Query(alias="to", description="End; default: now.")]
Length = Annotated[Resolution, Query(description="How long a span is.")]


class SpansBody(BaseModel):
    """What a job's pulse comes to, the earliest first; at most the latest 1,500 spans."""

    spans: list[SpanRow]


class SwitchBody(BaseModel):
    """Whether a project takes pulses."""

    model_config = ConfigDict(extra="forbid")

    on: bool = Field(description="False: its jobs' pulses are refused with `pulse.off`.")


def router() -> APIRouter:
    """Return the routes."""
    routes = api_router("pulse", "/api/v1")
    octets: dict[int | str, dict[str, Any]] = {200: {"content": {BYTES: {}}}}

    @routes.get("/jobs/{job}/pulse", summary="A job's pulse by minute or hour")
    def get_spans(
        here: Here,
        job: JobName,
        since: Since = None,
        until: Until = None,
        resolution: Length = Resolution.MINUTE,
    ) -> SpansBody:
        """Return step times, tokens a second, time lost and the slowest ranks."""
        with here.reading() as tx:
            known_job(tx, job)
            begin, end = _range(tx, since, until)
            return SpansBody(spans=spans_of_job(tx, job, begin, end, resolution))

    @routes.get(
        "/jobs/{job}/pulse/map",
        summary="Computing of a job's ranks against their peers over time",
        response_class=Response,
        responses=octets,
    )
    def get_map(
        here: Here,
        job: JobName,
        since: Since = None,
        until: Until = None,
        resolution: Length = Resolution.MINUTE,
    ) -> Response:
        """Return a line of JSON, then the cells.

        The line has `ranks`, their `stages` and `host_of` (a place in `hosts`) in the latest
        attempt, -1 where these are not known, `starts` and `attempts` of the spans, and `left_out`.
        Cells are 16-bit unsigned integers, little-endian, span by span: thousandths of the median
        computing of the ranks of the same stage, 0 where there is none. At most the latest 1,500
        spans and the 2,048 ranks that were slowest in them.
        """
        with here.reading() as tx:
            known_job(tx, job)
            begin, end = _range(tx, since, until)
            found = rank_map(tx, job, begin, end, resolution)
        return Response(as_bytes(found), media_type=BYTES)

    @routes.get(
        "/jobs/{job}/pulse/export",
        summary="A job's pulse as a Parquet file",
        response_class=Response,
        responses={200: {"content": {PARQUET: {}}}},
    )
    def get_export(
        here: Here,
        job: JobName,
        attempt: Annotated[int | None, Query(description="Of this attempt; default: all.")] = None,
    ) -> StreamingResponse:
        """Return every step that is kept, as `paceline pulse detect` reads it."""
        return StreamingResponse(
            export_pulse(here, job, attempt),
            media_type=PARQUET,
            headers={
                "Content-Disposition": 'attachment; filename="paceline-pulse.parquet"',
                "Cache-Control": "no-store",
            },
        )

    @routes.get("/pulse", summary="Whether the project takes pulses")
    def get_switch(here: Here) -> SwitchBody:
        """Return whether pulses of its jobs are taken."""
        with here.reading() as tx:
            return SwitchBody(on=not pulse_is_off(tx))

    @routes.put("/pulse", summary="Take the project's pulses, or refuse them")
    def put_switch(here: Here, body: SwitchBody) -> SwitchBody:
        """Change it from now on; what is kept stays, and goes as retention says."""
        switch_pulse(here, on=body.on)
        return body

    return routes


def as_bytes(found: RankMap) -> bytes:
    """Return a map as it is sent: a line of JSON, then its cells."""
    head = {
        "ranks": found.ranks,
        "starts": [start.isoformat() for start in found.starts],
        "attempts": found.attempts,
        "left_out": found.left_out,
        "stages": found.places.stages.tolist(),
        "host_of": found.places.host_of.tolist(),
        "hosts": found.places.hosts,
    }
    line = json.dumps(head, separators=(",", ":")).encode() + b"\n"
    return line + np.ascontiguousarray(found.thousandths, "<u2").tobytes()


def _range(tx: Reads, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    end = tx.now if until is None else until
    return (end - LAST if since is None else since), end
