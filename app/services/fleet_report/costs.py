"""What the sessions of a time cost: each verdict stands until the next session of its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    Double,
    Integer,
    Text,
    case,
    cast,
    column,
    func,
    literal,
    select,
    true,
)

from app.analysis.replay.metrics import STRAGGLING
from app.analysis.trace.ranks.machine import called
from app.db.json_values import as_json
from app.db.models.access import Project
from app.db.models.sessions import Job, StoredVerdict
from app.db.sums import parts, whole
from app.services.hosts.costs import Span, priced, seconds, standing

if TYPE_CHECKING:
    from sqlalchemy import CTE, ColumnElement, Select

    from app.db.unit_of_work import Reads
    from app.services.fleet_report.filters import ReportFilter

# Jobs and hosts that a report names.
NAMED: Final = 10
# Teams or owners that are told apart.
MOST_LABELS: Final = 1000
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
    guessed: bool = False  # whether its name may be that of a container

    @property
    def called(self) -> str:
        """Return its name as people read it."""
        return called(self.host, guessed=self.guessed)


@dataclass(frozen=True, slots=True)
class LabelCost:
    """What stragglers cost the sessions of a label, GPU-hours."""

    name: str | None  # None: those without it
    used: float
    lost: float
    jobs: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What a time cost, broken down."""

    trend: Sequence[Period]  # the earliest first, the time itself last
    jobs: Sequence[JobCost]  # those that lost most
    causes: Sequence[CauseCost]  # the most expensive first
    # teams, owners: by the labels of these names, the most expensive first
    teams: Sequence[LabelCost]
    owners: Sequence[LabelCost]
    hosts: Sequence[HostCost]  # that causes name in more than one session
    # measured, straggling: jobs with S, and of these those that straggle in their median session
    measured: int
    straggling: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a trend as the database returns it."""

    back: int
    used: float
    lost: float
    jobs: int
    sessions: int


_PARTS: Final = TypeAdapter(tuple[_Part, ...])
_JOBS: Final = TypeAdapter(tuple[JobCost, ...])
_CAUSES: Final = TypeAdapter(tuple[CauseCost, ...])
_HOSTS: Final = TypeAdapter(tuple[HostCost, ...])
_LABELS: Final = TypeAdapter(tuple[LabelCost, ...])


def spent(tx: Reads, since: datetime, until: datetime, filters: ReportFilter) -> Spent:
    """Return what a time cost, and the times of the same length before it, with one statement."""
    width = until - since
    span = Span(until - PERIODS * width, until)
    stands = standing(tx, span)
    costs = _sessions(stands, span, width, filters)
    jobs = _jobs(costs)
    found = tx.session.execute(
        select(
            as_json(_trend(jobs)),
            as_json(_by_job(jobs)),
            as_json(_by_cause(costs)),
            as_json(_by_label(jobs, jobs.c.team)),
            as_json(_by_label(jobs, jobs.c.owner)),
            as_json(_by_host(tx, stands, Span(since, until), filters)),
            as_json(_straggling(costs)),
        )
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    parts = {one.back: one for one in _PARTS.validate_python(found[0] or ())}
    return Spent(
        trend=tuple(
            Period(until - (back + 1) * width, until - back * width, _costs_of(parts.get(back)))
            for back in reversed(range(PERIODS))
        ),
        jobs=_JOBS.validate_python(found[1] or ()),
        causes=_CAUSES.validate_python(found[2] or ()),
        teams=_LABELS.validate_python(found[3] or ()),
        owners=_LABELS.validate_python(found[4] or ()),
        hosts=_HOSTS.validate_python(found[5] or ()),
        measured=found[6][0]["measured"],
        straggling=found[6][0]["straggling"],
    )


def _costs_of(part: _Part | None) -> Costs:
    return Costs() if part is None else Costs(part.used, part.lost, part.jobs, part.sessions)


def _sessions(stands: CTE, span: Span, width: timedelta, filters: ReportFilter) -> CTE:
    """Return the sessions of a trend with what each used and lost, GPU-hours.

    It is made once, whatever is asked of it; only the last part of the trend has causes and S.
    """
    session, verdict, until = stands.c, StoredVerdict, span.until
    hours = func.greatest(verdict.measured_s, seconds(session.stands)) / _HOUR_S
    passed = seconds(literal(until) - session.received_at)
    # What came in the first moment of all belongs to the earliest.
    back = func.least(func.floor(passed / width.total_seconds()), PERIODS - 1)
    now = session.received_at >= literal(until) - width
    return (
        select(
            session.job_id,
            cast(case((now, 0), else_=func.greatest(back, 1)), Integer).label("back"),
            session.labels["team"].astext.label("team"),
            session.labels["owner"].astext.label("owner"),
            case((now, verdict.lost_by_cause)).label("causes"),
            case((now, verdict.published)).label("published"),
            hours.label("hours"),
            (session.world * hours).label("used"),
            (session.world * verdict.waste * hours).label("lost"),
        )
        .join(verdict, verdict.session_id == session.id)
        .where(
            verdict.waste.is_not(None),
            *span.holds(session.received_at),
            *filters.of(session.labels),
        )
        .cte("costs")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _jobs(costs: CTE) -> CTE:
    """Return the same added up by job, part of the trend and labels: most sums are of these."""
    one = costs.c
    key = (one.job_id, one.back, one.team, one.owner)
    return (
        select(
            *key,
            parts(one.used).label("used"),
            parts(one.lost).label("lost"),
            func.count().label("sessions"),
        )
        .group_by(*key)
        .cte("of_jobs")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _trend(jobs: CTE) -> Select[Any]:
    one = jobs.c
    return select(
        one.back,
        whole(func.sum(one.used)).label("used"),
        whole(func.sum(one.lost)).label("lost"),
        func.count(one.job_id.distinct()).label("jobs"),
        cast(func.sum(one.sessions), Integer).label("sessions"),
    ).group_by(one.back)


def _by_job(jobs: CTE) -> Select[Any]:
    one = jobs.c
    lost = whole(func.sum(one.lost))
    columns: list[ColumnElement[Any]] = [
        Job.name.label("job"),
        whole(func.sum(one.used)).label("used"),
        lost.label("lost"),
        cast(func.sum(one.sessions), Integer).label("sessions"),
    ]
    return (
        select(*columns)
        .join(Job, Job.id == one.job_id)
        .where(one.back == 0)
        .group_by(Job.name)
        .order_by(lost.desc(), Job.name)
        .limit(NAMED)
    )


def _by_cause(costs: CTE) -> Select[Any]:
    one = costs.c
    each = (
        func.jsonb_each_text(one.causes)
        .table_valued(column("key", Text), column("value", Text))
        .lateral("each")
    )
    of_job = (
        select(each.c.key, parts(cast(each.c.value, Double) * one.hours).label("lost"))
        .select_from(costs)
        .join(each, true())
        .where(one.back == 0)
        .group_by(each.c.key, one.job_id)
        .subquery("cause_of_job")
    ).c
    lost = whole(func.sum(of_job.lost))
    return (
        select(of_job.key.label("cause"), lost.label("lost"), func.count().label("jobs"))
        .group_by(of_job.key)
        .order_by(lost.desc(), of_job.key)
    )


def _by_label(jobs: CTE, label: ColumnElement[Any]) -> Select[Any]:
    one, lost = jobs.c, whole(func.sum(jobs.c.lost))
    return (
        select(
            label.label("name"),
            whole(func.sum(one.used)).label("used"),
            lost.label("lost"),
            func.count(one.job_id.distinct()).label("jobs"),
        )
        .where(one.back == 0)
        .group_by(label)
        .order_by(lost.desc(), label)
        .limit(MOST_LABELS)
    )


def _by_host(tx: Reads, stands: CTE, span: Span, filters: ReportFilter) -> Select[Any]:
    """Return the hosts that causes name in more than one session."""
    one = priced(tx, span, slow=True, stands=stands).c
    query = select(
        one.host,
        parts(one.cost).label("lost"),
        func.count().label("sessions"),
        func.bool_and(one.guessed).label("guessed"),
    )
    if filters.asked:
        query = query.join(stands, stands.c.id == one.session_id)
    in_job = (
        query.where(*filters.of(stands.c.labels))
        .group_by(one.host, one.job_id)
        .subquery("host_of_job")
    ).c
    lost, sessions = whole(func.sum(in_job.lost)), cast(func.sum(in_job.sessions), Integer)
    return (
        select(
            in_job.host,
            lost.label("lost"),
            func.count().label("jobs"),
            sessions.label("sessions"),
            func.bool_and(in_job.guessed).label("guessed"),
        )
        .group_by(in_job.host)
        .having(sessions > 1)
        .order_by(lost.desc(), in_job.host)
        .limit(NAMED)
    )


def _straggling(costs: CTE) -> Select[int, int]:
    """Return of how many jobs S is known, and how many straggle in their median session."""
    one = costs.c
    # That of a session that was.
    median = func.percentile_disc(0.5).within_group(one.published)
    medians = (
        select(median.label("median"))
        .where(one.published.is_not(None))
        .group_by(one.job_id)
        .subquery("medians")
    )
    return select(
        func.count().label("measured"),
        func.count().filter(medians.c.median >= STRAGGLING).label("straggling"),
    ).select_from(medians)
