"""Messages of Slack: the text and blocks of an incoming webhook, and its buttons.

Limits: 50 blocks; 150 characters a header, 3,000 a text of a section, 2,000 a field, 10 fields.
A removed hook answers 404 ``no_service``, an archived channel 410; 429 says how long to wait.

With a signing secret, buttons acknowledge, silence and approve: Slack posts them to
``/api/v1/slack/interactions`` (`app.actions.slack`). Without one they are links.
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
# Maximum of actions with an Approve button in a message, as each takes one of the 50 blocks.
MAX_APPROVALS: Final = 8
# Slack's length limit of the address behind a button.
MAX_URL: Final = 3000

# Duration in hours of the silence that the Silence button sets.
SILENCE_HOURS: Final = 4

# Slack's answers if the hook, its channel or its workspace was deleted.
GONE: Final = (
    "no_service",
    "no_service_id",
    "no_team",
    "team_disabled",
    "invalid_token",
    "channel_not_found",
    "channel_is_archived",
)


class Button(StrEnum):
    """The ``action_id`` of a button, which determines its effect."""

    ACKNOWLEDGE = "paceline.acknowledge"
    SILENCE = "paceline.silence"
    APPROVE = "paceline.approve"


Member = Annotated[str, Field(pattern=r"^[UW][A-Z0-9]{2,30}$", examples=["U012AB3CD"])]


@dataclass(frozen=True, slots=True)
class SlackConfig:
    """The secret address of an incoming webhook, and the members who may press buttons."""

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
        """Return whether buttons work: a signing secret and at least one operator are set."""
        return self.signing_secret is not None and bool(self.operators)


def slack_body(message: Message, *, buttons: bool = False) -> dict[str, Any]:
    """Return a message as blocks, and as plain text for notifications.

    Parameters
    ----------
    buttons : bool
        Whether buttons act on the incident, rather than link to its page.
    """
    channel = message.channel if buttons and not message.test else None
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": clip(message.title, MAX_HEADER)}}
    ]
    approvals_left = MAX_APPROVALS
    for alert in message.alerts[:MAX_ALERTS]:
        blocks += _alert_blocks(message, alert, channel)
        if channel is not None:
            actions = alert.asks[: max(approvals_left, 0)]
            blocks += [_approval_block(action, channel) for action in actions]
            approvals_left -= len(actions)
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


def _alert_blocks(message: Message, alert: Alert, channel: UUID | None) -> list[dict[str, Any]]:
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
    buttons = [_link_button("Open", alert.view_url)]
    if channel is not None and alert.status is Status.FIRING:
        buttons += [
            _action_button(Button.ACKNOWLEDGE, "Acknowledge", channel, alert.incident),
            _action_button(Button.SILENCE, f"Silence {SILENCE_HOURS} h", channel, alert.incident),
            _link_button("Incident", alert.incident_url),
        ]
    else:
        buttons.append(_link_button(alert.incident_link, alert.incident_url))
    blocks.append({"type": "actions", "elements": buttons})
    return blocks


def _approval_block(action: PendingAction, channel: UUID) -> dict[str, Any]:
    """Return a block with the exact command of an action and the button that approves it."""
    command = action.command.replace("`", "'")
    text = f"*{action.kind} on {_escaped(action.host)}* waits for a person:\n`{_escaped(command)}`"
    button = _action_button(Button.APPROVE, "Approve", channel, action.action)
    return {
        "type": "section",
        "text": {"type": "mrkdwn", "text": clip(text, MAX_TEXT)},
        "accessory": {**button, "style": "primary"},
    }


def _action_button(what: Button, text: str, channel: UUID, about: UUID) -> dict[str, Any]:
    return {
        "type": "button",
        "text": {"type": "plain_text", "text": text},
        "action_id": what.value,
        "value": f"{channel}:{about}",
    }


def _link_button(text: str, url: str) -> dict[str, Any]:
    return {"type": "button", "text": {"type": "plain_text", "text": text}, "url": url[:MAX_URL]}


def _escaped(text: str) -> str:
    """Escape markup in names, because ``<!channel>`` would notify every member."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def note_body(note: Note) -> dict[str, Any]:
    """Return a note as blocks, and as plain text for notifications."""
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": clip(note.title, MAX_HEADER)}}
    ]
    for section in note.sections:
        lines = "\n".join(f"• {_escaped(line)}" for line in section.lines)
        text = clip(f"*{_escaped(section.heading)}*\n{lines}", MAX_TEXT)
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": text}})
    blocks.append({"type": "actions", "elements": [_link_button(note.link_text, note.link)]})
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
        answer = response.answer.text
        if error.permanent and answer in GONE:
            raise DeliveryError(
                "slack.gone",
                f"Slack answered {response.status} {answer}: the webhook no longer exists.",
                disable=True,
                answer=response.answer,
            ) from error
        raise


SLACK: Final = ChannelKind(
    name="slack",
    title="Slack",
    config=TypeAdapter(SlackConfig),
    secrets=frozenset({"url", "signing_secret"}),
    keep_secrets=frozenset({"operators"}),
    send=send,
    tell=tell,
)
