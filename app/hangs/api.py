"""API routes: files of hanging jobs, and the verdicts on the hangs."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from app.access.guard import RequestContainer, api_router
from app.analysis.hangs.document import HangDocument
from app.analysis.hangs.findings import HangKind
from app.hangs.read import HangRow, get_hang, hangs_of_job
from app.hangs.receive import HangReceipt
from app.hangs.uploads import Upload, get_upload, receive_any
from app.jobs.time_axis import known_job
from app.platform.database.states import UploadState
from app.sessions.api.intake import CLIENT_CLOSED_REQUEST, REFUSALS, QueryMetadata, ingest_of
from app.sessions.body import Body
from app.sessions.receive import check_job_name
from app.web import problems
from app.web.addresses import server_address

Job = Annotated[str, Path(description="Name of the job; made if it is new.")]


class FileOfHang(BaseModel):
    """Rank and name of a body that is a single file."""

    model_config = ConfigDict(extra="forbid")

    rank: int | None = Field(
        None,
        ge=0,
        lt=1 << 20,
        description="Rank of the dump; default: the number at the end of `name`.",
    )
    name: str = Field("", max_length=255, description="The file's name: `_dump_3`.")


class HangReceiptBody(BaseModel):
    """The hang to which a body belongs, and its verdict."""

    hang: uuid.UUID
    url: str
    job: str
    kind: HangKind
    sentence: str
    confidence: float
    not_read: list[str] = Field(description="Files of unknown kinds in an archive.")


class UploadBody(BaseModel):
    """An archive that a worker reads, or has read."""

    upload: uuid.UUID
    job: str
    state: UploadState
    hang: uuid.UUID | None = Field(description="The hang of its files; null until it is read.")
    url: str | None = Field(description="The page of that hang.")
    reason_code: str | None = Field(description="Why it was refused: a stable code.")
    reason: str | None = Field(description="Why it was refused, in a sentence.")
    not_read: list[str] = Field(description="Files of unknown kinds in the archive.")

    @classmethod
    def of(cls, upload: Upload, pages: str) -> Self:
        """Return the body of an archive; `pages` is the address of the dashboard."""
        return cls(
            upload=upload.id,
            job=upload.job,
            state=upload.state,
            hang=upload.hang,
            url=None if upload.hang is None else f"{pages}/hangs/{upload.hang}",
            reason_code=upload.reason_code,
            reason=upload.reason,
            not_read=list(upload.not_read),
        )


class HangsBody(BaseModel):
    """Hangs of a job, the latest first."""

    hangs: list[HangRow]


class OneHangBody(BaseModel):
    """A hang with its whole verdict."""

    hang: HangRow
    gpu_hours: float = Field(description="Cost of the hang.")
    document: HangDocument


_CONTENT = {
    "requestBody": {
        "required": True,
        "content": {
            name: {"schema": {"type": "string"}}
            for name in ("application/octet-stream", "application/x-tar", "application/zip")
        },
    }
}


def router() -> APIRouter:
    """Return a router with the routes for files of hanging jobs and for verdicts."""
    routes = api_router("hangs")

    @routes.post(
        "/api/v1/jobs/{job}/hangs",
        status_code=201,
        summary="Send the files of a job that stands still",
        response_model=HangReceiptBody,
        responses={
            200: {"model": HangReceiptBody, "description": "It is of a hang that was there"},
            202: {"model": UploadBody, "description": "A worker reads the archive"},
            **REFUSALS,
        },
        openapi_extra=_CONTENT,
    )
    async def post_hang(
        container: RequestContainer,
        request: Request,
        job: Job,
        query: Annotated[FileOfHang, Query()],
    ) -> Response:
        """Find the ranks for which the other ranks wait, and store the verdict.

        The body is an archive (tar, plain or compressed with gzip or zstd, or zip) of dumps of
        PyTorch's flight recorder, of `py-spy dump --json` and of `ncclras -f json`; or a single
        such file, which joins the job's open hang if that hang's last file came within ten
        minutes. Pickles are read without being unpickled. An archive of more than 8 MiB is read
        by a worker: the answer is 202, and `Location` is the address of its state.
        """

        def store(body: Body) -> HangReceipt | Upload:
            return receive_any(container, job, body, name=query.name, rank=query.rank)

        try:
            receipt = await ingest_of(request).receive(
                request,
                QueryMetadata.model_validate({}),
                check=partial(check_job_name, job),
                store=store,
            )
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        pages = server_address(request, container.settings) + container.pages_at
        if isinstance(receipt, Upload):
            return JSONResponse(
                UploadBody.of(receipt, pages).model_dump(mode="json"),
                status_code=202,
                headers={"Location": f"/api/v1/hang-uploads/{receipt.id}"},
            )
        with container.reading() as tx:
            row, _ = get_hang(tx, receipt.hang)
        url = f"/hangs/{receipt.hang}"
        body = HangReceiptBody(
            hang=receipt.hang,
            url=pages + url,
            job=job,
            kind=row.kind,
            sentence=row.sentence,
            confidence=row.confidence,
            not_read=list(receipt.not_read),
        )
        return JSONResponse(
            body.model_dump(mode="json"),
            status_code=201 if receipt.created else 200,
            headers={"Location": f"/api/v1{url}"},
        )

    @routes.get("/api/v1/jobs/{job}/hangs", summary="Hangs of a job")
    def get_hangs(
        container: RequestContainer, job: Job, limit: Annotated[int, Query(ge=1, le=200)] = 50
    ) -> HangsBody:
        """Return the latest hangs first."""
        with container.reading() as tx:
            known_job(tx, job)
            return HangsBody(hangs=hangs_of_job(tx, job, limit))

    @routes.get(
        "/api/v1/hang-uploads/{upload}",
        summary="State of an archive of a hang",
        responses={404: problems.described("There is none")},
    )
    def get_upload_state(
        container: RequestContainer, request: Request, upload: uuid.UUID
    ) -> UploadBody:
        pages = server_address(request, container.settings) + container.pages_at
        with container.reading() as tx:
            return UploadBody.of(get_upload(tx, upload), pages)

    @routes.get(
        "/api/v1/hangs/{hang}",
        summary="A hang with its whole verdict",
        responses={404: problems.described("There is none")},
    )
    def get_one(container: RequestContainer, hang: uuid.UUID) -> OneHangBody:
        with container.reading() as tx:
            row, document = get_hang(tx, hang)
        return OneHangBody(hang=row, gpu_hours=row.gpu_hours, document=document)

    return routes
