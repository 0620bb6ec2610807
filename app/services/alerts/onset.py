"""Since when a job is slow, and how slow it was before."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, or_, select, true

from app.alerts.readings import NO_DATA_CAUSE
from app.db.models.sessions import OF_SESSION, SLOWDOWN, Job, Session

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.services.alerts.incident_reads import IncidentRow


@dataclass(frozen=True, slots=True)
class Onset:
    """The first session of what lasts, and the slowdown of the last verdict before it."""

    number: int
    at: datetime  # when the session was received
    session: uuid.UUID
    was: float | None  # None where no session before it has a verdict


def onset_of_job(tx: Reads, job: str, until: datetime, threshold: float) -> Onset | None:
    """Return since when a job has been slow without a break; None where it is not.

    Parameters
    ----------
    until : datetime
        Sessions received later do not count.
    threshold : float
        From here on a session is slow. Those without a verdict say nothing.
    """
    found = tx.session.execute(first_slow(job, until, threshold)).one_or_none()
    return None if found is None else Onset(*found)


def first_slow(job: str, until: datetime, threshold: float) -> Select[Any]:
    """Return the query of that: of one row at most, with what an `Onset` has."""
    here = (Job.name == job, Session.received_at <= until, SLOWDOWN.is_not(None))
    before = (
        select(Session.received_at, SLOWDOWN.label("slowdown"))
        .join(Job)
        .join(*OF_SESSION)
        .where(*here, threshold > SLOWDOWN)
        .order_by(Session.received_at.desc())
        .limit(1)
        .subquery()
    )
    return (
        select(
            Session.number,
            Session.received_at.label("at"),
            Session.id.label("session"),
            before.c.slowdown.label("was"),
        )
        .join(Job)
        .join(*OF_SESSION)
        .outerjoin(before, true())
        .where(
            *here,
            threshold <= SLOWDOWN,
            or_(before.c.received_at.is_(None), Session.received_at > before.c.received_at),
        )
        .order_by(Session.received_at)
        .limit(1)
    )


def onset_of_incident(tx: Reads, row: IncidentRow, threshold: float) -> Onset | None:
    """Return since when the job of an incident was slow at its latest session; see `onset_of_job`.

    None where the incident is not about how slow it is: nothing comes any more.
    """
    facts = row.incident.facts
    if facts is None or row.incident.cause == NO_DATA_CAUSE:
        return None
    return onset_of_job(tx, row.job, facts.received_at, threshold)
