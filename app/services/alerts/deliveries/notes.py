"""One attempt to send a note: what is no incident."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.alerts.delivery import DeliveryError
from app.alerts.outbound import Outbound
from app.services.alerts.deliveries.deliver import guard, opened

if TYPE_CHECKING:
    from app.alerts.channels.note import Note
    from app.alerts.delivery import ReceiverAnswer
    from app.services.alerts.deliveries.deliver import DeliveryTarget
    from app.services.container import Container


def attempt_note(container: Container, target: DeliveryTarget, note: Note) -> ReceiverAnswer:
    """Send a note to a channel, now, within the time of one attempt.

    Raises
    ------
    DeliveryError
        If it was not taken.
    """
    kind, config = opened(container, target)
    if kind.tell is None:
        raise DeliveryError("channel.no_notes", f"{kind.title} takes no notes.", permanent=True)
    limit_s = container.settings.alert_attempt_limit_s
    with Outbound(guard(container.settings), limit_s) as outbound:
        return kind.tell(config, note, outbound)
