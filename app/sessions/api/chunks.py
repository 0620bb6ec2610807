"""Routes that receive chunks, seal sessions, number the starts of jobs and record their ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Self

import structlog
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from app.access.guard import RequestContainer, api_router, container_of
from app.access.senders import owning_token
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.model import SessionMeta
from app.errors import PacelineError
from app.sessions.api.intake import (
    CLIENT_CLOSED_REQUEST,
    REFUSALS,
    TRACE_CONTENT,
    Ingest,
    QueryMetadata,
    ingest_of,
)
from app.sessions.api.send import ReceiptBody, RefusedChunkBody, SessionNames, answer, take_chunk
from app.sessions.body import Body
from app.sessions.chunks.inbox import ArrivedChunk, ChunkPath, ChunkReceipt, SessionPath, check_path
from app.sessions.chunks.intake import seal_session
from app.sessions.chunks.receive import receive_chunk, receive_each
from app.sessions.questions import ListedChunk, read_batch
from app.sessions.receive import MAX_RUN_CHARACTERS, announce_attempt, check_job_name, finish_job
from app.web import problems
from app.web.bodies import asked, described

log = structlog.get_logger(__name__)

# Limit of numbers in a request: the largest 32-bit integer, which the database columns can hold.
MAX_NUMBER: Final = (1 << 31) - 1
# Limit of session numbers in a request. It is below `MAX_NUMBER`, as a session sent in one body
# gets the number after the highest session number.
MAX_SESSION_NUMBER: Final = 1_000_000_000

SESSION_ROUTE: Final = "/api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}"

Job = Annotated[str, Path(description="Name of the job; made if it is new.")]
Attempt = Annotated[int, Path(ge=1, le=MAX_NUMBER, description="Starts of the job, from 1.")]
Number = Annotated[
    int, Path(ge=1, le=MAX_SESSION_NUMBER, description="Sessions of the attempt, from 1.")
]


class ChunkQuery(QueryMetadata):
    """Query of a chunk: metadata as for a whole session, and the mark of the last chunk."""

    final: bool = Field(default=False, description="The producer's last chunk.")

    def meta(self) -> SessionMeta | None:
        """Return the metadata from the query, or None if the query has none."""
        given = self.model_dump(exclude_none=True, exclude={"final", "format"})
        return parse_metadata(given) if given else None


class ChunkNames(SessionNames):
    """Parameters in the URL path of a chunk."""

    attempt: int = Field(ge=1, le=MAX_NUMBER, description="Starts of the job, from 1.")
    session: int = Field(
        ge=1, le=MAX_SESSION_NUMBER, description="Sessions of the attempt, from 1."
    )
    producer: str = Field(description="Who sends it: a rank, or a host that relays its ranks.")
    n: int = Field(ge=0, le=MAX_NUMBER, description="The producer's chunks, from 0.")

    def path(self) -> ChunkPath:
        """Return the chunk's path: job, attempt, session, producer and number."""
        return ChunkPath(self.job, self.attempt, self.session, self.producer, self.n)


# Validated once, since validation takes time and most chunks have no query.
_NO_QUERY: Final = ChunkQuery.model_validate({})

BATCH_CONTENT: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string"}}},
    }
}


class ChunkOutcome(BaseModel):
    """Outcome of one chunk of a batch; `status` is the HTTP status of the same chunk sent alone."""

    producer: str
    n: int
    status: int = Field(description="202: stored; 200: it was there already; else why not.")
    code: str | None = None
    detail: str | None = None
    faults: list[dict[str, Any]] = Field(default_factory=list)
    refused: list[RefusedChunkBody] = Field(
        default_factory=list,
        description="Earlier chunks of this producer that were acknowledged and not taken.",
    )

    @classmethod
    def of(cls, listed: ListedChunk, outcome: ChunkReceipt | PacelineError) -> Self:
        """Return the outcome of a listed chunk from its receipt or its error."""
        if isinstance(outcome, ChunkReceipt):
            return cls(
                producer=listed.producer,
                n=listed.n,
                status=202 if outcome.created else 200,
                refused=[RefusedChunkBody.of(chunk) for chunk in outcome.refused],
            )
        return cls(
            producer=listed.producer,
            n=listed.n,
            status=problems.problem_of(outcome).status_code,
            code=outcome.stable_code,
            detail=outcome.message,
            faults=[fault.as_dict() for fault in outcome.faults],
        )


class BatchBody(BaseModel):
    """Outcomes of the chunks of a batch, in the order of the batch."""

    chunks: list[ChunkOutcome]


def router() -> APIRouter:
    """Return the routes that receive chunks and seal sessions."""
    routes = api_router("ingest")

    @routes.put(
        f"{SESSION_ROUTE}/chunks/{{producer}}/{{n}}",
        status_code=202,
        summary="Send one chunk of a session",
        response_model=ReceiptBody,
        responses={
            200: {"model": ReceiptBody, "description": "The same chunk was there already"},
            409: problems.described("Sealed, or other bytes are there under this path"),
            **REFUSALS,
        },
        openapi_extra=TRACE_CONTENT
        | {"parameters": described(ChunkNames, "path") + described(ChunkQuery, "query")},
    )
    async def put_chunk(request: Request) -> Response:
        """Store a chunk of a trace; the response is sent once the chunk is durable.

        Chunks may arrive in any order, and from several producers at once. The first chunk creates
        the session, which stays `open` until it is sealed. Workers decode the other chunks later. A
        chunk that fails to decode is listed in `refused`: in the response to the producer's next
        chunk, in the session, and in the response to the seal. Sending the same bytes again returns
        the reason.
        """
        container, ingest = container_of(request), ingest_of(request)
        path = asked(ChunkNames, "path", request.path_params).path()
        query = _NO_QUERY
        if request.query_params:
            query = asked(ChunkQuery, "query", request.query_params)

        def store(body: Body) -> ChunkReceipt:
            return receive_chunk(container, path, body, final=query.final, pressure=ingest.pressure)

        async def soon(body: Body) -> ChunkReceipt | None:
            arrived = ArrivedChunk(path, body, query.final)
            # Only chunks of one token are stored together, because each transaction has one sender.
            group = path.session_path, owning_token(container)
            return await ingest.chunks.receive(container, arrived, size=body.size, group=group)

        return await take_chunk(
            request,
            container,
            query,
            path,
            store,
            check=partial(check_path, path),
            soon=soon,
        )

    @routes.post(
        f"{SESSION_ROUTE}/chunks",
        summary="Send many chunks of a session in one body",
        response_model=BatchBody,
        responses=REFUSALS,
        openapi_extra=BATCH_CONTENT,
    )
    async def post_chunks(  # noqa: PLR0913, PLR0917 - the path, and who asks
        container: RequestContainer,
        request: Request,
        job: Job,
        attempt: Attempt,
        session: Number,
        query: Annotated[ChunkQuery, Query()],
    ) -> Response:
        """Store chunks of a trace, each as `PUT …/chunks/{producer}/{n}` would store it.

        The body is a line of JSON, `{"chunks": [{"producer", "n", "final", "bytes"}]}`, followed by
        the bytes of each chunk. Each chunk is stored completely or not at all, and has its own
        outcome. An error that concerns all chunks is the error of the request: no chunk is stored.
        """
        path, ingest = SessionPath(job, attempt, session), ingest_of(request)

        def store(batch: Body) -> list[ChunkOutcome]:
            listed = read_batch(batch.path)
            chunks = [
                ArrivedChunk(
                    ChunkPath(job, attempt, session, chunk.producer, chunk.n),
                    Body(
                        content,
                        len(content),
                        None,
                        None,
                        batch.meta,
                        batch.format_name,
                        batch.own,
                    ),
                    chunk.final,
                )
                for chunk, content in listed
            ]
            for chunk in chunks:
                check_path(chunk.path)
            outcomes = receive_each(container, path, chunks, ingest.pressure)
            return [
                ChunkOutcome.of(chunk, outcome)
                for (chunk, _), outcome in zip(listed, outcomes, strict=True)
            ]

        try:
            outcomes = await ingest.receive(
                request, query, check=lambda: check_job_name(job), store=store
            )
        except ClientDisconnect:
            log.info("sender gone", job=job)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        _count_outcomes(ingest, outcomes)
        return JSONResponse(BatchBody(chunks=outcomes).model_dump(mode="json"))

    @routes.post(
        f"{SESSION_ROUTE}/seal",
        status_code=202,
        summary="No more chunks: analyze the session",
        response_model=ReceiptBody,
        responses={
            200: {"model": ReceiptBody, "description": "The session was sealed already"},
            404: problems.described("There is no such session"),
            409: problems.described("The session came in one body"),
        },
    )
    def post_seal(
        container: RequestContainer, request: Request, job: Job, attempt: Attempt, session: Number
    ) -> Response:
        receipt = seal_session(container, job, attempt, session)
        return answer(
            request,
            container,
            receipt.session,
            receipt.state,
            job,
            session,
            created=receipt.sealed,
            refused=receipt.refused,
        )

    return routes


def _count_outcomes(ingest: Ingest, outcomes: Sequence[ChunkOutcome]) -> None:
    for outcome in outcomes:
        if outcome.code is None:
            new = outcome.status == HTTPStatus.ACCEPTED
            ingest.metrics.ingest_chunks.labels("new" if new else "known").inc()
        else:
            ingest.metrics.ingest_refusals.labels(outcome.code).inc()


class RunBody(BaseModel):
    """A start of a job, as the job's launcher announces it."""

    model_config = ConfigDict(extra="forbid")

    run_id: str = Field(
        min_length=1, max_length=MAX_RUN_CHARACTERS, description="What the launcher calls the run."
    )
    restart: int = Field(
        default=0, ge=0, le=MAX_NUMBER, description="Restarts within the run, from 0."
    )


class AttemptBody(BaseModel):
    """The number of an attempt, for the URLs of its chunks."""

    job: str
    attempt: int
    run_id: str
    restart: int


def attempts_router() -> APIRouter:
    """Return the routes that number a job's starts and record its end."""
    routes = api_router("ingest")

    @routes.post("/api/v1/jobs/{job}/finish", status_code=204, summary="Say that a job has ended")
    def post_finish(
        container: RequestContainer, job: Annotated[str, Path(description="Name of the job.")]
    ) -> Response:
        """Record that the job has ended: its silence is no incident until it starts again."""
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
        container: RequestContainer,
        job: Annotated[str, Path(description="Name of the job; made if it is new.")],
        body: RunBody,
    ) -> JSONResponse:
        """Assign an attempt number to a start of the job, in the order of announcement.

        Requests with the same run and restart get the same number, also from different clients.
        """
        receipt = announce_attempt(container, job, body.run_id, body.restart)
        answer = AttemptBody(
            job=job, attempt=receipt.number, run_id=body.run_id, restart=body.restart
        )
        return JSONResponse(answer.model_dump(), status_code=201 if receipt.created else 200)

    return routes
