"""Since when a job is slow, and how slow it was before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import or_, select, true

from app.alerts.readings import NO_DATA_CAUSE
from app.db.models.sessions import OF_SESSION, SLOWDOWN, Job, Session

if TYPE_CHECKING:
    import uuid
    from datetime import datetime

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
    found = tx.session.execute(
        select(Session.number, Session.received_at, Session.id, before.c.slowdown)
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
    ).one_or_none()
    return None if found is None else Onset(*found)


def onset_of_incident(tx: Reads, row: IncidentRow, threshold: float) -> Onset | None:
    """Return since when the job of an incident was slow at its latest session; see `onset_of_job`.

    None where the incident is not about how slow it is: nothing comes any more.
    """
    facts = row.incident.facts
    if facts is None or row.incident.cause == NO_DATA_CAUSE:
        return None
    return onset_of_job(tx, row.job, facts.received_at, threshold)
