"""Announce a start of a job, and learn its number; say that the job has ended."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from app.api.frame import problems
from app.api.frame.routers import api_router
from app.api.sessions.chunks import MAX_NUMBER
from app.auth.here import Here
from app.services.sessions.attempts import MAX_RUN_CHARACTERS, announce_attempt, finish_job


class RunBody(BaseModel):
    """A start of a job, as its launcher tells it."""

    model_config = ConfigDict(extra="forbid")

    run_id: str = Field(
        min_length=1, max_length=MAX_RUN_CHARACTERS, description="What the launcher calls the run."
    )
    restart: int = Field(
        default=0, ge=0, le=MAX_NUMBER, description="Restarts within the run, from 0."
    )


class AttemptBody(BaseModel):
    """The number of an attempt, as addresses of chunks have it."""

    job: str
    attempt: int
    run_id: str
    restart: int


def router() -> APIRouter:
    """Return the routes of a job's starts and its end."""
    routes = api_router("ingest")

    @routes.post("/api/v1/jobs/{job}/finish", status_code=204, summary="Say that a job has ended")
    def post_finish(
        container: Here, job: Annotated[str, Path(description="Name of the job.")]
    ) -> Response:
        """Its silence is no incident; a later start of the job takes that back."""
        finish_job(container, job)
        return Response(status_code=204)

    @routes.post(
        "/api/v1/jobs/{job}/attempts",
        status_code=201,
        summary="Announce a start of a job",
        response_model=AttemptBody,
        responses={
            200: {"model": AttemptBody, "description": "This start was announced before"},
            422: problems.described("The job's or the run's name, or a field, is not valid"),
        },
    )
    def post_attempt(
        container: Here,
        job: Annotated[str, Path(description="Name of the job; made if it is new.")],
        body: RunBody,
    ) -> JSONResponse:
        """Give each start of the job its number, in the order in which they are announced.

        The same run and restart are the same attempt, whoever asks and however often.
        """
        receipt = announce_attempt(container, job, body.run_id, body.restart)
        answer = AttemptBody(
            job=job, attempt=receipt.number, run_id=body.run_id, restart=body.restart
        )
        return JSONResponse(answer.model_dump(), status_code=201 if receipt.created else 200)

    return routes
