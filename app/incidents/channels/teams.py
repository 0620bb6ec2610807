"""Microsoft Teams: a Workflows webhook, with an adaptive card of at most 28 kB.

The service answers 202 once it accepted the card. The picture is embedded in the card where the
text leaves enough of its size.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.incidents.channels.kind import (
    JSON_HEADERS,
    ChannelKind,
    Note,
    OutgoingMessage,
    Url,
    encode,
)
from app.incidents.grouping import Status
from app.incidents.message import Alert, Message
from app.incidents.text import MAX_ALERTS, clip, lines_of
from app.platform.outbound import Outbound, ReceiverAnswer, check

# Below the service's limit of 28 kB for a message, of which the workflow's envelope takes a part.
MAX_BODY_BYTES: Final = 27_000
MAX_LINE: Final = 1000

STYLES: Final = {"critical": "Attention", "warning": "Warning", "info": "Default"}


@dataclass(frozen=True, slots=True)
class TeamsConfig:
    """The address of a workflow, which is secret."""

    url: Annotated[Url, Field(description="The address from the workflow.", examples=["https://…"])]


def teams_body(message: Message, picture: bytes | None = None) -> bytes:
    """Return a message with an adaptive card; the last alerts are left out if it is too large."""
    for shown in range(min(len(message.alerts), MAX_ALERTS), 0, -1):
        pictured = encode(_body(message, shown, picture))
        if len(pictured) <= MAX_BODY_BYTES:
            return pictured
        plain = encode(_body(message, shown, None))
        if len(plain) <= MAX_BODY_BYTES:
            return plain
    return encode(_body(message, 0, None))


def _body(message: Message, shown: int, picture: bytes | None) -> dict[str, Any]:
    elements: list[dict[str, Any]] = [
        {
            "type": "TextBlock",
            "text": clip(_escaped(message.title), MAX_LINE),
            "size": "Large",
            "weight": "Bolder",
            "wrap": True,
            "color": (
                "Good" if message.main.status is Status.RESOLVED else STYLES[message.main.severity]
            ),
        }
    ]
    for alert in message.alerts[:shown]:
        elements += _elements(message, alert)
    left_out = len(message.alerts) - shown
    if left_out:
        elements.append({"type": "TextBlock", "text": f"And {left_out} more.", "wrap": True})
    if picture is not None:
        data = base64.b64encode(picture).decode()
        elements.append(
            {"type": "Image", "url": f"data:image/png;base64,{data}", "altText": "Worker slowdown"}
        )
    main = message.main
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": elements,
        "actions": [
            {"type": "Action.OpenUrl", "title": "Open", "url": main.view_url},
            {"type": "Action.OpenUrl", "title": main.incident_link, "url": main.incident_url},
        ],
        "msteams": {"width": "Full"},
    }
    return {
        "type": "message",
        "attachments": [
            {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        ],
    }


def _elements(message: Message, alert: Alert) -> list[dict[str, Any]]:
    lines = lines_of(alert, message.at)
    elements: list[dict[str, Any]] = [
        {
            "type": "TextBlock",
            "text": clip(_escaped(lines.summary), MAX_LINE),
            "weight": "Bolder",
            "wrap": True,
            "separator": True,
        }
    ]
    if lines.fields:
        facts = [
            {"title": name, "value": clip(_escaped(value), MAX_LINE)}
            for name, value in lines.fields
        ]
        elements.append({"type": "FactSet", "facts": facts})
    elements += [
        {
            "type": "TextBlock",
            "text": clip(_escaped(sentence), MAX_LINE),
            "wrap": True,
            "isSubtle": True,
        }
        for sentence in lines.evidence
    ]
    return elements


def _escaped(text: str) -> str:
    """Escape Markdown in names of jobs and hosts."""
    for sign in ("\\", "*", "_", "[", "]", "`"):
        text = text.replace(sign, f"\\{sign}")
    return text


def send(config: TeamsConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Post the card."""
    body = teams_body(outgoing.message, outgoing.picture)
    return check(outgoing.outbound.post(config.url, body, JSON_HEADERS))


def note_body(note: Note) -> bytes:
    """Return a note as an adaptive card; the last sections are left out if it is too large."""
    for shown in range(len(note.sections), -1, -1):
        elements: list[dict[str, Any]] = [_line(note.title, weight="Bolder", size="Large")]
        for section in note.sections[:shown]:
            elements.append(_line(section.heading, weight="Bolder"))
            elements += [_line(line) for line in section.lines]
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": elements,
            "actions": [{"type": "Action.OpenUrl", "title": note.link_text, "url": note.link}],
            "msteams": {"width": "Full"},
        }
        kind = "application/vnd.microsoft.card.adaptive"
        body = encode({"type": "message", "attachments": [{"contentType": kind, "content": card}]})
        if len(body) <= MAX_BODY_BYTES:
            break
    return body


def _line(text: str, **style: str) -> dict[str, Any]:
    return {"type": "TextBlock", "text": clip(_escaped(text), MAX_LINE), "wrap": True, **style}


def tell(config: TeamsConfig, note: Note, outbound: Outbound) -> ReceiverAnswer:
    """Post a note."""
    return check(outbound.post(config.url, note_body(note), JSON_HEADERS))


TEAMS: Final = ChannelKind(
    name="teams",
    title="Microsoft Teams",
    config=TypeAdapter(TeamsConfig),
    secrets=frozenset({"url"}),
    send=send,
    tell=tell,
    pictures=True,
)
