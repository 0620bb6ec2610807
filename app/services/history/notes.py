"""Notes on a job's time axis: written, read, taken back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Select, delete, func, select

from app.db.models.sessions import Job, JobNote
from app.db.states import NoteKind
from app.errors import ConflictError, NotFoundError
from app.services.access.audit import Action, record
from app.services.sessions.receive import no_job

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.services.container import Container

# Of one job: several years of a deployment every few hours.
MOST_NOTES: Final = 10_000
# Newest ones that a page or an answer lists.
MOST_LISTED: Final = 200
# Clocks of launchers and of the database differ.
EARLY: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to a job."""

    id: int
    at: datetime
    """When it happened."""
    kind: NoteKind
    words: str
    author: str
    noted_at: datetime
    """When it was written down."""


def write_note(  # noqa: PLR0913 - what is said of it
    container: Container,
    job: str,
    *,
    words: str,
    kind: NoteKind = NoteKind.NOTE,
    at: datetime | None = None,
    by: str | None = None,
) -> Note:
    """Write down what happened to a job.

    Parameters
    ----------
    at : datetime, optional
        When it happened; default: now.
    by : str, optional
        The name that whoever did not sign in goes by.

    Raises
    ------
    NotFoundError
        If there is no such job.
    ConflictError
        ``note.in_future``, ``note.too_many``.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        # Locked: two at once do not both find room for the last one.
        job_id = tx.session.execute(
            select(Job.id).where(Job.name == job).with_for_update()
        ).scalar()
        if job_id is None:
            raise no_job(job)
        happened_at = tx.now if at is None else at
        if happened_at > tx.now + EARLY:
            raise ConflictError(
                "The time of a note must not be in the future.", code="note.in_future"
            )
        there = tx.session.execute(
            select(func.count()).select_from(JobNote).where(JobNote.job_id == job_id)
        ).scalar_one()
        if there >= MOST_NOTES:
            raise ConflictError(
                f"A job has at most {MOST_NOTES:,} notes: delete old ones first.",
                code="note.too_many",
            )
        row = JobNote(
            job_id=job_id,
            at=happened_at,
            kind=kind,
            words=words,
            author=who.name,
            noted_at=tx.now,
        )
        tx.session.add(row)
        tx.session.flush()
        record(tx, who, Action.NOTED, f"job {job}", detail=f"{kind}: {words}")
        return Note(row.id, row.at, row.kind, row.words, row.author, row.noted_at)


def delete_note(container: Container, job: str, note_id: int, by: str | None = None) -> None:
    """Take a note back; the audit log keeps what it said.

    Raises
    ------
    NotFoundError
        If the job has no such note.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        of_job = select(Job.id).where(Job.name == job).scalar_subquery()
        words = tx.session.execute(
            delete(JobNote)
            .where(JobNote.id == note_id, JobNote.job_id == of_job)
            .returning(JobNote.words)
        ).scalar()
        if words is None:
            raise NotFoundError(f"Job {job} has no note {note_id}.")
        record(tx, who, Action.DELETED, f"a note on job {job}", detail=words)


def notes_of(
    tx: Reads,
    job: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = MOST_LISTED,
) -> list[Note]:
    """Return the notes of a job, newest first.

    Parameters
    ----------
    since, until : datetime, optional
        When what they tell of happened.
    """
    query = notes(since, until).where(Job.name == job)
    return [Note(*row) for row in tx.session.execute(query.limit(limit))]


def notes(since: datetime | None, until: datetime | None) -> Select[*tuple[Any, ...]]:
    """Return the query of the notes of a time on a job that it is joined with, newest first."""
    query = (
        select(
            JobNote.id,
            JobNote.at,
            JobNote.kind,
            JobNote.words,
            JobNote.author,
            JobNote.noted_at,
        )
        .where(JobNote.job_id == Job.id)
        .order_by(JobNote.at.desc(), JobNote.id.desc())
    )
    if since is not None:
        query = query.where(JobNote.at >= since)
    return query if until is None else query.where(JobNote.at <= until)


def known_job(tx: Reads, job: str) -> None:
    """Check that there is a job.

    Raises
    ------
    NotFoundError
    """
    if tx.session.execute(select(Job.id).where(Job.name == job)).first() is None:
        raise no_job(job)
