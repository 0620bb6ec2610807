"""What a kind of channel is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.alerts.channels.note import Note
from app.alerts.delivery import ReceiverAnswer
from app.alerts.grouping import Manner
from app.alerts.message import Message
from app.alerts.outbound import Outbound

Url = Annotated[str, Field(min_length=8, max_length=2000, pattern=r"^https?://\S+$")]
Secret = Annotated[str, Field(min_length=1, max_length=2000)]


PLAIN: Final = Manner()


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is to be sent, and the way out."""

    message: Message
    # The heatmap of the leading alert as PNG, for channels that show pictures.
    picture: bytes | None
    outbound: Outbound


@dataclass(frozen=True, slots=True)
class ChannelKind:
    """A kind of channel."""

    name: str
    title: str  # as people call it
    # Of a frozen dataclass; forms are made from it, with descriptions and examples of its fields.
    config: TypeAdapter[Any]
    secrets: frozenset[str]  # its fields that are never shown again
    # Takes a configuration and a parcel, returns the receiver's good answer or raises
    # `DeliveryError`.
    send: Callable[[Any, Parcel], ReceiverAnswer]
    manner: Manner = PLAIN
    pictures: bool = False  # whether it can show one
    # Sends a note in the same way; None where a note has no place, as with pagers.
    tell: Callable[[Any, Note, Outbound], ReceiverAnswer] | None = None
    # Whether it takes every incident of a digest, as programs do; people get a note of one screen.
    whole_digests: bool = False


JSON_HEADERS: Mapping[str, str] = {"Content-Type": "application/json"}


def encode(document: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Return a document as compact JSON."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
