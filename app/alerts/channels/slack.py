"""Slack: an incoming webhook, with blocks.

Limits: 50 blocks; 150 characters a header, 3,000 a text of a section, 2,000 a field, 10 fields.
A removed hook answers 404 ``no_service``, an archived channel 410; 429 says how long to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.alerts.channels.kind import JSON_HEADERS, ChannelKind, Parcel, Url, encode
from app.alerts.channels.note import Note
from app.alerts.delivery import DeliveryError, ReceiverAnswer
from app.alerts.lines import MAX_ALERTS, clip, lines_of
from app.alerts.message import Alert, Message
from app.alerts.outbound import Outbound, check

MAX_HEADER: Final = 150
MAX_TEXT: Final = 3000
MAX_FIELD: Final = 2000
MAX_FIELDS: Final = 10
MAX_FALLBACK: Final = 4000
# A button's address may be so long; ours are of our own making.
MAX_URL: Final = 3000

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


@dataclass(frozen=True, slots=True)
class SlackConfig:
    """The address of an incoming webhook, which is a secret."""

    url: Annotated[Url, Field(examples=["https://hooks.slack.com/services/…"])]


def slack_body(message: Message) -> dict[str, Any]:
    """Return a message as blocks, and as text for notifications."""
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": clip(message.title, MAX_HEADER)}}
    ]
    for alert in message.alerts[:MAX_ALERTS]:
        blocks += _blocks(message, alert)
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


def _blocks(message: Message, alert: Alert) -> list[dict[str, Any]]:
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
    buttons = [_button("Open", alert.view_url), _button(alert.incident_link, alert.incident_url)]
    blocks.append({"type": "actions", "elements": buttons})
    return blocks


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


def send(config: SlackConfig, parcel: Parcel) -> ReceiverAnswer:
    """Post the message."""
    return _post(config, slack_body(parcel.message), parcel.outbound)


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
    secrets=frozenset({"url"}),
    send=send,
    tell=tell,
)
