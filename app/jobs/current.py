"""Status of each job at a time, from its latest sessions and open incidents; filters and orders.

Two sessions of a job matter: the latest one, and the latest completed one, whose verdict represents
the job (`verdict_session`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    Subquery,
    Text,
    Uuid,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import aliased
from sqlalchemy.sql.selectable import LateralFromClause

from app.analysis.budget.split import WORTH_SAYING
from app.analysis.diagnosis.causes.registry import KINDS
from app.incidents.grouping import FINISH_GRACE
from app.incidents.models.tables import AlertGroup, AlertIncident, IncidentState
from app.incidents.store import OPEN
from app.jobs.models import Job
from app.platform.database.columns import has_label
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import VERDICT, Session, StoredVerdict
from app.sessions.read import SESSIONS, SessionRow
from app.web.lists import Column, Listing, read


@dataclass(frozen=True, slots=True)
class Urgent:
    """The most pressing open incident of a job."""

    id: UUID
    state: IncidentState


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job with its latest sessions, labels and most pressing incident, for lists."""

    name: str
    latest: SessionRow
    verdict_session: SessionRow  # the latest completed one; `latest` if none is completed
    slowdowns: Sequence[float | None]  # of its latest completed sessions, oldest first
    labels: Mapping[str, str]
    incident: Urgent | None
    finished: bool = False  # the job reported its end


# Fields of a verdict that lists do not show; they are a quarter of its JSON text.
_UNLISTED: Final = literal(["steps_s", "computing"], ARRAY(Text))
# Columns of sessions whose verdicts lack the fields `_UNLISTED`.
_LISTED: Final = replace(
    SESSIONS,
    others={
        **SESSIONS.others,
        "verdict": Column(type_coerce(StoredVerdict.document.op("-")(_UNLISTED), VERDICT)),
    },
)

# Sort keys of the fleet's list, by columns of `job_statuses`.
FLEET: Final = Listing(
    JobStatus,
    default_sort="-lost",
    others={
        "rank": Column(sort="state"),
        "name": Column(sort="job"),
        "slowdown": Column(sort="-slowdown"),
        "lost": Column(sort="-lost"),
        "cause": Column(sort="cause"),
        # Lost shares of the time: the total, and the share of each kind of loss.
        "time": Column(sort="-time"),
        "stragglers": Column(sort="-stragglers"),
        "between": Column(sort="-between"),
        "together": Column(sort="-together"),
        "owner": Column(sort="owner"),
        "gpus": Column(sort="-gpus"),
        "received_at": Column(sort="data"),
    },
)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job of a page as the first statement returns it."""

    job: int
    name: str
    latest: UUID
    verdict_session: UUID
    labels: dict[str, str] | None
    incident: UUID | None
    incident_state: IncidentState | None
    finished: bool


def job_status(
    row: JobRow, sessions: Mapping[UUID, SessionRow], slowdowns: Sequence[float | None]
) -> JobStatus:
    """Return the status of a job, given the sessions that `sessions_of` read."""
    urgent = (
        None
        if row.incident is None or row.incident_state is None
        else Urgent(row.incident, row.incident_state)
    )
    return JobStatus(
        row.name,
        sessions[row.latest],
        sessions[row.verdict_session],
        slowdowns,
        row.labels or {},
        urgent,
        row.finished,
    )


def sessions_of(tx: Reads, ids: set[UUID]) -> dict[UUID, SessionRow]:
    """Return sessions by id; their verdicts lack the fields `_UNLISTED`."""
    # Passed as one array: a thousand separate parameters would take 20 ms to write and parse.
    wanted = func.any(literal(list(ids), ARRAY(Uuid)))
    return {row.id: row for row in read(tx, _LISTED, Session.id == wanted)}


# Limits of a search text; the excess is ignored.
MAX_WORDS: Final = 8
MAX_CHARACTERS: Final = 200

# Ranks in the order of attention: open incidents first, then the state of the latest session.
_INCIDENTS: Final = {
    IncidentState.FIRING: -4,
    IncidentState.ACKNOWLEDGED: -3,
    IncidentState.PENDING: -2,
    IncidentState.SILENCED: -1,
}
_SLOW, _UNDERWAY, _QUIET = 0, 3, 4
_STATES: Final = {SessionState.FAILED: 1, SessionState.NO_VERDICT: 2, SessionState.DISCARDED: 2}


class Show(StrEnum):
    """Choices of the jobs that a list shows."""

    ALL = "all"
    SLOW = "slow"
    NONE = "none"  # without a verdict
    ARCHIVED = "archived"


class Loss(StrEnum):
    """Kind of lost time."""

    STRAGGLERS = "stragglers"
    BETWEEN = "between"
    TOGETHER = "together"


# Columns of a stored verdict by the name of the loss; all are shares of the time.
_LOST: Final = {
    "waste": StoredVerdict.waste,
    "lost": StoredVerdict.lost,
    Loss.STRAGGLERS.value: StoredVerdict.lost_to_stragglers,
    Loss.BETWEEN.value: StoredVerdict.lost_between,
    Loss.TOGETHER.value: StoredVerdict.lost_together,
}


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Filter of the listed jobs; an empty field does not filter."""

    # Each word must be in the name or the labels of a job, or in the cause or host of a slow job.
    words: str = ""
    show: Show = Show.ALL  # archived jobs are listed alone
    owner: str = ""  # the label ``owner``
    label: str = ""  # ``name=value``, or the name of a label
    loss: Loss | None = None  # kind of time of which the job loses a share worth naming

    @property
    def narrowed(self) -> bool:
        """Return whether the filter excludes any job."""
        return self != FleetFilter()

    @property
    def has_criteria(self) -> bool:
        """Return whether the filter has a criterion other than the archive."""
        return replace(self, show=Show.ALL) != FleetFilter() or self.show in (Show.SLOW, Show.NONE)


@dataclass(frozen=True, slots=True)
class Moment:
    """The period and the time at which the fleet is viewed, and criteria of a job's status."""

    since: datetime | None  # jobs without a session from then on are silent
    until: datetime | None  # only sessions received by then count
    incidents: bool  # whether open incidents, which are those of now, count for the status
    slow: float  # slowdown from which on a job is slow


def job_statuses(at: Moment, *, archived: bool) -> CTE:
    """Return the status, the losses and the searchable texts of each job with a session.

    Parameters
    ----------
    archived : bool
        Return the archived jobs instead of all others; a later session takes a job out of the
        archive.
    """
    last, verdict_session, urgent = (
        _latest(at, completed=False),
        _latest(at, completed=True),
        _urgent(at),
    )
    slowdown = verdict_session.c.slowdown
    is_slow = func.coalesce(
        or_(verdict_session.c.level == "slow", slowdown >= at.slow) & slowdown.is_not(None), false()
    )
    # Without a verdict, the job's cause is named only if its cost is known.
    blames = or_(is_slow, slowdown.is_(None) & verdict_session.c.waste.is_not(None))
    in_state = last.c.state == SessionState.ANALYZED
    # A pending incident takes no precedence over a missing verdict or a failure.
    counts = or_(urgent.c.state != IncidentState.PENDING, in_state)
    of_session = case(
        (and_(in_state, is_slow), _SLOW),
        (in_state, _QUIET),
        else_=case(_STATES, value=last.c.state, else_=_UNDERWAY),
    )
    # A verdict from before the period does not count, even if a newer session is waiting for
    # analysis.
    of_time = true() if at.since is None else verdict_session.c.received_at >= at.since
    # A finished job does not lose time any more.
    finished = func.coalesce(last.c.received_at <= Job.finished_at + FINISH_GRACE, false())
    lost = case((~finished, verdict_session.c.lost))
    in_archive = and_(Job.archived_at.is_not(None), last.c.received_at <= Job.archived_at)
    columns: list[ColumnElement[Any]] = [
        Job.id.label("job_id"),
        Job.name.label("name"),
        finished.label("finished"),
        last.c.id.label("latest"),
        func.coalesce(verdict_session.c.id, last.c.id).label("verdict_session"),
        last.c.state.label("state"),
        last.c.received_at.label("received_at"),
        last.c.world.label("gpus"),
        (true() if at.since is None else last.c.received_at >= at.since).label("has_data"),
        slowdown.label("slowdown"),
        and_(in_state, is_slow).label("slow"),
        (last.c.world * lost).label("lost"),
        case((of_time & lost.is_not(None), verdict_session.c.world)).label("verdict_gpus"),
        case((of_time, verdict_session.c.world * lost)).label("verdict_lost"),
        case((of_time, verdict_session.c.world * verdict_session.c.waste)).label("verdict_wasted"),
        *(verdict_session.c[loss].label(loss) for loss in Loss),
        sum((verdict_session.c[loss] for loss in Loss), literal(0.0)).label("time"),
        case((blames, verdict_session.c.cause)).label("cause"),
        case((blames, verdict_session.c.host)).label("host"),
        last.c.labels.label("labels"),
        case((counts, urgent.c.id)).label("incident"),
        case((counts, urgent.c.state)).label("incident_state"),
        func.coalesce(case((counts, case(_INCIDENTS, value=urgent.c.state))), of_session).label(
            "rank"
        ),
    ]
    query = (
        select(*columns)
        .select_from(Job)
        .join(last, true())
        .outerjoin(verdict_session, true())
        .outerjoin(urgent, urgent.c.job_id == Job.id)
        .where(in_archive if archived else ~func.coalesce(in_archive, false()))
    )
    return query.cte("job_statuses").prefix_with("MATERIALIZED", dialect="postgresql")


def _latest(at: Moment, *, completed: bool) -> LateralFromClause:
    """Return the query of a job's latest session, or of its latest completed session."""
    session = aliased(Session)
    query = (
        select(
            session.id,
            session.state,
            session.received_at,
            session.world,
            session.labels,
            case((session.state == SessionState.ANALYZED, StoredVerdict.slowdown)).label(
                "slowdown"
            ),
            *(
                case((session.state.in_(SessionState.REPORTED), column)).label(name)
                for name, column in _LOST.items()
            ),
            StoredVerdict.level,
            StoredVerdict.cause,
            StoredVerdict.host,
        )
        .outerjoin(StoredVerdict, StoredVerdict.session_id == session.id)
        .where(session.job_id == Job.id)
        .order_by(session.received_at.desc(), session.id)
        .limit(1)
        .correlate(Job)
    )
    if completed:
        query = query.where(session.state.not_in(SessionState.UNDERWAY))
    if at.until is not None:
        query = query.where(session.received_at <= at.until)
    return query.lateral("verdict_session" if completed else "latest")


def _urgent(at: Moment) -> Subquery:
    """Return the most pressing open incident of each job."""
    began = func.coalesce(AlertIncident.resolved_at, AlertIncident.opened_at)
    query = (
        select(AlertGroup.job_id, AlertIncident.id, AlertIncident.state)
        .ext(distinct_on(AlertGroup.job_id))
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .where(OPEN)
        .order_by(
            AlertGroup.job_id,
            case(_INCIDENTS, value=AlertIncident.state),
            began.desc(),
            AlertIncident.id,
        )
    )
    return (query if at.incidents else query.where(false())).subquery("urgent")


def shown(columns: Any, show: Show) -> ColumnElement[bool]:  # noqa: ANN401 - columns of a CTE
    """Return the SQL condition that the list of a choice contains a job."""
    if show is Show.SLOW:
        return and_(true(), columns.slow)
    return and_(true(), columns.slowdown.is_(None)) if show is Show.NONE else true()


def matches(columns: Any, filters: FleetFilter) -> ColumnElement[bool]:  # noqa: ANN401 - columns of a CTE
    """Return the SQL condition that a job matches a filter, apart from `FleetFilter.show`."""
    conditions: list[ColumnElement[bool]] = []
    if filters.owner:
        conditions.append(columns.labels["owner"].astext == filters.owner)
    if filters.label:
        conditions.append(has_label(columns.labels, filters.label))
    if filters.loss is not None:
        conditions.append(columns[filters.loss] >= WORTH_SAYING)
    text = func.concat_ws(" ", columns.name, columns.host, cast(columns.labels, Text))
    for word in filters.words[:MAX_CHARACTERS].split()[:MAX_WORDS]:
        causes = [name for name, kind in KINDS.items() if word.lower() in kind.title.lower()]
        conditions.append(or_(text.icontains(word, autoescape=True), columns.cause.in_(causes)))
    return and_(true(), *conditions)


def order(columns: Any, sort: str) -> list[ColumnElement[Any]]:  # noqa: ANN401 - columns of a CTE
    """Return the sort order of a list; the default is by loss per hour, largest first.

    Jobs with equal sort keys are ordered by the attention that they need.
    """
    sort = FLEET.sort(sort)
    rest = [columns.rank.asc(), columns.slowdown.desc().nulls_last(), columns.name.asc()]
    name = FLEET.sorts[sort.removeprefix("-")]
    column = columns.labels["owner"].astext if name == "owner" else columns[name]
    # The column shows an age, which is the smaller the later the time is, so its order is reversed.
    falls = sort.startswith("-") != (name == "received_at")
    return [(column.desc() if falls else column.asc()).nulls_last(), *rest]


def silent_order(columns: Any) -> list[ColumnElement[Any]]:  # noqa: ANN401 - columns of a CTE
    """Return the sort order of silent jobs."""
    return [columns.rank.asc(), columns.received_at.desc(), columns.name.asc()]
