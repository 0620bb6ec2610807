"""How the subject of a task run follows the run from state to state."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, update

from app.alerts.retry import delay_before
from app.alerts.states import DeliveryState
from app.db.states import TaskState

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping

    from app.db.models.alerts import AlertDelivery
    from app.db.models.fleet import WeeklySummary
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import TaskError

# Before the next attempt at a message whose workers were killed: of seconds there were enough.
DELAY: Final = 3


def follower(
    move: Callable[..., None],
    states: Mapping[TaskState, str],
    **cleared: None,
) -> Callable[[UnitOfWork, uuid.UUID, TaskState, TaskError | None], None]:
    """Return what brings a subject into the state that belongs to its task run's.

    Parameters
    ----------
    move : callable
        Takes a transaction, the subject's id and the columns to set.
    states : mapping
        The subject's state for each of the run's.
    """

    def follow(
        tx: UnitOfWork, subject_id: uuid.UUID, state: TaskState, error: TaskError | None
    ) -> None:
        columns: dict[str, Any] = {
            "state": states[state],
            "reason_code": error.code if error else None,
            "reason": error.sentence if error else None,
            "reason_detail": None,
        }
        move(tx, subject_id, **columns, **cleared)

    return follow


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
