"""Queries of incidents: filters and orders of lists, and a single incident with its history."""

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

# Limits of a search text: words beyond the first, and characters beyond the second, are ignored.
MAX_WORDS: Final = 8
MAX_CHARACTERS: Final = 200
# The filter's value that selects incidents without an assignee.
UNASSIGNED: Final = "-"

_DOCUMENT: Final = AlertIncident.document
CAUSE: Final = _DOCUMENT["cause"].astext
WHERE: Final = _DOCUMENT["where"].astext
LABELS: Final = _DOCUMENT["facts"]["labels"]
_SEVERITY: Final = _DOCUMENT["severity"].astext

# The id of the latest session in an incident's facts.
SESSION_ID: Final = _DOCUMENT["facts"]["session"].astext.cast(Session.id.type)


def slowdown_of(document: Any) -> ColumnElement[Any]:  # noqa: ANN401 - a column of documents
    """Return the expression of an incident's headline slowdown; null for a silent job."""
    measured = document["facts"]["headline"]["slowdown"].astext
    return case((document["cause"].astext != NO_DATA_CAUSE, cast(measured, Float)))


def waste_of(document: Any) -> ColumnElement[Any]:  # noqa: ANN401 - a column of documents
    """Return the expression of the known lost share of a step of an incident's job."""
    by_causes = document["facts"]["withheld"]["waste"].astext
    return func.coalesce(1 - 1 / func.nullif(slowdown_of(document), 0.0), cast(by_causes, Float))


SLOWDOWN: Final = slowdown_of(_DOCUMENT)
# Expression of the GPU-hours that the incident's job loses each hour.
LOST: Final = waste_of(_DOCUMENT) * Session.world

BY_SEVERITY: Final = case({"critical": 0, "warning": 1, "info": 2}, value=_SEVERITY, else_=3)
# Sort key by state: incidents that need a user's attention come first.
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
# Sort key that puts silenced incidents last, regardless of their severity.
SILENCED_LAST: Final = case((AlertIncident.state == IncidentState.SILENCED, 1), else_=0)
SINCE: Final = func.coalesce(AlertIncident.fired_at, AlertIncident.opened_at)


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """The filters of a list of incidents; an empty filter matches all incidents."""

    words: str = ""
    """Words that must all occur in job, cause, place, labels, severity or assignee."""
    state: IncidentState | None = None
    """State of the incidents; None selects all states but resolved."""
    severity: str = ""
    cause: str = ""
    job: str = ""
    """Whole name of the job."""
    host: str = ""
    """Whole name of a host that the incident blames."""
    owner: str = ""
    """Value of the job's label ``owner``."""
    project: str = ""
    """Value of the job's label ``project``."""
    label: str = ""
    """A label of the job as ``name=value``, or its name alone."""
    assignee: str = ""
    """Name of the assignee; ``-`` selects incidents without an assignee."""
    message: str = ""
    """Id of a message that contains the incident."""
    since: datetime | None = None
    """Earliest beginning of the incident; for resolved incidents, earliest end."""
    until: datetime | None = None
    """Latest beginning of the incident; for resolved incidents, latest end."""

    @property
    def over(self) -> bool:
        """Return whether the filter selects resolved incidents."""
        return self.state is IncidentState.RESOLVED


def state_of(text: str) -> IncidentState | None:
    """Return the state in an address; None, which selects open incidents, if it is no state."""
    return IncidentState(text) if text in set(IncidentState) else None


def severity_of(text: str) -> str:
    """Return the severity in an address; empty, which selects all, if it is no severity."""
    return text if text in get_args(Severity) else ""


def counted(filtered: IncidentFilter) -> list[ColumnElement[bool]]:
    """Return the condition that an incident is open, or resolved if the filter selects these."""
    if filtered.over:
        # Incidents that were resolved before they fired are left out.
        return [~OPEN, AlertIncident.fired_at.is_not(None)]
    return [OPEN]


def listed(filtered: IncidentFilter) -> list[ColumnElement[bool]]:
    """Return the condition on the states of listed incidents, without members of a lead."""
    conditions = [*counted(filtered), ~INSIDE]
    if filtered.state is not None and not filtered.over:
        conditions.append(AlertIncident.state == filtered.state)
    return conditions


def matches(filtered: IncidentFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of all filters other than the state.

    The statement has to join the incident's job, and its assignee by an outer join.
    """
    same: list[tuple[str, ColumnElement[Any]]] = [
        (filtered.severity, _SEVERITY),
        (filtered.cause, CAUSE),
        (filtered.job, Job.name.expression),
        (filtered.owner, LABELS["owner"].astext),
        (filtered.project, LABELS["project"].astext),
    ]
    conditions = [column == text for text, column in same if text]
    moment = AlertIncident.resolved_at.expression if filtered.over else SINCE
    if filtered.since is not None:
        conditions.append(moment >= filtered.since)
    if filtered.until is not None:
        conditions.append(moment <= filtered.until)
    if filtered.host:
        blamed = [{"where": [filtered.host]}]
        conditions.append(
            or_(filtered.host == WHERE, _DOCUMENT["facts"]["causes"].contains(blamed))
        )
    if filtered.label:
        conditions.append(has_label(LABELS, filtered.label))
    if filtered.message:
        alerted = func.jsonb_path_query(
            AlertDelivery.message, cast("$.alerts[*].incident", JSONPATH)
        )
        of_message = select(cast(alerted.op("#>>")(cast([], ARRAY(Text))), Uuid)).where(
            AlertDelivery.id == uuid.UUID(filtered.message)
        )
        conditions.append(AlertIncident.id.in_(of_message))
    if filtered.assignee == UNASSIGNED:
        conditions.append(AlertAssignee.name.is_(None))
    elif filtered.assignee:
        conditions.append(AlertAssignee.name == filtered.assignee)
    text = func.concat_ws(
        " ", Job.name, WHERE, _SEVERITY, AlertAssignee.name, cast(LABELS, Text), CAUSE
    )
    for word in filtered.words[:MAX_CHARACTERS].lower().split()[:MAX_WORDS]:
        # A word may be part of a cause's title, but the database stores only the cause's name.
        causes = [cause for cause in known_causes() if word in cause_name(cause).lower()]
        conditions.append(or_(text.icontains(word, autoescape=True), CAUSE.in_(causes)))
    return conditions


COMMENTS_LISTED: Final = 100
# Maximum of members that a list shows for one lead.
INSIDE_LISTED: Final = 200

# Sort key by state: incidents that need a user's attention come first.
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

# Subquery of the names by id of an incident's rules, without deleted rules.
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
# Subquery of the open members of an incident, with slowdown and cost of their jobs.
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
    """A member of a lead: an incident that blames the same machine."""

    id: uuid.UUID
    job: str
    cause: str
    state: IncidentState
    slowdown: float | None
    lost: Annotated[float | None, Field(description="GPU-hours that the job loses each hour.")]


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """A row in a list of incidents."""

    job: Annotated[str, Column(Job.name, sort="job")]
    incident: Annotated[Incident, Column(AlertIncident.document)]
    # Names by id of the incident's rules, without deleted rules
    rules: Annotated[Mapping[uuid.UUID, str], Column(func.coalesce(_RULES, _EMPTY_OBJECT))]
    assignee: Annotated[str | None, Column(AlertAssignee.name, sort="assignee")] = None
    # Members of the incident, sorted by slowdown, the slowest job first
    inside: Annotated[Sequence[InsideRow], Column(func.coalesce(_INSIDE, _EMPTY_LIST))] = ()
    # Id of the lead of which the incident is a member
    lead: Annotated[uuid.UUID | None, Column(_LEAD)] = None


INCIDENTS: Final = Listing(
    IncidentRow,
    lambda query: (
        query.join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .outerjoin(AlertAssignee, AlertAssignee.incident_id == AlertIncident.id)
    ),
    # Sorted by severity, then by states that need a user's attention, then by the largest loss.
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
    """Number and slowdown of a session in the history of an incident."""

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
    """A user's comment on an incident."""

    id: Annotated[int, Field(exclude=True)]
    at: datetime
    author: str
    words: str


_COMMENTS: Final = TypeAdapter(tuple[Comment, ...])


@dataclass(frozen=True, slots=True)
class _Passed:
    """A transition, and its session if it still exists."""

    event: EventRow
    known: uuid.UUID | None
    number: int | None
    slowdown: float | None


_PASSED: Final = TypeAdapter(tuple[_Passed, ...])


@dataclass(frozen=True, slots=True)
class IncidentView:
    """An incident with its history, from oldest to newest event, and the database's time.

    `comments` are the latest, the oldest of them first.
    """

    row: IncidentRow
    events: Sequence[EventRow]
    now: datetime
    comments: Sequence[Comment] = ()


def list_incidents(  # noqa: PLR0913 - filters of a list
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
    """Return incidents: firing first, then the newest; resolved incidents sorted by their end.

    Parameters
    ----------
    current : bool
        Leave out resolved incidents. Those that never fired are left out in any case.
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
    """Return an incident, and by id the sessions of its transitions.

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
    document = (
        tx.session.execute(
            INCIDENTS.query()
            .add_columns(as_json(latest).label("comments"), _events(incident_id).label("events"))
            .where(AlertIncident.id == incident_id)
        )
        .mappings()
        .one_or_none()
    )
    if document is None:
        raise no_incident(incident_id)
    [row] = INCIDENTS.rows([document])
    comments = sorted(
        _COMMENTS.validate_python(document["comments"] or ()), key=lambda comment: comment.id
    )
    passed = _PASSED.validate_python(document["events"] or ())
    sessions = {
        passage.known: Measured(passage.number, passage.slowdown)
        for passage in passed
        if passage.known is not None and passage.number is not None
    }
    return IncidentView(row, [passage.event for passage in passed], tx.now, comments), sessions


def _events(incident_id: uuid.UUID) -> ScalarSelect[Any]:
    """Return the expression of an incident's transitions as JSON, from oldest to newest."""
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
    """Return the query of `list_incidents` without filters."""
    return (
        INCIDENTS.query()
        .where(OPEN | AlertIncident.fired_at.is_not(None))
        .order_by(_ORDER, _BEGAN_OR_ENDED.desc(), AlertIncident.id)
        .limit(limit)
    )


def order(sort: str, filtered: IncidentFilter) -> list[ColumnElement[Any]]:
    """Return the order in an address; by default resolved incidents are sorted by their end."""
    if filtered.over and not INCIDENTS.sort(sort):
        return [AlertIncident.resolved_at.desc(), *INCIDENTS.ties]
    return INCIDENTS.order(sort)


def no_incident(incident_id: uuid.UUID) -> NotFoundError:
    """Return the error for an unknown incident."""
    return NotFoundError(f"There is no incident {incident_id}.")
