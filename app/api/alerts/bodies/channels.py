"""Channels and their deliveries as the API has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from app.alerts.rules import Audience, Selector, ShortText
from app.services.alerts.channels.reads import ChannelView
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


class ChannelListBody(BaseModel):
    """All channels by name."""

    channels: list[ChannelView]


class ResealedBody(BaseModel):
    """How many channels were encrypted anew."""

    channels: int


class DeliveryListBody(BaseModel):
    """Deliveries, the newest first."""

    deliveries: list[DeliveryRow]
