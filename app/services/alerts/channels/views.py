"""What the page of channels reads: what did not arrive, or has not yet."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, exists, func, or_
from sqlalchemy.orm import aliased

from app.alerts.states import DeliveryState
from app.db.models.alerts import AlertChannel, AlertDelivery
from app.services.alerts.deliveries.reads import DELIVERIES, DeliveryRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.db.unit_of_work import Reads

LISTED: Final = 50
LISTED_FOR: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A delivery that did not arrive, or has not yet."""

    delivery: DeliveryRow  # it is waiting, sending or failed
    overtaken: bool  # whether a later one of the same job was sent, which this one would contradict
    can_replay: bool


def undelivered(tx: Reads, channel: uuid.UUID | None = None) -> tuple[Sequence[Undelivered], int]:
    """Return what waits and what failed in the last seven days, and how many those are."""
    later = aliased(AlertDelivery)
    overtaken = exists().where(
        later.channel_id == AlertDelivery.channel_id,
        later.group_id == AlertDelivery.group_id,
        later.number > AlertDelivery.number,
        later.content.is_not(None),
    )
    which = or_(
        AlertDelivery.state.in_(DeliveryState.UNDERWAY),
        and_(
            AlertDelivery.state == DeliveryState.FAILED,
            AlertDelivery.created_at >= func.now() - LISTED_FOR,
        ),
    )
    if channel is not None:
        which = and_(which, AlertDelivery.channel_id == channel)
    rows = (
        tx.session.execute(
            DELIVERIES.query()
            .add_columns(
                AlertChannel.enabled,
                overtaken.label("overtaken"),
                func.count().over().label("in_all"),
            )
            .where(which)
            .order_by(*DELIVERIES.ties)
            .limit(LISTED)
        )
        .mappings()
        .all()
    )
    found = [
        Undelivered(
            delivery=delivery,
            overtaken=row["overtaken"],
            can_replay=row["enabled"]
            and not row["overtaken"]
            and delivery.state in DeliveryState.REPLAYABLE,
        )
        for delivery, row in zip(DELIVERIES.rows(rows), rows, strict=True)
    ]
    return found, rows[0]["in_all"] if rows else 0
