"""Routes that receive a whole session in one body, or a folder file by file; their responses."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final, Self

import structlog
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from app.access.guard import RequestContainer, api_router, container_of
from app.analysis.trace.metadata import Unmapped, parse_metadata
from app.analysis.trace.model import SessionMeta
from app.platform.container import Container
from app.sessions.api.intake import (
    CLIENT_CLOSED_REQUEST,
    REFUSALS,
    SESSION_CONTENT,
    TRACE_CONTENT,
    QueryMetadata,
    ingest_of,
)
from app.sessions.api.spool import HELD_BYTES
from app.sessions.arriving import count_refused_body
from app.sessions.body import Body
from app.sessions.chunks.inbox import ChunkPath, ChunkReceipt, RefusedChunk
from app.sessions.chunks.merge import folder_path, folder_upload, receive_file, seal_folder
from app.sessions.chunks.receive import count_refused
from app.sessions.receive import Receipt, check_job_name, receive_session
from app.sessions.recordings.choose import NotRead
from app.sessions.recordings.listing import (
    MAX_FILE_NAME_CHARS,
    MAX_FILES,
    FolderLook,
    look_at_listing,
)
from app.web import problems
from app.web.addresses import server_address
from app.web.bodies import asked, described

log = structlog.get_logger(__name__)


class RefusedChunkBody(BaseModel):
    """A chunk that was acknowledged, but refused when it was decoded."""

    producer: str
    chunk: int
    code: str
    detail: str
    faults: list[dict[str, Any]]

    @classmethod
    def of(cls, refused: RefusedChunk) -> Self:
        """Return the response body of a refused chunk."""
        return cls(
            producer=refused.producer,
            chunk=refused.number,
            code=refused.code,
            detail=refused.reason,
            faults=[fault.as_dict() for fault in refused.faults],
        )


class SessionNames(BaseModel):
    """Parameters in the URL path of a session."""

    job: str = Field(description="Name of the job; made if it is new.")


class ReceiptBody(BaseModel):
    """The URL and the state of a received session."""

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
    """Return the response of a route that receives a session, a chunk, a file or a seal."""
    url = f"/sessions/{session}"
    body = ReceiptBody(
        session=session,
        url=server_address(request, container.settings) + container.pages_at + url,
        state=state,
        job=job,
        number=number,
        unmapped=list(unmapped),
        not_read=list(not_read),
        refused=[RefusedChunkBody.of(chunk) for chunk in refused],
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
    """Receive a body as one chunk of a session; return the response."""
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
    """Return the route that receives whole sessions."""
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
        """Store a trace; the response is sent once the trace is durable.

        An archive of a folder (tar, plain or compressed with gzip or zstd, or zip) is one session
        of all recordings in it, a file for each rank; `not_read` lists the other files.

        The metadata come in the header line of NDJSON, in a multipart part `meta`, or in query
        parameters; those of an archive also in a file `meta.yaml`. Sending the same body again
        returns 200 and the existing session.
        """
        container, ingest = container_of(request), ingest_of(request)
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


FOLDER_ROUTE: Final = "/api/v1/jobs/{job}/folders/{folder}"

Job = Annotated[str, Path(description="Name of the job; made if it is new.")]
Folder = Annotated[
    str, Path(description="The digest of the folder, as `POST /api/v1/folders` says.")
]


class FileQuery(QueryMetadata):
    """Query of a file in a folder: metadata as for a whole session, and the file's name."""

    name: str = Field(
        min_length=1,
        max_length=MAX_FILE_NAME_CHARS,
        description="From the folder on, with slashes.",
    )

    ranks: int | None = Field(
        None, ge=2, le=MAX_FILES, description="`ranks` of the answer of `POST /api/v1/folders`."
    )

    def meta(self) -> SessionMeta | None:
        """Return the metadata from the query, or None if the query has none."""
        given = self.model_dump(exclude_none=True, exclude={"name", "ranks", "format"})
        return parse_metadata(given) if given else None


class FolderBody(BaseModel):
    """The stored files of a folder and their session; without stored files both are empty."""

    session: uuid.UUID | None = None
    number: int | None = None
    state: str | None = None
    files: list[str] = Field(default_factory=list, description="Names of the files that are here.")
    sealed: bool = Field(
        default=False, description="All that comes is here: it is analyzed, or was."
    )


class SealBody(BaseModel):
    """The files of a folder that were not sent or were refused."""

    model_config = ConfigDict(extra="forbid")

    not_read: list[NotRead] = Field(
        default_factory=list,
        max_length=MAX_FILES,
        description="Files that were not sent or were refused; the report names them.",
    )


def folders_router() -> APIRouter:
    """Return the routes that receive folders file by file."""
    routes = api_router("ingest")

    @routes.post(
        "/api/v1/folders",
        summary="Tell which files of a folder are recordings",
        response_model=FolderLook,
        responses=REFUSALS,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string"}}},
            }
        },
    )
    async def post_look(
        container: RequestContainer,  # noqa: ARG001 - who asks was let in
        request: Request,
    ) -> Response | FolderLook:
        """Return which files of a folder are recordings, judged by their beginnings; store nothing.

        The body is a line of JSON, `{"files": [{"name", "size", "head", "tail"}]}`, followed by the
        first `head` and the last `tail` bytes of each file.
        """
        try:
            return await ingest_of(request).receive(
                request,
                QueryMetadata.model_validate({}),
                check=lambda: None,
                store=lambda body: look_at_listing(body.path),
            )
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    @routes.get(FOLDER_ROUTE, summary="What has come of a folder")
    def get_folder(container: RequestContainer, job: Job, folder: Folder) -> FolderBody:
        upload = folder_upload(container, job, folder)
        if upload is None:
            return FolderBody()
        return FolderBody.model_validate(upload, from_attributes=True)

    @routes.put(
        f"{FOLDER_ROUTE}/file",
        status_code=202,
        summary="Send one recording of a folder",
        response_model=ReceiptBody,
        responses={
            200: {"model": ReceiptBody, "description": "The same file was there already"},
            409: problems.described("Sealed, or other bytes are there under this name"),
            **REFUSALS,
        },
        openapi_extra=TRACE_CONTENT,
    )
    async def put_file(
        container: RequestContainer,
        request: Request,
        job: Job,
        folder: Folder,
        query: Annotated[FileQuery, Query()],
    ) -> Response:
        """Store a recording of a folder; the response is sent once the recording is durable.

        The first file creates the session, which stays `open` until it is sealed. A session that is
        not sealed is discarded an hour after its last file.
        """
        path = folder_path(job, folder, query.name)

        def store(body: Body) -> ChunkReceipt:
            return receive_file(container, path, body, query.ranks)

        return await take_chunk(request, container, query, path, store)

    @routes.post(
        f"{FOLDER_ROUTE}/seal",
        status_code=202,
        summary="All of the folder is here: analyze it",
        response_model=ReceiptBody,
        responses={
            200: {"model": ReceiptBody, "description": "It was sealed already"},
            404: problems.described("Nothing of it is here"),
        },
    )
    def post_seal(
        container: RequestContainer, request: Request, job: Job, folder: Folder, body: SealBody
    ) -> Response:
        receipt = seal_folder(container, job, folder, body.not_read)
        return answer(
            request,
            container,
            receipt.session,
            receipt.state,
            job,
            receipt.number,
            created=receipt.sealed,
            not_read=body.not_read,
        )

    return routes
