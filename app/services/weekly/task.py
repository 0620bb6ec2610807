"""Sending a week's summary as a kind of task, without what sends it.

Processes that only publish or sweep need to know this much.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, update

from app.alerts.retry import delay_before
from app.alerts.states import DeliveryState
from app.broker.celery import IO_QUEUE
from app.db.models.fleet import WeeklySummary
from app.db.models.tasks import SEND_SUMMARY
from app.db.states import TaskState
from app.services.container import Claim, TaskError, TaskKind

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container


def follow_task(
    tx: UnitOfWork, summary_id: uuid.UUID, state: TaskState, error: TaskError | None
) -> None:
    """Let a summary wait whose workers were killed; the next attempt has the same id."""
    if state is not TaskState.DEAD:
        return
    tx.session.execute(
        update(WeeklySummary)
        .where(WeeklySummary.id == summary_id, WeeklySummary.state == DeliveryState.SENDING)
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
    from app.services.weekly.deliver import deliver_summary  # noqa: PLC0415 - see above

    deliver_summary(container, claim)


SUMMARY: Final = TaskKind(name=SEND_SUMMARY, queue=IO_QUEUE, run=_run, follow=follow_task)
