"""Apprise: a library for many services; an optional dependency that the operator has to allow.

The library reports success or failure without a reason, so each failure counts as temporary. It
resolves host names itself, so that the guard of addresses has no effect; therefore each attempt
requires `PACELINE_ALERT_APPRISE`.
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
    """Addresses in Apprise's syntax, such as ``matrix://user:password@host/#room``."""

    urls: Annotated[
        tuple[Secret, ...],
        Field(min_length=1, max_length=10, examples=["matrix://user:password@host/#room"]),
    ]


def is_installed() -> bool:
    """Return whether the optional dependency is installed."""
    return importlib.util.find_spec("apprise") is not None


def send(config: AppriseConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Send a message through the library, within the time limit of an attempt."""
    return _notify(config, outgoing.message.title, plain_text(outgoing.message), outgoing.outbound)


def tell(config: AppriseConfig, note: Note, outbound: Outbound) -> ReceiverAnswer:
    """Send a note through the library."""
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
        # Split long texts, because a service would refuse them.
        service.overflow_mode = "split"
        sender.add(service)
    taken: list[bool] = []

    def notify() -> None:
        try:
            taken.append(bool(sender.notify(body=body, title=title)))
        # Service plugins share no base class of errors, and not every release of the library
        # catches their errors. An error that ended this thread would be reported as a timeout.
        except Exception:  # noqa: BLE001 - as above
            taken.append(False)

    # The library has its own, longer time limits, so the thread is abandoned after our limit.
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
