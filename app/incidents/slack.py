"""Requests of Slack for pressed buttons: parsing, and verification of the signature.

Slack's protocol (docs.slack.dev, "Verifying requests from Slack" and "block_actions payload"): the
body is a form with one field, ``payload``, of JSON. ``X-Slack-Signature`` is ``v0=`` and the
HMAC-SHA256, in hexadecimal, of ``v0:{X-Slack-Request-Timestamp}:{body}`` by the app's signing
secret. Timestamps more than five minutes from now are refused, as Slack recommends.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal
from urllib.parse import parse_qs
from uuid import UUID

from pydantic import Field, TypeAdapter, ValidationError

from app.errors import Fault, InvalidSlackError, SlackRefusedError
from app.incidents.channels.slack import Button

# Size limit of a request body, which contains the whole message of at most 50 blocks.
MAX_BODY_BYTES: Final = 256 * 1024
# Requests whose timestamp differs from now by more than this, in either direction, are refused.
WINDOW: Final = timedelta(minutes=5)
REFUSED: Final = "The request is not signed by the Slack app of the channel that it names."

_SIGNATURE: Final = re.compile(r"v0=[0-9a-f]{64}")
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_VALUE: Final = re.compile(r"[0-9a-f-]{36}:[0-9a-f-]{36}")


@dataclass(frozen=True, slots=True)
class User:
    """The member who pressed a button: the id in Slack, and a readable name."""

    id: Annotated[str, Field(max_length=64)]
    username: Annotated[str, Field(max_length=500)] = ""


@dataclass(frozen=True, slots=True)
class PressedButton:
    """A pressed button in the payload."""

    action_id: Annotated[str, Field(max_length=255)]
    value: Annotated[str, Field(max_length=2000)] = ""


@dataclass(frozen=True, slots=True)
class Payload:
    """A ``block_actions`` payload with exactly one pressed button."""

    type: Literal["block_actions"]
    user: User
    actions: Annotated[tuple[PressedButton, ...], Field(min_length=1, max_length=1)]
    # Address that delivers a text to the member who pressed the button
    response_url: Annotated[str, Field(max_length=2000)] = ""


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """A pressed button: effect, channel, subject and member; its signature is not verified yet."""

    what: Button
    channel: UUID
    about: UUID  # id of the incident, or of the action on a machine
    user: User
    response_url: str


_PAYLOAD: Final = TypeAdapter(Payload)


def read_interaction(body: bytes) -> ButtonPress:
    """Return the pressed button in a request body.

    Raises
    ------
    InvalidSlackError
        ``slack.invalid``; ``slack.unknown_action`` for a button of another app.
    """
    try:
        form: Mapping[str, list[str]] = parse_qs(
            body.decode("ascii"), strict_parsing=True, max_num_fields=10
        )
        [text] = form["payload"]
        payload = _PAYLOAD.validate_json(text)
    except (ValidationError, ValueError, KeyError) as error:
        raise InvalidSlackError(
            "The body is no payload of a pressed button.",
            faults=(Fault("slack.invalid", "payload: no block_actions", column="payload"),),
        ) from error
    [pressed] = payload.actions
    code, sentence = "slack.unknown_action", "The button is none of Paceline's."
    if pressed.action_id not in tuple(Button) or not _VALUE.fullmatch(pressed.value):
        fault = Fault(code, "no button of Paceline", column="payload.actions.0")
        raise InvalidSlackError(sentence, code=code, faults=(fault,))
    channel, _, about = pressed.value.partition(":")
    try:
        ids = UUID(channel), UUID(about)
    except ValueError as error:
        raise InvalidSlackError(sentence, code=code) from error
    return ButtonPress(Button(pressed.action_id), *ids, payload.user, payload.response_url)


def signature_of(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a body according to Slack's scheme ``v0``."""
    signed = b"v0:" + timestamp.encode() + b":" + body
    return "v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def check_signature(
    secret: str, *, timestamp: str, signature: str, body: bytes, now: datetime
) -> None:
    """Refuse a body without a valid signature from the last five minutes.

    Raises
    ------
    SlackRefusedError
        ``slack.signature``, ``slack.old``.
    """
    well_formed = _TIMESTAMP.fullmatch(timestamp) and _SIGNATURE.fullmatch(signature)
    expected = signature_of(secret, timestamp, body) if well_formed else ""
    if not well_formed or not hmac.compare_digest(expected.encode(), signature.encode()):
        raise SlackRefusedError(REFUSED)
    # Checked after the signature, so that a sender without the secret learns nothing about the
    # clock
    if abs(now.timestamp() - int(timestamp)) > WINDOW.total_seconds():
        at = datetime.fromtimestamp(min(int(timestamp), 253_402_300_799), UTC)
        raise SlackRefusedError(
            f"The request is of {at:%Y-%m-%d %H:%M:%S} UTC, which is not within five minutes.",
            code="slack.old",
        )
