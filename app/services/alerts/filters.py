"""Which incidents are listed, and in which order: what an address of the list asks for."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, get_args

from sqlalchemy import Float, Text, Uuid, case, cast, func, or_, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONPATH

from app.alerts.message import cause_name, known_causes
from app.alerts.readings import NO_DATA_CAUSE
from app.alerts.rules import Severity
from app.alerts.states import IncidentState
from app.db.json_values import has_label
from app.db.models.alerts import AlertAssignee, AlertDelivery, AlertIncident
from app.db.models.sessions import Job, Session
from app.services.alerts.store import INSIDE, OPEN

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

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
    return [*found, *_worded(filtered.words)]


def _worded(words: str) -> list[ColumnElement[bool]]:
    text = func.concat_ws(
        " ", Job.name, WHERE, _SEVERITY, AlertAssignee.name, cast(LABELS, Text), CAUSE
    )
    found: list[ColumnElement[bool]] = []
    for word in words[:MAX_CHARACTERS].lower().split()[:MAX_WORDS]:
        # People know causes by their titles.
        causes = [cause for cause in known_causes() if word in cause_name(cause).lower()]
        found.append(or_(text.icontains(word, autoescape=True), CAUSE.in_(causes)))
    return found
