"""Alerts: rules, channels, incidents and deliveries."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime, BaseModel, Field

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
from app.services.alert_channels import (
    ChannelView,
    TestResult,
    create_channel,
    delete_channel,
    get_channel,
    list_channels,
    reseal,
    send_example,
    update_channel,
)
from app.services.alert_deliveries import DeliveryRow, list_deliveries, replay_delivery
from app.services.alert_incidents import (
    EventRow,
    IncidentRow,
    IncidentView,
    acknowledge_incident,
    end_incident_silence,
    get_incident,
    list_incidents,
    resolve_incident,
    silence_incident,
)
from app.services.alert_rules import (
    Preview,
    delete_rule,
    get_rule,
    list_rules,
    preview,
    save_rule,
    with_new_id,
)

if TYPE_CHECKING:
    from app.services.container import Container

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
NO_CONTENT: Final = 204
CREATED: Final = 201

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
IncidentState = Literal["pending", "firing", "acknowledged", "silenced", "resolved"]
DeliveryState = Literal["waiting", "sending", "delivered", "failed", "superseded"]
Person = Annotated[str, Field(min_length=1, max_length=200, description="Who says so.")]
Note = Annotated[str, Field(max_length=2000)]


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


class StoredRuleBody(RuleBody):
    """A rule and its id."""

    id: uuid.UUID


class RuleListBody(BaseModel):
    """All rules by name."""

    rules: list[StoredRuleBody]


class ChannelBody(BaseModel):
    """A channel; which fields `config` has depends on its kind."""

    name: ShortText
    kind: ShortText
    config: dict[str, Any]
    audience: Audience = "on_call"
    selector: Selector = Selector()
    enabled: bool = True


class ChannelPatchBody(BaseModel):
    """What of a channel is to change; fields of `config` that are left out stay, null ones go."""

    name: ShortText | None = None
    config: dict[str, Any] | None = None
    audience: Audience | None = None
    selector: Selector | None = None
    enabled: bool | None = None


class StoredChannelBody(BaseModel):
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


class TestResultBody(BaseModel):
    """How an example was received."""

    delivered: bool
    code: str | None
    error: str | None
    status: int | None
    answer: str


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
    facts: dict[str, Any] | None


class EventBody(BaseModel):
    """A transition of an incident."""

    at: datetime
    event: str
    from_state: str | None
    to_state: str
    actor: str | None
    note: str | None
    session: uuid.UUID | None


class IncidentDetailBody(IncidentBody):
    """An incident with its history, the oldest event first."""

    events: list[EventBody]


class IncidentListBody(BaseModel):
    """Incidents, firing ones first."""

    incidents: list[IncidentBody]


class AckBody(BaseModel):
    """Who is at it."""

    by: Person
    note: Note | None = None


class SilenceBody(BaseModel):
    """Until when nobody is to be told, and why."""

    by: Person
    reason: Annotated[str, Field(min_length=1, max_length=2000)]
    until: AwareDatetime


class OutcomeBody(BaseModel):
    """How an incident ended up."""

    cause: str
    where: str
    severity: Severity
    fired_at: datetime | None
    resolved_at: datetime | None
    value: float | None


class PreviewIncidentBody(OutcomeBody):
    """An incident that would have been."""

    job: str


class PreviewBody(BaseModel):
    """What a rule would have done since then."""

    since: datetime
    jobs: int
    sessions: int
    complete: bool
    incidents: list[PreviewIncidentBody]


class DeliveryBody(BaseModel):
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


def router(container: Container) -> APIRouter:
    """Return the routes of alerts."""
    routes = APIRouter(prefix="/api/v1", tags=["alerts"])
    _rules(routes, container)
    _channels(routes, container)
    _incidents(routes, container)
    _deliveries(routes, container)
    return routes


def _rules(routes: APIRouter, container: Container) -> None:
    @routes.get("/alert-rules", summary="Rules by name")
    def get_rules() -> RuleListBody:
        return RuleListBody(rules=[_stored_rule(rule) for rule in list_rules(container)])

    @routes.post("/alert-rules", status_code=CREATED, summary="Add a rule")
    def post_rule(body: RuleBody) -> StoredRuleBody:
        rule = with_new_id(body.rule(uuid.UUID(int=0)))
        return _stored_rule(save_rule(container, rule, new=True))

    @routes.post("/alert-rules/preview", summary="What a rule would have done in 30 days")
    def post_preview(body: RuleBody) -> PreviewBody:
        """Nothing is stored and nobody is told."""
        return _preview(preview(container, body.rule(uuid.UUID(int=0))))

    @routes.get("/alert-rules/{rule}", summary="A rule")
    def get_one_rule(rule: uuid.UUID) -> StoredRuleBody:
        return _stored_rule(get_rule(container, rule))

    @routes.put("/alert-rules/{rule}", summary="Replace a rule")
    def put_rule(rule: uuid.UUID, body: RuleBody) -> StoredRuleBody:
        return _stored_rule(save_rule(container, body.rule(rule), new=False))

    @routes.delete("/alert-rules/{rule}", status_code=NO_CONTENT, summary="Delete a rule")
    def remove_rule(rule: uuid.UUID) -> Response:
        """Incidents that only this rule holds end."""
        delete_rule(container, rule)
        return Response(status_code=NO_CONTENT)


def _channels(routes: APIRouter, container: Container) -> None:
    @routes.get("/channels", summary="Channels by name, and their health")
    def get_channels() -> ChannelListBody:
        return ChannelListBody(channels=[_channel(found) for found in list_channels(container)])

    @routes.post("/channels", status_code=CREATED, summary="Add a channel")
    def post_channel(body: ChannelBody) -> StoredChannelBody:
        return _channel(
            create_channel(
                container,
                name=body.name,
                kind=body.kind,
                config=body.config,
                audience=body.audience,
                selector=body.selector,
                enabled=body.enabled,
            )
        )

    @routes.post("/channels/reseal", summary="Encrypt all secrets with the newest key")
    def post_reseal() -> ResealedBody:
        return ResealedBody(channels=reseal(container))

    @routes.get("/channels/{channel}", summary="A channel and its health")
    def get_one_channel(channel: uuid.UUID) -> StoredChannelBody:
        return _channel(get_channel(container, channel))

    @routes.patch("/channels/{channel}", summary="Change, enable or disable a channel")
    def patch_channel(channel: uuid.UUID, body: ChannelPatchBody) -> StoredChannelBody:
        return _channel(
            update_channel(
                container,
                channel,
                name=body.name,
                config=body.config,
                audience=body.audience,
                selector=body.selector,
                enabled=body.enabled,
            )
        )

    @routes.delete("/channels/{channel}", status_code=NO_CONTENT, summary="Delete a channel")
    def remove_channel(channel: uuid.UUID) -> Response:
        delete_channel(container, channel)
        return Response(status_code=NO_CONTENT)

    @routes.post("/channels/{channel}/test", summary="Send a marked example")
    def post_test(channel: uuid.UUID) -> TestResultBody:
        """Answer with what the receiver said, within the time of one attempt."""
        return _test_result(send_example(container, channel))


def _incidents(routes: APIRouter, container: Container) -> None:
    @routes.get("/incidents", summary="Incidents, firing ones first")
    def get_incidents(
        limit: Limit = DEFAULT_LIMIT,
        state: Annotated[IncidentState | None, Query(description="Only in this state.")] = None,
        job: Annotated[str | None, Query(description="Only of this job.")] = None,
    ) -> IncidentListBody:
        rows = list_incidents(container, limit, state=state, job=job)
        return IncidentListBody(incidents=[IncidentBody(**_incident(row)) for row in rows])

    @routes.get("/incidents/{incident}", summary="An incident and its history")
    def get_one_incident(incident: uuid.UUID) -> IncidentDetailBody:
        return _incident_detail(get_incident(container, incident))

    @routes.post("/incidents/{incident}/ack", summary="Acknowledge: no repeats any more")
    def post_ack(incident: uuid.UUID, body: AckBody) -> IncidentDetailBody:
        return _incident_detail(
            acknowledge_incident(container, incident, by=body.by, note=body.note)
        )

    @routes.post("/incidents/{incident}/silence", summary="Tell nobody until a time")
    def post_silence(incident: uuid.UUID, body: SilenceBody) -> IncidentDetailBody:
        return _incident_detail(
            silence_incident(container, incident, until=body.until, reason=body.reason, by=body.by)
        )

    @routes.delete("/incidents/{incident}/silence", summary="End a silence early")
    def remove_silence(
        incident: uuid.UUID,
        by: Annotated[str, Query(min_length=1, max_length=200, description="Who says so.")],
    ) -> IncidentDetailBody:
        return _incident_detail(end_incident_silence(container, incident, by=by))

    @routes.post("/incidents/{incident}/resolve", summary="Say that it is over")
    def post_resolve(incident: uuid.UUID, body: AckBody) -> IncidentDetailBody:
        """Sessions up to now are settled: the same must hold anew before it fires again."""
        return _incident_detail(resolve_incident(container, incident, by=body.by, note=body.note))


def _deliveries(routes: APIRouter, container: Container) -> None:
    @routes.get("/deliveries", summary="Deliveries, the newest first")
    def get_deliveries(
        limit: Limit = DEFAULT_LIMIT,
        channel: Annotated[uuid.UUID | None, Query(description="Only to this channel.")] = None,
        state: Annotated[DeliveryState | None, Query(description="Only in this state.")] = None,
        job: Annotated[str | None, Query(description="Only of this job.")] = None,
    ) -> DeliveryListBody:
        rows = list_deliveries(container, limit, channel=channel, state=state, job=job)
        return DeliveryListBody(deliveries=[_delivery(row) for row in rows])

    @routes.post(
        "/deliveries/{delivery}/replay", status_code=NO_CONTENT, summary="Send once more, now"
    )
    def post_replay(delivery: uuid.UUID) -> Response:
        """Under the same id, unless a later message of the job was sent already."""
        replay_delivery(container, delivery)
        return Response(status_code=NO_CONTENT)


def _stored_rule(rule: Rule) -> StoredRuleBody:
    return StoredRuleBody(
        **{name: getattr(rule, name) for name in StoredRuleBody.model_fields},
    )


def _channel(view: ChannelView) -> StoredChannelBody:
    return StoredChannelBody(**_fields(view, StoredChannelBody))


def _test_result(result: TestResult) -> TestResultBody:
    return TestResultBody(**_fields(result, TestResultBody))


def _delivery(row: DeliveryRow) -> DeliveryBody:
    return DeliveryBody(**_fields(row, DeliveryBody))


def _event(row: EventRow) -> EventBody:
    return EventBody(**_fields(row, EventBody))


def _fields(value: object, body: type[BaseModel]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in body.model_fields}


def _incident(row: IncidentRow) -> dict[str, Any]:
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
        "rules": dict(row.rules),
        "silenced_until": silence.until if silence else None,
        "silence_reason": silence.reason if silence else None,
        "silenced_by": silence.by if silence else None,
        "facts": asdict(incident.facts) if incident.facts else None,
    }


def _incident_detail(view: IncidentView) -> IncidentDetailBody:
    return IncidentDetailBody(
        **_incident(view.row), events=[_event(event) for event in view.events]
    )


def _preview(found: Preview) -> PreviewBody:
    return PreviewBody(
        since=found.since,
        jobs=found.jobs,
        sessions=found.sessions,
        complete=found.complete,
        incidents=[
            PreviewIncidentBody(job=item.job, **_fields(item.incident, OutcomeBody))
            for item in found.incidents
        ],
    )
