"""Use cases: delete a session, or a job with everything that belongs to it.

One transaction, which copies no data, moves the rows to a new project that is itself deleted: from
then on they are not found, the name and the numbers are free, and a running analysis stores
nothing. The sweeper then deletes that project in batches, and continues if it is killed.
"""

from __future__ import annotations

import uuid
from typing import Final

from sqlalchemy import delete, insert, select, update

from app.access.audit import Action, record
from app.access.moves import drop_deliveries, take_along, take_job_along
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.columns import Base
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import UnitOfWork
from app.quotas.usage import recount
from app.sessions.models.tables import Session
from app.sessions.read import no_session
from app.sessions.receive import no_job

# A table with both columns refers to a session and to the session's job.
_OF_BOTH: Final = {"session_id", "job_id"}


def delete_session(container: Container, session_id: uuid.UUID) -> None:
    """Delete a session with its trace and report.

    Raises
    ------
    NotFoundError
        If there is no such session, or it is deleted already.
    """
    source = container.project_id
    with container.everywhere().uow() as tx:
        row = tx.session.execute(
            select(Session.number, Job.name)
            .join(Job, Job.id == Session.job_id)
            .where(Session.id == session_id, Session.project_id == source)
            .with_for_update(of=Session)
        ).one_or_none()
        if row is None:
            raise no_session(session_id)
        grave = _deleted_project(tx)
        stand_in = tx.session.execute(
            insert(Job).values(project_id=grave, name=f"deleted {session_id}").returning(Job.id)
        ).scalar_one()
        take_along(tx, select(Session.id).where(Session.id == session_id), grave)
        _drop_what_is_of_its_job(tx, session_id)
        # ON UPDATE CASCADE moves the rows that refer to the session.
        tx.session.execute(
            update(Session)
            .where(Session.id == session_id)
            .values(project_id=grave, job_id=stand_in)
        )
        record(
            tx,
            container.principal,
            Action.DELETED,
            f"session {row.number} of {row.name}",
            project_id=source,
        )
        recount(tx, source)


def delete_job(container: Container, job: str) -> None:
    """Delete a job with its sessions, reports, incidents and tensor-parallel groups.

    Raises
    ------
    NotFoundError
        If there is no such job, or it is deleted already.
    """
    source = container.project_id
    with container.everywhere().uow() as tx:
        job_id = tx.session.execute(
            select(Job.id).where(Job.project_id == source, Job.name == job).with_for_update()
        ).scalar()
        if job_id is None:
            raise no_job(job)
        grave = _deleted_project(tx)
        take_job_along(tx, job_id, grave)
        drop_deliveries(tx, job_id)
        tx.session.execute(update(Job).where(Job.id == job_id).values(project_id=grave))
        record(tx, container.principal, Action.DELETED, f"job {job}", project_id=source)
        recount(tx, source)


def _drop_what_is_of_its_job(tx: UnitOfWork, session_id: uuid.UUID) -> None:
    """Delete rows that refer to a session and to its former job, such as host readings."""
    for mapper in Base.registry.mappers:
        if set(mapper.columns.keys()) >= _OF_BOTH:
            of_session = mapper.class_.session_id == session_id
            tx.session.execute(delete(mapper.class_).where(of_session))


def _deleted_project(tx: UnitOfWork) -> int:
    return tx.session.execute(
        insert(Project)
        .values(name=f"deleted {uuid.uuid4()}", deleted_at=tx.now)
        .returning(Project.id)
    ).scalar_one()
