"""Versions of a group's plan: made, ended, renewed, shown to the job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import select

from app.access.audit import Action, record
from app.analysis.mitigation.tensor.document import Alternative, LossRisk, Method, RankShare
from app.analysis.mitigation.tensor.group import Group
from app.errors import ConflictError, Fault, InvalidTensorError, NotFoundError
from app.platform.container import Container
from app.platform.database.states import TensorMode, TensorPlanState
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.tensor.groups import Switch, group_of, job_id_of, locked_group, plan_of, switch_of
from app.tensor.models import TensorGroup, TensorPlan, TensorSwitch
from app.tensor.spec import WrittenAck

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


# ---- Use cases: a job asks for a newer plan, and reports the outcome of one --------------------


def newer_plan(tx: Reads, job: str, name: str, attempt: int, after: int) -> OfferedPlan | None:
    """Return the newest version of a group's plan, if it is newer than what the job has.

    Raises
    ------
    NotFoundError
        Nothing was reported of the group in this attempt.
    """
    group = group_of(tx, job, name, attempt)
    if group.version <= after:
        return None
    plan = plan_of(tx, group.id, group.version)
    return None if plan is None else offered(group, plan)


def acknowledge(container: Container, job: str, name: str, version: int, ack: WrittenAck) -> None:
    """Note which ranks applied a version: when all have it is in force, when one could not refused.

    To acknowledge twice is harmless. After a refusal the version is taken back, and its method is
    not offered again in this attempt.

    Raises
    ------
    NotFoundError
        There is no such version.
    ConflictError
        ``tensor.superseded``: it is not, or no longer, to be applied.
    InvalidTensorError
        A rank that the group does not have.
    """
    with container.uow() as tx:
        group = locked_group(tx, job, name, ack.attempt)
        plan = plan_of(tx, group.id, version)
        if plan is None:
            raise NotFoundError(f"The group has no plan {version} in attempt {ack.attempt}.")
        unknown = [n for n, rank in enumerate(ack.ranks) if rank >= group.world_size]
        if unknown:
            place = f"ranks[{unknown[0]}]"
            message = f"{place}: the group has no rank {ack.ranks[unknown[0]]}"
            fault = Fault("unknown_rank", message, column=place)
            raise InvalidTensorError(message, faults=(fault,))
        if plan.state is TensorPlanState.REFUSED and not ack.applied:
            return
        if plan.state not in (TensorPlanState.OFFERED, TensorPlanState.IN_FORCE):
            raise ConflictError(f"Plan {version} is {plan.state}.", code="tensor.superseded")
        if not ack.applied:
            plan.reason = ack.reason
            group.refused = sorted({*group.refused, plan.method})
            # A job that could not even read it names no step of its own.
            step = max(ack.step, plan.created_step)
            withdraw(tx, group, plan, step)
            end_plan(plan, TensorPlanState.REFUSED, step)
            return
        plan.acknowledged = sorted({*plan.acknowledged, *ack.ranks})
        if len(plan.acknowledged) == group.world_size and plan.state is TensorPlanState.OFFERED:
            plan.state, plan.applied_step = TensorPlanState.IN_FORCE, ack.step


# ---- Use case: switch a job's plans between advice and application -----------------------------


# Switches of a job that a page lists.
MOST_LISTED: Final = 50


@dataclass(frozen=True, slots=True)
class Switched:
    """Who switched a job's plans to what, and when."""

    at: datetime
    by: str
    mode: TensorMode
    max_gamma: float | None
    expires_after_steps: int


def history(tx: Reads, job_id: int) -> tuple[Switched, ...]:
    """Return who switched a job's plans, newest first."""
    rows = tx.session.execute(
        select(TensorSwitch)
        .where(TensorSwitch.job_id == job_id)
        .order_by(TensorSwitch.id.desc())
        .limit(MOST_LISTED)
    ).scalars()
    return tuple(
        Switched(row.at, row.by, row.mode, row.max_gamma, row.expires_after_steps) for row in rows
    )


def read_switch(tx: Reads, job: str) -> tuple[Switch, tuple[Switched, ...]]:
    """Return what holds of a job, and who switched it so.

    Raises
    ------
    NotFoundError
    """
    job_id = job_id_of(tx, job)
    return switch_of(tx, job_id), history(tx, job_id)


def switch_plans(
    container: Container, job: str, wanted: Switch, by: str | None = None
) -> list[str]:
    """Switch a job's plans; what stands becomes another version at once.

    Switched to application, advice is offered to the job; switched to advice, plans in force are
    taken back and stand as advice. A budget that is lowered works with the next report.

    Returns
    -------
    list of str
        The groups that have a new version.

    Raises
    ------
    NotFoundError
        There is no such job.
    """
    changed = []
    who = container.principal.called(by)
    with container.uow() as tx:
        job_id = job_id_of(tx, job)
        tx.session.add(
            TensorSwitch(
                job_id=job_id,
                by=who.name,
                mode=wanted.mode,
                max_gamma=wanted.max_gamma,
                expires_after_steps=wanted.expires_after_steps,
            )
        )
        parts = [f"to {wanted.mode}"]
        if wanted.max_gamma is not None:
            parts.append(f"γ at most {wanted.max_gamma:g}")
        record(
            tx,
            who,
            Action.SWITCHED,
            f"tensor plans of {job}",
            detail=", ".join([*parts, f"for {wanted.expires_after_steps} steps"]),
        )
        standing = tx.session.execute(
            select(TensorGroup, TensorPlan)
            .join(
                TensorPlan,
                (TensorPlan.group_id == TensorGroup.id)
                & (TensorPlan.version == TensorGroup.version),
            )
            .where(
                TensorGroup.job_id == job_id,
                TensorPlan.state.in_(TensorPlanState.STANDING),
                TensorPlan.method != Method.NONE.value,
            )
            .order_by(TensorGroup.id)
            .with_for_update(of=TensorGroup)
        ).all()
        for group, plan in standing:
            apply = group.apply and wanted.mode is TensorMode.APPLY
            if apply == plan.apply:
                continue
            step = group.step or plan.created_step
            if plan.apply:
                withdraw(tx, group, plan, step)
            else:
                reoffer(tx, group, plan, wanted, step)
            changed.append(group.name)
    return changed
