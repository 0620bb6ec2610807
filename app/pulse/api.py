"""API routes: pulses of jobs, their notices, spans, map and export; requests for sessions."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from app.access.guard import RequestContainer, api_router, container_of
from app.access.senders import owning_token
from app.jobs.time_axis import known_job
from app.platform.database.unit_of_work import Reads
from app.platform.validation import Moment
from app.pulse.body import MOST_BYTES, PulseBody
from app.pulse.keep import export_pulse
from app.pulse.live import NoticeRow, left_out, notices_of_job, wrong_clocks
from app.pulse.receive import ArrivedPulse, PulseReply, pulse_is_off, receive_pulse, switch_pulse
from app.pulse.recordings import Recording, RequestRow, request_recording_now, requests_of
from app.pulse.spans import RankMap, Resolution, SpanRow, rank_map, spans_of_job
from app.sessions.api.chunks import MAX_NUMBER
from app.sessions.api.intake import CLIENT_CLOSED_REQUEST, REFUSALS, QueryMetadata, ingest_of
from app.sessions.body import Body
from app.sessions.receive import check_job_name
from app.web import problems
from app.web.bodies import asked, described, described_body

# Metadata in the query of a request: none for a pulse.
NO_METADATA: Final = QueryMetadata.model_validate({})


class PulseNames(BaseModel):
    """Path parameters of a pulse."""

    job: str = Field(description="Name of the job; made if it is new.")
    attempt: int = Field(ge=1, le=MAX_NUMBER, description="Starts of the job, from 1.")


class PulseAnswer(BaseModel):
    """Instructions to the client that sent a pulse."""

    record: Recording | None = Field(
        description="A session that the job is to record, sent to rank 0's host only; null if none."
    )
    pulse_s: float = Field(description="Seconds until the next body.")
    files: bool = Field(
        description="Whether each rank is to send its stack, its pending collectives and, if it "
        "does not answer, the state of its process, because no step ends."
    )


class NoticesBody(BaseModel):
    """Notices of a job, the latest first."""

    notices: list[NoticeRow]
    counts: dict[str, int] = Field(description="Rows, columns and bodies left out, by code.")
    clocks: dict[str, float] = Field(
        description="Hosts (or `rank 3`) whose clocks are more than two seconds off those of the "
        "others in the last attempt, and by how many seconds; at most 100."
    )


class AskBody(BaseModel):
    """A request for a session of a job."""

    model_config = ConfigDict(extra="forbid")

    steps: int = Field(50, ge=1, le=1000)
    by: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="The user who asks; taken from the sign-in where there is one.",
    )


class RequestsBody(BaseModel):
    """Requests for sessions of a job, the latest first."""

    requests: list[RequestRow]


def router() -> APIRouter:
    """Return a router with the routes for pulses, notices and requests for sessions."""
    routes = api_router("pulse")

    @routes.post(
        "/api/v1/jobs/{job}/attempts/{attempt}/pulse",
        status_code=202,
        summary="Send the pulse of a host's ranks",
        response_model=PulseAnswer,
        responses=REFUSALS,
        openapi_extra=described_body(PulseBody) | {"parameters": described(PulseNames, "path")},
    )
    async def post_pulse(request: Request) -> Response:
        """Store a few numbers of each rank and step; a worker reads them within seconds.

        The body is JSON, plain or compressed with gzip or zstd: at most 1 MiB as sent, 4 MiB
        decompressed. Unusable parts of it are counted;
        `GET /api/v1/jobs/{job}/pulse/notices` lists the counts.
        """
        container, ingest = container_of(request), ingest_of(request)
        names = asked(PulseNames, "path", request.path_params)
        job, attempt, sender = names.job, names.attempt, owning_token(container)

        def store(body: Body) -> PulseReply:
            arrived = ArrivedPulse(job, attempt, body, sender)
            return receive_pulse(container, arrived, ingest.pulse_pressure)

        async def soon(body: Body) -> PulseReply | None:
            arrived = ArrivedPulse(job, attempt, body, sender)
            return await ingest.pulses.receive(container, arrived, size=body.size)

        try:
            reply = await ingest.receive(
                request,
                NO_METADATA,
                check=partial(check_job_name, job),
                store=store,
                soon=soon,
                most_bytes=MOST_BYTES,
            )
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return JSONResponse(
            PulseAnswer(
                record=reply.record,
                pulse_s=container.settings.pulse_interval_s,
                files=reply.files,
            ).model_dump(mode="json"),
            status_code=202,
        )

    @routes.get("/api/v1/jobs/{job}/pulse/notices", summary="Notices of a job's pulse")
    def get_notices(
        container: RequestContainer,
        job: Annotated[str, Path(description="Name of the job.")],
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> NoticesBody:
        """Return the notices, the latest first, and the dropped rows of all attempts."""
        with container.reading() as tx:
            known_job(tx, job)
            return NoticesBody(
                notices=notices_of_job(tx, job, limit),
                counts=dict(left_out(tx, job)),
                clocks=dict(wrong_clocks(tx, job)),
            )

    @routes.post(
        "/api/v1/jobs/{job}/recordings",
        status_code=202,
        summary="Ask a job to record a session now",
        responses={409: problems.described("The job sends no pulse")},
    )
    def post_recording(
        container: RequestContainer,
        job: Annotated[str, Path(description="Name of the job.")],
        body: AskBody,
    ) -> RequestRow:
        """Request a session with the next answer to the job's pulse, or return the open request."""
        request, _ = request_recording_now(container, job, body.steps, body.by)
        return request

    @routes.get("/api/v1/jobs/{job}/recordings", summary="Requests for sessions of a job")
    def get_recordings(
        container: RequestContainer, job: Annotated[str, Path(description="Name of the job.")]
    ) -> RequestsBody:
        """Return the latest 50 requests for sessions, the latest first."""
        with container.reading() as tx:
            known_job(tx, job)
            return RequestsBody(requests=requests_of(tx, job))

    return routes


PARQUET: Final = "application/vnd.apache.parquet"
BYTES: Final = "application/octet-stream"
# Time range of an answer if the request names no start.
LAST: Final = timedelta(hours=12)

JobName = Annotated[str, Path(description="Name of the job.")]
Since = Annotated[
    Moment | None, Query(alias="from", description="Start; default: 12 hours before `to`.")
]
Until = Annotated[Moment | None, Query(alias="to", description="End; default: now.")]
Length = Annotated[Resolution, Query(description="How long a span is.")]


class SpansBody(BaseModel):
    """Minutes or hours of a job's pulse, the earliest first; at most the latest 1,500."""

    spans: list[SpanRow]


class SwitchBody(BaseModel):
    """Whether a project accepts pulses."""

    model_config = ConfigDict(extra="forbid")

    on: bool = Field(description="False: its jobs' pulses are refused with `pulse.off`.")


def reading_router() -> APIRouter:
    """Return a router with the routes for spans, map, export and the switch."""
    routes = api_router("pulse", "/api/v1")
    octets: dict[int | str, dict[str, Any]] = {200: {"content": {BYTES: {}}}}

    @routes.get("/jobs/{job}/pulse", summary="A job's pulse by minute or hour")
    def get_spans(
        container: RequestContainer,
        job: JobName,
        since: Since = None,
        until: Until = None,
        resolution: Length = Resolution.MINUTE,
    ) -> SpansBody:
        """Return step times, tokens a second, time lost and the slowest ranks."""
        with container.reading() as tx:
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
        container: RequestContainer,
        job: JobName,
        since: Since = None,
        until: Until = None,
        resolution: Length = Resolution.MINUTE,
    ) -> Response:
        """Return the computing of ranks over time: a line of JSON, then the cells.

        The line has `ranks`, their `stages` and `host_of` (an index into `hosts`) in the latest
        attempt, -1 if unknown, `starts` and `attempts` of the spans, and `left_out`.
        Cells are 16-bit unsigned integers, little-endian, span by span: thousandths of the median
        computing of the ranks of the same stage, 0 without a value. At most the latest 1,500
        spans and the 2,048 ranks that were slowest in them.
        """
        with container.reading() as tx:
            known_job(tx, job)
            begin, end = _range(tx, since, until)
            ranks_over_time = rank_map(tx, job, begin, end, resolution)
        return Response(as_bytes(ranks_over_time), media_type=BYTES)

    @routes.get(
        "/jobs/{job}/pulse/export",
        summary="A job's pulse as a Parquet file",
        response_class=Response,
        responses={200: {"content": {PARQUET: {}}}},
    )
    def get_export(
        container: RequestContainer,
        job: JobName,
        attempt: Annotated[int | None, Query(description="Of this attempt; default: all.")] = None,
    ) -> StreamingResponse:
        """Return all stored steps as a Parquet file that `paceline pulse detect` reads."""
        return StreamingResponse(
            export_pulse(container, job, attempt),
            media_type=PARQUET,
            headers={
                "Content-Disposition": 'attachment; filename="paceline-pulse.parquet"',
                "Cache-Control": "no-store",
            },
        )

    @routes.get("/pulse", summary="Whether the project accepts pulses")
    def get_switch(container: RequestContainer) -> SwitchBody:
        """Return whether the project accepts pulses of its jobs."""
        with container.reading() as tx:
            return SwitchBody(on=not pulse_is_off(tx))

    @routes.put("/pulse", summary="Accept or refuse the project's pulses")
    def put_switch(container: RequestContainer, body: SwitchBody) -> SwitchBody:
        """Accept or refuse pulses from now on; stored ones stay until retention deletes them."""
        switch_pulse(container, on=body.on)
        return body

    return routes


def as_bytes(rank_map: RankMap) -> bytes:
    """Return the bytes of a map: a line of JSON, then the cells."""
    head = {
        "ranks": rank_map.ranks,
        "starts": [start.isoformat() for start in rank_map.starts],
        "attempts": rank_map.attempts,
        "left_out": rank_map.left_out,
        "stages": rank_map.places.stages.tolist(),
        "host_of": rank_map.places.host_of.tolist(),
        "hosts": rank_map.places.hosts,
    }
    line = json.dumps(head, separators=(",", ":")).encode() + b"\n"
    return line + np.ascontiguousarray(rank_map.thousandths, "<u2").tobytes()


def _range(tx: Reads, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    end = tx.now if until is None else until
    return (end - LAST if since is None else since), end
