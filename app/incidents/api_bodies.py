"""Bodies of the API for channels, deliveries, incidents, orders and alert rules."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from app.incidents.channel_reads import ChannelView
from app.incidents.channel_writes import MOST_MESSAGES, RATE_LIMIT
from app.incidents.channels.kind import Note as SummaryNote
from app.incidents.delivery_reads import DeliveryRow
from app.incidents.models.facts import HangFacts, NoticeFacts
from app.incidents.models.rules import (
    Audience,
    Condition,
    Count,
    Escalation,
    Rule,
    Selector,
    Severity,
    ShortText,
)
from app.incidents.models.tables import IncidentState
from app.incidents.reads import Comment, EventRow, IncidentRow, IncidentView, InsideRow
from app.incidents.rule_store import Preview
from app.incidents.triage import MAX_INCIDENTS
from app.platform.validation import Moment
from app.web.bodies import ReadBody

# Limit of messages to a channel in ten minutes; further messages go into the next digest.
RateLimit = Annotated[int, Field(ge=1, le=MOST_MESSAGES)]


class ChannelBody(BaseModel):
    """A channel; the fields of `config` depend on the kind of channel."""

    name: ShortText
    kind: ShortText
    config: dict[str, Any]
    audience: Audience = "on_call"
    selector: Selector = Selector()
    enabled: bool = True
    rate_limit: RateLimit = RATE_LIMIT


class ChannelPatchBody(BaseModel):
    """Changes of a channel; absent fields of `config` are kept, null fields are removed."""

    name: ShortText | None = None
    config: dict[str, Any] | None = None
    audience: Audience | None = None
    selector: Selector | None = None
    enabled: bool | None = None
    rate_limit: RateLimit | None = None


class ChannelListBody(BaseModel):
    """All channels, sorted by name."""

    channels: list[ChannelView]


class ResealedBody(BaseModel):
    """Number of channels whose secrets were encrypted with the newest key."""

    channels: int


class DeliveryListBody(BaseModel):
    """Deliveries, sorted from newest to oldest."""

    deliveries: list[DeliveryRow]


class IncidentBody(BaseModel):
    """An incident; `rules` are rule names by id, `facts` are those of its latest session."""

    id: uuid.UUID
    job: str
    fingerprint: str
    cause: str
    where: str
    state: IncidentState
    severity: Severity
    rules: dict[uuid.UUID, str]
    value: float | None
    opened_at: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    escalated_at: datetime | None
    acknowledged_by: str | None
    silenced_until: datetime | None
    silence_reason: str | None
    silenced_by: str | None
    why_resolved: str | None
    resolved_by: str | None
    assignee: str | None
    inside: list[InsideRow] = Field(
        description="Members: incidents of other jobs on the same machine, which send no messages."
    )
    lead: uuid.UUID | None = Field(
        description="The incident on the same machine whose messages cover this one."
    )
    facts: dict[str, Any] | None
    hang: HangFacts | None = Field(description="The hang that the incident is about.")
    notice: NoticeFacts | None = Field(
        description="The notice of the pulse that the incident is about, as of its last transition."
    )


class IncidentDetailBody(IncidentBody):
    """An incident with its history, from oldest to newest event, and its latest 100 comments."""

    events: list[EventRow]
    comments: list[Comment]


class IncidentListBody(BaseModel):
    """Incidents, firing ones first."""

    incidents: list[IncidentBody]


def incident_values(row: IncidentRow) -> dict[str, Any]:
    """Return the fields of an `IncidentBody`."""
    incident = row.incident
    silence = incident.silence
    same: Mapping[str, Any] = {
        name: getattr(incident, name)
        for name in IncidentBody.model_fields
        if hasattr(incident, name) and name not in ("rules", "facts")
    }
    return {
        **same,
        "job": row.job,
        "assignee": row.assignee,
        "inside": row.inside,
        "lead": row.lead,
        "rules": dict(row.rules),
        "silenced_until": silence.until if silence else None,
        "silence_reason": silence.reason if silence else None,
        "silenced_by": silence.by if silence else None,
        "facts": asdict(incident.facts) if incident.facts else None,
    }


def incident_detail_body(view: IncidentView) -> IncidentDetailBody:
    """Return the body of an incident with its history."""
    return IncidentDetailBody(
        **incident_values(view.row),
        events=list(view.events),
        comments=list(view.comments),
    )


Person = Annotated[str, Field(min_length=1, max_length=200, description="The user who acts.")]
Note = Annotated[str, Field(max_length=2000)]

BY: Final = "The user who acts; taken from the sign-in where there is one."


class AckBody(BaseModel):
    """The user who acknowledges or resolves an incident, and a note."""

    by: Person | None = Field(default=None, description=BY)
    note: Note | None = None


class SilenceBody(BaseModel):
    """A silence: its end, its reason if there is one, and the user who sets it."""

    by: Person | None = Field(default=None, description=BY)
    reason: Note = ""
    until: Moment


class SaidBody(BaseModel):
    """A comment on an incident."""

    words: Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]
    by: Person | None = Field(default=None, description=BY)


class AssigneeBody(BaseModel):
    """The new assignee of an incident; null removes the assignee."""

    to: Person | None
    by: Person | None = Field(default=None, description=BY)


class ManyBody(BaseModel):
    """The incidents that an order changes."""

    incidents: Annotated[list[uuid.UUID], Field(min_length=1, max_length=MAX_INCIDENTS)]


class AcknowledgeManyBody(ManyBody, AckBody):
    """Acknowledge several incidents."""

    order: Literal["acknowledge"]


class SilenceManyBody(ManyBody, SilenceBody):
    """Silence several incidents."""

    order: Literal["silence"]


class ResolveManyBody(ManyBody, AckBody):
    """Resolve several incidents."""

    order: Literal["resolve"]


class UnacknowledgeManyBody(ManyBody):
    """Undo the acknowledgements of several incidents."""

    order: Literal["unacknowledge"]
    by: Person | None = Field(default=None, description=BY)


class ReopenManyBody(ManyBody, AckBody):
    """Undo the resolutions of several incidents."""

    order: Literal["reopen"]


class AssignManyBody(ManyBody, AssigneeBody):
    """Set the assignee of several incidents."""

    order: Literal["assign"]


OrderBody = Annotated[
    AcknowledgeManyBody
    | UnacknowledgeManyBody
    | SilenceManyBody
    | ResolveManyBody
    | ReopenManyBody
    | AssignManyBody,
    Field(discriminator="order"),
]


class RuleBody(BaseModel):
    """An alert rule."""

    name: ShortText
    condition: Condition
    selector: Selector = Selector()
    enabled: bool = True
    consecutive: Count = 2
    clear_sessions: Count = 2
    severity: Severity = "warning"
    audience: Audience = "on_call"
    channels: tuple[uuid.UUID, ...] = ()
    escalation: Escalation | None = None

    def rule(self, rule_id: uuid.UUID) -> Rule:
        """Return the rule with an id."""
        return Rule(id=rule_id, **{name: getattr(self, name) for name in type(self).model_fields})


class StoredRuleBody(RuleBody, ReadBody):
    """An alert rule and its id."""

    id: uuid.UUID


class RuleListBody(BaseModel):
    """All alert rules, sorted by name."""

    rules: list[StoredRuleBody]


class OutcomeBody(ReadBody):
    """Cause, place, severity, times and value of an incident."""

    cause: str
    where: str
    severity: Severity
    fired_at: datetime | None
    resolved_at: datetime | None
    value: float | None


class PreviewIncidentBody(OutcomeBody):
    """An incident that a previewed rule would have opened."""

    job: str


class SummarySectionBody(ReadBody):
    """Lines under a heading."""

    heading: str
    lines: tuple[str, ...]


class SummaryBody(ReadBody):
    """The message that a weekly rule would send about the last seven days."""

    title: str
    sections: tuple[SummarySectionBody, ...]
    link: str


class PreviewBody(BaseModel):
    """The incidents that a rule would have opened in the previewed time."""

    since: datetime
    jobs: int
    sessions: int
    complete: bool
    incidents: list[PreviewIncidentBody]
    summary: SummaryBody | None = None


def preview_body(preview: Preview, note: SummaryNote | None = None) -> PreviewBody:
    """Return the body of a preview; `note` is the message of a weekly rule."""
    return PreviewBody(
        since=preview.since,
        jobs=preview.jobs,
        sessions=preview.sessions,
        complete=preview.complete,
        incidents=[
            PreviewIncidentBody(job=item.job, **dict(OutcomeBody.model_validate(item.incident)))
            for item in preview.incidents
        ],
        summary=None if note is None else SummaryBody.model_validate(note),
    )
