"""Moves of jobs to another project, and deletion of projects with all their contents."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final, cast

from sqlalchemy import CompoundSelect, CursorResult, Select, delete, select, union_all, update
from sqlalchemy.exc import IntegrityError

from app.access.audit import Action, record
from app.access.models import Membership, Token
from app.access.projects import project_id_of
from app.errors import ConflictError, NotFoundError
from app.hangs.models import HangUpload
from app.incidents.models.tables import AlertDelivery, AlertGroup, AlertIncident, AlertOnHost
from app.jobs.models import Job
from app.plans.models import Plan
from app.platform.blobs import BlobObject, BlobPart
from app.platform.container import Container
from app.platform.database.projects import DEFAULT_PROJECT, Project
from app.platform.database.states import TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.database.unit_of_work import UnitOfWork
from app.quotas.usage import recount
from app.sessions.models.tables import Chunk, Session, StoredReport

# Numbers of rows that one transaction deletes. Blob parts have at most 4 MiB, so that a transaction
# deletes at most 64 MiB and autovacuum and backups keep up.
PARTS: Final = 16
ROWS: Final = 1000
JOBS: Final = 10
PASS_LIMIT_S: Final = 10.0


def move_job(container: Container, job: str, to: str) -> None:
    """Move a job with its sessions, reports and incidents to another project.

    The deliveries about the job are deleted: they went to channels of the old project. A running
    analysis, and a running import of a hang's archive, lose their claims, store nothing and run
    again in the new project.

    Parameters
    ----------
    job, to : str
        Names of the job and of the other project.

    Raises
    ------
    NotFoundError
        There is no such job or project.
    ConflictError
        ``job.name_taken``: the other project has a job of this name.
    """
    source = container.project_id
    everywhere = container.everywhere()
    try:
        with everywhere.uow() as tx:
            target = project_id_of(tx, to)
            job_id = tx.session.execute(
                select(Job.id).where(Job.project_id == source, Job.name == job).with_for_update()
            ).scalar()
            if job_id is None:
                raise NotFoundError(f"There is no job {job}.")
            take_job_along(tx, job_id, target)
            drop_deliveries(tx, job_id)
            # Foreign keys cascade the new project to all rows that belong to the job.
            tx.session.execute(update(Job).where(Job.id == job_id).values(project_id=target))
            for project_id in (source, target):
                record(
                    tx,
                    container.principal,
                    Action.MOVED,
                    f"job {job}",
                    detail=f"to {to}",
                    project_id=project_id,
                )
            # Locked in a fixed order, so that two concurrent moves do not deadlock.
            for project_id in sorted((source, target)):
                recount(tx, project_id)
    except IntegrityError as error:
        raise ConflictError(
            f"The project {to} has a job {job} already.", code="job.name_taken"
        ) from error


def delete_project(container: Container, name: str) -> None:
    """Delete a project: close it at once; the sweeper deletes its contents later.

    Raises
    ------
    NotFoundError
    ConflictError
        ``project.default``: the default project cannot be deleted.
    """
    if name == DEFAULT_PROJECT:
        raise ConflictError(f"The project {name} cannot be deleted.", code="project.default")
    with container.uow() as tx:
        project_id = project_id_of(tx, name)
        tx.session.execute(delete(Token).where(Token.project_id == project_id))
        tx.session.execute(delete(Membership).where(Membership.project_id == project_id))
        # From now on no task of the project starts, and results of running tasks are not stored.
        tx.session.execute(
            delete(TaskRun).where(
                TaskRun.project_id == project_id, TaskRun.state == TaskState.QUEUED
            )
        )
        tx.session.execute(
            update(Project)
            .where(Project.id == project_id)
            .values(deleted_at=tx.now, name=f"{name} (deleted, {uuid.uuid4()})")
        )
        record(tx, container.principal, Action.DELETED, f"project {name}", project_id=project_id)


def prune_projects(container: Container) -> int:
    """Delete contents of deleted projects for `PASS_LIMIT_S`; return the number of emptied ones."""
    until_s = time.monotonic() + PASS_LIMIT_S
    everywhere = container.everywhere()
    with everywhere.reading() as tx:
        deleted = list(
            tx.session.execute(select(Project.id).where(Project.deleted_at.is_not(None))).scalars()
        )
    gone = 0
    for project_id in deleted:
        while time.monotonic() < until_s:
            with everywhere.uow() as tx:
                if _delete_piece(tx, project_id):
                    continue
                tx.session.execute(delete(Project).where(Project.id == project_id))
                gone += 1
                break
    return gone


def take_along(tx: UnitOfWork, sessions: Select[uuid.UUID], target: int) -> None:
    """Move the blobs and task runs of sessions, which have no cascading foreign key."""
    blobs: CompoundSelect[Any] = union_all(
        select(Session.trace_blob).where(Session.id.in_(sessions)),
        select(StoredReport.document_blob).where(StoredReport.session_id.in_(sessions)),
        select(StoredReport.heatmap_blob).where(StoredReport.session_id.in_(sessions)),
        select(Chunk.blob).where(Chunk.session_id.in_(sessions)),
    )
    for table in (BlobPart, BlobObject):
        tx.session.execute(update(table).where(table.blob_id.in_(blobs)).values(project_id=target))
    tx.session.execute(
        update(TaskRun).where(TaskRun.subject_id.in_(sessions)).values(project_id=target)
    )


def take_job_along(tx: UnitOfWork, job_id: int, target: int) -> None:
    """Move the blobs and task runs of a job, which have no cascading foreign key."""
    take_along(tx, select(Session.id).where(Session.job_id == job_id), target)
    archives = select(HangUpload.id).where(HangUpload.job_id == job_id)
    tx.session.execute(
        update(TaskRun).where(TaskRun.subject_id.in_(archives)).values(project_id=target)
    )


def drop_deliveries(tx: UnitOfWork, job_id: int) -> None:
    """Delete the deliveries about a job to the channels of its previous project."""
    own = (
        select(AlertIncident.id)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .where(AlertGroup.job_id == job_id)
    )
    others = (
        select(AlertIncident.group_id)
        .join(AlertOnHost, AlertOnHost.incident_id == AlertIncident.id)
        .where(AlertOnHost.lead_id.in_(own))
    )
    # The next evaluation chooses another leading incident among those of other jobs on the same
    # host.
    tx.session.execute(
        update(AlertGroup)
        .where(AlertGroup.id.in_(others))
        .values(look_at=tx.now)
        .execution_options(synchronize_session=False)
    )
    tx.session.execute(
        delete(AlertOnHost)
        .where(AlertOnHost.incident_id.in_(own) | AlertOnHost.lead_id.in_(own))
        .execution_options(synchronize_session=False)
    )
    groups = select(AlertGroup.id).where(AlertGroup.job_id == job_id)
    tx.session.execute(delete(AlertDelivery).where(AlertDelivery.group_id.in_(groups)))


def _delete_piece(tx: UnitOfWork, project_id: int) -> bool:
    """Delete a batch of a project's rows; return False if no large table has rows left."""
    parts = (
        select(BlobPart.blob_id, BlobPart.part)
        .where(BlobPart.project_id == project_id)
        .limit(PARTS)
        .subquery()
    )
    objects = select(BlobObject.blob_id).where(BlobObject.project_id == project_id).limit(ROWS)
    pieces = (
        # Only references are deleted here; garbage collection deletes the objects in the store.
        delete(BlobObject).where(BlobObject.blob_id.in_(objects)),
        delete(BlobPart).where(BlobPart.blob_id == parts.c.blob_id, BlobPart.part == parts.c.part),
        delete(Job).where(
            Job.id.in_(select(Job.id).where(Job.project_id == project_id).limit(JOBS))
        ),
        delete(Plan).where(Plan.project_id == project_id),
    )
    return any(cast("CursorResult[Any]", tx.session.execute(piece)).rowcount for piece in pieces)
