"""How a tensor-parallel group does."""

from __future__ import annotations

from typing import Final

from app.analysis.mitigation.tensor.document import Method
from app.dashboard.ui.parts import StateLabel
from app.db.states import TensorPlanState
from app.services.tensor.read import GroupRow, PlanRow

IN_FORCE: Final = StateLabel("run", "Plan in force", 0)
ADVISED: Final = StateLabel("slow", "Plan advised", 0)
OFFERED: Final = StateLabel("wait", "Plan offered", 0)
STRAGGLING: Final = StateLabel("slow", "Straggler", 0)
EVEN: Final = StateLabel("ok", "Even", 2, quiet=True)


def standing_of(row: GroupRow) -> PlanRow | None:
    """Return the plan of a group that stands, unless it is to do nothing."""
    plan = row.plan
    if plan is None or not plan.state.standing or plan.method is Method.NONE:
        return None
    return plan


def state_of(standing: PlanRow | None, *, straggles: bool) -> StateLabel:
    """Return how a group does: what its plan is at, else whether a rank straggles."""
    if standing is None:
        return STRAGGLING if straggles else EVEN
    return {
        TensorPlanState.IN_FORCE: IN_FORCE,
        TensorPlanState.OFFERED: OFFERED,
    }.get(standing.state, ADVISED)
