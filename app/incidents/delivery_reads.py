"""Reads of deliveries, and the use case that sends a delivery again."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field, computed_field
from sqlalchemy import ColumnElement, case, select

from app.access.audit import Action, record
from app.errors import ConflictError, NotFoundError
from app.incidents.batching import pump
from app.incidents.message import Message
from app.incidents.models.tables import AlertChannel, AlertDelivery, AlertGroup, DeliveryState
from app.incidents.store import lock_group
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.web.lists import Column, Listing, read


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery; its receiver was sent the same `id`."""

    id: uuid.UUID
    channel_id: Annotated[uuid.UUID, Column(csv=None)]
    channel: Annotated[str, Column(AlertChannel.name)]
    job: Annotated[str, Column(Job.name)]
    number: int  # sequence number within the job
    state: DeliveryState
    attempt: int  # number of attempts so far
    created_at: datetime
    next_attempt_at: Annotated[
        datetime | None,
        Column(case((AlertDelivery.state == DeliveryState.WAITING, AlertDelivery.next_attempt_at))),
    ]
    finished_at: datetime | None
    # error_code, error: error of the last attempt
    error_code: str | None
    error: str | None
    answer_status: int | None
    answer: str | None  # beginning of the receiver's last answer
    # None before the first attempt, which makes the message.
    message: Annotated[Message | None, Column(), Field(exclude=True)]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def title(self) -> str | None:
        """Return the title of the delivery's message."""
        return None if self.message is None else self.message.title


DELIVERIES: Final = Listing(
    DeliveryRow,
    lambda query: (
        query.join(AlertChannel, AlertChannel.id == AlertDelivery.channel_id)
        .join(AlertGroup, AlertGroup.id == AlertDelivery.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
    ),
    ties=(AlertDelivery.created_at.desc(), AlertDelivery.id.expression),
    model=AlertDelivery,
)


def list_deliveries(
    tx: Reads,
    limit: int,
    *,
    channel: uuid.UUID | None = None,
    state: DeliveryState | None = None,
    job: str | None = None,
) -> list[DeliveryRow]:
    """Return deliveries, sorted from newest to oldest."""
    where: list[ColumnElement[bool]] = []
    if channel is not None:
        where.append(AlertDelivery.channel_id == channel)
    if state is not None:
        where.append(AlertDelivery.state == state)
    if job is not None:
        where.append(Job.name == job)
    return read(tx, DELIVERIES, *where, limit=limit)


def replay_delivery(container: Container, delivery_id: uuid.UUID) -> None:
    """Send a failed or waiting delivery again at once, under the same id.

    Raises
    ------
    NotFoundError
    ConflictError
        If it is being sent, delivered or superseded; if a later one was attempted, which this one
        would contradict; or if its channel is disabled.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(AlertDelivery.group_id, AlertDelivery.channel_id).where(
                AlertDelivery.id == delivery_id
            )
        ).one_or_none()
        if row is None or lock_group(tx, row.group_id) is None:
            raise NotFoundError(f"There is no delivery {delivery_id}.")
        channel = tx.session.get_one(AlertChannel, row.channel_id)
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
        # Send the delivery's own message, not the digest that contained it.
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
    pump(container, row.channel_id)
