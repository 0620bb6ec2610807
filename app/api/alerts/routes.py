"""Alerts: rules, channels and deliveries, and incidents."""

from __future__ import annotations

import uuid
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from app.alerts.states import DeliveryState
from app.api.alerts.bodies.channels import (
    ChannelBody,
    ChannelListBody,
    ChannelPatchBody,
    DeliveryListBody,
    ResealedBody,
)
from app.api.alerts.bodies.rules import (
    PreviewBody,
    RuleBody,
    RuleListBody,
    StoredRuleBody,
    preview_body,
)
from app.api.alerts.incidents import add_incidents
from app.api.frame.routers import api_router
from app.auth.here import Here
from app.services.actions.policies import reseal_policies
from app.services.alerts.channels.example import TestResult, send_example
from app.services.alerts.channels.reads import ChannelView, get_channel, list_channels
from app.services.alerts.channels.write import (
    create_channel,
    delete_channel,
    reseal,
    update_channel,
)
from app.services.alerts.deliveries.reads import list_deliveries, replay_delivery
from app.services.alerts.rules import delete_rule, get_rule, preview, save_rule, with_new_id
from app.services.alerts.store import load_rules
from app.services.weekly.deliver import preview_note

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
NO_CONTENT: Final = 204
CREATED: Final = 201

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]


def router() -> APIRouter:
    """Return the routes of alerts."""
    routes = api_router("alerts", "/api/v1")
    _rules(routes)
    _channels(routes)
    add_incidents(routes)
    _deliveries(routes)
    return routes


def _rules(routes: APIRouter) -> None:
    @routes.get("/alert-rules", summary="Rules by name")
    def get_rules(container: Here) -> RuleListBody:
        with container.reading() as tx:
            rules = load_rules(tx)
        return RuleListBody(rules=[StoredRuleBody.model_validate(rule) for rule in rules])

    @routes.post("/alert-rules", status_code=CREATED, summary="Add a rule")
    def post_rule(container: Here, body: RuleBody) -> StoredRuleBody:
        rule = with_new_id(body.rule(uuid.UUID(int=0)))
        return StoredRuleBody.model_validate(save_rule(container, rule, new=True))

    @routes.post("/alert-rules/preview", summary="What a rule would have done in 30 days")
    def post_preview(container: Here, body: RuleBody) -> PreviewBody:
        """Nothing is stored and no message is sent."""
        rule = body.rule(uuid.UUID(int=0))
        found = preview(container, rule)
        if rule.evaluated:
            return preview_body(found)
        with container.reading() as tx:
            note = preview_note(tx, container.settings)
        return preview_body(found, note)

    @routes.get("/alert-rules/{rule}", summary="A rule")
    def get_one_rule(container: Here, rule: uuid.UUID) -> StoredRuleBody:
        with container.reading() as tx:
            found = get_rule(tx, rule)
        return StoredRuleBody.model_validate(found)

    @routes.put("/alert-rules/{rule}", summary="Replace a rule")
    def put_rule(container: Here, rule: uuid.UUID, body: RuleBody) -> StoredRuleBody:
        return StoredRuleBody.model_validate(save_rule(container, body.rule(rule), new=False))

    @routes.delete("/alert-rules/{rule}", status_code=NO_CONTENT, summary="Delete a rule")
    def remove_rule(container: Here, rule: uuid.UUID) -> Response:
        """Incidents that only this rule holds end."""
        delete_rule(container, rule)
        return Response(status_code=NO_CONTENT)


def _channels(routes: APIRouter) -> None:
    @routes.get("/channels", summary="Channels by name, and their health")
    def get_channels(container: Here) -> ChannelListBody:
        with container.reading() as tx:
            found = list_channels(tx)
        return ChannelListBody(channels=found)

    @routes.post("/channels", status_code=CREATED, summary="Add a channel")
    def post_channel(container: Here, body: ChannelBody) -> ChannelView:
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
    def post_reseal(container: Here) -> ResealedBody:
        channels = reseal(container.everywhere())
        reseal_policies(container.everywhere())
        return ResealedBody(channels=channels)

    @routes.get("/channels/{channel}", summary="A channel and its health")
    def get_one_channel(container: Here, channel: uuid.UUID) -> ChannelView:
        with container.reading() as tx:
            return get_channel(tx, channel)

    @routes.patch("/channels/{channel}", summary="Change, enable or disable a channel")
    def patch_channel(container: Here, channel: uuid.UUID, body: ChannelPatchBody) -> ChannelView:
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
    def remove_channel(container: Here, channel: uuid.UUID) -> Response:
        delete_channel(container, channel)
        return Response(status_code=NO_CONTENT)

    @routes.post("/channels/{channel}/test", summary="Send a marked example")
    def post_test(container: Here, channel: uuid.UUID) -> TestResult:
        """Answer with what the receiver said, within the time of one attempt."""
        return send_example(container, channel)


def _deliveries(routes: APIRouter) -> None:
    @routes.get("/deliveries", summary="Deliveries, the newest first")
    def get_deliveries(
        container: Here,
        limit: Limit = DEFAULT_LIMIT,
        channel: Annotated[uuid.UUID | None, Query(description="Only to this channel.")] = None,
        state: Annotated[DeliveryState | None, Query(description="Only in this state.")] = None,
        job: Annotated[str | None, Query(description="Only of this job.")] = None,
    ) -> DeliveryListBody:
        with container.reading() as tx:
            rows = list_deliveries(tx, limit, channel=channel, state=state, job=job)
        return DeliveryListBody(deliveries=rows)

    @routes.post(
        "/deliveries/{delivery}/replay", status_code=NO_CONTENT, summary="Send once more, now"
    )
    def post_replay(container: Here, delivery: uuid.UUID) -> Response:
        """Under the same id, unless a later message of the job was sent already."""
        replay_delivery(container, delivery)
        return Response(status_code=NO_CONTENT)
