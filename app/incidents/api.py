"""Routes of the API for alert rules, channels, deliveries and incidents."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Response
from pydantic import StringConstraints

from app.access.guard import RequestContainer, api_router
from app.actions.policies import reseal_policies
from app.incidents.api_bodies import (
    BY,
    AckBody,
    AcknowledgeManyBody,
    AssigneeBody,
    AssignManyBody,
    ChannelBody,
    ChannelListBody,
    ChannelPatchBody,
    DeliveryListBody,
    IncidentBody,
    IncidentDetailBody,
    IncidentListBody,
    OrderBody,
    PreviewBody,
    ReopenManyBody,
    ResealedBody,
    ResolveManyBody,
    RuleBody,
    RuleListBody,
    SaidBody,
    SilenceBody,
    SilenceManyBody,
    StoredRuleBody,
    UnacknowledgeManyBody,
    incident_detail_body,
    incident_values,
    preview_body,
)
from app.incidents.channel_reads import ChannelView, get_channel, list_channels
from app.incidents.channel_settings import TestResult, send_example
from app.incidents.channel_writes import create_channel, delete_channel, reseal, update_channel
from app.incidents.delivery_reads import list_deliveries, replay_delivery
from app.incidents.evaluate import (
    acknowledge_incident,
    acknowledging,
    end_incident_silence,
    reopen_incident,
    reopening,
    resolve_incident,
    resolving,
    silence_incident,
    silencing,
    unacknowledge_incident,
    unacknowledging,
)
from app.incidents.machines import members_ended_with
from app.incidents.models.rules import Severity
from app.incidents.models.tables import DeliveryState, IncidentState
from app.incidents.reads import (
    INCIDENTS,
    MAX_CHARACTERS,
    IncidentFilter,
    get_incident,
    list_incidents,
)
from app.incidents.rule_store import delete_rule, get_rule, preview, save_rule, with_new_id
from app.incidents.store import load_rules
from app.incidents.triage import (
    OrderOutcome,
    assign_incidents,
    comment_on,
    order_many,
)
from app.jobs.weekly import preview_note
from app.platform.container import Container
from app.platform.validation import Moment

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
MAX_OFFSET: Final = 1_000_000
CREATED: Final = 201

# PostgreSQL cannot store NUL characters in text.
Word = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS, pattern=r"^[^\x00]*$")]
By = Annotated[str | None, Query(min_length=1, max_length=200, description=BY)]
Sort = Annotated[
    str,
    Query(
        pattern=f"^-?({'|'.join(INCIDENTS.sorts)})$",
        description="A column; a minus sign in front reverses the order.",
    ),
]


class Filters:
    """Parameters that filter incidents, other than state and job."""

    def __init__(  # noqa: PLR0913 - one for each parameter
        self,
        *,
        q: Annotated[
            Word, Query(description="Words, each of which is in job, cause, host, label…")
        ] = "",
        severity: Severity | None = None,
        cause: Word = "",
        host: Annotated[Word, Query(description="Name of a host that the incident blames.")] = "",
        owner: Annotated[Word, Query(description="The job's label of this name.")] = "",
        project: Annotated[Word, Query(description="The job's label of this name.")] = "",
        label: Annotated[Word, Query(description="A label of the job: name=value, or name.")] = "",
        assignee: Annotated[Word, Query(description="The assignee; -: not assigned.")] = "",
        begin: Annotated[
            Moment | None,
            Query(alias="from", description="Began since; with state=resolved ended since."),
        ] = None,
        end: Annotated[
            Moment | None,
            Query(alias="to", description="Began until; with state=resolved ended until."),
        ] = None,
    ) -> None:
        self.filtered = IncidentFilter(
            words=q,
            severity=severity or "",
            cause=cause,
            host=host,
            owner=owner,
            project=project,
            label=label,
            assignee=assignee,
            since=begin,
            until=end,
        )


def _reads(routes: APIRouter) -> None:
    @routes.get("/incidents", summary="Incidents, firing ones first")
    def get_incidents(  # noqa: PLR0913 - one for each parameter
        container: RequestContainer,
        *,
        filters: Annotated[Filters, Depends()],
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
        offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
        state: Annotated[IncidentState | None, Query(description="Only in this state.")] = None,
        job: Annotated[str | None, Query(description="Only of this job.")] = None,
        sort: Sort | None = None,
    ) -> IncidentListBody:
        with container.reading() as tx:
            rows = list_incidents(
                tx,
                limit,
                state=state,
                job=job,
                filtered=replace(filters.filtered, state=state),
                sort=sort or "",
                offset=offset,
            )
        return IncidentListBody(incidents=[IncidentBody(**incident_values(row)) for row in rows])

    @routes.get("/incidents/{incident}", summary="An incident, its history and comments")
    def get_one_incident(container: RequestContainer, incident: uuid.UUID) -> IncidentDetailBody:
        with container.reading() as tx:
            view = get_incident(tx, incident)
        return incident_detail_body(view)


def _orders(routes: APIRouter) -> None:
    @routes.post("/incidents/orders", summary="Apply an order to several incidents")
    def post_order(container: RequestContainer, body: OrderBody) -> OrderOutcome:
        """Return the changed incidents, and those that the order does not fit.

        If an id is unknown, no incident is changed.
        """
        return _order_many(container, body)

    @routes.post("/incidents/{incident}/ack", summary="Acknowledge: no more repeats")
    def post_ack(
        container: RequestContainer, incident: uuid.UUID, body: AckBody
    ) -> IncidentDetailBody:
        return incident_detail_body(
            acknowledge_incident(container, incident, by=body.by, note=body.note)
        )

    @routes.delete("/incidents/{incident}/ack", summary="Undo the acknowledgement")
    def remove_ack(
        container: RequestContainer, incident: uuid.UUID, by: By = None
    ) -> IncidentDetailBody:
        """Undo the acknowledgement: the incident fires again and its messages are repeated."""
        return incident_detail_body(unacknowledge_incident(container, incident, by=by))

    @routes.post("/incidents/{incident}/silence", summary="Send no messages until a time")
    def post_silence(
        container: RequestContainer, incident: uuid.UUID, body: SilenceBody
    ) -> IncidentDetailBody:
        return incident_detail_body(
            silence_incident(container, incident, until=body.until, reason=body.reason, by=body.by)
        )

    @routes.delete("/incidents/{incident}/silence", summary="End a silence early")
    def remove_silence(
        container: RequestContainer,
        incident: uuid.UUID,
        by: By = None,
    ) -> IncidentDetailBody:
        return incident_detail_body(end_incident_silence(container, incident, by=by))

    @routes.post("/incidents/{incident}/resolve", summary="Resolve an incident")
    def post_resolve(
        container: RequestContainer, incident: uuid.UUID, body: AckBody
    ) -> IncidentDetailBody:
        """Only sessions received after the resolution can make the incident fire again."""
        return incident_detail_body(
            resolve_incident(container, incident, by=body.by, note=body.note)
        )

    @routes.post("/incidents/{incident}/reopen", summary="Reopen an incident")
    def post_reopen(
        container: RequestContainer, incident: uuid.UUID, body: AckBody
    ) -> IncidentDetailBody:
        """Reopen an incident that a user resolved; sessions before the resolution count again."""
        return incident_detail_body(
            reopen_incident(container, incident, by=body.by, note=body.note)
        )


def _order_many(container: Container, body: OrderBody) -> OrderOutcome:
    ids, who = set(body.incidents), container.principal.called(body.by)
    match body:
        case AssignManyBody():
            return assign_incidents(container, ids, to=body.to, by=body.by)
        case SilenceManyBody():
            order = silencing(who, body.until, body.reason)
            return order_many(container, ids, order, who, body.reason)
        case AcknowledgeManyBody():
            return order_many(container, ids, acknowledging(who), who, body.note)
        case UnacknowledgeManyBody():
            return order_many(container, ids, unacknowledging, who)
        case ReopenManyBody():
            return order_many(container, ids, reopening, who, body.note, inside=members_ended_with)
        case ResolveManyBody():
            return order_many(container, ids, resolving(who, body.note), who, body.note)


def _notes(routes: APIRouter) -> None:
    @routes.post("/incidents/{incident}/comments", status_code=CREATED, summary="Add a comment")
    def post_comment(
        container: RequestContainer, incident: uuid.UUID, body: SaidBody
    ) -> IncidentDetailBody:
        return incident_detail_body(comment_on(container, incident, words=body.words, by=body.by))

    @routes.put("/incidents/{incident}/assignee", summary="Set the assignee")
    def put_assignee(
        container: RequestContainer, incident: uuid.UUID, body: AssigneeBody
    ) -> IncidentDetailBody:
        assign_incidents(container, [incident], to=body.to, by=body.by)
        with container.reading() as tx:
            return incident_detail_body(get_incident(tx, incident))


NO_CONTENT: Final = 204

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]


def router() -> APIRouter:
    """Return the routes of alerts."""
    routes = api_router("alerts", "/api/v1")
    _rules(routes)
    _channels(routes)
    _reads(routes)
    _orders(routes)
    _notes(routes)
    _deliveries(routes)
    return routes


def _rules(routes: APIRouter) -> None:
    @routes.get("/alert-rules", summary="Rules by name")
    def get_rules(container: RequestContainer) -> RuleListBody:
        with container.reading() as tx:
            rules = load_rules(tx)
        return RuleListBody(rules=[StoredRuleBody.model_validate(rule) for rule in rules])

    @routes.post("/alert-rules", status_code=CREATED, summary="Add a rule")
    def post_rule(container: RequestContainer, body: RuleBody) -> StoredRuleBody:
        rule = with_new_id(body.rule(uuid.UUID(int=0)))
        return StoredRuleBody.model_validate(save_rule(container, rule, new=True))

    @routes.post("/alert-rules/preview", summary="Preview a rule on the last 30 days")
    def post_preview(container: RequestContainer, body: RuleBody) -> PreviewBody:
        """Return incidents that the rule would have opened; store nothing and send no message."""
        rule = body.rule(uuid.UUID(int=0))
        previewed = preview(container, rule)
        if rule.evaluated:
            return preview_body(previewed)
        with container.reading() as tx:
            note = preview_note(tx, container.settings)
        return preview_body(previewed, note)

    @routes.get("/alert-rules/{rule}", summary="A rule")
    def get_one_rule(container: RequestContainer, rule: uuid.UUID) -> StoredRuleBody:
        with container.reading() as tx:
            stored = get_rule(tx, rule)
        return StoredRuleBody.model_validate(stored)

    @routes.put("/alert-rules/{rule}", summary="Replace a rule")
    def put_rule(container: RequestContainer, rule: uuid.UUID, body: RuleBody) -> StoredRuleBody:
        return StoredRuleBody.model_validate(save_rule(container, body.rule(rule), new=False))

    @routes.delete("/alert-rules/{rule}", status_code=NO_CONTENT, summary="Delete a rule")
    def remove_rule(container: RequestContainer, rule: uuid.UUID) -> Response:
        """Delete a rule; incidents that no other rule holds open end."""
        delete_rule(container, rule)
        return Response(status_code=NO_CONTENT)


def _channels(routes: APIRouter) -> None:
    @routes.get("/channels", summary="Channels by name, and their health")
    def get_channels(container: RequestContainer) -> ChannelListBody:
        with container.reading() as tx:
            channels = list_channels(tx)
        return ChannelListBody(channels=channels)

    @routes.post("/channels", status_code=CREATED, summary="Add a channel")
    def post_channel(container: RequestContainer, body: ChannelBody) -> ChannelView:
        return create_channel(
            container,
            name=body.name,
            kind=body.kind,
            config=body.config,
            audience=body.audience,
            selector=body.selector,
            enabled=body.enabled,
            rate_limit=body.rate_limit,
        )

    @routes.post("/channels/reseal", summary="Encrypt all secrets with the newest key")
    def post_reseal(container: RequestContainer) -> ResealedBody:
        channels = reseal(container.everywhere())
        reseal_policies(container.everywhere())
        return ResealedBody(channels=channels)

    @routes.get("/channels/{channel}", summary="A channel and its health")
    def get_one_channel(container: RequestContainer, channel: uuid.UUID) -> ChannelView:
        with container.reading() as tx:
            return get_channel(tx, channel)

    @routes.patch("/channels/{channel}", summary="Change, enable or disable a channel")
    def patch_channel(
        container: RequestContainer, channel: uuid.UUID, body: ChannelPatchBody
    ) -> ChannelView:
        return update_channel(
            container,
            channel,
            name=body.name,
            config=body.config,
            audience=body.audience,
            selector=body.selector,
            enabled=body.enabled,
            rate_limit=body.rate_limit,
        )

    @routes.delete("/channels/{channel}", status_code=NO_CONTENT, summary="Delete a channel")
    def remove_channel(container: RequestContainer, channel: uuid.UUID) -> Response:
        delete_channel(container, channel)
        return Response(status_code=NO_CONTENT)

    @routes.post("/channels/{channel}/test", summary="Send a marked example")
    def post_test(container: RequestContainer, channel: uuid.UUID) -> TestResult:
        """Send a test message; return the receiver's answer within the time limit of an attempt."""
        return send_example(container, channel)


def _deliveries(routes: APIRouter) -> None:
    @routes.get("/deliveries", summary="Deliveries, the newest first")
    def get_deliveries(
        container: RequestContainer,
        limit: Limit = DEFAULT_LIMIT,
        channel: Annotated[uuid.UUID | None, Query(description="Only to this channel.")] = None,
        state: Annotated[DeliveryState | None, Query(description="Only in this state.")] = None,
        job: Annotated[str | None, Query(description="Only of this job.")] = None,
    ) -> DeliveryListBody:
        with container.reading() as tx:
            rows = list_deliveries(tx, limit, channel=channel, state=state, job=job)
        return DeliveryListBody(deliveries=rows)

    @routes.post(
        "/deliveries/{delivery}/replay", status_code=NO_CONTENT, summary="Send a delivery again now"
    )
    def post_replay(container: RequestContainer, delivery: uuid.UUID) -> Response:
        """Send the message under its id, unless a later message of the job was sent."""
        replay_delivery(container, delivery)
        return Response(status_code=NO_CONTENT)
