"""Deliveries: read them, and send one that failed once more."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import select

from app.alerts.message import MESSAGE, Message
from app.alerts.states import DeliveryState
from app.db.models.alerts import AlertChannel, AlertDelivery, AlertGroup
from app.db.models.sessions import Job
from app.errors import ConflictError, NotFoundError
from app.services.access.audit import Action, record
from app.services.alerts.deliveries.flush import pump
from app.services.alerts.store import lock_group

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.services.container import Container


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery."""

    id: uuid.UUID  # what the receiver was told as well
    channel_id: uuid.UUID
    channel: str
    job: str
    number: int  # rises within the job
    state: DeliveryState
    attempt: int  # how often it was tried
    created_at: datetime
    next_attempt_at: datetime | None  # None unless it waits
    finished_at: datetime | None
    message: Message | None  # None before the first attempt
    # error_code, error: of the last attempt
    error_code: str | None
    error: str | None
    answer_status: int | None
    answer: str | None  # what the receiver said last

    @property
    def title(self) -> str | None:
        """Return what it says in one line."""
        return None if self.message is None else self.message.title


def list_deliveries(
    tx: Reads,
    limit: int,
    *,
    channel: uuid.UUID | None = None,
    state: DeliveryState | None = None,
    job: str | None = None,
) -> list[DeliveryRow]:
    """Return deliveries, the newest first.

    Parameters
    ----------
    job : str, optional
        Only those.
    """
    query = (
        select(AlertDelivery, AlertChannel.name, Job.name)
        .join(AlertChannel, AlertChannel.id == AlertDelivery.channel_id)
        .join(AlertGroup, AlertGroup.id == AlertDelivery.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .order_by(AlertDelivery.created_at.desc(), AlertDelivery.id)
        .limit(limit)
    )
    if channel is not None:
        query = query.where(AlertDelivery.channel_id == channel)
    if state is not None:
        query = query.where(AlertDelivery.state == state)
    if job is not None:
        query = query.where(Job.name == job)
    return [delivery_row(*found) for found in tx.session.execute(query)]


def delivery_row(row: AlertDelivery, channel: str, job: str) -> DeliveryRow:
    """Return a delivery to a channel about a job."""
    return DeliveryRow(
        id=row.id,
        channel_id=row.channel_id,
        channel=channel,
        job=job,
        number=row.number,
        state=row.state,
        attempt=row.attempt,
        created_at=row.created_at,
        next_attempt_at=row.next_attempt_at if row.state == DeliveryState.WAITING else None,
        finished_at=row.finished_at,
        message=None if row.message is None else MESSAGE.validate_python(row.message),
        error_code=row.error_code,
        error=row.error,
        answer_status=row.answer_status,
        answer=row.answer,
    )


def replay_delivery(container: Container, delivery_id: uuid.UUID) -> None:
    """Send a delivery that failed, or waits for its next attempt, now: under its id.

    Raises
    ------
    NotFoundError
    ConflictError
        If it is under way, came through or is superseded; if a later one was tried already, which
        this one would contradict; or if its channel is disabled.
    """
    with container.uow() as tx:
        found = tx.session.execute(
            select(AlertDelivery.group_id, AlertDelivery.channel_id).where(
                AlertDelivery.id == delivery_id
            )
        ).one_or_none()
        if found is None or lock_group(tx, found.group_id) is None:
            raise NotFoundError(f"There is no delivery {delivery_id}.")
        channel = tx.session.get_one(AlertChannel, found.channel_id)
        delivery = tx.session.get_one(AlertDelivery, delivery_id, with_for_update=True)
        if delivery.state not in DeliveryState.REPLAYABLE:
            raise ConflictError(
                f"The delivery is {delivery.state}; only failed ones are sent again.",
                code="delivery.wrong_state",
            )
        later = select(AlertDelivery.id).where(
            AlertDelivery.channel_id == delivery.channel_id,
            AlertDelivery.group_id == delivery.group_id,
            AlertDelivery.number > delivery.number,
            AlertDelivery.content.is_not(None),
        )
        if tx.session.execute(later.limit(1)).scalar() is not None:
            raise ConflictError(
                "A later message of this job was sent to the channel already.",
                code="delivery.overtaken",
            )
        if not channel.enabled:
            raise ConflictError("The channel is disabled.", code="delivery.channel_disabled")
        delivery.state = DeliveryState.WAITING
        # It says its own words, without what went with it.
        delivery.digest_id = None
        delivery.next_attempt_at = tx.now
        delivery.finished_at = None
        channel.hold_until = None
        record(
            tx,
            container.principal,
            Action.REPLAYED,
            f"delivery {delivery.number} to {channel.name}",
        )
    pump(container, found.channel_id)
