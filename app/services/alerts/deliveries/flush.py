"""Use case: tell the channels of a group what is news, and start what is due.

A group is looked after when its `flush_at` has come: every channel for which there is news, or
something to repeat, gets a delivery, all with the same number. What a delivery says is fixed only
by its first attempt, so that a channel that was away hears of the present and not of the past. For
the same reason a group has at most one delivery to a channel that was not tried yet; and news makes
those that were tried, in vain, superseded: they are not due any more.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import aliased

from app.alerts.grouping import content_for, is_due
from app.alerts.states import DeliveryState
from app.db.models.alerts import AlertChannel, AlertDelivery, AlertGroup
from app.db.models.tasks import DELIVER_ALERT
from app.services.alerts.deliveries.digests import MOST, bundle, may_start
from app.services.alerts.routing import audience, group_now, with_heard_of
from app.services.alerts.store import lock_group, timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.db.unit_of_work import Reads, UnitOfWork
    from app.services.container import Container

# Deliveries of one channel that are under way at once. A channel that hangs occupies this many
# threads of a worker from others, for one attempt each.
IN_FLIGHT: Final = 3
# After this number of consecutive failures there is one at a time, and after more a pause before
# each.
SUSPECT_FAILURES: Final = 3


def flush_group(container: Container, group_id: uuid.UUID) -> set[uuid.UUID]:
    """Make the deliveries of a group that is due; return the channels that got one."""
    with container.uow() as tx:
        group = lock_group(tx, group_id, skip_locked=True)
        if group is None or group.flush_at is None or group.flush_at > tx.now:
            return set()
        told, outstanding = _tell(container, tx, group)
        group.flushed_at = tx.now
        group.flush_at = (
            tx.now + timing(container.settings).repeat_interval if outstanding else None
        )
    return told


def _tell(container: Container, tx: UnitOfWork, group: AlertGroup) -> tuple[set[uuid.UUID], bool]:
    """Return the channels that got a delivery, and whether anything may have to be repeated."""
    here_now = group_now(tx, group)
    intervals = timing(container.settings)
    channels = tx.session.execute(
        select(AlertChannel).where(AlertChannel.enabled).order_by(AlertChannel.id)
    ).scalars()
    told: set[uuid.UUID] = set()
    number: int | None = None
    outstanding = False
    for channel in channels:
        heard = audience(tx, channel, group.id)
        meant = with_heard_of(tx, here_now.meant_for(channel), heard)
        content = content_for(meant, heard, here_now.spoken_for)
        outstanding = outstanding or bool(content.present or content.resolved or content.withheld)
        if not is_due(content, meant, heard, intervals, tx.now):
            continue
        here = (AlertDelivery.channel_id == channel.id, AlertDelivery.group_id == group.id)
        untried = select(AlertDelivery.id).where(
            *here,
            AlertDelivery.state.in_(DeliveryState.UNDERWAY),
            AlertDelivery.content.is_(None),
        )
        if tx.session.execute(untried.limit(1)).scalar() is not None:
            continue
        tx.session.execute(
            update(AlertDelivery)
            # What others ride with is theirs as well.
            .where(
                *here,
                AlertDelivery.state == DeliveryState.WAITING,
                AlertDelivery.digest_id.is_(None),
            )
            .values(state=DeliveryState.SUPERSEDED, finished_at=tx.now)
        )
        if number is None:
            group.number += 1
            number = group.number
        tx.session.add(
            AlertDelivery(
                id=uuid.uuid4(),
                group_id=group.id,
                channel_id=channel.id,
                number=number,
                generation=channel.generation,
                state=DeliveryState.WAITING,
                attempt=0,
                next_attempt_at=tx.now,
            )
        )
        told.add(channel.id)
    return told, outstanding


def pump(container: Container, channel_id: uuid.UUID) -> int:
    """Start deliveries of a channel that are due, as many as may be under way; return how many.

    A delivery is started only when no earlier one of its group to this channel is open. Under the
    channel's lock, so that two at once neither start one twice nor too many.
    """
    with container.uow() as tx:
        channel = tx.session.execute(
            select(AlertChannel)
            .where(AlertChannel.id == channel_id)
            .with_for_update(key_share=True)
        ).scalar_one_or_none()
        if channel is None or not channel.enabled:
            return 0
        if channel.hold_until is not None and channel.hold_until > tx.now:
            return 0
        under_way = tx.session.execute(
            select(func.count()).where(
                AlertDelivery.channel_id == channel_id,
                AlertDelivery.state == DeliveryState.SENDING,
                AlertDelivery.digest_id.is_(None) | (AlertDelivery.digest_id == AlertDelivery.id),
            )
        ).scalar_one()
        allowed = 1 if channel.failures >= SUSPECT_FAILURES else IN_FLIGHT
        if under_way >= allowed:
            return 0
        earlier = aliased(AlertDelivery)
        heads = (
            select(AlertDelivery.id, AlertDelivery.content.is_(None).label("fresh"))
            .where(
                AlertDelivery.channel_id == channel_id,
                AlertDelivery.state == DeliveryState.WAITING,
                AlertDelivery.next_attempt_at <= tx.now,
                ~exists().where(
                    earlier.channel_id == channel_id,
                    earlier.group_id == AlertDelivery.group_id,
                    earlier.number < AlertDelivery.number,
                    earlier.state.in_(DeliveryState.UNDERWAY),
                ),
            )
            .order_by(AlertDelivery.next_attempt_at, AlertDelivery.number)
        )
        slots = allowed - under_way
        due = tx.session.execute(heads.limit(MOST)).all()
        tried = [row.id for row in due if not row.fresh][:slots]
        untried = [row.id for row in due if row.fresh]
        few = container.settings.alert_digest_above
        may, as_digest = may_start(tx, channel, few, len(untried))
        as_digest = as_digest and len(tried) < slots
        chosen = tried + untried[: may if as_digest else min(may, slots - len(tried))]
        if not chosen:
            return 0
        # The state is asked for once more: a flush may have superseded it since it was selected.
        started = tx.session.execute(
            update(AlertDelivery)
            .where(AlertDelivery.id.in_(chosen), AlertDelivery.state == DeliveryState.WAITING)
            .values(
                state=DeliveryState.SENDING,
                started_at=func.coalesce(AlertDelivery.started_at, tx.now),
            )
            .returning(AlertDelivery.id)
            .execution_options(synchronize_session=False)
        ).scalars()
        taken = set(started)
        ids = [id_ for id_ in chosen if id_ in taken]
        riding = [id_ for id_ in ids if id_ not in tried]
        if as_digest and len(riding) > 1:
            carrier = bundle(tx, riding)
            ids = [id_ for id_ in ids if id_ in tried or id_ == carrier]
        causes = _causes(tx, ids)
        for delivery_id in ids:
            tx.enqueue(DELIVER_ALERT, delivery_id, caused_by=causes[delivery_id])
    return len(ids)


def _causes(tx: Reads, deliveries: Sequence[uuid.UUID]) -> dict[uuid.UUID, str | None]:
    """Return the span that brought the news of each delivery."""
    found = tx.session.execute(
        select(AlertDelivery.id, AlertGroup.traceparent)
        .join(AlertGroup, AlertDelivery.group_id == AlertGroup.id)
        .where(AlertDelivery.id.in_(deliveries))
    )
    return {row.id: row.traceparent for row in found}


def pause_after(failures: int) -> timedelta:
    """Return how long a channel is left alone after a number of consecutive failures."""
    if failures <= SUSPECT_FAILURES + 1:
        return timedelta(0)
    return timedelta(seconds=min(60, 2 ** min(10, failures - SUSPECT_FAILURES - 1)))
