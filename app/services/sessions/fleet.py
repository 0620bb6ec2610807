"""The jobs and their latest sessions, in one query: what the fleet and job pages list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, or_, select

from app.alerts.board import is_finished
from app.db.models.sessions import Job, Session
from app.services.sessions.read import SESSIONS, SessionRow

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
    finished: bool = False  # it said that it ended

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
    recent = func.row_number().over(
        partition_by=Session.job_id, order_by=(Session.received_at.desc(), Session.id)
    )
    # Only keys are put in order: what sessions hold is long.
    ranked = select(Session.id, recent.label("recent")).join(Job)
    if job is not None:
        ranked = ranked.where(Job.name == job)
    else:
        sent_since = Session.received_at > Job.archived_at
        ranked = ranked.where(or_(Job.archived_at.is_(None), sent_since))
    if until is not None:
        ranked = ranked.where(Session.received_at <= until)
    rows = ranked.subquery()
    query = (
        SESSIONS.query()
        .add_columns(Job.archived_at, Job.finished_at)
        .join(rows, rows.c.id == Session.id)
        .where(rows.c.recent <= per_job)
        .order_by(Job.name, rows.c.recent.desc())
    )
    found: dict[str, list[SessionRow]] = {}
    archived, finished_at = set(), {}
    values = tx.session.execute(query).mappings().all()
    for row, value in zip(SESSIONS.rows(values), values, strict=True):
        found.setdefault(row.job, []).append(row)
        if value["archived_at"] is not None:
            archived.add(row.job)
        finished_at[row.job] = value["finished_at"]
    jobs = (
        JobSummary(
            name,
            tuple(rows),
            name in archived,
            is_finished(finished_at[name], [rows[-1].received_at]),
        )
        for name, rows in found.items()
    )
    return Fleet(tx.now, tuple(jobs))
