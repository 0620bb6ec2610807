"""Versions of a tensor-parallel group's plan: creation, offer, acknowledgement, switch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import select

from app.access.audit import Action, record
from app.access.senders import check_sender, claim_attempt
from app.analysis.mitigation.tensor.document import Alternative, Method, RankShare
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
    """A version of the plan in an answer to the job, schema ``paceline.tensor-plan/1``."""

    schema: Literal["paceline.tensor-plan/1"]
    version: int
    """Number of the plan within the attempt, from 1; a plan replaces all plans with lower numbers.
    """
    attempt: int
    group: str
    world_size: int
    columns: int
    """Number of columns of the layers for which the plan is valid."""
    unit: int
    """Number of columns that stay together, for which the plan is valid."""
    method: Method
    """Method of the plan; ``none`` withdraws the previous plan."""
    apply: bool
    """Whether the job is to apply the plan; if not, the plan is advice."""
    expires_step: int
    """First step at which the plan is no longer valid."""
    predicted_time_s: float
    """Predicted T of the slowest rank under the plan, s."""
    ranks: tuple[RankShare, ...]
    """Shares of all ranks, sorted by rank."""


def offered(group: TensorGroup, plan: TensorPlan) -> OfferedPlan:
    """Return a version in the form of an answer to the job."""
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
    """Store a new version at the step of the latest report, and end the previous version."""
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
    """Store a version for application with the content of a version that was advice."""
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
    """Store a version with the method ``none``: every rank computes its own columns again."""
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
    if before is not None and before.state.active:
        end_plan(before, ended_as, plan.created_step)
    row.version += 1
    plan.group_id, plan.version = row.id, row.version
    plan.acknowledged, plan.measured_reports = [], 0
    tx.session.add(plan)
    return plan


def end_plan(plan: TensorPlan, state: TensorPlanState, step: int) -> None:
    """Set the final state of a version and the step at which it ended."""
    plan.state, plan.ended_step = state, step


def newer_plan(tx: Reads, job: str, name: str, attempt: int, after: int) -> OfferedPlan | None:
    """Return the newest version of a group's plan, if the job has an earlier one; else None.

    Raises
    ------
    NotFoundError
        The group has not reported in this attempt.
    """
    group = group_of(tx, job, name, attempt)
    if group.version <= after:
        return None
    plan = plan_of(tx, group.id, group.version)
    return None if plan is None else offered(group, plan)


def acknowledge(container: Container, job: str, name: str, version: int, ack: WrittenAck) -> None:
    """Record which ranks applied a version: in force once all did, refused if one could not.

    Repeated acknowledgements change nothing. After a refusal the version is withdrawn, and its
    method is not offered again in this attempt.

    Raises
    ------
    NotFoundError
        There is no such version.
    ConflictError
        ``tensor.superseded``: the version is advice or no longer active.
    InvalidTensorError
        A rank that the group does not have.
    AttemptOwnedError
    """
    with container.uow() as tx:
        check_sender(container, tx, job)
        group = locked_group(tx, job, name, ack.attempt)
        claim_attempt(container, tx, job, group.job_id, ack.attempt)
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
            # The step of the acknowledgement may be too early: a job that could not read the plan
            # does not know the step.
            step = max(ack.step, plan.created_step)
            withdraw(tx, group, plan, step)
            end_plan(plan, TensorPlanState.REFUSED, step)
            return
        plan.acknowledged = sorted({*plan.acknowledged, *ack.ranks})
        if len(plan.acknowledged) == group.world_size and plan.state is TensorPlanState.OFFERED:
            plan.state, plan.applied_step = TensorPlanState.IN_FORCE, ack.step


# Largest number of a job's switches that a page lists.
MOST_LISTED: Final = 50


@dataclass(frozen=True, slots=True)
class Switched:
    """A switch of a job's plans between advice and application."""

    at: datetime
    by: str
    mode: TensorMode
    max_gamma: float | None
    expires_after_steps: int


def history(tx: Reads, job_id: int) -> tuple[Switched, ...]:
    """Return the switches of a job's plans, newest first."""
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
    """Return the current switch of a job and the history of switches, newest first.

    Raises
    ------
    NotFoundError
    """
    job_id = job_id_of(tx, job)
    return switch_of(tx, job_id), history(tx, job_id)


def switch_plans(
    container: Container, job: str, wanted: Switch, by: str | None = None
) -> list[str]:
    """Switch a job's plans between advice and application; active plans change at once.

    Switched to application, advice is offered to the job; switched to advice, plans in force are
    withdrawn and become advice. A lower budget takes effect with the next report.

    Returns
    -------
    list of str
        Groups that have a new version of their plan.

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
        active = tx.session.execute(
            select(TensorGroup, TensorPlan)
            .join(
                TensorPlan,
                (TensorPlan.group_id == TensorGroup.id)
                & (TensorPlan.version == TensorGroup.version),
            )
            .where(
                TensorGroup.job_id == job_id,
                TensorPlan.state.in_(TensorPlanState.ACTIVE),
                TensorPlan.method != Method.NONE.value,
            )
            .order_by(TensorGroup.id)
            .with_for_update(of=TensorGroup)
        ).all()
        for group, plan in active:
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
