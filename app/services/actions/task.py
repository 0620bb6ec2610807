"""An action as a kind of task, without what does it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, update

from app.actions.states import ActionState
from app.alerts.retry import delay_before
from app.broker.celery import IO_QUEUE
from app.db.models.hosts import MachineAction
from app.db.models.tasks import ACT_ON_MACHINE
from app.db.states import TaskState
from app.services.container import Claim, TaskKind

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container, TaskError

# Before the next attempt at an action whose workers were killed: of seconds there were enough.
DELAY: Final = 3


def _run(container: Container, claim: Claim) -> None:
    # Most processes do none.
    from app.services.actions.perform import perform  # noqa: PLC0415 - see above

    perform(container, claim)


def _follow(tx: UnitOfWork, action: uuid.UUID, state: TaskState, error: TaskError | None) -> None:
    """Let an action wait whose workers were killed; done once more it comes to the same."""
    if state is not TaskState.DEAD or error is None:
        return
    delay = delay_before(DELAY, random.random())  # noqa: S311 - spreads load
    tx.session.execute(
        update(MachineAction)
        .where(MachineAction.id == action, MachineAction.state.in_(ActionState.UNDERWAY))
        .values(next_attempt_at=func.now() + delay, error_code=error.code, error=error.sentence)
    )


ACTING: Final = TaskKind(name=ACT_ON_MACHINE, queue=IO_QUEUE, run=_run, follow=_follow)
