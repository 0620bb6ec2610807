"""Use case: create deliveries of groups with news, start due deliveries, and make digests.

A group is flushed when its `flush_at` has come: each channel with news, or something to repeat,
gets a delivery, all with the same number. The content of a delivery is fixed only by its first
attempt, so that a channel that was unavailable gets the present state and not the past. For the
same reason a group has at most one untried delivery to a channel, and news supersedes those that
failed before.

Digests. A channel gets up to `alert_digest_above` messages a minute as single messages. Further
messages wait for the end of the minute, and messages above the channel's own limit (`per_10_min`)
until the limit allows a message; then one digest contains them all. Each group keeps its own
delivery, whose content is fixed together with the others and whose outcome is that of the digest.
One of the deliveries, the carrier, is sent and retried; the others, its riders (`digest_id`), stay
``sending`` until the carrier is finished.
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
from app.incidents.routing import audience_of, group_snapshot, with_notified
from app.incidents.store import lock_group, timing
from app.jobs.models import WeeklySummary
from app.platform.container import Container, TaskError
from app.platform.database.states import TaskState
from app.platform.database.task_runs import DELIVER_ALERT
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.outbound import delay_before

# Time windows in which messages to a channel are counted for its limits.
STORM_WINDOW: Final = timedelta(minutes=1)
LIMIT_WINDOW: Final = timedelta(minutes=10)
# Maximum number of groups in one digest, as each group stays locked while the message is made.
MAX_GROUPS: Final = 200

RIDES: Final = AlertDelivery.digest_id.is_not(None) & (AlertDelivery.digest_id != AlertDelivery.id)


def startable(tx: Reads, channel: AlertChannel, few: int, waiting: int) -> tuple[int, bool]:
    """Return the number of untried messages to send now, and whether they go as one digest.

    Parameters
    ----------
    few : int
        Messages a minute that are sent one by one; 0 disables digests and limits.
    waiting : int
        Untried messages that are due.
    """
    if few == 0 or not KINDS[channel.kind].style.digests:
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
    """Make the first started delivery the carrier of the others in a digest; return its id."""
    carrier = ids[0]
    tx.session.execute(
        update(AlertDelivery)
        .where(AlertDelivery.id.in_(ids), AlertDelivery.state == DeliveryState.SENDING)
        .values(digest_id=carrier)
        .execution_options(synchronize_session=False)
    )
    return carrier


def riders_of(tx: Reads, carrier: AlertDelivery) -> list[AlertDelivery]:
    """Return the deliveries in a carrier's digest that are still ``sending``."""
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
    """Return the groups of a delivery and of its riders, sorted in locking order."""
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


def release_orphans(tx: UnitOfWork) -> int:
    """Let riders without a carrier wait for a message of their own; return their number.

    The carrier was given up with its channel, or deleted with its job.
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
    """Return one message with the alerts of several, worst first, under the carrier's id.

    Parameters
    ----------
    messages : sequence of Message
        At least one, each of another group.
    """
    if len(messages) == 1:
        return replace(messages[0], id=carrier.id, number=carrier.number)
    alerts = [replace(alert, job=each.job) for each in messages for alert in each.alerts]
    return replace(carrier, digest=True).with_alerts(alerts)


# Maximum of concurrent deliveries of one channel: if its receiver does not answer, that many
# threads of a worker are occupied, each for the duration of one attempt.
IN_FLIGHT: Final = 3
# From this number of consecutive failures, a channel gets one delivery at a time; after further
# failures a pause precedes each delivery.
SUSPECT_FAILURES: Final = 3


def flush_group(container: Container, group_id: uuid.UUID) -> set[uuid.UUID]:
    """Create the deliveries of a due group; return the channels that got a delivery."""
    with container.uow() as tx:
        group = lock_group(tx, group_id, skip_locked=True)
        if group is None or group.flush_at is None or group.flush_at > tx.now:
            return set()
        notified, outstanding = _create_deliveries(container, tx, group)
        group.flushed_at = tx.now
        group.flush_at = (
            tx.now + timing(container.settings).repeat_interval if outstanding else None
        )
    return notified


def _create_deliveries(
    container: Container, tx: UnitOfWork, group: AlertGroup
) -> tuple[set[uuid.UUID], bool]:
    """Return the channels that got a delivery, and whether a message has to be repeated later."""
    snapshot = group_snapshot(tx, group)
    intervals = timing(container.settings)
    channels = tx.session.execute(
        select(AlertChannel).where(AlertChannel.enabled).order_by(AlertChannel.id)
    ).scalars()
    notified: set[uuid.UUID] = set()
    number: int | None = None
    outstanding = False
    for channel in channels:
        heard = audience_of(tx, channel, group.id)
        meant = with_notified(tx, snapshot.incidents_for(channel), heard)
        content = content_for(meant, heard, snapshot.led_elsewhere)
        outstanding = outstanding or bool(content.present or content.resolved or content.withheld)
        if not is_due(content, meant, heard, intervals, tx.now):
            continue
        of_group = (AlertDelivery.channel_id == channel.id, AlertDelivery.group_id == group.id)
        untried = select(AlertDelivery.id).where(
            *of_group,
            AlertDelivery.state.in_(DeliveryState.UNDERWAY),
            AlertDelivery.content.is_(None),
        )
        if tx.session.execute(untried.limit(1)).scalar() is not None:
            continue
        tx.session.execute(
            update(AlertDelivery)
            # A carrier is not superseded, because it holds the news of its riders.
            .where(
                *of_group,
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
        notified.add(channel.id)
    return notified, outstanding


def pump(container: Container, channel_id: uuid.UUID) -> int:
    """Start due deliveries of a channel within its limits; return the number started.

    A delivery starts only if no earlier delivery of its group to this channel is open. The lock on
    the channel prevents that two workers start the same delivery, or too many deliveries.
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
        due = tx.session.execute(heads.limit(MAX_GROUPS)).all()
        tried = [row.id for row in due if not row.fresh][:slots]
        untried = [row.id for row in due if row.fresh]
        few = container.settings.alert_digest_above
        may, as_digest = startable(tx, channel, few, len(untried))
        as_digest = as_digest and len(tried) < slots
        chosen = tried + untried[: may if as_digest else min(may, slots - len(tried))]
        if not chosen:
            return 0
        # Check the state again: a flush may have superseded the delivery since it was selected.
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
        rows = tx.session.execute(
            select(AlertDelivery.id, AlertGroup.traceparent)
            .join(AlertGroup, AlertDelivery.group_id == AlertGroup.id)
            .where(AlertDelivery.id.in_(ids))
        )
        causes = {row.id: row.traceparent for row in rows}
        for delivery_id in ids:
            tx.enqueue(DELIVER_ALERT, delivery_id, caused_by=causes[delivery_id])
    return len(ids)


def pause_after(failures: int) -> timedelta:
    """Return the pause between deliveries of a channel after a number of consecutive failures."""
    if failures <= SUSPECT_FAILURES + 1:
        return timedelta(0)
    return timedelta(seconds=min(60, 2 ** min(10, failures - SUSPECT_FAILURES - 1)))


# A message whose worker was killed waits for the delay after this attempt (see `delay_before`).
DELAY: Final = 3


def waiting_when_dead(
    table: type[AlertDelivery | WeeklySummary],
) -> Callable[[UnitOfWork, uuid.UUID, TaskState, TaskError | None], None]:
    """Return a callback that sets a message to waiting after its task run died.

    The message may have arrived; the next attempt has the same id. It is given up only after its
    time limit.
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
