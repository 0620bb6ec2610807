"""Receive a job's report of a tensor-parallel group's times, and decide on the next plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.access.senders import check_sender, claim_attempt
from app.analysis.mitigation.tensor.control import (
    LOOKED_BACK,
    Act,
    ClearChanges,
    CurrentPlan,
    Rung,
    Streak,
    clear_changes,
    decide,
)
from app.analysis.mitigation.tensor.document import Method
from app.analysis.mitigation.tensor.group import Group
from app.analysis.mitigation.tensor.prediction import layers_of
from app.errors import ConflictError, Fault
from app.platform.container import Container
from app.platform.database.states import TensorPlanState
from app.platform.database.unit_of_work import UnitOfWork
from app.quotas.usage import TENSOR_GROUPS, count_made
from app.sessions.receive import check_job_name, make_job
from app.tensor.groups import (
    Switch,
    plan_of,
    problem_of,
    refuse_old_attempt,
    shares_in,
    switch_of,
)
from app.tensor.models import TensorGroup, TensorPlan, TensorReport
from app.tensor.spec import WrittenTimings
from app.tensor.versions import OfferedPlan, end_plan, make_plan, offered, withdraw

# Number of a group's reports that are kept: some hours of steps, which the group's page draws.
REPORTS_KEPT: Final = 2000
# Old reports are deleted in batches of this size.
_PRUNED: Final = 100


@dataclass(frozen=True, slots=True)
class Received:
    """The group's plan after a report."""

    plan_version: int | None
    """Number of the newest version of the group's plan; None before the first version."""
    expires_step: int | None
    """First step at which the newest version is no longer valid."""
    plan: OfferedPlan | None
    """The newest version, if the job does not have it yet."""


def receive_timings(container: Container, job: str, name: str, timings: WrittenTimings) -> Received:
    """Store a report and, in the same transaction, the plan's version that follows from it.

    Raises
    ------
    PacelineError
        The job's name is invalid, or the report contradicts stored data (see docs/tensor.md).
        Nothing is stored then.
    """
    check_job_name(job)
    with container.uow() as tx:
        check_sender(container, tx, job)
        row = _locked(container, tx, job, name, timings)
        claim_attempt(container, tx, job, row.job_id, timings.attempt)
        switch = switch_of(tx, row.job_id)
        under = _measured_under(tx, row, timings)
        in_force = None if under is None else shares_in(under.ranks, row.unit)
        group = timings.group(in_force, timings.computed)
        row.step = timings.step
        row.max_gamma, row.apply = timings.max_gamma, timings.apply
        row.methods = sorted(method.value for method in timings.known_methods)
        # A report without costs or sizes does not change the stored ones.
        if timings.costs is not None:
            row.costs = timings.costs.costs()
        if timings.sizes is not None:
            row.sizes = timings.each_size()
        row.ranks = timings.ranks or row.ranks
        row.hosts = timings.hosts or row.hosts
        if under is not None:
            count = under.measured_reports
            slowest_s = max(timings.times_s)
            under.measured_time_s = ((under.measured_time_s or 0.0) * count + slowest_s) / (
                count + 1
            )
            under.measured_reports = count + 1
            # Times measured under a plan show that it is in force, even without an acknowledgement.
            if under.state is TensorPlanState.OFFERED:
                under.state = TensorPlanState.IN_FORCE
                under.applied_step = timings.step
        active = _active_plan(tx, row, timings.step)
        decision = decide(
            problem_of(row, group, switch),
            timings.step,
            Streak(row.over, row.calm, row.drifted, row.missed, Rung(row.rung), row.since_step),
            _control_plan(row, active, switch),
            max(timings.times_s) if under is not None and under is active else None,
            _clarity(tx, row, group),
        )
        streak = decision.streak
        row.over, row.calm, row.drifted = streak.over, streak.calm, streak.drifted
        row.missed, row.rung, row.since_step = streak.missed, int(streak.rung), streak.since_step
        row.replace_node = decision.replace_node
        if decision.act is Act.WITHDRAW and active is not None:
            withdraw(tx, row, active, timings.step)
        elif decision.alternative is not None:
            make_plan(tx, row, group, decision.alternative, switch)
        elif active is not None:
            expires = timings.step + switch.expires_after_steps
            active.expires_step = max(active.expires_step, expires)
        new = row.reports == 0
        _store_report(tx, row, timings, group)
        tx.session.flush()
        if new:
            count_made(tx, container.settings, container.project_id, TENSOR_GROUPS)
        newest = plan_of(tx, row.id, row.version)
        if newest is None:
            return Received(None, None, None)
        news = newest.version > timings.known_version
        return Received(newest.version, newest.expires_step, offered(row, newest) if news else None)


def _locked(
    container: Container, tx: UnitOfWork, job: str, name: str, timings: WrittenTimings
) -> TensorGroup:
    """Return the group's row, locked; insert the row with the group's first report.

    Reports of one group are processed one after another.
    """
    job_id = make_job(container, tx, job)
    refuse_old_attempt(tx, job_id, name, timings.attempt)
    tx.session.execute(
        insert(TensorGroup)
        .values(
            job_id=job_id,
            name=name,
            attempt=timings.attempt,
            world_size=timings.world_size,
            columns=timings.columns,
            unit=timings.unit,
            max_gamma=timings.max_gamma,
            apply=timings.apply,
            methods=[],
        )
        .on_conflict_do_nothing()
    )
    row = tx.session.execute(
        select(TensorGroup)
        .where(
            TensorGroup.job_id == job_id,
            TensorGroup.name == name,
            TensorGroup.attempt == timings.attempt,
        )
        .with_for_update()
    ).scalar_one()
    _check(row, timings)
    if row.reports == 0:
        # Plans of earlier attempts are ended and kept; the times of earlier attempts are deleted.
        earlier = select(TensorGroup.id).where(
            TensorGroup.job_id == row.job_id,
            TensorGroup.name == row.name,
            TensorGroup.attempt < row.attempt,
        )
        tx.session.execute(
            update(TensorPlan)
            .where(TensorPlan.group_id.in_(earlier), TensorPlan.state.in_(TensorPlanState.ACTIVE))
            .values(state=TensorPlanState.EXPIRED)
        )
        tx.session.execute(delete(TensorReport).where(TensorReport.group_id.in_(earlier)))
    return row


def _check(row: TensorGroup, timings: WrittenTimings) -> None:
    faults = [
        Fault(
            "conflict",
            f"{field} was {getattr(row, field)} in this attempt, not {getattr(timings, field)}",
            column=field,
        )
        for field in ("world_size", "columns", "unit")
        if getattr(row, field) != getattr(timings, field)
    ]
    if (
        timings.sizes is not None
        and row.sizes
        and layers_of(row.sizes) != layers_of(timings.each_size())
    ):
        message = "sizes are of other layers than those of this attempt"
        faults.append(Fault("conflict", message, column="sizes"))
    if faults:
        raise ConflictError(
            f"The group differs: {faults[0].message}.",
            code="tensor.group_differs",
            faults=tuple(faults),
        )
    if row.step is not None and timings.step <= row.step:
        message = f"Step {timings.step} was reported already: the latest one is {row.step}."
        fault = Fault("conflict", message, column="step")
        raise ConflictError(message, code="tensor.out_of_order", faults=(fault,))


def _measured_under(tx: UnitOfWork, row: TensorGroup, timings: WrittenTimings) -> TensorPlan | None:
    if timings.plan_version is None:
        return None
    plan = plan_of(tx, row.id, timings.plan_version)
    if plan is None:
        message = f"Attempt {row.attempt} of the group has no plan {timings.plan_version}."
        fault = Fault("conflict", message, column="plan_version")
        raise ConflictError(message, code="tensor.unknown_plan", faults=(fault,))
    return plan


def _active_plan(tx: UnitOfWork, row: TensorGroup, step: int) -> TensorPlan | None:
    newest = plan_of(tx, row.id, row.version)
    if newest is None or not newest.state.active or newest.method == Method.NONE.value:
        return None
    if newest.expires_step <= step:
        end_plan(newest, TensorPlanState.EXPIRED, newest.expires_step)
        return None
    return newest


def _control_plan(row: TensorGroup, plan: TensorPlan | None, switch: Switch) -> CurrentPlan | None:
    if plan is None:
        return None
    allowed = plan.method in row.methods and plan.method not in row.refused
    shares = shares_in(plan.ranks, row.unit)
    fits = allowed and all(entry.gamma <= switch.budget(row.max_gamma) for entry in plan.ranks)
    return CurrentPlan(Method(plan.method), shares, plan.predicted_time_s, fits=fits)


def _clarity(tx: UnitOfWork, row: TensorGroup, group: Group) -> ClearChanges:
    """Return which changes of times exceed the noise of the earlier reports."""
    newest_first = tx.session.execute(
        select(TensorReport.free_times_s)
        .where(TensorReport.group_id == row.id)
        .order_by(TensorReport.number.desc())
        .limit(LOOKED_BACK)
    ).scalars()
    earlier = list(newest_first)[::-1]
    return clear_changes(np.array(earlier).reshape(len(earlier), group.ranks), group.time_s)


def _store_report(tx: UnitOfWork, row: TensorGroup, timings: WrittenTimings, group: Group) -> None:
    row.reports += 1
    row.reported_at = tx.now
    tx.session.add(
        TensorReport(
            group_id=row.id,
            number=row.reports,
            step=timings.step,
            times_s=timings.times_s,
            matmul_s=timings.matmul_s,
            free_times_s=group.time_s.tolist(),
            free_matmul_s=group.matmul_s.tolist(),
            measured_step_s=timings.measured_step_s,
            plan_version=timings.plan_version,
            received_at=func.now(),
        )
    )
    if row.reports % _PRUNED == 0:
        tx.session.execute(
            delete(TensorReport).where(
                TensorReport.group_id == row.id,
                TensorReport.number <= row.reports - REPORTS_KEPT,
            )
        )
