"""Discord: a webhook, with embeds and the heatmap as an attachment.

Limits: 10 embeds; 256 characters a title, 4,096 a description, 25 fields of 256 and 1,024
characters; 6,000 characters over all embeds. 429 says ``retry_after`` in its body, in seconds; 404
with code 10015 means that the webhook was deleted.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.incidents.channels.kind import (
    JSON_HEADERS,
    ChannelKind,
    Note,
    OutgoingMessage,
    Url,
    answer_object,
    encode,
    note_text,
)
from app.incidents.grouping import Status
from app.incidents.message import Alert, Message
from app.incidents.text import clip, lines_of
from app.platform.outbound import (
    MAX_RETRY_AFTER_S,
    DeliveryError,
    Outbound,
    ReceiverAnswer,
    Response,
    check,
)

MAX_EMBEDS: Final = 10
MAX_TITLE: Final = 256
MAX_FIELDS: Final = 12
MAX_TOTAL: Final = 6000
# Character limits below the service's own, so that the first embed always fits into the total
# limit.
MAX_EVIDENCE: Final = 500
MAX_DESCRIPTION: Final = 1800
MAX_FIELD_NAME: Final = 30
MAX_FIELD_VALUE: Final = 280
MAX_CONTENT: Final = 2000

PICTURE: Final = "heatmap.png"
UNKNOWN_WEBHOOK: Final = 10015
INVALID_TOKEN: Final = 50027

COLORS: Final = {"critical": 0xB42318, "warning": 0xB54708, "info": 0x475467}
RESOLVED_COLOR: Final = 0x067647


@dataclass(frozen=True, slots=True)
class DiscordConfig:
    """The address of a webhook, which is secret."""

    url: Annotated[Url, Field(examples=["https://discord.com/api/webhooks/…"])]


def discord_body(message: Message, *, picture: bool = False) -> dict[str, Any]:
    """Return a message as embeds; the text counts the alerts that do not fit."""
    embeds: list[dict[str, Any]] = []
    total = 0
    for alert in message.alerts[:MAX_EMBEDS]:
        embed = _embed(message, alert)
        fields = sum(len(field["name"]) + len(field["value"]) for field in embed["fields"])
        length = len(embed["title"]) + len(embed["description"]) + fields
        if total + length > MAX_TOTAL:
            break
        total += length
        embeds.append(embed)
    content = message.title
    left_out = len(message.alerts) - len(embeds)
    if left_out:
        content += f"\n{left_out} more: {message.job_url}"
    if picture and embeds:
        embeds[0]["image"] = {"url": f"attachment://{PICTURE}"}
    body: dict[str, Any] = {
        "content": clip(content, MAX_CONTENT),
        "embeds": embeds,
        # A mention in the name of a job or host must not notify users.
        "allowed_mentions": {"parse": []},
    }
    if picture:
        body["attachments"] = [{"id": 0, "filename": PICTURE, "description": "Worker slowdown"}]
    return body


def _embed(message: Message, alert: Alert) -> dict[str, Any]:
    lines = lines_of(alert, message.at)
    links = f"[Open]({alert.view_url}) · [{alert.incident_link}]({alert.incident_url})"
    evidence = (f"• {clip(sentence, MAX_EVIDENCE)}" for sentence in lines.evidence)
    description = "\n".join((*evidence, links))
    over = alert.status is Status.RESOLVED
    return {
        "title": clip(lines.summary, MAX_TITLE),
        "url": alert.view_url,
        "description": clip(description, MAX_DESCRIPTION),
        "color": RESOLVED_COLOR if over else COLORS[alert.severity],
        "fields": [
            {"name": clip(name, MAX_FIELD_NAME), "value": clip(value, MAX_FIELD_VALUE)}
            for name, value in lines.fields[:MAX_FIELDS]
        ],
    }


def _multipart(body: bytes, picture: bytes) -> tuple[bytes, str]:
    boundary = uuid.uuid4().hex
    parts = (
        ('name="payload_json"', "application/json", body),
        (f'name="files[0]"; filename="{PICTURE}"', "image/png", picture),
    )
    encoded = b"".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n"
        f"Content-Type: {kind}\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, kind, data in parts
    )
    return encoded + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def send(config: DiscordConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Post the message with the picture."""
    picture = outgoing.picture
    body = encode(discord_body(outgoing.message, picture=picture is not None))
    headers = dict(JSON_HEADERS)
    if picture is not None:
        body, headers["Content-Type"] = _multipart(body, picture)
    return _post(config, body, headers, outgoing.outbound)


def tell(config: DiscordConfig, note: Note, outbound: Outbound) -> ReceiverAnswer:
    """Post a note as one embed."""
    _, _, rest = note_text(note).partition("\n")
    embed = {
        "title": clip(note.title, MAX_TITLE),
        "url": note.link,
        "description": clip(rest.strip(), MAX_DESCRIPTION),
    }
    body = {"content": "", "embeds": [embed], "allowed_mentions": {"parse": []}}
    return _post(config, encode(body), dict(JSON_HEADERS), outbound)


def _post(
    config: DiscordConfig, body: bytes, headers: dict[str, str], outbound: Outbound
) -> ReceiverAnswer:
    response = outbound.post(config.url, body, headers)
    try:
        return check(response)
    except DeliveryError as error:
        raise _with_discord_code(error, response) from error


def _with_discord_code(error: DeliveryError, response: Response) -> DeliveryError:
    answer = answer_object(response)
    if answer.get("code") in (UNKNOWN_WEBHOOK, INVALID_TOKEN):
        return DeliveryError(
            "discord.gone",
            f"Discord answered {response.status}: the webhook was deleted.",
            disable=True,
            answer=response.answer,
        )
    wanted_s = answer.get("retry_after")
    if not error.permanent and isinstance(wanted_s, int | float) and wanted_s >= 0:
        return DeliveryError(
            error.code,
            error.sentence,
            answer=error.answer,
            retry_after_s=min(float(wanted_s), MAX_RETRY_AFTER_S),
        )
    return error


DISCORD: Final = ChannelKind(
    name="discord",
    title="Discord",
    config=TypeAdapter(DiscordConfig),
    secrets=frozenset({"url"}),
    send=send,
    tell=tell,
    pictures=True,
)
