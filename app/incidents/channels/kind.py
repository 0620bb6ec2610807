"""The interface of a kind of channel, and notes: messages without incidents."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field, TypeAdapter

from app.incidents.grouping import DeliveryStyle
from app.incidents.message import Message
from app.platform.outbound import Outbound, ReceiverAnswer, Response


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a heading."""

    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A message without incidents to one channel, such as the weekly summary."""

    id: UUID
    """Id of the note, the same in every attempt to send it."""
    at: datetime
    """Time at which the note was made."""
    title: str
    sections: tuple[Section, ...]
    link: str
    """Address of the page that shows the note's subject."""
    receiver: str
    """Name of the channel that receives the note."""
    link_text: str = "Open the report"


NOTE: Final = TypeAdapter(Note)


def note_text(note: Note) -> str:
    """Return a note as plain text."""
    parts = [note.title, ""]
    for section in note.sections:
        parts += [section.heading, *(f"  {line}" for line in section.lines), ""]
    return "\n".join([*parts, f"Open: {note.link}"]) + "\n"


def note_html(note: Note) -> str:
    """Return a note as a complete HTML page, for mail."""
    parts = [f"<h2>{html.escape(note.title)}</h2>"]
    for section in note.sections:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in section.lines)
        parts.append(f"<h3>{html.escape(section.heading)}</h3>\n<ul>{lines}</ul>")
    parts.append(f'<p><a href="{html.escape(note.link)}">{html.escape(note.link_text)}</a></p>')
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><body>\n{body}\n</body></html>\n'


Url = Annotated[str, Field(min_length=8, max_length=2000, pattern=r"^https?://\S+$")]
Secret = Annotated[str, Field(min_length=1, max_length=2000)]
# A secret that is sent in a header of HTTP.
HeaderValue = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[!-~]([ -~]*[!-~])?$")]


PLAIN: Final = DeliveryStyle()


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to be sent to a channel, with the connection to send it through."""

    message: Message
    # PNG heatmap of the message's first alert, for channels that show pictures
    picture: bytes | None
    outbound: Outbound


@dataclass(frozen=True, slots=True)
class ChannelKind:
    """A kind of channel."""

    name: str
    title: str  # name that users see
    # Type adapter of a frozen dataclass; forms show the descriptions and examples of its fields.
    config: TypeAdapter[Any]
    secrets: frozenset[str]  # names of secret fields, which no page shows again
    # Sends a message with a configuration; returns the receiver's answer or raises `DeliveryError`.
    send: Callable[[Any, OutgoingMessage], ReceiverAnswer]
    # Names of public fields whose change keeps the stored secrets. A change of any other public
    # field, and of an address that is itself secret, has to contain all secrets again.
    keep_secrets: frozenset[str] = frozenset()
    style: DeliveryStyle = PLAIN
    pictures: bool = False  # whether messages contain the heatmap
    # Sends a note like `send` sends a message; None for kinds without notes, such as pagers.
    tell: Callable[[Any, Note, Outbound], ReceiverAnswer] | None = None
    # Whether a digest contains every incident, for receivers that are programs; people get a note
    # that fits on one screen.
    whole_digests: bool = False


JSON_HEADERS: Mapping[str, str] = {"Content-Type": "application/json"}


def answer_object(response: Response) -> dict[str, Any]:
    """Return the JSON object in an answer; empty if the answer has none."""
    try:
        document = json.loads(response.body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def encode(document: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Return a document as compact JSON."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
