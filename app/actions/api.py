"""Routes of actions on machines: policies, the kill switch, actions, and event schemas."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from app.access.guard import RequestContainer, api_router
from app.actions.kinds.event import EventType, schema_of
from app.actions.listed import ActionRow, get_action, list_actions
from app.actions.models import ActionMode, ActionState
from app.actions.orders import allow, decline, put_back
from app.actions.policies import (
    PolicyView,
    SwitchView,
    get_switch,
    list_policies,
    set_policy,
    set_switch,
)

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]


class ActionListBody(BaseModel):
    """Actions, sorted from newest to oldest."""

    actions: list[ActionRow]


class PolicyListBody(BaseModel):
    """The policies of all kinds of actions."""

    policies: list[PolicyView]


class PolicyBody(BaseModel, extra="forbid"):
    """Changes of a policy; absent fields of `config` are kept, null fields are removed."""

    kind: Annotated[str, Field(min_length=1, max_length=100, examples=["event"])]
    mode: ActionMode | None = None
    config: Annotated[
        dict[str, Any] | None, Field(description="Its fields depend on the kind.")
    ] = None


class SwitchBody(BaseModel, extra="forbid"):
    """Whether all actions of the project are stopped."""

    stopped: bool
    reason: Annotated[str | None, Field(max_length=300)] = None


def router() -> APIRouter:
    """Return the routes of actions."""
    routes = api_router("actions", "/api/v1")
    _actions(routes)
    _policies(routes)

    @routes.get("/event-schemas", summary="The JSON Schema of a type of event")
    def get_schema(
        _container: RequestContainer,
        type: EventType = EventType.CONFIRMED,  # noqa: A002 - the address's word
    ) -> dict[str, Any]:
        return schema_of(type)

    return routes


def _actions(routes: APIRouter) -> None:
    @routes.get("/actions", summary="Actions on machines, the newest first")
    def get_actions(
        container: RequestContainer,
        limit: Limit = DEFAULT_LIMIT,
        state: Annotated[ActionState | None, Query(description="Only in this state.")] = None,
        host: Annotated[
            str | None, Query(max_length=300, description="Only on this machine.")
        ] = None,
        incident: Annotated[uuid.UUID | None, Query(description="Only of this incident.")] = None,
    ) -> ActionListBody:
        with container.reading() as tx:
            actions = list_actions(tx, limit, state=state, host=host, incident=incident)
        return ActionListBody(actions=actions)

    @routes.get("/actions/{machine_action}", summary="An action")
    def get_one_action(container: RequestContainer, machine_action: uuid.UUID) -> ActionRow:
        with container.reading() as tx:
            return get_action(tx, machine_action)

    @routes.post("/actions/{machine_action}/allow", summary="Allow an action")
    def post_allow(container: RequestContainer, machine_action: uuid.UUID) -> ActionRow:
        """Allow an action that waits for approval, that a limit holds, or that failed."""
        return allow(container, machine_action)

    @routes.post("/actions/{machine_action}/decline", summary="Decline an action")
    def post_decline(container: RequestContainer, machine_action: uuid.UUID) -> ActionRow:
        return decline(container, machine_action)

    @routes.post("/actions/{machine_action}/release", summary="Undo an action")
    def post_release(container: RequestContainer, machine_action: uuid.UUID) -> ActionRow:
        """Release the machine; for a day it is not taken out again without a user's approval."""
        return put_back(container, machine_action)


def _policies(routes: APIRouter) -> None:
    @routes.get("/action-policies", summary="Policies of all kinds of actions")
    def get_policies(container: RequestContainer) -> PolicyListBody:
        with container.reading() as tx:
            return PolicyListBody(policies=list_policies(tx))

    @routes.put("/action-policies", summary="Change the policy of a kind of action")
    def put_policy(container: RequestContainer, body: PolicyBody) -> PolicyView:
        """Set a policy; a kind configured for the first time, without a mode, is in a dry run."""
        return set_policy(container, body.kind, mode=body.mode, config=body.config)

    @routes.get("/action-switch", summary="The kill switch of actions")
    def get_the_switch(container: RequestContainer) -> SwitchView:
        with container.reading() as tx:
            return get_switch(container.settings, tx)

    @routes.put("/action-switch", summary="Stop or resume all actions")
    def put_switch(container: RequestContainer, body: SwitchBody) -> SwitchView:
        return set_switch(container, stopped=body.stopped, reason=body.reason)
