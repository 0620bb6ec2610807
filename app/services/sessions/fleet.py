"""The jobs and their latest sessions, in one query: what the fleet and job pages list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, or_, select

from app.db.models.sessions import OF_SESSION, Job, Session
from app.services.sessions.read import SessionRow, row_columns

if TYPE_CHECKING:
    from datetime import datetime

    from app.db.unit_of_work import Reads

# What a sparkline shows.
FLEET_SESSIONS: Final = 24


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job and its latest sessions, oldest first; there is at least one."""

    name: str
    sessions: tuple[SessionRow, ...]
    archived: bool = False

    @property
    def latest(self) -> SessionRow:
        """Return the session that was received last."""
        return self.sessions[-1]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Jobs by name, and the database's time at which this was so."""

    now: datetime
    jobs: tuple[JobSummary, ...]


def fleet(
    tx: Reads,
    *,
    job: str | None = None,
    per_job: int = FLEET_SESSIONS,
    until: datetime | None = None,
) -> Fleet:
    """Return every job with its latest sessions; of the archive those that sent since, alone.

    Parameters
    ----------
    tx : Reads
    job : str, optional
        Only the job of this name, archived or not; none if there is no such job.
    per_job : int
        At most this number of sessions of a job.
    until : datetime, optional
        Only what had been received by then.

    Raises
    ------
    SQLAlchemyError
        If the database does not answer.
    """
    names = SessionRow.__slots__
    recent = func.row_number().over(
        partition_by=Session.job_id, order_by=(Session.received_at.desc(), Session.id)
    )
    ranked = (
        select(*row_columns(), recent.label("recent"), Job.archived_at.label("archived_at"))
        .join(Job)
        .outerjoin(*OF_SESSION)
    )
    if job is not None:
        ranked = ranked.where(Job.name == job)
    else:
        sent_since = Session.received_at > Job.archived_at
        ranked = ranked.where(or_(Job.archived_at.is_(None), sent_since))
    if until is not None:
        ranked = ranked.where(Session.received_at <= until)
    rows = ranked.subquery()
    query = (
        select(rows.c.archived_at, *(rows.c[name] for name in names))
        .where(rows.c.recent <= per_job)
        .order_by(rows.c.job, rows.c.recent.desc())
    )
    found: dict[str, list[SessionRow]] = {}
    archived = set()
    for archived_at, *values in tx.session.execute(query):
        row = SessionRow(*values)
        found.setdefault(row.job, []).append(row)
        if archived_at is not None:
            archived.add(row.job)
    jobs = (JobSummary(name, tuple(rows), name in archived) for name, rows in found.items())
    return Fleet(tx.now, tuple(jobs))
