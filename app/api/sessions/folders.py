"""Ingest of a folder, file by file, as a browser sends it."""

from __future__ import annotations

import uuid
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.model import SessionMeta
from app.api.frame import problems
from app.api.frame.routers import api_router
from app.api.sessions.intake import (
    CLIENT_CLOSED_REQUEST,
    REFUSALS,
    TRACE_CONTENT,
    QueryMetadata,
    ingest_of,
)
from app.api.sessions.send import ReceiptBody, answer, take_chunk
from app.auth.here import Here
from app.inputs.recordings.choose import NotRead
from app.inputs.recordings.listing import (
    MAX_FILE_NAME_CHARS,
    MAX_FILES,
    FolderLook,
    look_at_listing,
)
from app.services.sessions.body import Body
from app.services.sessions.chunks.folder import (
    folder_path,
    folder_standing,
    receive_file,
    seal_folder,
)
from app.services.sessions.chunks.path import ChunkReceipt

FOLDER_ROUTE: Final = "/api/v1/jobs/{job}/folders/{folder}"

Job = Annotated[str, Path(description="Name of the job; made if it is new.")]
Folder = Annotated[
    str, Path(description="The digest of the folder, as `POST /api/v1/folders` says.")
]


class FileQuery(QueryMetadata):
    """Metadata as for a whole session, and which file it is."""

    name: str = Field(
        min_length=1,
        max_length=MAX_FILE_NAME_CHARS,
        description="From the folder on, with slashes.",
    )

    ranks: int | None = Field(
        None, ge=2, le=MAX_FILES, description="`ranks` of the answer of `POST /api/v1/folders`."
    )

    def meta(self) -> SessionMeta | None:
        """Return the metadata, or None if no parameter was given."""
        given = self.model_dump(exclude_none=True, exclude={"name", "ranks", "format"})
        return parse_metadata(given) if given else None


class FolderBody(BaseModel):
    """What has come of a folder; nothing where there is no session."""

    session: uuid.UUID | None = None
    number: int | None = None
    state: str | None = None
    files: list[str] = Field(default_factory=list, description="Names of the files that are here.")
    sealed: bool = Field(
        default=False, description="All that comes is here: it is analyzed, or was."
    )


class SealBody(BaseModel):
    """What else the folder has."""

    model_config = ConfigDict(extra="forbid")

    not_read: list[NotRead] = Field(
        default_factory=list,
        max_length=MAX_FILES,
        description="Files that were not sent or were refused; the report names them.",
    )


def router() -> APIRouter:
    """Return the routes that take folders."""
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
        container: Here,  # noqa: ARG001 - who asks was let in
        request: Request,
    ) -> Response | FolderLook:
        """Look at the beginnings of a folder's files; nothing is stored.

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
    def get_folder(container: Here, job: Job, folder: Folder) -> FolderBody:
        found = folder_standing(container, job, folder)
        if found is None:
            return FolderBody()
        return FolderBody(
            session=found.session,
            number=found.number,
            state=found.state,
            files=list(found.files),
            sealed=found.sealed,
        )

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
        container: Here,
        request: Request,
        job: Job,
        folder: Folder,
        query: Annotated[FileQuery, Query()],
    ) -> Response:
        """Store a recording; answered only once it is durable.

        The first one makes the session, which stays `open` until it is sealed. Without that it is
        discarded an hour after its last file.
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
        container: Here, request: Request, job: Job, folder: Folder, body: SealBody
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
