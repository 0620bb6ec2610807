"""Use cases: pin a session, rename a job, and put one into the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError

from app.db.models.alerts import AlertGroup
from app.db.models.sessions import Job, Session
from app.errors import ConflictError, Fault
from app.services.access.audit import Action, record
from app.services.sessions.read import no_session
from app.services.sessions.receive import check_new_job_name, no_job

if TYPE_CHECKING:
    import uuid

    from app.services.container import Container


def pin_session(container: Container, session_id: uuid.UUID, *, pinned: bool) -> None:
    """Keep a session whatever the project's retention says, or not any more.

    Raises
    ------
    NotFoundError
        If there is no such session.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Session.number, Session.pinned, Job.name)
            .join(Job, Job.id == Session.job_id)
            .where(Session.id == session_id)
            .with_for_update(of=Session)
        ).one_or_none()
        if row is None:
            raise no_session(session_id)
        if row.pinned == pinned:
            return
        tx.session.execute(update(Session).where(Session.id == session_id).values(pinned=pinned))
        record(
            tx,
            container.principal,
            Action.PINNED if pinned else Action.UNPINNED,
            f"session {row.number} of {row.name}",
        )


def rename_job(container: Container, job: str, name: str) -> None:
    """Give a job another name; what is sent under the old one is another job from now on.

    Raises
    ------
    NotFoundError
        If there is no such job.
    PacelineError
        ``job.invalid_name``.
    ConflictError
        ``job.name_taken``: another job has this name.
    """
    if name != job:
        check_new_job_name(name)
    try:
        with container.uow() as tx:
            renamed = tx.session.execute(
                update(Job).where(Job.name == job).values(name=name).returning(Job.id)
            ).scalar()
            if renamed is None:
                raise no_job(job)
            if name != job:
                record(tx, container.principal, Action.RENAMED, f"job {job}", detail=f"to {name}")
    except IntegrityError as error:
        raise ConflictError(
            f"There is a job {name} already.",
            code="job.name_taken",
            faults=(Fault("taken", "Another job has this name.", column="name"),),
        ) from error


def archive_job(container: Container, job: str, *, archived: bool) -> None:
    """Leave a job out of the fleet until it sends again, or put it back.

    Raises
    ------
    NotFoundError
        If there is no such job.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Job.id, Job.archived_at).where(Job.name == job).with_for_update()
        ).one_or_none()
        if row is None:
            raise no_job(job)
        if (row.archived_at is not None) == archived:
            return
        tx.session.execute(
            update(Job).where(Job.id == row.id).values(archived_at=func.now() if archived else None)
        )
        if archived:
            # Its silence is meant; the next session makes rules look again.
            tx.session.execute(
                update(AlertGroup).where(AlertGroup.job_id == row.id).values(look_at=None)
            )
        record(
            tx,
            container.principal,
            Action.ARCHIVED if archived else Action.UNARCHIVED,
            f"job {job}",
        )
