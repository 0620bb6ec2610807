"""Versions of a group's plan: made, ended, renewed, shown to the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from app.analysis.mitigation.tensor.document import LossRisk, Method, RankShare
from app.db.models.tensor import TensorGroup, TensorPlan
from app.db.states import TensorMode, TensorPlanState

if TYPE_CHECKING:
    from app.analysis.mitigation.tensor.document import Alternative
    from app.analysis.mitigation.tensor.group import Group
    from app.db.unit_of_work import UnitOfWork
    from app.services.tensor.groups import Switch

SCHEMA: Final = "paceline.tensor-plan/1"


@dataclass(frozen=True, slots=True)
class OfferedPlan:
    """A version as the job gets it, schema ``paceline.tensor-plan/1``."""

    schema: Literal["paceline.tensor-plan/1"]
    version: int
    """Counts a group's plans within an attempt, from 1; a later one takes the place of all before.
    """
    attempt: int
    group: str
    world_size: int
    columns: int
    """What it is bound to."""
    unit: int
    """What it is bound to."""
    method: Method
    """``none`` takes back the plan before."""
    apply: bool
    """Whether the job is to apply it; if not, it is advice."""
    expires_step: int
    """The first step at which it no longer holds."""
    predicted_time_s: float
    """T of the slowest rank under it, s."""
    ranks: tuple[RankShare, ...]
    """All ranks, by their number."""


def offered(group: TensorGroup, plan: TensorPlan) -> OfferedPlan:
    """Return a version as the job gets it."""
    return OfferedPlan(
        schema=SCHEMA,
        version=plan.version,
        attempt=group.attempt,
        group=group.name,
        world_size=group.world_size,
        columns=group.columns,
        unit=group.unit,
        method=Method(plan.method),
        apply=plan.apply,
        expires_step=plan.expires_step,
        predicted_time_s=plan.predicted_time_s,
        ranks=plan.ranks,
    )


def make_plan(
    tx: UnitOfWork, row: TensorGroup, group: Group, alternative: Alternative, switch: Switch
) -> TensorPlan:
    """Store a new version as of the latest report's step, and end the one before."""
    step = row.step or 0
    apply = row.apply and switch.mode is TensorMode.APPLY
    return _add(
        tx,
        row,
        TensorPlan(
            state=TensorPlanState.OFFERED if apply else TensorPlanState.ADVISED,
            method=alternative.method.value,
            criterion=alternative.criterion and alternative.criterion.value,
            apply=apply,
            budget=switch.budget(row.max_gamma),
            ranks=alternative.ranks,
            slowest_time_s=float(group.time_s.max()),
            fastest_time_s=group.fastest_s,
            predicted_time_s=alternative.predicted_time_s,
            extra_bytes=alternative.extra_bytes,
            created_step=step,
            expires_step=step + switch.expires_after_steps,
        ),
        TensorPlanState.SUPERSEDED,
    )


def reoffer(
    tx: UnitOfWork, row: TensorGroup, advice: TensorPlan, switch: Switch, step: int
) -> TensorPlan:
    """Store what was advice as a version that is to be applied."""
    return _add(
        tx,
        row,
        TensorPlan(
            state=TensorPlanState.OFFERED,
            method=advice.method,
            criterion=advice.criterion,
            apply=True,
            budget=advice.budget,
            ranks=advice.ranks,
            slowest_time_s=advice.slowest_time_s,
            fastest_time_s=advice.fastest_time_s,
            predicted_time_s=advice.predicted_time_s,
            extra_bytes=advice.extra_bytes,
            created_step=step,
            expires_step=step + switch.expires_after_steps,
        ),
        TensorPlanState.SUPERSEDED,
    )


def withdraw(tx: UnitOfWork, row: TensorGroup, before: TensorPlan, step: int) -> TensorPlan:
    """Store a version that takes the one before back: every rank does its own work again."""
    slowest_s = max(entry.time_s for entry in before.ranks)
    nothing = tuple(
        RankShare(entry.rank, entry.time_s, entry.time_s, 0.0, 0, 0, 0, {})
        for entry in before.ranks
    )
    return _add(
        tx,
        row,
        TensorPlan(
            state=TensorPlanState.OFFERED if before.apply else TensorPlanState.ADVISED,
            method=Method.NONE.value,
            criterion=None,
            apply=before.apply,
            budget=before.budget,
            ranks=nothing,
            slowest_time_s=slowest_s,
            fastest_time_s=min(entry.time_s for entry in before.ranks),
            predicted_time_s=slowest_s,
            extra_bytes=None,
            created_step=step,
            expires_step=max(before.expires_step, step + 1),
        ),
        TensorPlanState.WITHDRAWN,
    )


def _add(
    tx: UnitOfWork, row: TensorGroup, plan: TensorPlan, ended_as: TensorPlanState
) -> TensorPlan:
    before = tx.session.get(TensorPlan, (row.id, row.version))
    if before is not None and before.state.standing:
        end_plan(before, ended_as, plan.created_step)
    row.version += 1
    plan.group_id, plan.version = row.id, row.version
    plan.acknowledged, plan.measured_reports = [], 0
    tx.session.add(plan)
    return plan


def end_plan(plan: TensorPlan, state: TensorPlanState, step: int) -> None:
    """Note that a version no longer holds."""
    plan.state, plan.ended_step = state, step


def loss_risk(plan: TensorPlan) -> LossRisk:
    """Return what a version may do to the accuracy; none is ever beyond the budget."""
    return LossRisk.SMALL if any(e.resized_columns for e in plan.ranks) else LossRisk.NONE
