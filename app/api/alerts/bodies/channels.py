"""Channels and their deliveries as the API has them."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from app.alerts.rules import Audience, Selector, ShortText
from app.api.frame.answers import ReadBody
from app.services.alerts.channels.write import MOST_MESSAGES, RATE_LIMIT
from app.services.alerts.deliveries.reads import DeliveryRow

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


class DeliveryListBody(BaseModel):
    """Deliveries, the newest first."""

    deliveries: list[DeliveryRow]
