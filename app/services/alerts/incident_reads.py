"""The read side of incidents: lists of them, and one with its history."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, TypeAdapter
from sqlalchemy import Text, case, cast, func, literal_column, select
from sqlalchemy.orm import aliased

from app.alerts.incidents import Incident
from app.alerts.states import IncidentState
from app.db.json_values import as_json
from app.db.models.alerts import (
    AlertAssignee,
    AlertComment,
    AlertEvent,
    AlertGroup,
    AlertIncident,
    AlertOnHost,
    AlertRule,
)
from app.db.models.sessions import Job, Session, StoredVerdict
from app.errors import NotFoundError
from app.lists.columns import Column
from app.lists.listing import Listing
from app.services.alerts.filters import (
    BY_SEVERITY,
    BY_STATE,
    LOST,
    SESSION_ID,
    SILENCED_LAST,
    SINCE,
    SLOWDOWN,
    IncidentFilter,
    matches,
    slowdown_of,
    waste_of,
)
from app.services.alerts.store import OPEN

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, ScalarSelect, Select

    from app.db.unit_of_work import Reads

COMMENTS_LISTED: Final = 100
# More jobs than these on one machine are counted.
INSIDE_LISTED: Final = 200

# Incidents that need a person come first.
_ORDER: Final = case(
    {
        IncidentState.FIRING: 0,
        IncidentState.ACKNOWLEDGED: 1,
        IncidentState.SILENCED: 2,
        IncidentState.PENDING: 3,
    },
    value=AlertIncident.state,
    else_=4,
)
_BEGAN_OR_ENDED: Final = func.coalesce(AlertIncident.resolved_at, AlertIncident.opened_at)

# Names by id of an incident's rules that are still there.
_RULES: Final = (
    select(func.jsonb_object_agg(cast(AlertRule.id, Text), AlertRule.name))
    .where(AlertIncident.document["rules"].has_key(cast(AlertRule.id, Text)))
    .correlate(AlertIncident)
    .scalar_subquery()
)


_EMPTY_LIST: Final[ColumnElement[Any]] = literal_column("'[]'::jsonb")
_EMPTY_OBJECT: Final[ColumnElement[Any]] = literal_column("'{}'::jsonb")

_member: Final = aliased(AlertIncident)
_placed: Final = aliased(AlertOnHost)
_group: Final = aliased(AlertGroup)
_job: Final = aliased(Job)
_session: Final = aliased(Session)
_slowdown: Final = slowdown_of(_member.document)
# What stands inside of an incident and is not over, with how slow its job is and what that costs.
_inside_rows: Final = (
    select(
        _member.id.label("id"),
        _job.name.label("job"),
        _member.document["cause"].astext.label("cause"),
        _member.state.label("state"),
        _slowdown.label("slowdown"),
        (waste_of(_member.document) * _session.world).label("lost"),
    )
    .join(_placed, _placed.incident_id == _member.id)
    .join(_group, _group.id == _member.group_id)
    .join(_job, _job.id == _group.job_id)
    .outerjoin(
        _session,
        _session.id == _member.document["facts"]["session"].astext.cast(Session.id.type),
    )
    .where(
        _placed.lead_id == AlertIncident.id,
        _placed.incident_id != _placed.lead_id,
        _member.state != IncidentState.RESOLVED,
    )
    .order_by(_slowdown.desc().nulls_last(), _job.name)
    .limit(INSIDE_LISTED)
    .correlate(AlertIncident)
    .subquery()
)
_INSIDE: Final = select(
    func.jsonb_agg(func.to_jsonb(_inside_rows.table_valued()))
).scalar_subquery()
_spoken: Final = aliased(AlertOnHost)
_speaker: Final = aliased(AlertOnHost)
_LEAD: Final = (
    select(_spoken.lead_id)
    .join(_speaker, _speaker.incident_id == _spoken.lead_id)
    .where(
        _spoken.incident_id == AlertIncident.id,
        _spoken.lead_id != _spoken.incident_id,
        _speaker.over_at.is_(None),
    )
    .correlate(AlertIncident)
    .scalar_subquery()
)


@dataclass(frozen=True, slots=True)
class InsideRow:
    """An incident inside of another one that blames the same machine."""

    id: uuid.UUID
    job: str
    cause: str
    state: IncidentState
    slowdown: float | None
    lost: Annotated[float | None, Field(description="GPU-hours that the job loses each hour.")]


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident as lists show it."""

    job: Annotated[str, Column(Job.name, sort="job")]
    incident: Annotated[Incident, Column(AlertIncident.document)]
    # Names of those of its rules that are still there.
    rules: Annotated[Mapping[uuid.UUID, str], Column(func.coalesce(_RULES, _EMPTY_OBJECT))]
    assignee: Annotated[str | None, Column(AlertAssignee.name, sort="assignee")] = None
    # Other incidents on the same machine that it speaks for, the slowest job first.
    inside: Annotated[Sequence[InsideRow], Column(func.coalesce(_INSIDE, _EMPTY_LIST))] = ()
    lead: Annotated[uuid.UUID | None, Column(_LEAD)] = None  # the one that speaks for it


INCIDENTS: Final = Listing(
    IncidentRow,
    lambda query: (
        query.join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .outerjoin(AlertAssignee, AlertAssignee.incident_id == AlertIncident.id)
    ),
    # Severity first, then what needs a person, then what loses most.
    ties=(
        SILENCED_LAST,
        BY_SEVERITY,
        BY_STATE,
        LOST.desc().nulls_last(),
        SINCE.desc(),
        AlertIncident.id.expression,
    ),
    others={
        "severity": Column(by=BY_SEVERITY, sort="severity"),
        "state": Column(by=BY_STATE, sort="state"),
        "slowdown": Column(by=SLOWDOWN, sort="-slowdown"),
        "lost": Column(by=LOST, sort="-lost"),
        "since": Column(by=SINCE, sort="-since"),
    },
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A session that an incident is about."""

    number: int
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """A transition of an incident."""

    at: datetime
    event: str
    from_state: IncidentState | None
    to_state: IncidentState
    actor: str | None
    note: str | None
    session: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Comment:
    """Something that a person said about an incident."""

    id: Annotated[int, Field(exclude=True)]
    at: datetime
    author: str
    words: str


_COMMENTS: Final = TypeAdapter(tuple[Comment, ...])


@dataclass(frozen=True, slots=True)
class _Passed:
    """A transition, and the session that it names where that is still there."""

    event: EventRow
    known: uuid.UUID | None
    number: int | None
    slowdown: float | None


_PASSED: Final = TypeAdapter(tuple[_Passed, ...])


@dataclass(frozen=True, slots=True)
class IncidentView:
    """An incident with its history, the oldest event first, and the database's time.

    `comments` are the latest, the oldest of them first.
    """

    row: IncidentRow
    events: Sequence[EventRow]
    now: datetime
    comments: Sequence[Comment] = ()


def list_incidents(  # noqa: PLR0913 - what a list is asked for
    tx: Reads,
    limit: int,
    *,
    state: IncidentState | None = None,
    job: str | None = None,
    current: bool = False,
    filtered: IncidentFilter | None = None,
    sort: str = "",
    offset: int = 0,
) -> list[IncidentRow]:
    """Return incidents, firing ones first, then the newest; of those that are over, the latest.

    Parameters
    ----------
    current : bool
        Leave out what is over, and what "no data" hides. What is over and was never sent is left
        out in any case.
    sort : str
        Another order; see `INCIDENTS`.
    """
    query = by_need(limit).offset(offset)
    if filtered is not None:
        query = query.outerjoin(Session, Session.id == SESSION_ID).where(*matches(filtered))
        if INCIDENTS.sort(sort):
            query = query.order_by(None).order_by(*INCIDENTS.order(sort))
    if state is not None:
        query = query.where(AlertIncident.state == state)
    if job is not None:
        query = query.where(Job.name == job)
    if current:
        query = query.where(OPEN)
    return INCIDENTS.rows(tx.session.execute(query).mappings())


def get_incident(tx: Reads, incident_id: uuid.UUID) -> IncidentView:
    """Return an incident.

    Raises
    ------
    NotFoundError
    """
    return incident_and_sessions(tx, incident_id)[0]


def incident_and_sessions(
    tx: Reads, incident_id: uuid.UUID
) -> tuple[IncidentView, dict[uuid.UUID, Measured]]:
    """Return an incident, and the sessions that it went through.

    Raises
    ------
    NotFoundError
    """
    found = (
        tx.session.execute(
            INCIDENTS.query()
            .add_columns(
                _comments(incident_id).label("comments"), _events(incident_id).label("events")
            )
            .where(AlertIncident.id == incident_id)
        )
        .mappings()
        .one_or_none()
    )
    if found is None:
        raise no_incident(incident_id)
    [row] = INCIDENTS.rows([found])
    comments = sorted(
        _COMMENTS.validate_python(found["comments"] or ()), key=lambda comment: comment.id
    )
    passed = _PASSED.validate_python(found["events"] or ())
    sessions = {
        one.known: Measured(one.number, one.slowdown)
        for one in passed
        if one.known is not None and one.number is not None
    }
    return IncidentView(row, [one.event for one in passed], tx.now, comments), sessions


def _comments(incident_id: uuid.UUID) -> ScalarSelect[Any]:
    """Return the latest comments on an incident, as a column of what else is read of it."""
    latest = (
        select(AlertComment.id, AlertComment.at, AlertComment.author, AlertComment.words)
        .where(AlertComment.incident_id == incident_id)
        .order_by(AlertComment.id.desc())
        .limit(COMMENTS_LISTED)
    )
    return as_json(latest)


def _events(incident_id: uuid.UUID) -> ScalarSelect[Any]:
    """Return what happened to an incident, oldest first, as a column of what else is read of it."""
    event = func.jsonb_build_object(
        *("at", AlertEvent.at, "event", AlertEvent.event, "actor", AlertEvent.actor),
        *("from_state", AlertEvent.from_state, "to_state", AlertEvent.to_state),
        *("note", AlertEvent.note, "session", AlertEvent.session_id),
    )
    return as_json(
        select(
            event.label("event"),
            Session.id.label("known"),
            Session.number,
            StoredVerdict.slowdown,
        )
        .select_from(AlertEvent)
        .outerjoin(Session, Session.id == AlertEvent.session_id)
        .outerjoin(StoredVerdict, StoredVerdict.session_id == Session.id)
        .where(AlertEvent.incident_id == incident_id)
        .order_by(AlertEvent.number)
    )


def by_need(limit: int) -> Select[Any]:
    """Return the query of what `list_incidents` lists."""
    return (
        INCIDENTS.query()
        .where(OPEN | AlertIncident.fired_at.is_not(None))
        .order_by(_ORDER, _BEGAN_OR_ENDED.desc(), AlertIncident.id)
        .limit(limit)
    )


def order(sort: str, filtered: IncidentFilter) -> list[ColumnElement[Any]]:
    """Return the order that an address asks for; without one, of what is over the latest first."""
    if filtered.over and not INCIDENTS.sort(sort):
        return [AlertIncident.resolved_at.desc(), *INCIDENTS.ties]
    return INCIDENTS.order(sort)


def no_incident(incident_id: uuid.UUID) -> NotFoundError:
    """Return what is raised where there is no such incident."""
    return NotFoundError(f"There is no incident {incident_id}.")
