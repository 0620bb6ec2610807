"""A delivery as a kind of task, without what sends it.

Processes that only publish or sweep need to know this much.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, update

from app.alerts.retry import delay_before
from app.alerts.states import DeliveryState
from app.broker.celery import IO_QUEUE
from app.db.models.alerts import AlertDelivery
from app.db.models.tasks import DELIVER_ALERT
from app.db.states import TaskState
from app.services.container import Claim, TaskError, TaskKind

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container


def follow_task(
    tx: UnitOfWork, delivery_id: uuid.UUID, state: TaskState, error: TaskError | None
) -> None:
    """Let a delivery wait whose workers were killed; the message may have come through or not.

    Whatever killed them, the next attempt has the same id; the delivery itself is given up only
    when its day is over.
    """
    if state is not TaskState.DEAD:
        return
    tx.session.execute(
        update(AlertDelivery)
        .where(AlertDelivery.id == delivery_id, AlertDelivery.state == DeliveryState.SENDING)
        .values(
            state=DeliveryState.WAITING,
            # The third delay: of seconds there were enough.
            next_attempt_at=func.now() + delay_before(3, random.random()),  # noqa: S311 - spreads load
            error_code=error.code if error else None,
            error=error.sentence if error else None,
        )
    )


def _run(container: Container, claim: Claim) -> None:
    # A process that never delivers should not pay for HTTP, mail and pictures.
    from app.services.alerts.deliveries.deliver import deliver  # noqa: PLC0415 - see above

    deliver(container, claim)


DELIVERY: Final = TaskKind(name=DELIVER_ALERT, queue=IO_QUEUE, run=_run, follow=follow_task)
