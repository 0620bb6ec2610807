"""The read side of the fleet's report: what a time cost, why, and the figures of the paper."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from sqlalchemy import func, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from app.analysis.replay.metrics import STRAGGLING
from app.db.models.alerts import AlertIncident
from app.db.models.fixes import AppliedFix
from app.db.models.sessions import OF_SESSION, WASTE, Job, Session, StoredVerdict
from app.db.states import SessionState
from app.services.fleet_report.costs import (
    CauseCost,
    Costs,
    HostCost,
    JobCost,
    Period,
    by_cause,
    most_expensive_hosts,
    most_expensive_jobs,
    trend,
)
from app.services.hosts.costs import Span

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads

# What a time without a beginning is counted from.
WEEK: Final = timedelta(days=7)
# Shorter times have no period to compare.
SHORTEST: Final = timedelta(minutes=1)
# Jobs whose figures are drawn; the counts are of all.
MOST_JOBS: Final = 20_000
MOST_FIXES: Final = 20


@dataclass(frozen=True, slots=True)
class JobFigures:
    """A job in the figures: its median session by S, of those with a verdict.

    Fields are those of `app.analysis.report.paper.PaperMeasures`, and the slowdown is S.
    """

    job: str
    session: uuid.UUID
    number: int
    sessions: int
    gpus: int
    stages: int
    context: int | None
    slowdown: float
    m_w: float | None
    m_s: float | None
    correlation: float | None
    waste_by: Mapping[str, float]
    steps: Sequence[float]

    @property
    def waste(self) -> float:
        """Return the share of its step time that is wasted, by S."""
        return 1 - 1 / self.slowdown

    @property
    def straggles(self) -> bool:
        """Return whether it straggles, as the paper has it."""
        return self.slowdown >= STRAGGLING


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many sessions and jobs count, and which do not."""

    received: int  # sessions of the time
    counted: int  # of these with a verdict
    without: Mapping[SessionState, int]  # the others, by where they stand
    jobs: int  # that sent a session
    counted_jobs: int  # that have a verdict
    silent: int  # not archived, known before and without a session in the time


@dataclass(frozen=True, slots=True)
class FixLine:
    """A fix that was measured in the time; gains are shares of the step time."""

    job: str
    title: str
    session: uuid.UUID
    measured_by: uuid.UUID
    predicted: float
    at_most: bool
    realized: float
    unlike: str | None
    gpus: int
    step_time_s: float


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What stragglers cost a fleet in a time."""

    now: datetime
    since: datetime
    until: datetime
    coverage: Coverage
    trend: Sequence[Period]
    """The last one is the time itself."""
    jobs: Sequence[JobFigures]
    """By S, the slowest first."""
    most_expensive: Sequence[JobCost]
    causes: Sequence[CauseCost]
    hosts: Sequence[HostCost]
    fixes: Sequence[FixLine]
    opened: int
    """Incidents that were sent, and those that ended."""
    resolved: int
    """Incidents that were sent, and those that ended."""

    @property
    def costs(self) -> Costs:
        """Return what the time itself cost."""
        return self.trend[-1].costs

    @property
    def before(self) -> Costs:
        """Return what the time of the same length before it cost."""
        return self.trend[-2].costs

    @property
    def straggling(self) -> Sequence[JobFigures]:
        """Return the jobs that straggle."""
        return [job for job in self.jobs if job.straggles]

    @property
    def unexplained(self) -> float:
        """Return the GPU-hours that no cause explains; causes may overlap."""
        return max(0.0, self.costs.lost - sum(cause.lost for cause in self.causes))


def fleet_report(tx: Reads, since: datetime | None, until: datetime | None) -> FleetReport:
    """Return what stragglers cost in a time.

    Parameters
    ----------
    since : datetime or None
        A week before the end where there is none.
    until : datetime or None
        Now where there is none, or it is yet to come.
    """
    end = tx.now if until is None else min(until, tx.now)
    begin = end - WEEK if since is None else min(since, end - SHORTEST)
    span = Span(begin, end)
    opened, resolved = _incidents(tx, span)
    return FleetReport(
        now=tx.now,
        since=begin,
        until=end,
        coverage=_coverage(tx, span),
        trend=trend(tx, begin, end),
        jobs=_jobs(tx, span),
        most_expensive=most_expensive_jobs(tx, span),
        causes=by_cause(tx, span),
        hosts=most_expensive_hosts(tx, span),
        fixes=_fixes(tx, span),
        opened=opened,
        resolved=resolved,
    )


def _jobs(tx: Reads, span: Span) -> tuple[JobFigures, ...]:
    """Return each job with its median session: one that was, so that it can be opened."""
    published = StoredVerdict.published
    place = func.row_number().over(partition_by=Session.job_id, order_by=(published, Session.id))
    ranked = (
        select(
            Session.id.label("session_id"),
            place.label("place"),
            func.count().over(partition_by=Session.job_id).label("sessions"),
        )
        .join(*OF_SESSION)
        .where(published.is_not(None), *span.holds(Session.received_at.expression))
        .subquery()
    )
    measures = StoredVerdict.document["measures"]
    rows = tx.session.execute(
        select(
            Job.name,
            Session.id,
            Session.number,
            ranked.c.sessions,
            Session.world,
            Session.pp,
            measures["context"].as_integer(),
            published,
            measures["m_w"].as_float(),
            measures["m_s"].as_float(),
            measures["fb_correlation"].as_float(),
            type_coerce(measures["waste"], JSONB),
            type_coerce(measures["steps"], JSONB),
        )
        .join(ranked, ranked.c.session_id == Session.id)
        .join(*OF_SESSION)
        .join(Job, Job.id == Session.job_id)
        .where(ranked.c.place == (ranked.c.sessions + 1) // 2)
        .order_by(published.desc(), Job.name)
        .limit(MOST_JOBS)
    )
    # More columns than the types of a row go: their order is that of the fields.
    return tuple(JobFigures(*values) for values in map(tuple, rows))


def _coverage(tx: Reads, span: Span) -> Coverage:
    counted = WASTE.is_not(None)
    rows = tx.session.execute(
        select(Session.state, counted, func.count())
        .outerjoin(*OF_SESSION)
        .where(*span.holds(Session.received_at.expression))
        .group_by(Session.state, counted)
    ).all()
    jobs, counted_jobs = tx.session.execute(
        select(
            func.count(Session.job_id.distinct()),
            func.count(Session.job_id.distinct()).filter(counted),
        )
        .outerjoin(*OF_SESSION)
        .where(*span.holds(Session.received_at.expression))
    ).one()
    here = select(Session.job_id).where(*span.holds(Session.received_at.expression))
    silent = tx.session.execute(
        select(func.count()).where(
            Job.archived_at.is_(None),
            Job.created_at <= span.until,
            Job.id.not_in(here),
            select(Session.id)
            .where(Session.job_id == Job.id, Session.received_at < span.since)
            .exists(),
        )
    ).scalar_one()
    return Coverage(
        received=sum(row[2] for row in rows),
        counted=sum(row[2] for row in rows if row[1]),
        without={state: number for state, is_counted, number in rows if not is_counted},
        jobs=jobs,
        counted_jobs=counted_jobs,
        silent=silent,
    )


def _incidents(tx: Reads, span: Span) -> tuple[int, int]:
    told = AlertIncident.fired_at.is_not(None)
    opened, resolved = tx.session.execute(
        select(
            func.count().filter(
                *span.holds(cast("ColumnElement[datetime]", AlertIncident.fired_at.expression))
            ),
            func.count().filter(
                *span.holds(cast("ColumnElement[datetime]", AlertIncident.resolved_at.expression))
            ),
        ).where(told)
    ).one()
    return opened, resolved


def _fixes(tx: Reads, span: Span) -> tuple[FixLine, ...]:
    """Return the fixes whose outcome a session of the time measured, the newest first."""
    rows = tx.session.execute(
        select(
            Job.name,
            AppliedFix.title,
            AppliedFix.session_id,
            AppliedFix.measured_by,
            AppliedFix.predicted_gain,
            AppliedFix.at_most,
            AppliedFix.realized_gain,
            AppliedFix.unlike,
            Session.world,
            AppliedFix.step_time_s,
        )
        .join(Job, Job.id == AppliedFix.job_id)
        .join(Session, Session.id == AppliedFix.measured_by)
        .where(
            AppliedFix.realized_gain.is_not(None),
            *span.holds(Session.received_at.expression),
        )
        .order_by(Session.received_at.desc(), AppliedFix.id.desc())
        .limit(MOST_FIXES)
    )
    return tuple(FixLine(*values) for values in map(tuple, rows))
