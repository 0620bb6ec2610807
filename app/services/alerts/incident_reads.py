"""The read side of incidents: lists of them, and one with its history."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Nullable, Text, case, cast, func, select
from sqlalchemy.orm import aliased

from app.alerts.states import IncidentState
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
from app.services.alerts.filters import (
    SESSION_ID,
    SORTS,
    IncidentFilter,
    matches,
    order,
    slowdown_of,
)
from app.services.alerts.store import HIDDEN, OPEN, incident_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ScalarSelect, Select

    from app.alerts.incidents import Incident
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
        ((1 - 1 / func.nullif(_slowdown, 0.0)) * _session.world).label("lost"),
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
    lost: float | None  # GPU-hours that its job loses each hour


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident as lists show it.

    Parameters
    ----------
    job : str
    incident : Incident
    rules : mapping of UUID to str
        Names of those of its rules that are still there.
    hidden : bool
        Whether no messages are sent about it while its job sends no data.
    assignee : str or None
        Whose it is.
    inside : sequence of InsideRow
        Other incidents on the same machine that it speaks for, the slowest job first.
    lead : UUID or None
        The one that speaks for it.
    """

    job: str
    incident: Incident
    rules: Mapping[uuid.UUID, str]
    hidden: bool = False
    assignee: str | None = None
    inside: Sequence[InsideRow] = ()
    lead: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A session that an incident is about."""

    number: int
    slowdown: float | None
    world: int  # ranks of the job in it


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

    id: int
    at: datetime
    author: str
    words: str


_COMMENTS: Final = TypeAdapter(tuple[Comment, ...])
_INSIDE_ROWS: Final = TypeAdapter(tuple[InsideRow, ...])


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
    job : str, optional
        Only those.
    current : bool
        Leave out what is over, and what "no data" hides. What is over and was never sent is left
        out in any case.
    filtered : IncidentFilter, optional
        What else they must be like.
    sort : str
        Another order; see `app.services.alerts.filters.SORTS`.
    offset : int
        Number of incidents to skip.
    """
    query = by_need(limit).offset(offset)
    if filtered is not None:
        query = query.outerjoin(Session, Session.id == SESSION_ID).where(*matches(filtered))
        if sort.removeprefix("-") in SORTS:
            query = query.order_by(None).order_by(*order(sort, filtered))
    if state is not None:
        query = query.where(AlertIncident.state == state)
    if job is not None:
        query = query.where(Job.name == job)
    if current:
        query = query.where(OPEN, ~HIDDEN)
    return [incident_row(*found) for found in tx.session.execute(query)]


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
    found = tx.session.execute(
        incident_rows().add_columns(_comments(incident_id)).where(AlertIncident.id == incident_id)
    ).one_or_none()
    if found is None:
        raise no_incident(incident_id)
    *row, said = found
    comments = sorted(_COMMENTS.validate_python(said or ()), key=lambda comment: comment.id)
    rows = tx.session.execute(
        select(
            AlertEvent,
            Nullable(Session.id),
            Session.number,
            StoredVerdict.slowdown,
            Session.world,
        )
        .outerjoin(Session, Session.id == AlertEvent.session_id)
        .outerjoin(StoredVerdict, StoredVerdict.session_id == Session.id)
        .where(AlertEvent.incident_id == incident_id)
        .order_by(AlertEvent.number)
    ).all()
    events = [
        EventRow(
            at=event.at,
            event=event.event,
            from_state=event.from_state,
            to_state=event.to_state,
            actor=event.actor,
            note=event.note,
            session=event.session_id,
        )
        for event, *_ in rows
    ]
    sessions = {
        session: Measured(number, slowdown, world)
        for _, session, number, slowdown, world in rows
        if session is not None
    }
    return IncidentView(incident_row(*row), events, tx.now, comments), sessions


def _comments(incident_id: uuid.UUID) -> ScalarSelect[Any]:
    """Return the latest comments on an incident, as a column of what else is read of it."""
    latest = (
        select(AlertComment.id, AlertComment.at, AlertComment.author, AlertComment.words)
        .where(AlertComment.incident_id == incident_id)
        .order_by(AlertComment.id.desc())
        .limit(COMMENTS_LISTED)
        .subquery()
    )
    return select(func.jsonb_agg(func.to_jsonb(latest.table_valued()))).scalar_subquery()


def incident_rows() -> Select[
    AlertIncident,
    str,
    dict[str, str] | None,
    bool,
    str | None,
    list[dict[str, Any]] | None,
    uuid.UUID | None,
]:
    """Return the query of incidents, with their jobs joined, which `incident_row` takes."""
    return (
        select(AlertIncident, Job.name, _RULES, HIDDEN, AlertAssignee.name, _INSIDE, _LEAD)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .outerjoin(AlertAssignee, AlertAssignee.incident_id == AlertIncident.id)
    )


def by_need(
    limit: int,
) -> Select[
    AlertIncident,
    str,
    dict[str, str] | None,
    bool,
    str | None,
    list[dict[str, Any]] | None,
    uuid.UUID | None,
]:
    """Return the query of what `list_incidents` lists."""
    return (
        incident_rows()
        .where(OPEN | AlertIncident.fired_at.is_not(None))
        .order_by(_ORDER, _BEGAN_OR_ENDED.desc(), AlertIncident.id)
        .limit(limit)
    )


def incident_row(  # noqa: PLR0913, PLR0917 - a column each
    row: AlertIncident,
    job: str,
    rules: Mapping[str, str] | None,
    hidden: bool,  # noqa: FBT001 - a column like the others
    assignee: str | None,
    inside: list[dict[str, Any]] | None,
    lead: uuid.UUID | None,
) -> IncidentRow:
    """Return an incident of a job as lists show it, given the names of rules by id."""
    incident, names = incident_of(row), rules or {}
    known = {id_: names[str(id_)] for id_ in incident.rules if str(id_) in names}
    within = _INSIDE_ROWS.validate_python(inside or ())
    return IncidentRow(job, incident, known, hidden, assignee, within, lead)


def no_incident(incident_id: uuid.UUID) -> NotFoundError:
    """Return what is raised where there is no such incident."""
    return NotFoundError(f"There is no incident {incident_id}.")
