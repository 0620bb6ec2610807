"""Reading the archive of a hang as a kind of task, without the readers themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, update

from app.broker.celery import ANALYSIS_QUEUE
from app.db.models.noticed import HangUpload, HangUploadPart
from app.db.models.tasks import READ_HANG
from app.db.states import TaskState, UploadState
from app.services.container import Claim, TaskKind

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container, TaskError

_STATES: Final = {
    TaskState.QUEUED: UploadState.QUEUED,
    TaskState.RUNNING: UploadState.READING,
    TaskState.DEAD: UploadState.FAILED,
}


def _run(container: Container, claim: Claim) -> None:
    # Most processes read none.
    from app.services.hangs.uploads import read_upload  # noqa: PLC0415 - see above

    read_upload(container, claim)


def _follow(tx: UnitOfWork, upload: uuid.UUID, state: TaskState, error: TaskError | None) -> None:
    tx.session.execute(
        update(HangUpload)
        .where(HangUpload.id == upload)
        .values(
            state=_STATES[state],
            reason_code=error.code if error else None,
            reason=error.sentence if error else None,
        )
    )
    if state is TaskState.DEAD:
        # Sent again it is read again.
        tx.session.execute(delete(HangUploadPart).where(HangUploadPart.upload_id == upload))


READING: Final = TaskKind(name=READ_HANG, queue=ANALYSIS_QUEUE, run=_run, follow=_follow)
