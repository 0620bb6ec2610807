"""Planning as a kind of task, without the planner itself.

Processes that only publish or sweep need to know this much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.broker.celery import ANALYSIS_QUEUE
from app.db.models.sessions import PLAN_TEMPLATE
from app.services.container import Claim, SubjectState, TaskError, TaskKind
from app.services.plans.transition import move_plan

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

_PLAN_STATE: Final[dict[SubjectState, str]] = {
    "queued": "queued",
    "running": "planning",
    "dead": "failed",
}


def follow_task(
    tx: UnitOfWork, plan_id: uuid.UUID, state: SubjectState, error: TaskError | None
) -> None:
    """Bring a plan into the state that belongs to its task run's."""
    move_plan(
        tx,
        plan_id,
        state=_PLAN_STATE[state],
        gap=None,
        reason_code=error.code if error else None,
        reason=error.sentence if error else None,
        reason_detail=None,
    )


def _run(container: Container, claim: Claim) -> None:
    # A process that never plans should not pay for the compiler.
    from app.services.plans.run import run_plan  # noqa: PLC0415 - see above

    run_plan(container, claim)


PLANNING: Final = TaskKind(name=PLAN_TEMPLATE, queue=ANALYSIS_QUEUE, run=_run, follow=follow_task)
