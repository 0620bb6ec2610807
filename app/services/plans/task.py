"""Planning as a kind of task, without the planner itself.

Processes that only publish or sweep need to know this much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.broker.celery import ANALYSIS_QUEUE
from app.db.models.tasks import PLAN_TEMPLATE
from app.db.states import PlanState, TaskState
from app.services.container import Claim, TaskKind
from app.services.plans.transition import move_plan
from app.services.tasks.followers import follower

if TYPE_CHECKING:
    from app.services.container import Container


def _run(container: Container, claim: Claim) -> None:
    # A process that never plans should not pay for the compiler.
    from app.services.plans.run import run_plan  # noqa: PLC0415 - see above

    run_plan(container, claim)


PLANNING: Final = TaskKind(
    name=PLAN_TEMPLATE,
    queue=ANALYSIS_QUEUE,
    run=_run,
    follow=follower(
        move_plan,
        {
            TaskState.QUEUED: PlanState.QUEUED,
            TaskState.RUNNING: PlanState.PLANNING,
            TaskState.DEAD: PlanState.FAILED,
        },
        gap=None,
    ),
)
