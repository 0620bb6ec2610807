"""Generic webhook: Alertmanager's body, signed according to Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.incidents.channels.alertmanager import webhook_body
from app.incidents.channels.kind import (
    JSON_HEADERS,
    NOTE,
    ChannelKind,
    Note,
    OutgoingMessage,
    Secret,
    Url,
    encode,
)
from app.platform.outbound import Outbound, ReceiverAnswer, check

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a prefix
# Limits of the signing key's length in Standard Webhooks.
MIN_SECRET_BYTES: Final = 24
MAX_SECRET_BYTES: Final = 64


SigningSecrets = Annotated[
    tuple[Secret, ...],
    Field(
        max_length=4,
        description="Each one signs, so that a new one can precede the removal of the old one.",
        examples=["whsec_…"],
    ),
]


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """A URL, and the secrets that sign the requests to it."""

    url: Annotated[Url, Field(examples=["https://ops.example.com/alerts"])]
    signing_secrets: SigningSecrets = ()

    def __post_init__(self) -> None:
        for secret in self.signing_secrets:
            signing_key(secret)


def signing_key(secret: str) -> bytes:
    """Return the key bytes of a signing secret.

    Raises
    ------
    ValueError
        If it is not ``whsec_`` and 24 to 64 bytes as base64.
    """
    if not secret.startswith(SECRET_PREFIX):
        raise ValueError(f"a signing secret starts with {SECRET_PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("a signing secret is base64 after its prefix") from error
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise ValueError(
            f"a signing secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, not {len(key)}"
        )
    return key


def signature(secrets: Sequence[str], message_id: str, timestamp: str, body: bytes) -> str:
    """Return the header ``webhook-signature``: one signature for each secret."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    digests = (hmac.new(signing_key(secret), signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def send(config: WebhookConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Post the message; any status 2xx is success."""
    message = outgoing.message
    headers = {"paceline-sequence": str(message.number)}
    if message.test:
        headers["paceline-test"] = "true"
    return _post(config, f"msg_{message.id.hex}", webhook_body(message), headers, outgoing.outbound)


def tell(config: WebhookConfig, note: Note, outbound: Outbound) -> ReceiverAnswer:
    """Post a note as ``{"kind": "note", …}``, a body without alerts."""
    body = {"kind": "note", **NOTE.dump_python(note, mode="json")}
    return _post(config, f"msg_{note.id.hex}", body, {}, outbound)


def _post(
    config: WebhookConfig,
    message_id: str,
    document: Mapping[str, Any],
    more: Mapping[str, str],
    outbound: Outbound,
) -> ReceiverAnswer:
    body = encode(document)
    timestamp = str(int(time.time()))
    headers = {
        **JSON_HEADERS,
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        **more,
    }
    if config.signing_secrets:
        headers["webhook-signature"] = signature(
            config.signing_secrets, message_id, timestamp, body
        )
    return check(outbound.post(config.url, body, headers))


WEBHOOK: Final = ChannelKind(
    name="webhook",
    title="Webhook",
    config=TypeAdapter(WebhookConfig),
    secrets=frozenset({"url", "signing_secrets"}),
    send=send,
    tell=tell,
    whole_digests=True,
)
