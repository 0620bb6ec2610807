"""Everything else, through the library Apprise: an extra that the operator installs and allows.

It says only whether a message was taken, not why it was not: every failure counts as one that
passes. It looks names up by itself, so the guard of addresses cannot hold it; that is why it needs
`PACELINE_ALERT_APPRISE`, at every attempt.
"""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, TypeAdapter

from app.incidents.channels.kind import ChannelKind, Note, OutgoingMessage, Secret, note_text
from app.incidents.text import plain_text
from app.platform.outbound import DeliveryError, Outbound, ReceiverAnswer


@dataclass(frozen=True, slots=True)
class AppriseConfig:
    """Addresses as Apprise has them, like ``matrix://user:password@host/#room``."""

    urls: Annotated[
        tuple[Secret, ...],
        Field(min_length=1, max_length=10, examples=["matrix://user:password@host/#room"]),
    ]


def is_installed() -> bool:
    """Return whether the extra is there."""
    return importlib.util.find_spec("apprise") is not None


def send(config: AppriseConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Hand the message to the library, and wait as long as an attempt may take."""
    return _notify(config, outgoing.message.title, plain_text(outgoing.message), outgoing.outbound)


def tell(config: AppriseConfig, note: Note, outbound: Outbound) -> ReceiverAnswer:
    """Hand a note to the library."""
    return _notify(config, note.title, note_text(note), outbound)


def _notify(config: AppriseConfig, title: str, body: str, outbound: Outbound) -> ReceiverAnswer:
    import apprise  # noqa: PLC0415 - an extra

    sender = apprise.Apprise()
    for url in config.urls:
        service = apprise.Apprise.instantiate(url)
        if service is None:
            raise DeliveryError(
                "url.invalid", "Apprise does not know one of the addresses.", permanent=True
            )
        # What is too long for a service comes in several parts; otherwise it would be refused.
        service.overflow_mode = "split"
        sender.add(service)
    taken: list[bool] = []

    def notify() -> None:
        try:
            taken.append(bool(sender.notify(body=body, title=title)))
        # A service's part is written by others and may come from an extension: its errors
        # have no class in common, and not every release of the library catches them. One that
        # left this thread would be told as "not done in time".
        except Exception:  # noqa: BLE001 - as above
            taken.append(False)

    # It has time limits of its own, which are not ours.
    thread = threading.Thread(target=notify, name="paceline-apprise", daemon=True)
    thread.start()
    thread.join(outbound.left_s())
    if not taken:
        raise DeliveryError("timeout", "Apprise was not done in time.")
    if not taken[0]:
        raise DeliveryError("apprise.failed", "Apprise could not send it; it does not say why.")
    return ReceiverAnswer(None, "Accepted by Apprise.")


APPRISE: Final = ChannelKind(
    name="apprise",
    title="Apprise",
    config=TypeAdapter(AppriseConfig),
    secrets=frozenset({"urls"}),
    send=send,
    tell=tell,
)
