"""The read side of incidents: lists of them, and one with its history."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, get_args

from pydantic import Field, TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Float,
    ScalarSelect,
    Select,
    Text,
    Uuid,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONPATH
from sqlalchemy.orm import aliased

from app.errors import NotFoundError
from app.incidents.lifecycle import Incident
from app.incidents.message import cause_name, known_causes
from app.incidents.models.facts import NO_DATA_CAUSE
from app.incidents.models.rules import Severity
from app.incidents.models.tables import (
    AlertAssignee,
    AlertComment,
    AlertDelivery,
    AlertEvent,
    AlertGroup,
    AlertIncident,
    AlertOnHost,
    AlertRule,
    IncidentState,
)
from app.incidents.store import INSIDE, OPEN
from app.jobs.models import Job
from app.platform.database.columns import as_json, has_label
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import Session, StoredVerdict
from app.web.lists import Column, Listing

# ---- Which incidents are listed, and in which order: what an address of the list asks for ------


# More words than these, and longer ones, are no search.
MAX_WORDS: Final = 8
MAX_CHARACTERS: Final = 200
# The filter value for incidents without an assignee.
UNASSIGNED: Final = "-"

_DOCUMENT: Final = AlertIncident.document
CAUSE: Final = _DOCUMENT["cause"].astext
WHERE: Final = _DOCUMENT["where"].astext
LABELS: Final = _DOCUMENT["facts"]["labels"]
_SEVERITY: Final = _DOCUMENT["severity"].astext

# The latest session that shows an incident.
SESSION_ID: Final = _DOCUMENT["facts"]["session"].astext.cast(Session.id.type)


def slowdown_of(document: Any) -> ColumnElement[Any]:  # noqa: ANN401 - a column of documents
    """Return the headline of an incident; how slow the job was says nothing of its silence."""
    measured = document["facts"]["headline"]["slowdown"].astext
    return case((document["cause"].astext != NO_DATA_CAUSE, cast(measured, Float)))


def waste_of(document: Any) -> ColumnElement[Any]:  # noqa: ANN401 - a column of documents
    """Return the share of a step that an incident's job is known to lose."""
    by_causes = document["facts"]["withheld"]["waste"].astext
    return func.coalesce(1 - 1 / func.nullif(slowdown_of(document), 0.0), cast(by_causes, Float))


SLOWDOWN: Final = slowdown_of(_DOCUMENT)
# GPU-hours that the job loses each hour.
LOST: Final = waste_of(_DOCUMENT) * Session.world

BY_SEVERITY: Final = case({"critical": 0, "warning": 1, "info": 2}, value=_SEVERITY, else_=3)
# Incidents that need a person come first.
BY_STATE: Final = case(
    {
        IncidentState.FIRING: 0,
        IncidentState.ACKNOWLEDGED: 1,
        IncidentState.PENDING: 2,
        IncidentState.SILENCED: 3,
    },
    value=AlertIncident.state,
    else_=4,
)
# Silenced incidents come last, however severe they are.
SILENCED_LAST: Final = case((AlertIncident.state == IncidentState.SILENCED, 1), else_=0)
SINCE: Final = func.coalesce(AlertIncident.fired_at, AlertIncident.opened_at)


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """What an incident must be like to be listed; what is empty asks for nothing."""

    words: str = ""
    """Each of them stands in its job, cause, place, labels, severity or assignee."""
    state: IncidentState | None = None
    """None: any but resolved."""
    severity: str = ""
    cause: str = ""
    job: str = ""
    """The whole name; a host that it blames."""
    host: str = ""
    """The whole name; a host that it blames."""
    owner: str = ""
    """Labels of the job."""
    project: str = ""
    """Labels of the job."""
    label: str = ""
    """``name=value``, or the name of a label that the job has."""
    assignee: str = ""
    """``-``: without an assignee."""
    message: str = ""
    """The id of a message that names it."""
    since: datetime | None = None
    """Of a time: it began in it, or ended where what is over is asked for."""
    until: datetime | None = None
    """Of a time: it began in it, or ended where what is over is asked for."""

    @property
    def over(self) -> bool:
        """Return whether it asks for what is over."""
        return self.state is IncidentState.RESOLVED


def state_of(text: str) -> IncidentState | None:
    """Return the state that an address asks for; None for any that is open."""
    return IncidentState(text) if text in set(IncidentState) else None


def severity_of(text: str) -> str:
    """Return the severity that an address asks for; any where it is none."""
    return text if text in get_args(Severity) else ""


def counted(filtered: IncidentFilter) -> list[ColumnElement[bool]]:
    """Return that an incident is open, or over where that is asked for."""
    if filtered.over:
        # What is over and was never sent is left out.
        return [~OPEN, AlertIncident.fired_at.is_not(None)]
    return [OPEN]


def listed(filtered: IncidentFilter) -> list[ColumnElement[bool]]:
    """Return that an incident is in the state that is asked for, and speaks for itself."""
    found = [*counted(filtered), ~INSIDE]
    if filtered.state is not None and not filtered.over:
        found.append(AlertIncident.state == filtered.state)
    return found


def matches(filtered: IncidentFilter) -> list[ColumnElement[bool]]:
    """Return everything else that an incident must be like.

    The statement joins the incident's job and, from outside, its assignee.
    """
    same: list[tuple[str, ColumnElement[Any]]] = [
        (filtered.severity, _SEVERITY),
        (filtered.cause, CAUSE),
        (filtered.job, Job.name.expression),
        (filtered.owner, LABELS["owner"].astext),
        (filtered.project, LABELS["project"].astext),
    ]
    found = [column == text for text, column in same if text]
    moment = AlertIncident.resolved_at.expression if filtered.over else SINCE
    if filtered.since is not None:
        found.append(moment >= filtered.since)
    if filtered.until is not None:
        found.append(moment <= filtered.until)
    if filtered.host:
        blamed = [{"where": [filtered.host]}]
        found.append(or_(filtered.host == WHERE, _DOCUMENT["facts"]["causes"].contains(blamed)))
    if filtered.label:
        found.append(has_label(LABELS, filtered.label))
    if filtered.message:
        told = func.jsonb_path_query(AlertDelivery.message, cast("$.alerts[*].incident", JSONPATH))
        of_message = select(cast(told.op("#>>")(cast([], ARRAY(Text))), Uuid)).where(
            AlertDelivery.id == uuid.UUID(filtered.message)
        )
        found.append(AlertIncident.id.in_(of_message))
    if filtered.assignee == UNASSIGNED:
        found.append(AlertAssignee.name.is_(None))
    elif filtered.assignee:
        found.append(AlertAssignee.name == filtered.assignee)
    text = func.concat_ws(
        " ", Job.name, WHERE, _SEVERITY, AlertAssignee.name, cast(LABELS, Text), CAUSE
    )
    for word in filtered.words[:MAX_CHARACTERS].lower().split()[:MAX_WORDS]:
        # People know causes by their titles.
        causes = [cause for cause in known_causes() if word in cause_name(cause).lower()]
        found.append(or_(text.icontains(word, autoescape=True), CAUSE.in_(causes)))
    return found


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
    latest = (
        select(AlertComment.id, AlertComment.at, AlertComment.author, AlertComment.words)
        .where(AlertComment.incident_id == incident_id)
        .order_by(AlertComment.id.desc())
        .limit(COMMENTS_LISTED)
    )
    found = (
        tx.session.execute(
            INCIDENTS.query()
            .add_columns(as_json(latest).label("comments"), _events(incident_id).label("events"))
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
