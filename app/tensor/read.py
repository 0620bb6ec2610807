"""Queries of tensor-parallel groups: lists, and the data of a group's page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
from sqlalchemy import func, select, tuple_

from app.analysis.mitigation.tensor.advice import Problem
from app.analysis.mitigation.tensor.document import Criterion, Method, RankShare
from app.analysis.mitigation.tensor.group import Group
from app.errors import NotFoundError
from app.jobs.models import Job
from app.platform.database.states import TensorPlanState
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import Session
from app.tensor.groups import Switch, group_of, problem_of, switch_of
from app.tensor.models import TensorGroup, TensorPlan, TensorReport
from app.tensor.versions import Switched, history

# Assumed length of a restart if none was recorded, and the longest gap between attempts that counts
# as a restart: after a longer gap the job had been suspended.
RESTART_TAKES_S: Final = 600.0
LONGEST_RESTART_S: Final = 24 * 3600.0
# Numbers of reports that a page draws, and of versions that it lists.
DRAWN: Final = 400
LISTED: Final = 50


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A version of a group's plan."""

    version: int
    state: TensorPlanState
    method: Method
    criterion: Criterion | None
    apply: bool
    budget: float
    ranks: tuple[RankShare, ...]
    slowest_time_s: float
    fastest_time_s: float
    predicted_time_s: float
    created_step: int
    expires_step: int
    applied_step: int | None
    ended_step: int | None
    acknowledged: int
    reason: str | None
    measured_time_s: float | None

    @property
    def resized_columns(self) -> int:
        """Return the number of columns that no rank computes."""
        return sum(rank.resized_columns for rank in self.ranks)

    @property
    def migrated_columns(self) -> int:
        """Return the number of columns that ranks compute for others."""
        return sum(rank.migrated_columns for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Times of each rank, seconds a step; `free_times_s` are without the effect of the plan.

    `measured_step_s` is the length of the whole step, waiting included, if the job reports it.
    """

    step: int
    times_s: tuple[float, ...]
    free_times_s: tuple[float, ...]
    plan_version: int | None
    measured_step_s: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Cost of a restart of a job."""

    takes_s: float  # from the last report of an attempt to the first one of the next
    measured: bool  # whether that was seen of this group; if not, `takes_s` is an assumption
    gpus: int | None  # idle meanwhile: those of the job's latest session


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in its newest attempt; `ranks` are global numbers, empty if not reported."""

    name: str
    attempt: int
    world_size: int
    ranks: tuple[int, ...]
    columns: int
    step: int
    reported_at: datetime
    replace_node: bool
    latest: ReportRow
    plan: PlanRow | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """The data of a group's page."""

    job: str
    row: GroupRow
    now: datetime
    unit: int
    hosts: tuple[str, ...]  # of each rank; empty if the job sends none
    apply: bool  # whether the job's own code applies plans
    max_gamma: float  # the accuracy budget of the job's own code
    switch: Switch
    history: tuple[Switched, ...]
    reports: tuple[ReportRow, ...]  # the latest, oldest first; at least one
    plans: tuple[PlanRow, ...]  # newest first
    problem: Problem  # input of the advice: the latest report
    others: tuple[str, ...]
    restart: Restart


@dataclass(frozen=True, slots=True)
class JobGroups:
    """The groups of a job and its switch."""

    job: str
    now: datetime
    switch: Switch
    groups: tuple[GroupRow, ...]


def list_groups(tx: Reads, job: str) -> JobGroups:
    """Return a job's groups by name, each in its newest attempt.

    Raises
    ------
    NotFoundError
        There is no such job, or the job reports no group.
    """
    newest = (
        select(TensorGroup.job_id, TensorGroup.name, func.max(TensorGroup.attempt))
        .join(Job, Job.id == TensorGroup.job_id)
        .where(Job.name == job)
        .group_by(TensorGroup.job_id, TensorGroup.name)
    )
    rows = tx.session.execute(
        select(TensorGroup, TensorReport, TensorPlan)
        .join(
            TensorReport,
            (TensorReport.group_id == TensorGroup.id)
            & (TensorReport.number == TensorGroup.reports),
        )
        .outerjoin(
            TensorPlan,
            (TensorPlan.group_id == TensorGroup.id) & (TensorPlan.version == TensorGroup.version),
        )
        .where(tuple_(TensorGroup.job_id, TensorGroup.name, TensorGroup.attempt).in_(newest))
        .order_by(TensorGroup.name)
    ).all()
    if not rows:
        raise NotFoundError(f"Job {job} reports no tensor-parallel group.")
    return JobGroups(
        job=job,
        now=tx.now,
        switch=switch_of(tx, rows[0].TensorGroup.job_id),
        groups=tuple(
            _group_row(row.TensorGroup, _report_row(row.TensorReport), row.TensorPlan)
            for row in rows
        ),
    )


def group_view(tx: Reads, job: str, name: str) -> GroupView:
    """Return a group in its newest attempt with its reports, plans and switch.

    Raises
    ------
    NotFoundError
    """
    group = group_of(tx, job, name)
    reports = tx.session.execute(
        select(TensorReport)
        .where(TensorReport.group_id == group.id)
        .order_by(TensorReport.number.desc())
        .limit(DRAWN)
    ).scalars()
    drawn = list(reports)[::-1]
    plans = tx.session.execute(
        select(TensorPlan)
        .where(TensorPlan.group_id == group.id)
        .order_by(TensorPlan.version.desc())
        .limit(LISTED)
    ).scalars()
    listed = list(plans)
    names = tx.session.execute(
        select(TensorGroup.name)
        .where(TensorGroup.job_id == group.job_id)
        .distinct()
        .order_by(TensorGroup.name)
    ).scalars()
    switch = switch_of(tx, group.job_id)
    latest = drawn[-1]
    times = Group(
        np.array(latest.free_times_s), np.array(latest.free_matmul_s), group.columns, group.unit
    )
    return GroupView(
        job=job,
        row=_group_row(group, _report_row(latest), listed[0] if listed else None),
        now=tx.now,
        unit=group.unit,
        hosts=tuple(group.hosts or ()),
        apply=group.apply,
        max_gamma=group.max_gamma,
        switch=switch,
        history=history(tx, group.job_id),
        reports=tuple(_report_row(row) for row in drawn),
        plans=tuple(_plan_row(plan) for plan in listed),
        problem=problem_of(group, times, switch),
        others=tuple(names),
        restart=_restart(tx, group),
    )


def _restart(tx: Reads, group: TensorGroup) -> Restart:
    earlier = (
        select(TensorGroup.reported_at)
        .where(
            TensorGroup.job_id == group.job_id,
            TensorGroup.name == group.name,
            TensorGroup.attempt < group.attempt,
        )
        .order_by(TensorGroup.attempt.desc())
        .limit(1)
    )
    world = (
        select(Session.world)
        .where(Session.job_id == group.job_id)
        .order_by(Session.number.desc())
        .limit(1)
    )
    row = tx.session.execute(
        select(earlier.scalar_subquery().label("ended_at"), world.scalar_subquery().label("gpus"))
    ).one()
    takes_s = (group.created_at - row.ended_at).total_seconds() if row.ended_at else 0.0
    if not 0 < takes_s <= LONGEST_RESTART_S:
        return Restart(RESTART_TAKES_S, measured=False, gpus=row.gpus)
    return Restart(takes_s, measured=True, gpus=row.gpus)


def _group_row(group: TensorGroup, latest: ReportRow, plan: TensorPlan | None) -> GroupRow:
    return GroupRow(
        name=group.name,
        attempt=group.attempt,
        world_size=group.world_size,
        ranks=tuple(group.ranks or ()),
        columns=group.columns,
        step=latest.step,
        reported_at=group.reported_at or group.created_at,
        replace_node=group.replace_node,
        latest=latest,
        plan=None if plan is None else _plan_row(plan),
    )


def _report_row(row: TensorReport) -> ReportRow:
    return ReportRow(
        row.step,
        tuple(row.times_s),
        tuple(row.free_times_s),
        row.plan_version,
        row.measured_step_s,
    )


def _plan_row(plan: TensorPlan) -> PlanRow:
    return PlanRow(
        version=plan.version,
        state=plan.state,
        method=Method(plan.method),
        criterion=None if plan.criterion is None else Criterion(plan.criterion),
        apply=plan.apply,
        budget=plan.budget,
        ranks=plan.ranks,
        slowest_time_s=plan.slowest_time_s,
        fastest_time_s=plan.fastest_time_s,
        predicted_time_s=plan.predicted_time_s,
        created_step=plan.created_step,
        expires_step=plan.expires_step,
        applied_step=plan.applied_step,
        ended_step=plan.ended_step,
        acknowledged=len(plan.acknowledged),
        reason=plan.reason,
        measured_time_s=plan.measured_time_s,
    )
