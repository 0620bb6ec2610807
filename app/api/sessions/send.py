"""Ingest: a whole session in one body."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Self

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from app.analysis.trace.unmapped import Unmapped
from app.api.frame.asked import asked, described
from app.api.frame.routers import api_router
from app.api.sessions.intake import (
    CLIENT_CLOSED_REQUEST,
    REFUSALS,
    SESSION_CONTENT,
    QueryMetadata,
    ingest_of,
)
from app.api.sessions.spool import HELD_BYTES
from app.auth.addresses import server_address
from app.auth.here import here_of
from app.inputs.recordings.choose import NotRead
from app.services.container import Container
from app.services.ingest.refusals import count_refused_body
from app.services.sessions.body import Body
from app.services.sessions.chunks.path import ChunkPath, ChunkReceipt, RefusedChunk
from app.services.sessions.chunks.receive import count_refused
from app.services.sessions.receive import Receipt, check_job_name, receive_session

log = structlog.get_logger(__name__)


class RefusedChunkBody(BaseModel):
    """A chunk that was acknowledged and could not be taken when it was decoded."""

    producer: str
    chunk: int
    code: str
    detail: str
    faults: list[dict[str, Any]]

    @classmethod
    def of(cls, refused: RefusedChunk) -> Self:
        """Return what routes say of one."""
        return cls(
            producer=refused.producer,
            chunk=refused.number,
            code=refused.code,
            detail=refused.reason,
            faults=[fault.as_dict() for fault in refused.faults],
        )


class SessionNames(BaseModel):
    """What the path of a session says."""

    job: str = Field(description="Name of the job; made if it is new.")


class ReceiptBody(BaseModel):
    """Where a received session is and what has become of it so far."""

    session: uuid.UUID
    url: str
    state: str
    job: str
    number: int
    unmapped: list[Unmapped] = Field(
        default_factory=list, description="Other contents of a foreign recording."
    )
    not_read: list[NotRead] = Field(
        default_factory=list, description="Files of an archive that are no recordings."
    )
    refused: list[RefusedChunkBody] = Field(
        default_factory=list,
        description="Chunks that were acknowledged before and could not be taken: of this "
        "producer, or in the answer to a seal of the session.",
    )


def answer(  # noqa: PLR0913, PLR0917 - what it says
    request: Request,
    container: Container,
    session: uuid.UUID,
    state: str,
    job: str,
    number: int,
    *,
    created: bool,
    unmapped: Sequence[Unmapped] = (),
    not_read: Sequence[NotRead] = (),
    refused: Sequence[RefusedChunk] = (),
) -> Response:
    """Return the answer of every route that takes something of a session."""
    url = f"/sessions/{session}"
    body = ReceiptBody(
        session=session,
        url=server_address(request, container.settings) + container.pages_at + url,
        state=state,
        job=job,
        number=number,
        unmapped=list(unmapped),
        not_read=list(not_read),
        refused=[RefusedChunkBody.of(one) for one in refused],
    )
    return JSONResponse(
        body.model_dump(mode="json"),
        status_code=202 if created else 200,
        headers={"Location": f"/api/v1{url}"},
    )


async def take_chunk(  # noqa: PLR0913 - of one request
    request: Request,
    container: Container,
    query: QueryMetadata,
    path: ChunkPath,
    store: Callable[[Body], ChunkReceipt],
    *,
    check: Callable[[], None] = lambda: None,
    soon: Callable[[Body], Awaitable[ChunkReceipt | None]] | None = None,
) -> Response:
    """Take a body that is one chunk of a session, and return the answer."""
    ingest = ingest_of(request)
    try:
        receipt = await ingest.receive(
            request,
            query,
            check=check,
            store=store,
            refused=partial(count_refused, container, path),
            soon=soon,
        )
    except ClientDisconnect:
        log.info("sender gone", job=path.job, producer=path.producer)
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    ingest.metrics.ingest_chunks.labels("new" if receipt.created else "known").inc()
    if receipt.created:
        ingest.metrics.ingest_rows.inc(receipt.operations or 0)
    return answer(
        request,
        container,
        receipt.session,
        receipt.state,
        path.job,
        receipt.number,
        created=receipt.created,
        unmapped=receipt.unmapped,
        refused=receipt.refused,
    )


def router() -> APIRouter:
    """Return the route that takes sessions."""
    routes = api_router("ingest")

    @routes.post(
        "/api/v1/jobs/{job}/sessions",
        status_code=202,
        summary="Send a whole session in one body",
        response_model=ReceiptBody,
        responses={
            200: {"model": ReceiptBody, "description": "The same body was there already"},
            **REFUSALS,
        },
        openapi_extra=SESSION_CONTENT
        | {"parameters": described(SessionNames, "path") + described(QueryMetadata, "query")},
    )
    async def post_session(request: Request) -> Response:
        """Store a trace; answered only once it is durable.

        An archive of a folder (tar, plain or compressed with gzip or zstd, or zip) is one session
        of all recordings in it, a file a rank; `not_read` lists the other files.

        The metadata comes in the header line of NDJSON, in a multipart part `meta`, or in query
        parameters, of an archive also in a file `meta.yaml`. The same body
        again answers 200 with the session that it already is.
        """
        container, ingest = here_of(request), ingest_of(request)
        job = asked(SessionNames, "path", request.path_params).job
        query = asked(QueryMetadata, "query", request.query_params)

        def store(body: Body) -> Receipt:
            return receive_session(container, job, body)

        try:
            receipt = await ingest.receive(
                request,
                query,
                check=partial(check_job_name, job),
                store=store,
                refused=partial(count_refused_body, container, job),
                held_bytes=HELD_BYTES,
            )
        except ClientDisconnect:
            log.info("sender gone", job=job)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        ingest.metrics.ingest_sessions.labels("new" if receipt.created else "known").inc()
        if receipt.created:
            ingest.metrics.ingest_rows.inc(receipt.operations)
        return answer(
            request,
            container,
            receipt.session,
            receipt.state,
            receipt.job,
            receipt.number,
            created=receipt.created,
            unmapped=receipt.unmapped,
            not_read=receipt.not_read,
        )

    return routes
