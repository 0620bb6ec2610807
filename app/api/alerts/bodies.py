"""Alerts as the API has them: what is sent and answered, made from what services return."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.alerts.channels.note import Note as SummaryNote
from app.alerts.rules import (
    Audience,
    Condition,
    Count,
    Escalation,
    Rule,
    Selector,
    Severity,
    ShortText,
)
from app.alerts.states import DeliveryState, IncidentState
from app.services.alerts.channels.write import MOST_MESSAGES, RATE_LIMIT
from app.services.alerts.incident_reads import IncidentRow, IncidentView
from app.services.alerts.rules import Preview
from app.services.alerts.triage.orders import MOST

Person = Annotated[str, Field(min_length=1, max_length=200, description="Who says so.")]
Note = Annotated[str, Field(max_length=2000)]


class ReadBody(BaseModel):
    """What is answered with attributes of what a service returns: `model_validate` takes it."""

    model_config = ConfigDict(from_attributes=True)


class RuleBody(BaseModel):
    """A rule."""

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
        """Return the rule under an id."""
        return Rule(id=rule_id, **{name: getattr(self, name) for name in type(self).model_fields})


class StoredRuleBody(RuleBody, ReadBody):
    """A rule and its id."""

    id: uuid.UUID


class RuleListBody(BaseModel):
    """All rules by name."""

    rules: list[StoredRuleBody]


# Messages in ten minutes; what is over it goes in the next digest.
RateLimit = Annotated[int, Field(ge=1, le=MOST_MESSAGES)]


class ChannelBody(BaseModel):
    """A channel; which fields `config` has depends on its kind."""

    name: ShortText
    kind: ShortText
    config: dict[str, Any]
    audience: Audience = "on_call"
    selector: Selector = Selector()
    enabled: bool = True
    rate_limit: RateLimit = RATE_LIMIT


class ChannelPatchBody(BaseModel):
    """What of a channel is to change; fields of `config` that are left out stay, null ones go."""

    name: ShortText | None = None
    config: dict[str, Any] | None = None
    audience: Audience | None = None
    selector: Selector | None = None
    enabled: bool | None = None
    rate_limit: RateLimit | None = None


class StoredChannelBody(ReadBody):
    """A channel; of its secrets only their names, and the host of those that are addresses."""

    id: uuid.UUID
    name: str
    kind: str
    audience: Audience
    selector: Selector
    config: dict[str, Any]
    secrets: dict[str, str | None]
    readable: bool
    enabled: bool
    rate_limit: int
    disabled_reason: str | None
    failures: int
    last_error: str | None
    last_failure_at: datetime | None
    last_success_at: datetime | None
    waiting: int
    created_at: datetime


class ChannelListBody(BaseModel):
    """All channels by name."""

    channels: list[StoredChannelBody]


class ResealedBody(BaseModel):
    """How many channels were encrypted anew."""

    channels: int


class TestResultBody(ReadBody):
    """The receiver's answer to an example."""

    delivered: bool
    code: str | None
    error: str | None
    status: int | None
    answer: str


class InsideBody(ReadBody):
    """An incident that stands inside of another one: the same machine, another job."""

    id: uuid.UUID
    job: str
    cause: str
    state: IncidentState
    slowdown: float | None
    lost: float | None = Field(description="GPU-hours that the job loses each hour.")


class IncidentBody(BaseModel):
    """An incident; `rules` are names by id, `facts` what its latest session said."""

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
    inside: list[InsideBody] = Field(
        description="Other incidents on the same machine that it speaks for."
    )
    lead: uuid.UUID | None = Field(
        description="The incident on the same machine that speaks for it; channels hear of that."
    )
    facts: dict[str, Any] | None


class EventBody(ReadBody):
    """A transition of an incident."""

    at: datetime
    event: str
    from_state: str | None
    to_state: str
    actor: str | None
    note: str | None
    session: uuid.UUID | None


class CommentBody(ReadBody):
    """Something that a person said about an incident."""

    at: datetime
    author: str
    words: str


class IncidentDetailBody(IncidentBody):
    """An incident with its history, the oldest event first, and its latest 100 comments."""

    events: list[EventBody]
    comments: list[CommentBody]


class IncidentListBody(BaseModel):
    """Incidents, firing ones first."""

    incidents: list[IncidentBody]


# Who signed in is believed, who did not may say so.
BY: Final = "Who says so; taken from the sign-in where there is one."


class AckBody(BaseModel):
    """Who is at it."""

    by: Person | None = Field(default=None, description=BY)
    note: Note | None = None


class SilenceBody(BaseModel):
    """A silence: its end, and its reason."""

    by: Person | None = Field(default=None, description=BY)
    reason: Annotated[str, Field(min_length=1, max_length=2000)]
    until: AwareDatetime


class SaidBody(BaseModel):
    """A comment."""

    words: Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]
    by: Person | None = Field(default=None, description=BY)


class AssigneeBody(BaseModel):
    """Whose it is from now on; null: nobody's."""

    to: Person | None
    by: Person | None = Field(default=None, description=BY)


class ManyBody(BaseModel):
    """Incidents that an order is for."""

    incidents: Annotated[list[uuid.UUID], Field(min_length=1, max_length=MOST)]


class AcknowledgeManyBody(ManyBody, AckBody):
    """Acknowledge them."""

    order: Literal["acknowledge"]


class SilenceManyBody(ManyBody, SilenceBody):
    """Silence them."""

    order: Literal["silence"]


class ResolveManyBody(ManyBody, AckBody):
    """Resolve them."""

    order: Literal["resolve"]


class AssignManyBody(ManyBody, AssigneeBody):
    """Say whose they are."""

    order: Literal["assign"]


OrderBody = Annotated[
    AcknowledgeManyBody | SilenceManyBody | ResolveManyBody | AssignManyBody,
    Field(discriminator="order"),
]


class LeftBody(ReadBody):
    """An incident that the order does not apply to."""

    id: uuid.UUID
    state: IncidentState
    why: str


class OrderedBody(ReadBody):
    """What became of an order for many incidents."""

    changed: list[uuid.UUID]
    left: list[LeftBody]


class OutcomeBody(ReadBody):
    """The outcome of an incident."""

    cause: str
    where: str
    severity: Severity
    fired_at: datetime | None
    resolved_at: datetime | None
    value: float | None


class PreviewIncidentBody(OutcomeBody):
    """An incident that would have been."""

    job: str


class SummarySectionBody(ReadBody):
    """Lines under a heading."""

    heading: str
    lines: tuple[str, ...]


class SummaryBody(ReadBody):
    """What a weekly rule would send of the last seven days."""

    title: str
    sections: tuple[SummarySectionBody, ...]
    link: str


class PreviewBody(BaseModel):
    """What a rule would have done since then."""

    since: datetime
    jobs: int
    sessions: int
    complete: bool
    incidents: list[PreviewIncidentBody]
    summary: SummaryBody | None = None


class DeliveryBody(ReadBody):
    """A delivery; `id` is what its receiver was told as well."""

    id: uuid.UUID
    channel_id: uuid.UUID
    channel: str
    job: str
    number: int
    state: DeliveryState
    attempt: int
    created_at: datetime
    next_attempt_at: datetime | None
    finished_at: datetime | None
    title: str | None
    error_code: str | None
    error: str | None
    answer_status: int | None
    answer: str | None


class DeliveryListBody(BaseModel):
    """Deliveries, the newest first."""

    deliveries: list[DeliveryBody]


def incident_values(row: IncidentRow) -> dict[str, Any]:
    """Return what the body of an incident is made of."""
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
        "inside": [InsideBody.model_validate(one) for one in row.inside],
        "lead": row.lead,
        "rules": dict(row.rules),
        "silenced_until": silence.until if silence else None,
        "silence_reason": silence.reason if silence else None,
        "silenced_by": silence.by if silence else None,
        "facts": asdict(incident.facts) if incident.facts else None,
    }


def incident_detail_body(view: IncidentView) -> IncidentDetailBody:
    """Return an incident with its history as the API has it."""
    return IncidentDetailBody(
        **incident_values(view.row),
        events=[EventBody.model_validate(event) for event in view.events],
        comments=[CommentBody.model_validate(comment) for comment in view.comments],
    )


def preview_body(found: Preview, note: SummaryNote | None = None) -> PreviewBody:
    """Return a preview as the API has it; `note` is what a weekly rule would send."""
    return PreviewBody(
        since=found.since,
        jobs=found.jobs,
        sessions=found.sessions,
        complete=found.complete,
        incidents=[
            PreviewIncidentBody(job=item.job, **dict(OutcomeBody.model_validate(item.incident)))
            for item in found.incidents
        ],
        summary=None if note is None else SummaryBody.model_validate(note),
    )
