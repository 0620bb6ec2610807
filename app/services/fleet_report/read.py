"""The read side of the fleet's report: what a time cost, whom and why."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

from sqlalchemy import Integer, func, select, true

from app.db.models.access import Project
from app.db.models.alerts import AlertIncident
from app.db.models.fixes import AppliedFix
from app.db.models.sessions import OF_SESSION, Job, Session, StoredVerdict
from app.db.states import SessionState
from app.services.alerts.filters import LABELS
from app.services.fleet_report.costs import Costs, Spent, spent
from app.services.fleet_report.filters import EVERYTHING, ReportFilter
from app.services.fleet_report.jobs import span_of

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads
    from app.services.hosts.costs import Span

MOST_FIXES: Final = 20


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
    filters: ReportFilter
    coverage: Coverage
    spent: Spent
    fixes: Sequence[FixLine]
    opened: int
    """Incidents that were sent, and those that ended."""
    resolved: int
    """Incidents that were sent, and those that ended."""

    @property
    def costs(self) -> Costs:
        """Return what the time itself cost."""
        return self.spent.trend[-1].costs

    @property
    def before(self) -> Costs:
        """Return what the time of the same length before it cost."""
        return self.spent.trend[-2].costs

    @property
    def unexplained(self) -> float:
        """Return the GPU-hours that no cause explains; causes may overlap."""
        return max(0.0, self.costs.lost - sum(cause.lost for cause in self.spent.causes))


def fleet_report(
    tx: Reads, since: datetime | None, until: datetime | None, filters: ReportFilter = EVERYTHING
) -> FleetReport:
    """Return what stragglers cost in the time that `span_of` returns.

    Parameters
    ----------
    filters : ReportFilter
        Only sessions that are labeled so.
    """
    span = span_of(tx, since, until)
    begin, end = cast("tuple[datetime, datetime]", (span.since, span.until))
    opened, resolved = _incidents(tx, span, filters)
    return FleetReport(
        now=tx.now,
        since=begin,
        until=end,
        filters=filters,
        coverage=_coverage(tx, span, filters),
        spent=spent(tx, begin, end, filters),
        fixes=_fixes(tx, span, filters),
        opened=opened,
        resolved=resolved,
    )


def _coverage(tx: Reads, span: Span, filters: ReportFilter) -> Coverage:
    """Return what counts, with one statement: its sessions by state, and one row of their jobs."""
    of = filters.of(Session.labels.expression)
    counted = StoredVerdict.waste.is_not(None)
    key = (Session.job_id, Session.state, counted)
    # By job: rows of sessions would be sorted once for each count of jobs.
    sent = (
        select(*key[:2], counted.label("counted"), func.count().label("sessions"))
        .outerjoin(*OF_SESSION)
        .where(*span.holds(Session.received_at.expression), *of)
        .group_by(*key)
        .cte("sent")
    )
    one = sent.c
    before = (
        select(Session.id)
        .where(Session.job_id == Job.id, Session.received_at < span.since, *of)
        .exists()
    )
    silent = select(func.count()).where(
        Job.archived_at.is_(None),
        Job.created_at <= span.until,
        Job.id.not_in(select(one.job_id)),
        before,
    )
    jobs = select(func.count(one.job_id.distinct()))
    rows = tx.session.execute(
        select(
            one.state,
            one.counted,
            func.sum(one.sessions).cast(Integer),
            jobs.scalar_subquery(),
            jobs.where(one.counted).scalar_subquery(),
            silent.scalar_subquery(),
        )
        .select_from(Project)
        .outerjoin(sent, true())
        .where(Project.id == tx.scope.project_id)
        .group_by(one.state, one.counted)
    ).all()
    known = [(state, counted, number) for state, counted, number, *_ in rows if state is not None]
    return Coverage(
        received=sum(number for _, _, number in known),
        counted=sum(number for _, counted, number in known if counted),
        without={state: number for state, counted, number in known if not counted},
        jobs=rows[0][3],
        counted_jobs=rows[0][4],
        silent=rows[0][5],
    )


def _incidents(tx: Reads, span: Span, filters: ReportFilter) -> tuple[int, int]:
    told = [AlertIncident.fired_at.is_not(None), *filters.of(LABELS)]
    opened, resolved = tx.session.execute(
        select(
            func.count().filter(
                *span.holds(cast("ColumnElement[datetime]", AlertIncident.fired_at.expression))
            ),
            func.count().filter(
                *span.holds(cast("ColumnElement[datetime]", AlertIncident.resolved_at.expression))
            ),
        ).where(*told)
    ).one()
    return opened, resolved


def _fixes(tx: Reads, span: Span, filters: ReportFilter) -> tuple[FixLine, ...]:
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
            *filters.of(Session.labels.expression),
        )
        .order_by(Session.received_at.desc(), AppliedFix.id.desc())
        .limit(MOST_FIXES)
    )
    return tuple(FixLine(*values) for values in map(tuple, rows))
