"""Ingest of a session in chunks, from several producers."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field
from starlette.requests import ClientDisconnect

from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.model import SessionMeta
from app.api.frame import problems
from app.api.frame.routers import api_router
from app.api.sessions.intake import (
    CLIENT_CLOSED_REQUEST,
    REFUSALS,
    TRACE_CONTENT,
    Ingest,
    QueryMetadata,
)
from app.api.sessions.send import ReceiptBody, answer
from app.auth.here import Here
from app.services.sessions.receive import Body
from app.services.sessions.receive_chunk import (
    ChunkPath,
    ChunkReceipt,
    check_path,
    count_refused,
    receive_chunk,
)
from app.services.sessions.seal import seal_session

log = structlog.get_logger(__name__)

# What columns of 32 bits hold; sessions that come whole are numbered after those that are there.
MAX_NUMBER: Final = (1 << 31) - 1
MAX_SESSION_NUMBER: Final = 1_000_000_000

SESSION_ROUTE: Final = "/api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}"

Job = Annotated[str, Path(description="Name of the job; made if it is new.")]
Attempt = Annotated[int, Path(ge=1, le=MAX_NUMBER, description="Starts of the job, from 1.")]
Number = Annotated[
    int, Path(ge=1, le=MAX_SESSION_NUMBER, description="Sessions of the attempt, from 1.")
]


class ChunkQuery(QueryMetadata):
    """Metadata as for a whole session, and whether the producer sends more."""

    final: bool = Field(default=False, description="The producer's last chunk.")

    def meta(self) -> SessionMeta | None:
        """Return the metadata, or None if no parameter was given."""
        given = self.model_dump(exclude_none=True, exclude={"final", "format"})
        return parse_metadata(given) if given else None


def _path(
    job: Job,
    attempt: Attempt,
    session: Number,
    producer: Annotated[
        str, Path(description="Who sends it: a rank, or a host that relays its ranks.")
    ],
    n: Annotated[int, Path(ge=0, le=MAX_NUMBER, description="The producer's chunks, from 0.")],
) -> ChunkPath:
    return ChunkPath(job, attempt, session, producer, n)


def router(ingest: Ingest) -> APIRouter:
    """Return the routes that take chunks and seal sessions."""
    routes = api_router("ingest")
    metrics = ingest.metrics

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
        openapi_extra=TRACE_CONTENT,
    )
    async def put_chunk(
        container: Here,
        request: Request,
        path: Annotated[ChunkPath, Depends(_path)],
        query: Annotated[ChunkQuery, Query()],
    ) -> Response:
        """Store a part of a trace; answered only once it is durable.

        Chunks may come in any order, late, and from several producers at once. The first one makes
        the session, which stays `open` until it is sealed.
        """

        def store(body: Body) -> ChunkReceipt:
            return receive_chunk(container, path, body, final=query.final)

        try:
            receipt = await ingest.receive(
                request,
                query,
                check=partial(check_path, path),
                store=store,
                refused=partial(count_refused, container, path),
            )
        except ClientDisconnect:
            log.info("sender gone", job=path.job, producer=path.producer)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        metrics.ingest_chunks.labels("new" if receipt.created else "known").inc()
        if receipt.created:
            metrics.ingest_rows.inc(receipt.operations)
        return answer(
            request,
            container,
            receipt.session,
            receipt.state,
            path.job,
            path.session,
            created=receipt.created,
            unmapped=receipt.unmapped,
        )

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
        container: Here, request: Request, job: Job, attempt: Attempt, session: Number
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
        )

    return routes
