"""What a host cost over a time: each verdict stands until the next session of its job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Double, func, literal, select

from app.db.models.hosts import HostReading
from app.db.models.sessions import Job, Session

if TYPE_CHECKING:
    from sqlalchemy import CTE

    from app.db.unit_of_work import Reads

# A verdict stands for no longer: the job may have ended, or have been changed.
STANDS: Final = timedelta(hours=6)
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Span:
    """A time; None where it has no bound."""

    since: datetime | None = None
    until: datetime | None = None

    def holds(self, moment: ColumnElement[datetime]) -> list[ColumnElement[bool]]:
        """Return the conditions for a moment to be in it."""
        found = []
        if self.since is not None:
            found.append(moment >= self.since)
        if self.until is not None:
            found.append(moment <= self.until)
        return found


def seconds(time: Any) -> ColumnElement[float]:  # noqa: ANN401 - an interval
    """Return the seconds of an interval; ``EXTRACT`` makes decimals, which are slow."""
    return func.date_part("epoch", time, type_=Double)


def priced(
    tx: Reads,
    span: Span,
    host: str | None = None,
    *,
    slow: bool = False,
    stands: CTE | None = None,
) -> CTE:
    """Return the readings of a time with what each costs, GPU-hours.

    A verdict stands from its session until the next one of the job, at most `STANDS`; the latest
    one of a job for as long as the one before did, and at least for the steps that were analyzed.

    Parameters
    ----------
    slow : bool
        Only those that a cause names: no other reading costs anything.
    stands : CTE, optional
        What `standing` returned for this time or a longer one, where it is in the statement.
    """
    if stands is None:
        stands = standing(tx, span)
    standing_s = func.greatest(HostReading.measured_s, seconds(stands.c.stands))
    query = (
        select(
            HostReading.host,
            HostReading.session_id,
            HostReading.job_id,
            Job.name.label("job"),
            HostReading.received_at,
            HostReading.ranks,
            HostReading.workers,
            HostReading.slowdown,
            HostReading.computing,
            HostReading.cause,
            HostReading.gpus,
            HostReading.guessed,
            (HostReading.lost_each_hour * standing_s / _HOUR_S).label("cost"),
        )
        .join(stands, stands.c.id == HostReading.session_id)
        # Outer, so that it is left out where no name is asked for.
        .outerjoin(Job, Job.id == HostReading.job_id)
        .where(*span.holds(HostReading.received_at.expression))
    )
    if host is not None:
        query = query.where(HostReading.host == host)
    if slow:
        query = query.where(HostReading.cause.is_not(None))
    return query.cte("priced")


def standing(tx: Reads, span: Span) -> CTE:
    """Return for how long the verdict of each session stands, with what it takes of a cluster."""
    received, order = Session.received_at, (Session.received_at, Session.id)
    following = func.lead(received).over(partition_by=Session.job_id, order_by=order)
    before = func.lag(received).over(partition_by=Session.job_id, order_by=order)
    gap_before = received - before
    end = func.least(
        func.coalesce(following, received + gap_before, received),
        received + STANDS,
        literal(tx.now if span.until is None else min(tx.now, span.until)),
    )
    columns = (Session.id, Session.job_id, Session.world, Session.labels, received)
    query = select(*columns, (end - received).label("stands"))
    if span.since is not None:
        # Sessions of before matter only for the gap that follows them.
        query = query.where(received >= span.since - STANDS)
    return query.cte("standing")
