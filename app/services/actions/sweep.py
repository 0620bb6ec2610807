"""Use case: look at the machines of every project that lets anything be done to them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import delete, select, union

from app.actions.states import ActionMode, ActionState
from app.db.models.hosts import ActionPolicy, MachineAction
from app.db.models.tasks import ACT_ON_MACHINE, TaskRun
from app.db.states import TaskState
from app.services.access.projects import is_there
from app.services.actions.decide import decide

if TYPE_CHECKING:
    from app.services.container import Container

# How long task runs of actions stay for people to look at; the actions themselves stay.
TASK_RUNS_KEPT: Final = timedelta(hours=1)

# Something may change by itself.
_LIVE: Final = (*ActionState.UNDECIDED, *ActionState.OUT)

_log = structlog.get_logger(__name__)


def sweep_actions(container: Container) -> int:
    """Do one pass; return how many actions were ordered or released."""
    everywhere = container.everywhere()
    with everywhere.uow() as tx:
        policies = select(ActionPolicy.project_id).where(
            ActionPolicy.mode != ActionMode.OFF, is_there(ActionPolicy.project_id)
        )
        actions = select(MachineAction.project_id).where(
            MachineAction.state.in_(_LIVE), is_there(MachineAction.project_id)
        )
        projects = sorted(tx.session.execute(union(policies, actions)).scalars())
        tx.session.execute(
            delete(TaskRun).where(
                TaskRun.kind == ACT_ON_MACHINE,
                TaskRun.state.in_(TaskState.OVER),
                TaskRun.finished_at < tx.now - TASK_RUNS_KEPT,
            )
        )
    begun = sum(decide(container.within(project_id)) for project_id in projects)
    if begun:
        _log.info("actions on machines", begun=begun)
    return begun
