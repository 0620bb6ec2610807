"""Ingest: a whole session in one body."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import structlog
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from app.analysis.trace.unmapped import Unmapped
from app.api.frame.routers import api_router
from app.api.sessions.intake import (
    CLIENT_CLOSED_REQUEST,
    REFUSALS,
    TRACE_CONTENT,
    Ingest,
    QueryMetadata,
)
from app.auth.addresses import server_address
from app.auth.here import Here
from app.services.container import Container
from app.services.ingest.refusals import count_refused_body
from app.services.sessions.receive import Body, Receipt, check_job_name, receive_session

log = structlog.get_logger(__name__)


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
    )
    return JSONResponse(
        body.model_dump(mode="json"),
        status_code=202 if created else 200,
        headers={"Location": f"/api/v1{url}"},
    )


def router(ingest: Ingest) -> APIRouter:
    """Return the route that takes sessions."""
    routes = api_router("ingest")
    metrics = ingest.metrics

    @routes.post(
        "/api/v1/jobs/{job}/sessions",
        status_code=202,
        summary="Send a whole session in one body",
        response_model=ReceiptBody,
        responses={
            200: {"model": ReceiptBody, "description": "The same body was there already"},
            **REFUSALS,
        },
        openapi_extra=TRACE_CONTENT,
    )
    async def post_session(
        container: Here,
        request: Request,
        job: Annotated[str, Path(description="Name of the job; made if it is new.")],
        query: Annotated[QueryMetadata, Query()],
    ) -> Response:
        """Store a trace; answered only once it is durable.

        The metadata comes in the header line of NDJSON, in a multipart part `meta`, or in query
        parameters. The same body again answers 200 with the session that it already is.
        """

        def store(body: Body) -> Receipt:
            return receive_session(container, job, body)

        try:
            receipt = await ingest.receive(
                request,
                query,
                check=partial(check_job_name, job),
                store=store,
                refused=partial(count_refused_body, container, job),
            )
        except ClientDisconnect:
            log.info("sender gone", job=job)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        metrics.ingest_sessions.labels("new" if receipt.created else "known").inc()
        if receipt.created:
            metrics.ingest_rows.inc(receipt.operations)
        return answer(
            request,
            container,
            receipt.session,
            receipt.state,
            receipt.job,
            receipt.number,
            created=receipt.created,
            unmapped=receipt.unmapped,
        )

    return routes
