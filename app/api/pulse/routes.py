"""What ranks send all the time, and what is noticed in it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from app.api.frame import problems
from app.api.frame.asked import asked, described
from app.api.frame.docs import described_body
from app.api.frame.routers import api_router
from app.api.sessions.chunks import MAX_NUMBER
from app.api.sessions.intake import CLIENT_CLOSED_REQUEST, REFUSALS, QueryMetadata, ingest_of
from app.auth.here import Here, here_of
from app.inputs.pulse.body import MOST_BYTES, PulseBody
from app.services.history.notes import known_job
from app.services.pulse.read import NoticeRow, left_out, notices_of_job, wrong_clocks
from app.services.pulse.receive import ArrivedPulse, Wanted, receive_pulse
from app.services.pulse.recordings import Recording, RequestRow, ask_now, requests_of
from app.services.sessions.body import Body
from app.services.sessions.receive import check_job_name

# Of a body without parameters.
NOTHING_SAID: Final = QueryMetadata.model_validate({})


class PulseNames(BaseModel):
    """What the path of a pulse says."""

    job: str = Field(description="Name of the job; made if it is new.")
    attempt: int = Field(ge=1, le=MAX_NUMBER, description="Starts of the job, from 1.")


class PulseAnswer(BaseModel):
    """What the sender is to do."""

    record: Recording | None = Field(
        description="A session that the job is to record; only rank 0's host is told. Null: none."
    )
    pulse_s: float = Field(description="Seconds until the next body.")
    files: bool = Field(
        description="Whether each rank is to say what it is in, since no step ends: stack, pending "
        "collectives, and the state of a process that says nothing."
    )


class NoticesBody(BaseModel):
    """What was noticed in a job, the latest first."""

    notices: list[NoticeRow]
    counts: dict[str, int] = Field(description="Rows, columns and bodies left out, by code.")
    clocks: dict[str, float] = Field(
        description="Hosts (or `rank 3`) whose clocks are more than two seconds off those of the "
        "others in the last attempt, and by how many seconds; at most 100."
    )


class AskBody(BaseModel):
    """A session that a job is to record."""

    model_config = ConfigDict(extra="forbid")

    steps: int = Field(50, ge=1, le=1000)
    by: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="The user who asks; taken from the sign-in where there is one.",
    )


class RequestsBody(BaseModel):
    """Sessions that a job was asked for, the latest first."""

    requests: list[RequestRow]


def router() -> APIRouter:
    """Return the routes."""
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
        """Store a few numbers a rank and step; a worker reads them within seconds.

        The body is JSON, plain or compressed with gzip or zstd: at most 1 MiB as it comes, 4 MiB
        decompressed. What cannot be used of it is counted, and named by
        `GET /api/v1/jobs/{job}/pulse/notices`.
        """
        container, ingest = here_of(request), ingest_of(request)
        names = asked(PulseNames, "path", request.path_params)
        job, attempt = names.job, names.attempt

        def store(body: Body) -> Wanted:
            arrived = ArrivedPulse(job, attempt, body)
            return receive_pulse(container, arrived, ingest.pulse_pressure)

        async def soon(body: Body) -> Wanted | None:
            arrived = ArrivedPulse(job, attempt, body)
            return await ingest.pulses.receive(container, arrived, size=body.size)

        try:
            wanted = await ingest.receive(
                request,
                NOTHING_SAID,
                check=partial(check_job_name, job),
                store=store,
                soon=soon,
                most_bytes=MOST_BYTES,
            )
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return JSONResponse(
            PulseAnswer(
                record=wanted.record,
                pulse_s=container.settings.pulse_interval_s,
                files=wanted.files,
            ).model_dump(mode="json"),
            status_code=202,
        )

    @routes.get("/api/v1/jobs/{job}/pulse/notices", summary="What was noticed in a job's pulse")
    def get_notices(
        container: Here,
        job: Annotated[str, Path(description="Name of the job.")],
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> NoticesBody:
        """Return the latest first, and what was left out of all attempts."""
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
        container: Here, job: Annotated[str, Path(description="Name of the job.")], body: AskBody
    ) -> RequestRow:
        """Ask with the next answer to its pulse; one that is asked for already is the same."""
        request, _ = ask_now(container, job, body.steps, body.by)
        return request

    @routes.get("/api/v1/jobs/{job}/recordings", summary="Sessions that a job was asked for")
    def get_recordings(
        container: Here, job: Annotated[str, Path(description="Name of the job.")]
    ) -> RequestsBody:
        """Return the latest 50, the latest first."""
        with container.reading() as tx:
            known_job(tx, job)
            return RequestsBody(requests=requests_of(tx, job))

    return routes
