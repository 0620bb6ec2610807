"""How each job stands at a moment: one row a job, from its latest sessions and open incidents."""

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

# ---- Jobs as lists of the fleet have them, made from what a statement finds --------------------


@dataclass(frozen=True, slots=True)
class Urgent:
    """The most pressing open incident of a job."""

    id: UUID
    state: IncidentState


@dataclass(frozen=True, slots=True)
class Standing:
    """A job on a page."""

    name: str
    # latest, told: the latest session, and the one whose numbers stand for the job: the latest
    # that is through
    latest: SessionRow
    told: SessionRow
    # sequence of (float or None): of its latest sessions that are through, oldest first; None
    # without a verdict
    slowdowns: Sequence[float | None]
    labels: Mapping[str, str]
    incident: Urgent | None
    finished: bool = False  # the job said that it ended


# Of a verdict, what comparisons and later sessions read: a quarter of its text, and no line's.
_UNLISTED: Final = literal(["steps_s", "computing"], ARRAY(Text))
# Sessions with as much of their verdicts as lines tell.
_LISTED: Final = replace(
    SESSIONS,
    others={
        **SESSIONS.others,
        "verdict": Column(type_coerce(StoredVerdict.document.op("-")(_UNLISTED), VERDICT)),
    },
)

# Ordered by columns of `app.jobs.current.standing`.
FLEET: Final = Listing(
    Standing,
    default_sort="-lost",
    others={
        "rank": Column(sort="state"),
        "name": Column(sort="job"),
        "slowdown": Column(sort="-slowdown"),
        "lost": Column(sort="-lost"),
        "cause": Column(sort="cause"),
        # Shares of the time: all that is lost, and of it each kind.
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
class Found:
    """A job of a page, as the first statement returns it."""

    job: int
    name: str
    latest: UUID
    told: UUID
    labels: dict[str, str] | None
    incident: UUID | None
    incident_state: IncidentState | None
    finished: bool


def standing_of(
    row: Found, sessions: Mapping[UUID, SessionRow], slowdowns: Sequence[float | None]
) -> Standing:
    """Return a job with its sessions, which `sessions_of` read."""
    urgent = (
        None
        if row.incident is None or row.incident_state is None
        else Urgent(row.incident, row.incident_state)
    )
    return Standing(
        row.name,
        sessions[row.latest],
        sessions[row.told],
        slowdowns,
        row.labels or {},
        urgent,
        row.finished,
    )


def sessions_of(tx: Reads, ids: set[UUID]) -> dict[UUID, SessionRow]:
    """Return sessions by id, of whose verdicts `_UNLISTED` is left out."""
    # One value: of a thousand, each of its own, the statement alone takes 20 ms to write and read.
    wanted = func.any(literal(list(ids), ARRAY(Uuid)))
    return {row.id: row for row in read(tx, _LISTED, Session.id == wanted)}


# More words than these, and longer ones, are no search.
MAX_WORDS: Final = 8
MAX_CHARACTERS: Final = 200

# What needs a person comes first: open incidents, then how the latest session stands.
_INCIDENTS: Final = {
    IncidentState.FIRING: -4,
    IncidentState.ACKNOWLEDGED: -3,
    IncidentState.PENDING: -2,
    IncidentState.SILENCED: -1,
}
_SLOW, _UNDERWAY, _QUIET = 0, 3, 4
_STATES: Final = {SessionState.FAILED: 1, SessionState.NO_VERDICT: 2, SessionState.DISCARDED: 2}


class Show(StrEnum):
    """Which jobs a list holds."""

    ALL = "all"
    SLOW = "slow"
    NONE = "none"  # without a verdict
    ARCHIVED = "archived"


class Loss(StrEnum):
    """What time is lost to."""

    STRAGGLERS = "stragglers"
    BETWEEN = "between"
    TOGETHER = "together"


# What is known to be lost, of a stored verdict; the last ones are shares of the time.
_LOST: Final = {
    "waste": StoredVerdict.waste,
    "lost": StoredVerdict.lost,
    Loss.STRAGGLERS.value: StoredVerdict.lost_to_stragglers,
    Loss.BETWEEN.value: StoredVerdict.lost_between,
    Loss.TOGETHER.value: StoredVerdict.lost_together,
}


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """What a job must be like to be listed; what is empty asks for nothing."""

    # Each of them stands in its name, its labels, or, if it is slow, in its cause or host.
    words: str = ""
    show: Show = Show.ALL  # those in the archive are listed alone
    owner: str = ""  # a label of the job
    label: str = ""  # ``name=value``, or the name of a label that the job has
    loss: Loss | None = None  # what it loses as much time to as is worth saying

    @property
    def narrowed(self) -> bool:
        """Return whether it asks for anything."""
        return self != FleetFilter()

    @property
    def asked(self) -> bool:
        """Return whether it asks for anything but the archive."""
        return replace(self, show=Show.ALL) != FleetFilter() or self.show in (Show.SLOW, Show.NONE)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a fleet is looked at by."""

    since: datetime | None  # jobs without a session from then on are silent
    until: datetime | None  # only what had been received by then counts
    incidents: bool  # whether open incidents say how a job stands; they are those of now
    slow: float  # from this slowdown on a job is slow


def standing(at: Moment, *, archived: bool) -> CTE:
    """Return each job with a session: how it stands, what it loses, and what it is found by.

    Parameters
    ----------
    archived : bool
        Those in the archive in place of all others; one that has sent since is in no archive.
    """
    last, told, urgent = _latest(at, through=False), _latest(at, through=True), _urgent(at)
    slowdown = told.c.slowdown
    is_slow = func.coalesce(
        or_(told.c.level == "slow", slowdown >= at.slow) & slowdown.is_not(None), false()
    )
    # Without a verdict a cause is only named where its cost is known.
    blames = or_(is_slow, slowdown.is_(None) & told.c.waste.is_not(None))
    in_state = last.c.state == SessionState.ANALYZED
    # A pending incident hides neither a missing verdict nor a failure.
    counts = or_(urgent.c.state != IncidentState.PENDING, in_state)
    of_session = case(
        (and_(in_state, is_slow), _SLOW),
        (in_state, _QUIET),
        else_=case(_STATES, value=last.c.state, else_=_UNDERWAY),
    )
    # A verdict from before is not of this time, even where a session that waits is.
    of_time = true() if at.since is None else told.c.received_at >= at.since
    # What has ended loses nothing any more.
    finished = func.coalesce(last.c.received_at <= Job.finished_at + FINISH_GRACE, false())
    lost = case((~finished, told.c.lost))
    in_archive = and_(Job.archived_at.is_not(None), last.c.received_at <= Job.archived_at)
    columns: list[ColumnElement[Any]] = [
        Job.id.label("job_id"),
        Job.name.label("name"),
        finished.label("finished"),
        last.c.id.label("latest"),
        func.coalesce(told.c.id, last.c.id).label("told"),
        last.c.state.label("state"),
        last.c.received_at.label("received_at"),
        last.c.world.label("gpus"),
        (true() if at.since is None else last.c.received_at >= at.since).label("heard"),
        slowdown.label("slowdown"),
        and_(in_state, is_slow).label("slow"),
        (last.c.world * lost).label("lost"),
        case((of_time & lost.is_not(None), told.c.world)).label("told_gpus"),
        case((of_time, told.c.world * lost)).label("told_lost"),
        case((of_time, told.c.world * told.c.waste)).label("told_wasted"),
        *(told.c[loss].label(loss) for loss in Loss),
        sum((told.c[loss] for loss in Loss), literal(0.0)).label("time"),
        case((blames, told.c.cause)).label("cause"),
        case((blames, told.c.host)).label("host"),
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
        .outerjoin(told, true())
        .outerjoin(urgent, urgent.c.job_id == Job.id)
        .where(in_archive if archived else ~func.coalesce(in_archive, false()))
    )
    return query.cte("standing").prefix_with("MATERIALIZED", dialect="postgresql")


def _latest(at: Moment, *, through: bool) -> LateralFromClause:
    """Return the latest session of a job, or the latest that is through."""
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
    if through:
        query = query.where(session.state.not_in(SessionState.UNDERWAY))
    if at.until is not None:
        query = query.where(session.received_at <= at.until)
    return query.lateral("told" if through else "latest")


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


def shown(one: Any, show: Show) -> ColumnElement[bool]:  # noqa: ANN401 - columns of a CTE
    """Return whether a job is one of those that a list holds."""
    if show is Show.SLOW:
        return and_(true(), one.slow)
    return and_(true(), one.slowdown.is_(None)) if show is Show.NONE else true()


def matches(one: Any, filters: FleetFilter) -> ColumnElement[bool]:  # noqa: ANN401 - columns of a CTE
    """Return whether a job is like what is asked for, whatever a list of them holds."""
    found: list[ColumnElement[bool]] = []
    if filters.owner:
        found.append(one.labels["owner"].astext == filters.owner)
    if filters.label:
        found.append(has_label(one.labels, filters.label))
    if filters.loss is not None:
        found.append(one[filters.loss] >= WORTH_SAYING)
    text = func.concat_ws(" ", one.name, one.host, cast(one.labels, Text))
    for word in filters.words[:MAX_CHARACTERS].split()[:MAX_WORDS]:
        causes = [name for name, kind in KINDS.items() if word.lower() in kind.title.lower()]
        found.append(or_(text.icontains(word, autoescape=True), one.cause.in_(causes)))
    return and_(true(), *found)


def order(one: Any, sort: str) -> list[ColumnElement[Any]]:  # noqa: ANN401 - columns of a CTE
    """Return the order that is asked for; without one what costs most each hour comes first.

    Among equals, what needs attention does.
    """
    sort = FLEET.sort(sort)
    rest = [one.rank.asc(), one.slowdown.desc().nulls_last(), one.name.asc()]
    name = FLEET.sorts[sort.removeprefix("-")]
    column = one.labels["owner"].astext if name == "owner" else one[name]
    # The age of the data falls as its moment rises.
    falls = sort.startswith("-") != (name == "received_at")
    return [(column.desc() if falls else column.asc()).nulls_last(), *rest]


def silent_order(one: Any) -> list[ColumnElement[Any]]:  # noqa: ANN401 - columns of a CTE
    """Return what silent jobs are in order by."""
    return [one.rank.asc(), one.received_at.desc(), one.name.asc()]
