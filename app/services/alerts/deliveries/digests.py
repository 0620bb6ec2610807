"""Storms become digests: what waits for a channel that has heard a lot is told in one message.

A channel hears of a few incidents one by one. What comes then within a minute waits for the end of
that minute, and what is over the channel's own limit for as long as that takes; all of it goes in
one message, the digest. Nothing is lost: each group keeps a delivery of its own, whose content is
fixed with the others' and whose outcome is the digest's. One of them, the carrier, is what is sent
and tried again; the others ride with it (`digest_id`), in ``sending`` until it is over.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import exists, func, or_, select, update
from sqlalchemy.orm import aliased

from app.alerts.channels.registry import KINDS
from app.alerts.states import DeliveryState
from app.db.models.alerts import AlertChannel, AlertDelivery

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence
    from datetime import datetime

    from app.alerts.message import Message
    from app.db.unit_of_work import Reads, UnitOfWork

# Messages within this time that are sent one by one.
STORM_WINDOW: Final = timedelta(minutes=1)
LIMIT_WINDOW: Final = timedelta(minutes=10)
# More groups than these go in the next digest: each is locked while the message is made.
MOST: Final = 200

RIDES: Final = AlertDelivery.digest_id.is_not(None) & (AlertDelivery.digest_id != AlertDelivery.id)


def may_start(tx: Reads, channel: AlertChannel, few: int, waiting: int) -> tuple[int, bool]:
    """Return how many messages that were not tried yet may go now, and whether as one digest.

    Parameters
    ----------
    few : int
        Messages a minute that are sent one by one; 0: there are no digests, and no limits.
    waiting : int
        Messages that were not tried yet and are due.
    """
    if few == 0 or not KINDS[channel.kind].manner.digests:
        return waiting, False

    def started(since: datetime) -> int:
        return tx.session.execute(
            select(func.count()).where(
                AlertDelivery.channel_id == channel.id,
                AlertDelivery.started_at > since,
                ~func.coalesce(RIDES, False),
            )
        ).scalar_one()

    left = channel.per_10_min - started(tx.now - LIMIT_WINDOW)
    if left <= 0 or started(tx.now - STORM_WINDOW) >= few:
        return 0, False
    return waiting, waiting > min(few, left)


def bundle(tx: UnitOfWork, ids: Sequence[uuid.UUID]) -> uuid.UUID:
    """Let deliveries that have just been started ride with the first one; return the carrier."""
    carrier = ids[0]
    tx.session.execute(
        update(AlertDelivery)
        .where(AlertDelivery.id.in_(ids), AlertDelivery.state == DeliveryState.SENDING)
        .values(digest_id=carrier)
        .execution_options(synchronize_session=False)
    )
    return carrier


def riders_of(tx: Reads, carrier: AlertDelivery) -> list[AlertDelivery]:
    """Return what rides with a delivery and is not over."""
    if carrier.digest_id != carrier.id:
        return []
    return list(
        tx.session.execute(
            select(AlertDelivery)
            .where(
                AlertDelivery.digest_id == carrier.id,
                AlertDelivery.id != carrier.id,
                AlertDelivery.state == DeliveryState.SENDING,
            )
            .order_by(AlertDelivery.group_id)
        ).scalars()
    )


def groups_of(tx: Reads, delivery_id: uuid.UUID) -> list[uuid.UUID]:
    """Return the groups that a delivery tells of, in the order in which they are locked."""
    carrier = aliased(AlertDelivery)
    return list(
        tx.session.execute(
            select(AlertDelivery.group_id)
            .join(
                carrier,
                or_(carrier.id == AlertDelivery.id, carrier.id == AlertDelivery.digest_id),
            )
            .where(carrier.id == delivery_id)
            .distinct()
            .order_by(AlertDelivery.group_id)
        ).scalars()
    )


def set_free(tx: UnitOfWork) -> int:
    """Let what rides with nothing any more wait for a message of its own; return how many.

    Its carrier was given up with its channel, or deleted with its job.
    """
    carrier = aliased(AlertDelivery)
    freed = tx.session.execute(
        update(AlertDelivery)
        .where(
            RIDES,
            AlertDelivery.state == DeliveryState.SENDING,
            ~exists().where(
                carrier.id == AlertDelivery.digest_id, carrier.state.in_(DeliveryState.UNDERWAY)
            ),
        )
        .values(state=DeliveryState.WAITING, digest_id=None)
        .returning(AlertDelivery.id)
        .execution_options(synchronize_session=False)
    ).scalars()
    return len(list(freed))


def digest(carrier: Message, messages: Sequence[Message]) -> Message:
    """Return one message that says what several say, the worst first, under the carrier's id.

    Parameters
    ----------
    messages : sequence of Message
        One of a group each; at least one.
    """
    if len(messages) == 1:
        return replace(messages[0], id=carrier.id, number=carrier.number)
    alerts = [replace(alert, job=each.job) for each in messages for alert in each.alerts]
    return replace(carrier, digest=True).with_alerts(alerts)
