"""Use case: tell the channels of a group what is news, and start what is due.

A group is looked after when its `flush_at` has come: every channel for which there is news, or
something to repeat, gets a delivery, all with the same number. What a delivery says is fixed only
by its first attempt, so that a channel that was away hears of the present and not of the past. For
the same reason a group has at most one delivery to a channel that was not tried yet; and news makes
those that were tried, in vain, superseded: they are not due any more.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import exists, func, or_, select, update
from sqlalchemy.orm import aliased

from app.incidents.channels.registry import KINDS
from app.incidents.grouping import content_for, is_due
from app.incidents.message import Message
from app.incidents.models.tables import AlertChannel, AlertDelivery, AlertGroup, DeliveryState
from app.incidents.routing import audience, group_now, with_heard_of
from app.incidents.store import lock_group, timing
from app.jobs.models import WeeklySummary
from app.platform.container import Container, TaskError
from app.platform.database.states import TaskState
from app.platform.database.task_runs import DELIVER_ALERT
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.outbound import delay_before

# ---- Storms become digests: what waits for a channel that has heard a lot is told in one message -
# A channel hears of a few incidents one by one. What comes then within a minute waits for the end
# of that minute, and what is over the channel's own limit for as long as that takes; all of it goes
# in one message, the digest. Nothing is lost: each group keeps a delivery of its own, whose content
# is fixed with the others' and whose outcome is the digest's. One of them, the carrier, is what is
# sent and tried again; the others ride with it (`digest_id`), in ``sending`` until it is over.


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
        found = tx.session.execute(
            select(AlertDelivery.id, AlertGroup.traceparent)
            .join(AlertGroup, AlertDelivery.group_id == AlertGroup.id)
            .where(AlertDelivery.id.in_(ids))
        )
        causes = {row.id: row.traceparent for row in found}
        for delivery_id in ids:
            tx.enqueue(DELIVER_ALERT, delivery_id, caused_by=causes[delivery_id])
    return len(ids)


def pause_after(failures: int) -> timedelta:
    """Return how long a channel is left alone after a number of consecutive failures."""
    if failures <= SUSPECT_FAILURES + 1:
        return timedelta(0)
    return timedelta(seconds=min(60, 2 ** min(10, failures - SUSPECT_FAILURES - 1)))


# ---- How the subject of a task run follows the run from state to state -------------------------


# Before the next attempt at a message whose workers were killed: of seconds there were enough.
DELAY: Final = 3


def waiting_when_dead(
    table: type[AlertDelivery | WeeklySummary],
) -> Callable[[UnitOfWork, uuid.UUID, TaskState, TaskError | None], None]:
    """Return what lets a message wait whose workers were killed; it may have come through or not.

    Whatever killed them, the next attempt has the same id; the message itself is given up only when
    its time is over.
    """

    def follow(
        tx: UnitOfWork, message_id: uuid.UUID, state: TaskState, error: TaskError | None
    ) -> None:
        if state is not TaskState.DEAD:
            return
        delay = delay_before(DELAY, random.random())  # noqa: S311 - spreads load
        tx.session.execute(
            update(table)
            .where(table.id == message_id, table.state == DeliveryState.SENDING)
            .values(
                state=DeliveryState.WAITING,
                next_attempt_at=func.now() + delay,
                error_code=error.code if error else None,
                error=error.sentence if error else None,
            )
        )

    return follow
