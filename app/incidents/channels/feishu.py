"""Feishu and Lark: a custom bot, with a signed card of at most 20 kB.

Errors come as HTTP 200 with a ``code`` that is not 0. A custom bot cannot upload pictures.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.incidents.channels.kind import (
    JSON_HEADERS,
    ChannelKind,
    Note,
    OutgoingMessage,
    Secret,
    Url,
    answer_object,
    encode,
)
from app.incidents.message import Message
from app.incidents.text import MAX_ALERTS, clip, lines_of
from app.platform.outbound import DeliveryError, Outbound, ReceiverAnswer, check

MAX_BODY_BYTES: Final = 20_000
MAX_TITLE: Final = 200
MAX_TEXT: Final = 2000

# Codes of temporary failures: rate limit exceeded, or internal error of the service.
PASSING: Final = frozenset({11232, 99991400, 99991663, 1000004, 1000005, 1500})
# Codes of the service if the bot was removed.
GONE: Final = frozenset({19001})

TEMPLATES: Final = {"critical": "red", "warning": "orange", "info": "grey"}


@dataclass(frozen=True, slots=True)
class FeishuConfig:
    """The address of a custom bot, and its signing secret if the bot has one."""

    url: Annotated[Url, Field(examples=["https://open.feishu.cn/open-apis/bot/v2/hook/…"])]
    signing_secret: Annotated[Secret | None, Field(description="If the bot checks signatures.")] = (
        None
    )


def sign(secret: str, timestamp: str) -> str:
    """Return the signature: the HMAC of an empty text, keyed with timestamp and secret."""
    key = f"{timestamp}\n{secret}".encode()
    return base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


def feishu_body(message: Message, secret: str | None = None) -> bytes:
    """Return a card, signed now; the last alerts are left out if the card is too large."""
    signed = _signed(secret)
    for shown in range(min(len(message.alerts), MAX_ALERTS), 0, -1):
        body = encode(signed | _body(message, shown))
        if len(body) <= MAX_BODY_BYTES:
            return body
    return encode(signed | _body(message, 0))


def note_body(note: Note, secret: str | None = None) -> bytes:
    """Return a note as a card, signed now."""
    elements = [
        _text("\n".join((section.heading, *(f"· {line}" for line in section.lines))))
        for section in note.sections
    ]
    elements.append(_text(f"Open: {note.link}"))
    card = {
        "config": {"wide_screen_mode": True},
        "header": {
            "template": "blue",
            "title": {"tag": "plain_text", "content": clip(note.title, MAX_TITLE)},
        },
        "elements": elements,
    }
    return encode(_signed(secret) | {"msg_type": "interactive", "card": card})


def _signed(secret: str | None) -> dict[str, Any]:
    if secret is None:
        return {}
    timestamp = str(int(time.time()))
    return {"timestamp": timestamp, "sign": sign(secret, timestamp)}


def _body(message: Message, shown: int) -> dict[str, Any]:
    elements: list[dict[str, Any]] = []
    for alert in message.alerts[:shown]:
        lines = lines_of(alert, message.at)
        fields = (f"{name}: {value}" for name, value in lines.fields)
        evidence = (f"· {sentence}" for sentence in lines.evidence)
        elements += [
            _text("\n".join((lines.summary, *fields, *evidence))),
            {
                "tag": "action",
                "actions": [
                    {
                        "tag": "button",
                        "text": {"tag": "plain_text", "content": text},
                        "url": url,
                        "type": "default",
                    }
                    for text, url in (
                        ("Open", alert.view_url),
                        (alert.incident_link, alert.incident_url),
                    )
                ],
            },
        ]
    left_out = len(message.alerts) - shown
    if left_out:
        elements.append(_text(f"And {left_out} more: {message.job_url}"))
    return {
        "msg_type": "interactive",
        "card": {
            "config": {"wide_screen_mode": True},
            "header": {
                "template": TEMPLATES[message.main.severity] if message.firing else "green",
                "title": {"tag": "plain_text", "content": clip(message.title, MAX_TITLE)},
            },
            "elements": elements,
        },
    }


def _text(content: str) -> dict[str, Any]:
    return {"tag": "div", "text": {"tag": "plain_text", "content": clip(content, MAX_TEXT)}}


def send(config: FeishuConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Post the card; errors are in the body of the answer."""
    body = feishu_body(outgoing.message, config.signing_secret)
    return _post(config, body, outgoing.outbound)


def tell(config: FeishuConfig, note: Note, outbound: Outbound) -> ReceiverAnswer:
    """Post a note as a card."""
    return _post(config, note_body(note, config.signing_secret), outbound)


def _post(config: FeishuConfig, body: bytes, outbound: Outbound) -> ReceiverAnswer:
    response = outbound.post(config.url, body, JSON_HEADERS)
    answer = answer_object(response)
    # Older bots send the code in the field StatusCode.
    code = answer.get("code", answer.get("StatusCode"))
    if not isinstance(code, int) or code == 0:
        return check(response)
    raise DeliveryError(
        "feishu.refused",
        f"Feishu answered {response.status} with code {code}.",
        permanent=code not in PASSING,
        disable=code in GONE,
        answer=response.answer,
    )


FEISHU: Final = ChannelKind(
    name="feishu",
    title="Feishu or Lark",
    config=TypeAdapter(FeishuConfig),
    secrets=frozenset({"url", "signing_secret"}),
    send=send,
    tell=tell,
)
