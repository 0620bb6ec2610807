"""Use case: store a large archive of a hang's files, which a worker reads.

Its bytes, its row and the task are one transaction, and the result is another: the archive gives
one hang even if workers are killed or run twice.
"""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog
from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.access.senders import check_sender
from app.errors import (
    BodyTooLargeError,
    InvalidArchiveError,
    InvalidTraceError,
    LostClaimError,
    NotFoundError,
)
from app.hangs.models import HangUpload, HangUploadPart, StoredHang
from app.hangs.receive import HangReceipt, add_archive, files_of, is_large, receive_hang
from app.jobs.models import Job
from app.platform.container import Claim, Container
from app.platform.database.states import UploadState
from app.platform.database.task_runs import READ_HANG, TaskRun
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.killable import ReadLimitError
from app.platform.resources import spool_directory
from app.platform.tasks.runs import finish
from app.sessions.body import Body
from app.sessions.receive import check_job_name, make_job

log = structlog.get_logger(__name__)

_PART_BYTES: Final = 1 << 20
# The row of an archive, which shows its state, is kept for this time.
_KEPT: Final = timedelta(days=7)
# An archive that exceeds the limits of a reading process would exceed them on every worker.
_REFUSALS: Final = (InvalidTraceError, InvalidArchiveError, BodyTooLargeError, ReadLimitError)


@dataclass(frozen=True, slots=True)
class Upload:
    """An archive that a worker reads, or has read.

    Parameters
    ----------
    hang : UUID or None
        The hang of its files, once they are read.
    reason_code, reason : str or None
        Why it was refused.
    """

    id: uuid.UUID
    job: str
    state: UploadState
    hang: uuid.UUID | None
    reason_code: str | None
    reason: str | None
    not_read: tuple[str, ...]


def receive_any(
    container: Container, job: str, body: Body, *, name: str = "", rank: int | None = None
) -> HangReceipt | Upload:
    """Store the hang of the files in a body; if the body is a large archive, store it for a worker.

    Parameters and errors are those of `receive_hang`; also `AttemptOwnedError`.
    """
    check_job_name(job)
    with container.reading() as tx:
        check_sender(container, tx, job)
    if not is_large(container.settings, body):
        return receive_hang(container, job, body, name=name, rank=rank)
    with container.uow() as tx:
        # The job's row is locked, so that of two equal archives the second one finds the first.
        job_id = make_job(container, tx, job)
        existing = tx.session.execute(
            select(StoredHang.id).where(
                StoredHang.job_id == job_id, StoredHang.content_sha256 == body.sha256
            )
        ).scalar()
        if existing is not None:
            return HangReceipt(existing, created=False)
        tx.session.execute(
            delete(HangUpload).where(
                HangUpload.job_id == job_id, HangUpload.created_at < tx.now - _KEPT
            )
        )
        open_one = tx.session.execute(
            select(HangUpload.id).where(
                HangUpload.job_id == job_id,
                HangUpload.content_sha256 == body.sha256,
                HangUpload.state.in_((UploadState.QUEUED, UploadState.READING)),
            )
        ).scalar()
        if open_one is not None:
            return get_upload(tx, open_one)
        # An archive that was refused is queued again if the same archive is sent again.
        tx.session.execute(
            delete(HangUpload).where(
                HangUpload.job_id == job_id, HangUpload.content_sha256 == body.sha256
            )
        )
        upload = uuid.uuid4()
        tx.session.execute(
            insert(HangUpload).values(
                id=upload,
                job_id=job_id,
                content_sha256=body.sha256,
                state=UploadState.QUEUED,
                created_at=tx.now,
            )
        )
        with body.path.open("rb") as source:
            part = 0
            while piece := source.read(_PART_BYTES):
                tx.session.execute(
                    insert(HangUploadPart).values(upload_id=upload, part=part, content=piece)
                )
                part += 1
        tx.enqueue(READ_HANG, upload)
        stored = get_upload(tx, upload)
    log.info(
        "hang kept to be read",
        upload=str(upload),
        job=job,
        sender=container.principal.name,
        bytes=body.size,
    )
    return stored


def get_upload(tx: Reads, upload: uuid.UUID) -> Upload:
    """Return an archive with its current state.

    Raises
    ------
    NotFoundError
    """
    row = tx.session.execute(
        select(
            HangUpload.id,
            Job.name,
            HangUpload.state,
            HangUpload.hang_id,
            HangUpload.reason_code,
            HangUpload.reason,
            HangUpload.not_read,
        )
        .join(Job, Job.id == HangUpload.job_id)
        .where(HangUpload.id == upload)
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"There is no archive of a hang {upload}.")
    return Upload(*row[:6], not_read=tuple(row.not_read))


def read_upload(container: Container, claim: Claim) -> None:
    """Read the archive of a claim, and store its hang or the reason why it is refused.

    Raises
    ------
    LostClaimError
        Another worker has it; nothing is stored.
    NotFoundError
        It was deleted meanwhile.
    """
    with tempfile.NamedTemporaryFile(dir=spool_directory(container.settings)) as spooled:
        path = Path(spooled.name)
        _write(container, claim, path)
        try:
            files, not_read = files_of(container.settings, path)
            with container.uow() as tx:
                finish(tx, claim)
                job_id, sha256 = _locked(tx, claim.subject_id)
                receipt = add_archive(container, tx, job_id, files, sha256)
                _end(
                    tx,
                    claim.subject_id,
                    state=UploadState.READ,
                    hang_id=receipt.hang,
                    not_read=list(not_read),
                )
        except _REFUSALS as error:
            with container.uow() as tx:
                finish(tx, claim)
                _end(
                    tx,
                    claim.subject_id,
                    state=UploadState.REFUSED,
                    reason_code=error.stable_code,
                    reason=error.message,
                )
            log.info("hang refused", upload=str(claim.subject_id), code=error.stable_code)
            return
    log.info("hang read", hang=str(receipt.hang), upload=str(claim.subject_id), files=len(files))


def _write(container: Container, claim: Claim, path: Path) -> None:
    """Write the bytes of an archive to a file; only one part is in memory at a time."""
    upload = claim.subject_id
    with container.reading() as tx, path.open("wb") as target:
        count = tx.session.execute(
            select(func.count()).where(HangUploadPart.upload_id == upload)
        ).scalar_one()
        if not count:
            # The archive was deleted, or moved to another project together with its task.
            held = select(TaskRun.id).where(TaskRun.id == claim.run_id)
            if tx.session.execute(held).scalar() is None:
                raise LostClaimError(f"the archive {upload} is in another project by now")
            raise _gone(upload)
        for part in range(count):
            target.write(
                tx.session.execute(
                    select(HangUploadPart.content).where(
                        HangUploadPart.upload_id == upload, HangUploadPart.part == part
                    )
                ).scalar_one()
            )


def _locked(tx: UnitOfWork, upload: uuid.UUID) -> tuple[int, bytes]:
    """Lock the row of the job of an archive; return the job's id and the archive's digest."""
    row = tx.session.execute(
        select(HangUpload.job_id, HangUpload.content_sha256)
        .join(Job, Job.id == HangUpload.job_id)
        .where(HangUpload.id == upload)
        .with_for_update(of=Job, key_share=True)
    ).one_or_none()
    if row is None:
        raise _gone(upload)
    return row.job_id, row.content_sha256


def _gone(upload: uuid.UUID) -> NotFoundError:
    return NotFoundError(f"The archive {upload} is gone.")


def _end(tx: UnitOfWork, upload: uuid.UUID, **values: object) -> None:
    """Set the final state of an archive, and delete the archive's bytes."""
    tx.session.execute(update(HangUpload).where(HangUpload.id == upload).values(**values))
    tx.session.execute(delete(HangUploadPart).where(HangUploadPart.upload_id == upload))
