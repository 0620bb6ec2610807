"""Slack: an incoming webhook, with blocks.

Limits: 50 blocks; 150 characters a header, 3,000 a text of a section, 2,000 a field, 10 fields.
A removed hook answers 404 ``no_service``, an archived channel 410; 429 says how long to wait.

Where a signing secret is set, buttons acknowledge, silence and approve: Slack sends them to
``/api/v1/slack/interactions`` (`app.services.slack`). Elsewhere they are links.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field, TypeAdapter

from app.incidents.channels.kind import (
    JSON_HEADERS,
    ChannelKind,
    Note,
    OutgoingMessage,
    Secret,
    Url,
    encode,
)
from app.incidents.grouping import Status
from app.incidents.message import Alert, Message, PendingAction
from app.incidents.text import MAX_ALERTS, clip, lines_of
from app.platform.outbound import DeliveryError, Outbound, ReceiverAnswer, check

MAX_HEADER: Final = 150
MAX_TEXT: Final = 3000
MAX_FIELD: Final = 2000
MAX_FIELDS: Final = 10
MAX_FALLBACK: Final = 4000
# Actions in a message that have buttons of their own: each takes a block of the 50.
MAX_ASKS: Final = 8
# A button's address may be so long; ours are of our own making.
MAX_URL: Final = 3000

# What the button silences for.
SILENCE_HOURS: Final = 4

# The hook, its channel or its workspace was deleted.
GONE: Final = (
    "no_service",
    "no_service_id",
    "no_team",
    "team_disabled",
    "invalid_token",
    "channel_not_found",
    "channel_is_archived",
)


class Pressed(StrEnum):
    """What a button does, as its ``action_id`` says."""

    ACKNOWLEDGE = "paceline.acknowledge"
    SILENCE = "paceline.silence"
    APPROVE = "paceline.approve"


Member = Annotated[str, Field(pattern=r"^[UW][A-Z0-9]{2,30}$", examples=["U012AB3CD"])]


@dataclass(frozen=True, slots=True)
class SlackConfig:
    """The address of an incoming webhook, which is a secret, and who may press buttons."""

    url: Annotated[Url, Field(examples=["https://hooks.slack.com/services/…"])]
    signing_secret: Annotated[
        Secret | None,
        Field(description="Of the app: with it buttons acknowledge, silence and approve actions."),
    ] = None
    operators: Annotated[
        tuple[Member, ...],
        Field(
            max_length=500,
            description="Member ids of those whose buttons count, with the rights of an operator.",
            examples=["U012AB3CD"],
        ),
    ] = ()

    @property
    def has_buttons(self) -> bool:
        """Return whether buttons do something, for someone."""
        return self.signing_secret is not None and bool(self.operators)


def slack_body(message: Message, *, buttons: bool = False) -> dict[str, Any]:
    """Return a message as blocks, and as text for notifications.

    Parameters
    ----------
    buttons : bool
        Whether buttons do something, rather than lead to the incident.
    """
    channel = message.channel if buttons and not message.test else None
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": clip(message.title, MAX_HEADER)}}
    ]
    asks = MAX_ASKS
    for alert in message.alerts[:MAX_ALERTS]:
        blocks += _blocks(message, alert, channel)
        if channel is not None:
            asked = alert.asks[: max(asks, 0)]
            blocks += [_ask(one, channel) for one in asked]
            asks -= len(asked)
    more = len(message.alerts) - MAX_ALERTS
    if more > 0:
        text = f"And {more} more: <{message.job_url}|{_escaped(message.job)}>"
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": text}]})
    return {
        "text": clip(_escaped(message.title), MAX_FALLBACK),
        "blocks": blocks,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _blocks(message: Message, alert: Alert, channel: UUID | None) -> list[dict[str, Any]]:
    lines = lines_of(alert, message.at)
    section: dict[str, Any] = {
        "type": "section",
        "text": {"type": "mrkdwn", "text": clip(f"*{_escaped(lines.summary)}*", MAX_TEXT)},
    }
    fields = [
        {"type": "mrkdwn", "text": clip(f"*{name}*\n{_escaped(value)}", MAX_FIELD)}
        for name, value in lines.fields[:MAX_FIELDS]
    ]
    if fields:
        section["fields"] = fields
    blocks = [section]
    if lines.evidence:
        text = "\n".join(f"• {_escaped(sentence)}" for sentence in lines.evidence)
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": clip(text, MAX_TEXT)}})
    buttons = [_button("Open", alert.view_url)]
    if channel is not None and alert.status is Status.FIRING:
        buttons += [
            _pressed(Pressed.ACKNOWLEDGE, "Acknowledge", channel, alert.incident),
            _pressed(Pressed.SILENCE, f"Silence {SILENCE_HOURS} h", channel, alert.incident),
            _button("Incident", alert.incident_url),
        ]
    else:
        buttons.append(_button(alert.incident_link, alert.incident_url))
    blocks.append({"type": "actions", "elements": buttons})
    return blocks


def _ask(asked: PendingAction, channel: UUID) -> dict[str, Any]:
    """Return a block that says exactly what is run, with the button that has it run."""
    command = asked.command.replace("`", "'")
    text = f"*{asked.kind} on {_escaped(asked.host)}* waits for a person:\n`{_escaped(command)}`"
    button = _pressed(Pressed.APPROVE, "Approve", channel, asked.action)
    return {
        "type": "section",
        "text": {"type": "mrkdwn", "text": clip(text, MAX_TEXT)},
        "accessory": {**button, "style": "primary"},
    }


def _pressed(what: Pressed, text: str, channel: UUID, about: UUID) -> dict[str, Any]:
    return {
        "type": "button",
        "text": {"type": "plain_text", "text": text},
        "action_id": what.value,
        "value": f"{channel}:{about}",
    }


def _button(text: str, url: str) -> dict[str, Any]:
    return {"type": "button", "text": {"type": "plain_text", "text": text}, "url": url[:MAX_URL]}


def _escaped(text: str) -> str:
    """Keep names from becoming markup: ``<!channel>`` would call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def note_body(note: Note) -> dict[str, Any]:
    """Return a note as blocks, and as text for notifications."""
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": clip(note.title, MAX_HEADER)}}
    ]
    for section in note.sections:
        lines = "\n".join(f"• {_escaped(line)}" for line in section.lines)
        text = clip(f"*{_escaped(section.heading)}*\n{lines}", MAX_TEXT)
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": text}})
    blocks.append({"type": "actions", "elements": [_button(note.link_text, note.link)]})
    return {
        "text": clip(_escaped(note.title), MAX_FALLBACK),
        "blocks": blocks,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def send(config: SlackConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Post the message."""
    body = slack_body(outgoing.message, buttons=config.has_buttons)
    return _post(config, body, outgoing.outbound)


def tell(config: SlackConfig, note: Note, outbound: Outbound) -> ReceiverAnswer:
    """Post a note."""
    return _post(config, note_body(note), outbound)


def _post(config: SlackConfig, body: dict[str, Any], outbound: Outbound) -> ReceiverAnswer:
    response = outbound.post(config.url, encode(body), JSON_HEADERS)
    try:
        return check(response)
    except DeliveryError as error:
        said = response.answer.text
        if error.permanent and said in GONE:
            raise DeliveryError(
                "slack.gone",
                f"Slack answered {response.status} {said}: the webhook no longer exists.",
                disable=True,
                answer=response.answer,
            ) from error
        raise


SLACK: Final = ChannelKind(
    name="slack",
    title="Slack",
    config=TypeAdapter(SlackConfig),
    secrets=frozenset({"url", "signing_secret"}),
    send=send,
    tell=tell,
)
