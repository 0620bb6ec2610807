"""What the sessions of a time cost: each verdict stands until the next session of its job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import Double, Integer, Text, cast, column, func, literal, select, true

from app.db.models.sessions import WASTE, Job, StoredVerdict
from app.db.sums import total
from app.services.hosts.costs import Span, priced, standing

if TYPE_CHECKING:
    from sqlalchemy import CTE

    from app.db.unit_of_work import Reads

# Jobs and hosts that a report names.
NAMED: Final = 10
# Times of equal length, one after the other, that a trend is of.
PERIODS: Final = 8
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What a time cost."""

    # used, lost: GPU-hours for which verdicts stand, and of these what stragglers cost
    used: float = 0.0
    lost: float = 0.0
    # jobs, sessions: with a verdict
    jobs: int = 0
    sessions: int = 0

    @property
    def share(self) -> float:
        """Return the share of the GPU-hours that is lost."""
        return self.lost / self.used if self.used else 0.0


@dataclass(frozen=True, slots=True)
class Period:
    """A part of a trend."""

    since: datetime
    until: datetime
    costs: Costs


@dataclass(frozen=True, slots=True)
class JobCost:
    """What stragglers cost a job, GPU-hours."""

    job: str
    used: float
    lost: float
    sessions: int


@dataclass(frozen=True, slots=True)
class CauseCost:
    """What a cause cost, GPU-hours; causes of a job may overlap."""

    cause: str
    lost: float
    jobs: int


@dataclass(frozen=True, slots=True)
class HostCost:
    """What causes cost that name a host, GPU-hours."""

    host: str
    lost: float
    jobs: int
    sessions: int


def _sessions(tx: Reads, span: Span) -> CTE:
    """Return the sessions of a time with what each used and lost, GPU-hours."""
    session, verdict = standing(tx, span).c, StoredVerdict
    hours = func.greatest(verdict.measured_s, func.extract("epoch", session.stands)) / _HOUR_S
    return (
        select(
            session.job_id,
            session.received_at,
            verdict.document["lost_by_cause"].label("causes"),
            hours.label("hours"),
            (session.world * hours).label("used"),
            (session.world * WASTE * hours).label("lost"),
        )
        .join(verdict, verdict.session_id == session.id)
        .where(WASTE.is_not(None), *span.holds(session.received_at))
        .cte("costs")
    )


def trend(tx: Reads, since: datetime, until: datetime) -> tuple[Period, ...]:
    """Return what a time cost, and the times of the same length before it, the earliest first."""
    width: timedelta = until - since
    width_s = width.total_seconds()
    one = _sessions(tx, Span(until - PERIODS * width, until)).c
    back = func.floor(func.extract("epoch", literal(until) - one.received_at) / width_s)
    # What came in the first moment of all belongs to the earliest.
    period = cast(func.least(back, PERIODS - 1), Integer)
    found = {
        row[0]: Costs(float(row[1]), float(row[2]), row[3], row[4])
        for row in tx.session.execute(
            select(
                period,
                total(one.used),
                total(one.lost),
                func.count(one.job_id.distinct()),
                func.count(),
            ).group_by(period)
        )
    }
    return tuple(
        Period(until - (back + 1) * width, until - back * width, found.get(back, Costs()))
        for back in reversed(range(PERIODS))
    )


def most_expensive_jobs(tx: Reads, span: Span) -> tuple[JobCost, ...]:
    """Return the jobs that lost most."""
    one = _sessions(tx, span).c
    lost = total(one.lost)
    rows = tx.session.execute(
        select(Job.name, total(one.used), lost, func.count())
        .join(Job, Job.id == one.job_id)
        .group_by(Job.name)
        .order_by(lost.desc(), Job.name)
        .limit(NAMED)
    )
    return tuple(JobCost(row[0], row[1], row[2], row[3]) for row in rows)


def by_cause(tx: Reads, span: Span) -> tuple[CauseCost, ...]:
    """Return what each cause cost, the most expensive first."""
    one = _sessions(tx, span).c
    each = (
        func.jsonb_each_text(one.causes)
        .table_valued(column("key", Text), column("value", Text))
        .lateral("each")
    )
    lost = total(cast(each.c.value, Double) * one.hours)
    rows = tx.session.execute(
        select(each.c.key, lost, func.count(one.job_id.distinct()))
        .join(each, true())
        .group_by(each.c.key)
        .order_by(lost.desc(), each.c.key)
    )
    return tuple(CauseCost(*row) for row in map(tuple, rows))


def most_expensive_hosts(tx: Reads, span: Span) -> tuple[HostCost, ...]:
    """Return the hosts that causes name in more than one session, the most expensive first."""
    one = priced(tx, span).c
    lost = total(one.cost)
    rows = tx.session.execute(
        select(
            one.host,
            lost,
            func.count(one.job_id.distinct()),
            func.count(),
        )
        .where(one.cause.is_not(None))
        .group_by(one.host)
        .having(func.count() > 1)
        .order_by(lost.desc(), one.host)
        .limit(NAMED)
    )
    return tuple(HostCost(*row) for row in map(tuple, rows))
