"""GPU-hours used and lost in a period, by job, cause, label and host, and the paper's figures.

A verdict counts until the next session of its job (`app.hosts.costs.verdict_durations`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    CTE,
    ColumnElement,
    Double,
    Integer,
    Select,
    Subquery,
    Text,
    case,
    cast,
    column,
    func,
    literal,
    select,
    true,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.analysis.replay.metrics import STRAGGLING
from app.analysis.trace.rank_metadata import node_label
from app.hosts.costs import Span, priced, seconds, verdict_durations
from app.jobs.models import Attempt, Job
from app.platform.database.columns import as_json, has_label, parts, whole
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import OF_SESSION, Session, StoredVerdict
from app.web.lists import Column

# Numbers of jobs and of hosts that a report names.
NAMED: Final = 10
# Largest number of teams or owners that a report lists.
MOST_LABELS: Final = 1000
# Number of periods of equal length in a trend.
PERIODS: Final = 8
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Costs:
    """GPU-hours of a period, and numbers of the jobs and sessions with a verdict."""

    used: float = 0.0  # GPU-hours with a verdict
    lost: float = 0.0  # GPU-hours of these that stragglers cost
    jobs: int = 0
    sessions: int = 0

    @property
    def share(self) -> float:
        """Return the lost share of the used GPU-hours."""
        return self.lost / self.used if self.used else 0.0


@dataclass(frozen=True, slots=True)
class Period:
    """Costs of one period of a trend."""

    since: datetime
    until: datetime
    costs: Costs


# GPU-hours, with their names in files.
Used = Annotated[float, Column(csv="used_gpu_hours")]
Lost = Annotated[float, Column(csv="lost_gpu_hours")]


@dataclass(frozen=True, slots=True)
class JobCost:
    """GPU-hours that a job used, and that it lost to stragglers."""

    job: str
    used: Used
    lost: Lost
    sessions: int


@dataclass(frozen=True, slots=True)
class CauseCost:
    """GPU-hours lost to a cause; the losses of a job's causes may overlap."""

    cause: str
    lost: Lost
    jobs: int


@dataclass(frozen=True, slots=True)
class HostCost:
    """GPU-hours lost to causes that name the host."""

    host: str
    lost: Lost
    jobs: int
    sessions: int
    guessed: bool = False  # whether its name may be that of a container

    @property
    def called(self) -> str:
        """Return the display name of the host."""
        return node_label(self.host, guessed=self.guessed)


@dataclass(frozen=True, slots=True)
class LabelCost:
    """GPU-hours that the sessions of a team or owner used, and lost to stragglers."""

    name: str | None  # None: sessions without the label
    used: Used
    lost: Lost
    jobs: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Breakdowns of the GPU-hours of a period, each sorted by lost GPU-hours."""

    trend: Sequence[Period]  # the earliest first, the time itself last
    jobs: Sequence[JobCost]
    causes: Sequence[CauseCost]
    teams: Sequence[LabelCost]  # by the label ``team``
    owners: Sequence[LabelCost]  # by the label ``owner``
    hosts: Sequence[HostCost]  # hosts that causes name in more than one session
    measured: int  # jobs with S
    straggling: int  # jobs of these that straggle in their median session


@dataclass(frozen=True, slots=True)
class _Part:
    """A period of a trend, as the database query returns it."""

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
    """Return the breakdown of a period and the trend of the periods before it, by one statement."""
    width = until - since
    span = Span(until - PERIODS * width, until)
    durations = verdict_durations(tx, span)
    costs = _sessions(durations, span, width, filters)
    jobs = _jobs(costs)
    answer = tx.session.execute(
        select(
            as_json(_trend(jobs)),
            as_json(_by_job(jobs)),
            as_json(_by_cause(costs)),
            as_json(_by_label(jobs, jobs.c.team)),
            as_json(_by_label(jobs, jobs.c.owner)),
            as_json(_by_host(tx, durations, Span(since, until), filters)),
            as_json(_straggling(costs)),
        )
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    costs_of = {
        part.back: Costs(part.used, part.lost, part.jobs, part.sessions)
        for part in _PARTS.validate_python(answer[0] or ())
    }
    return Spent(
        trend=tuple(
            Period(until - (back + 1) * width, until - back * width, costs_of.get(back, Costs()))
            for back in reversed(range(PERIODS))
        ),
        jobs=_JOBS.validate_python(answer[1] or ()),
        causes=_CAUSES.validate_python(answer[2] or ()),
        teams=_LABELS.validate_python(answer[3] or ()),
        owners=_LABELS.validate_python(answer[4] or ()),
        hosts=_HOSTS.validate_python(answer[5] or ()),
        measured=answer[6][0]["measured"],
        straggling=answer[6][0]["straggling"],
    )


def _sessions(durations: CTE, span: Span, width: timedelta, filters: ReportFilter) -> CTE:
    """Return the query of a trend's sessions with the GPU-hours that each used and lost.

    Several parts of the statement read this query; only sessions of the last period have causes
    and S.
    """
    session, verdict, until = durations.c, StoredVerdict, span.until
    hours = func.greatest(verdict.measured_s, seconds(session.duration)) / _HOUR_S
    passed = seconds(literal(until) - session.received_at)
    # A session exactly at the start of the trend belongs to the earliest period.
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
    """Return the query of GPU-hours by job, period and labels, from which other sums follow."""
    columns = costs.c
    key = (columns.job_id, columns.back, columns.team, columns.owner)
    return (
        select(
            *key,
            parts(columns.used).label("used"),
            parts(columns.lost).label("lost"),
            func.count().label("sessions"),
        )
        .group_by(*key)
        .cte("of_jobs")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _trend(jobs: CTE) -> Select[Any]:
    columns = jobs.c
    return select(
        columns.back,
        whole(func.sum(columns.used)).label("used"),
        whole(func.sum(columns.lost)).label("lost"),
        func.count(columns.job_id.distinct()).label("jobs"),
        cast(func.sum(columns.sessions), Integer).label("sessions"),
    ).group_by(columns.back)


def _by_job(jobs: CTE) -> Select[Any]:
    columns = jobs.c
    lost = whole(func.sum(columns.lost))
    selected: list[ColumnElement[Any]] = [
        Job.name.label("job"),
        whole(func.sum(columns.used)).label("used"),
        lost.label("lost"),
        cast(func.sum(columns.sessions), Integer).label("sessions"),
    ]
    return (
        select(*selected)
        .join(Job, Job.id == columns.job_id)
        .where(columns.back == 0)
        .group_by(Job.name)
        .order_by(lost.desc(), Job.name)
        .limit(NAMED)
    )


def _by_cause(costs: CTE) -> Select[Any]:
    columns = costs.c
    each = (
        func.jsonb_each_text(columns.causes)
        .table_valued(column("key", Text), column("value", Text))
        .lateral("each")
    )
    of_job = (
        select(each.c.key, parts(cast(each.c.value, Double) * columns.hours).label("lost"))
        .select_from(costs)
        .join(each, true())
        .where(columns.back == 0)
        .group_by(each.c.key, columns.job_id)
        .subquery("cause_of_job")
    ).c
    lost = whole(func.sum(of_job.lost))
    return (
        select(of_job.key.label("cause"), lost.label("lost"), func.count().label("jobs"))
        .group_by(of_job.key)
        .order_by(lost.desc(), of_job.key)
    )


def _by_label(jobs: CTE, label: ColumnElement[Any]) -> Select[Any]:
    columns, lost = jobs.c, whole(func.sum(jobs.c.lost))
    return (
        select(
            label.label("name"),
            whole(func.sum(columns.used)).label("used"),
            lost.label("lost"),
            func.count(columns.job_id.distinct()).label("jobs"),
        )
        .where(columns.back == 0)
        .group_by(label)
        .order_by(lost.desc(), label)
        .limit(MOST_LABELS)
    )


def _by_host(tx: Reads, durations: CTE, span: Span, filters: ReportFilter) -> Select[Any]:
    """Return the query of the hosts that causes name in more than one session."""
    columns = priced(tx, span, slow=True, durations=durations).c
    query = select(
        columns.host,
        parts(columns.cost).label("lost"),
        func.count().label("sessions"),
        func.bool_and(columns.guessed).label("guessed"),
    )
    if filters.has_criteria:
        query = query.join(durations, durations.c.id == columns.session_id)
    in_job = (
        query.where(*filters.of(durations.c.labels))
        .group_by(columns.host, columns.job_id)
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
    """Return the numbers of jobs with a known S, and of jobs whose median session straggles."""
    columns = costs.c
    # The lower median, which is always the value of a session.
    median = func.percentile_disc(0.5).within_group(columns.published)
    medians = (
        select(median.label("median"))
        .where(columns.published.is_not(None))
        .group_by(columns.job_id)
        .subquery("medians")
    )
    return select(
        func.count().label("measured"),
        func.count().filter(medians.c.median >= STRAGGLING).label("straggling"),
    ).select_from(medians)


@dataclass(frozen=True, slots=True)
class ReportFilter:
    """Labels of the sessions that a report counts; an empty field does not filter."""

    team: str = ""
    owner: str = ""
    label: str = ""  # ``name=value``, or the name of a label

    @property
    def has_criteria(self) -> bool:
        """Return whether any field filters sessions."""
        return self != ReportFilter()

    def of(self, labels: Any) -> list[ColumnElement[bool]]:  # noqa: ANN401 - a column of JSON
        """Return the SQL conditions that a session has the labels of the filter."""
        conditions = [
            labels[name].astext == value
            for name, value in (("team", self.team), ("owner", self.owner))
            if value
        ]
        return [*conditions, has_label(labels, self.label)] if self.label else conditions


EVERYTHING = ReportFilter()


# Length of a report's period if its start is not given.
WEEK: Final = timedelta(days=7)
# Least length of a report's period.
SHORTEST: Final = timedelta(minutes=1)
# Largest number of jobs in the figures.
MOST_JOBS: Final = 20_000


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Figures of a job, from the session with the median S among its sessions with a verdict.

    The fields are those of `app.analysis.report.session_verdict.PaperMeasures`; `slowdown` is S.
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
    lengths: Sequence[tuple[int, int]]  # of recorded sequences, as `count_lengths` returns them
    restarts: int
    gpu_hours: float  # of all sessions of the period, with a verdict or without

    @property
    def waste(self) -> float:
        """Return the wasted share of the step time, 1 - 1 / S."""
        return 1 - 1 / self.slowdown

    @property
    def straggles(self) -> bool:
        """Return whether the job straggles by the paper's definition."""
        return self.slowdown >= STRAGGLING


def span_of(tx: Reads, since: datetime | None, until: datetime | None) -> Span:
    """Return the period of a report.

    Parameters
    ----------
    since : datetime or None
        Default: a week before the end.
    until : datetime or None
        Default: now. A later end is replaced by now.
    """
    end = tx.now if until is None else min(until, tx.now)
    return Span(end - WEEK if since is None else min(since, end - SHORTEST), end)


def job_figures(
    tx: Reads, since: datetime | None, until: datetime | None, filters: ReportFilter = EVERYTHING
) -> tuple[JobFigures, ...]:
    """Return the figures of each job in the period of `span_of`, sorted by S, largest first.

    The lower median is used, so that a session that can be opened has this value.
    """
    span = span_of(tx, since, until)
    published = StoredVerdict.published
    place = func.row_number().over(partition_by=Session.job_id, order_by=(published, Session.id))
    ranked = (
        select(
            Session.id.label("session_id"),
            place.label("place"),
            func.count().over(partition_by=Session.job_id).label("sessions"),
        )
        .join(*OF_SESSION)
        .where(
            published.is_not(None),
            *span.holds(Session.received_at.expression),
            *filters.of(Session.labels.expression),
        )
        .subquery()
    )
    measures = StoredVerdict.document["measures"]
    used = _gpu_hours(tx, span, filters)
    attempts = (
        select(func.max(start)).where(of_job == Job.id).correlate(Job).scalar_subquery()
        for start, of_job in (
            (Session.attempt, Session.job_id),
            (Attempt.number, Attempt.job_id),
        )
    )
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
            # The figure shows the paper's values too, so it ranks workers as the paper does.
            # Sessions of version 0.2.0 have only the exact ranking.
            func.coalesce(measures["m_w_published"].as_float(), measures["m_w"].as_float()),
            measures["m_s"].as_float(),
            measures["fb_correlation"].as_float(),
            type_coerce(measures["waste"], JSONB),
            type_coerce(measures["steps"], JSONB),
            func.coalesce(type_coerce(measures["lengths"], JSONB), literal([], JSONB)),
            func.greatest(*attempts) - 1,
            used.c.gpu_hours,
        )
        .join(ranked, ranked.c.session_id == Session.id)
        .join(*OF_SESSION)
        .join(Job, Job.id == Session.job_id)
        .join(used, used.c.job_id == Session.job_id)
        .where(ranked.c.place == (ranked.c.sessions + 1) // 2)
        .order_by(published.desc(), Job.name)
        .limit(MOST_JOBS)
    )
    # SQLAlchemy has types only for rows of up to ten columns; the columns are in the order of the
    # fields.
    return tuple(JobFigures(*values) for values in map(tuple, rows))


@dataclass(frozen=True, slots=True)
class FleetHours:
    """Jobs with a session in a period, with a verdict or without, and their GPU-hours."""

    jobs: int
    gpu_hours: float


def fleet_hours(
    tx: Reads, since: datetime | None, until: datetime | None, filters: ReportFilter = EVERYTHING
) -> FleetHours:
    """Return the jobs and GPU-hours of the period of `span_of`."""
    used = _gpu_hours(tx, span_of(tx, since, until), filters)
    return FleetHours(
        *tx.session.execute(
            select(func.count(), func.coalesce(func.sum(used.c.gpu_hours), 0.0)).select_from(used)
        ).one()
    )


def _gpu_hours(tx: Reads, span: Span, filters: ReportFilter) -> Subquery:
    """Return the query of the GPU-hours of each job, of sessions with a verdict or without.

    A session without known size has no GPU-hours.
    """
    session = verdict_durations(tx, span).c
    measured_s = func.coalesce(StoredVerdict.measured_s, 0.0)
    hours = func.greatest(measured_s, seconds(session.duration)) / _HOUR_S
    return (
        select(
            session.job_id,
            func.coalesce(func.sum(session.world * hours), 0.0).label("gpu_hours"),
        )
        .outerjoin(StoredVerdict, StoredVerdict.session_id == session.id)
        .where(*span.holds(session.received_at), *filters.of(session.labels))
        .group_by(session.job_id)
        .subquery("used")
    )
