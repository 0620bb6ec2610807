"""What the page of channels reads: which channels are dead, and what did not arrive."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import aliased

from app.db.models.alerts import AlertChannel, AlertDelivery, AlertGroup
from app.db.models.sessions import Job
from app.errors import SecretKeyError
from app.services.alerts.channels import DISABLED_BY_PERSON
from app.services.alerts.deliveries import DeliveryRow, delivery_row
from app.services.alerts.secrets import unseal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.services.container import Container

# A channel that failed so often in a row is as good as dead.
FAILING: Final = 3
LISTED: Final = 50
LISTED_FOR: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A delivery that did not arrive, or has not yet.

    Parameters
    ----------
    delivery : DeliveryRow
        It is waiting, sending or failed.
    overtaken : bool
        Whether a later one of the same job was sent, which this one would contradict.
    can_replay : bool
    """

    delivery: DeliveryRow
    overtaken: bool
    can_replay: bool


def is_dead(*, readable: bool, enabled: bool, disabled_reason: str | None, failures: int) -> bool:
    """Return whether nobody hears from a channel, though nobody wanted it so."""
    if not enabled:
        return disabled_reason != DISABLED_BY_PERSON
    return not readable or failures >= FAILING


def dead_channels(container: Container) -> list[str]:
    """Return the names of the channels that are dead."""
    with container.uow() as tx:
        rows = tx.session.execute(select(AlertChannel).order_by(AlertChannel.name)).scalars().all()
    return [
        row.name
        for row in rows
        if is_dead(
            readable=_readable(container, row),
            enabled=row.enabled,
            disabled_reason=row.disabled_reason,
            failures=row.failures,
        )
    ]


def undelivered(
    container: Container, channel: uuid.UUID | None = None
) -> tuple[Sequence[Undelivered], int]:
    """Return what waits and what failed in the last seven days, and how many those are.

    Parameters
    ----------
    container : Container
    channel : UUID, optional
        Only to this one.
    """
    later = aliased(AlertDelivery)
    overtaken = exists().where(
        later.channel_id == AlertDelivery.channel_id,
        later.group_id == AlertDelivery.group_id,
        later.number > AlertDelivery.number,
        later.content.is_not(None),
    )
    with container.uow() as tx:
        which = or_(
            AlertDelivery.state.in_(("waiting", "sending")),
            and_(
                AlertDelivery.state == "failed",
                AlertDelivery.created_at >= tx.now - LISTED_FOR,
            ),
        )
        if channel is not None:
            which = and_(which, AlertDelivery.channel_id == channel)
        count = tx.session.execute(
            select(func.count()).select_from(AlertDelivery).where(which)
        ).scalar_one()
        rows = tx.session.execute(
            select(AlertDelivery, AlertChannel, Job.name, overtaken)
            .join(AlertChannel, AlertChannel.id == AlertDelivery.channel_id)
            .join(AlertGroup, AlertGroup.id == AlertDelivery.group_id)
            .join(Job, Job.id == AlertGroup.job_id)
            .where(which)
            .order_by(AlertDelivery.created_at.desc(), AlertDelivery.id)
            .limit(LISTED)
        ).all()
    return [_undelivered(*row) for row in rows], count


def _undelivered(
    row: AlertDelivery,
    channel: AlertChannel,
    job: str,
    overtaken: bool,  # noqa: FBT001 - a column
) -> Undelivered:
    return Undelivered(
        delivery=delivery_row(row, channel.name, job),
        overtaken=overtaken,
        can_replay=channel.enabled and not overtaken and row.state in ("failed", "waiting"),
    )


def _readable(container: Container, row: AlertChannel) -> bool:
    try:
        unseal(container.settings, row.secrets)
    except SecretKeyError:
        return False
    return True
