"""Files behind the figures of a tensor-parallel group's page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from app.analysis.json_text import to_json
from app.analysis.mitigation.tensor.advise import advise
from app.dashboard.ui.csv_text import Table
from app.services.tensor.read import GroupView, JobGroups
from app.services.tensor.switches import Switched


def _times(view: GroupView) -> Table:
    names = [str(rank) for rank in view.row.ranks or range(view.row.world_size)]
    header = ["step", "plan", *(f"rank_{name}_s" for name in names)]
    header += [f"rank_{name}_without_plan_s" for name in names]
    return Table(
        header,
        (
            [r.step, "" if r.plan_version is None else r.plan_version, *r.times_s, *r.free_times_s]
            for r in view.reports
        ),
    )


def _ranks(view: GroupView) -> Table:
    latest, plan = view.row.latest, view.row.plan
    return Table(
        ["rank", "without_plan_s", "now_s", "predicted_s", "resized", "migrated", "received"],
        (
            [
                rank,
                latest.free_times_s[rank],
                latest.times_s[rank],
                "" if plan is None else plan.ranks[rank].predicted_time_s,
                0 if plan is None else plan.ranks[rank].resized_columns,
                0 if plan is None else plan.ranks[rank].migrated_columns,
                0 if plan is None else plan.ranks[rank].received_columns,
            ]
            for rank in range(view.row.world_size)
        ),
    )


def _plans(view: GroupView) -> Table:
    return Table(
        ["version", "state", "method", "created_step", "applied_step", "ended_step",
         "acknowledged", "resized", "migrated", "predicted_s", "measured_s"],
        (
            [
                plan.version, plan.state, plan.method, plan.created_step, plan.applied_step,
                plan.ended_step, plan.acknowledged, plan.resized_columns, plan.migrated_columns,
                plan.predicted_time_s, plan.measured_time_s,
            ]
            for plan in view.plans
        ),
    )  # fmt: skip


def _alternatives(view: GroupView) -> Table:
    return Table(
        ["method", "criterion", "predicted_s", "speedup", "gamma", "migrated", "extra_bytes",
         "loss_risk"],
        (
            [
                item.method, item.criterion, item.predicted_time_s, item.speedup, item.gamma,
                item.migrated_columns, item.extra_bytes, item.loss_risk,
            ]
            for item in advise(view.problem).alternatives
        ),
    )  # fmt: skip


def _advice(view: GroupView) -> str:
    return to_json(advise(view.problem))


FILES: Final[Mapping[str, Callable[[GroupView], Table | str]]] = {
    "times.csv": _times,
    "ranks.csv": _ranks,
    "plans.csv": _plans,
    "alternatives.csv": _alternatives,
    "switches.csv": lambda view: Table.of(Switched, view.history),
    "advice.json": _advice,
}


def groups_csv(found: JobGroups) -> Table:
    """Return the groups of a job."""
    return Table(
        ("group", "attempt", "ranks", "columns", "step", "reported_at", "slowest_s", "plan",
         "plan_state", "predicted_s", "replace_node"),
        (
            [
                row.name, row.attempt, row.ranks, row.columns, row.step, row.reported_at,
                max(row.latest.times_s), row.plan and row.plan.version,
                row.plan and row.plan.state, row.plan and row.plan.predicted_time_s,
                row.replace_node,
            ]
            for row in found.groups
        ),
    )  # fmt: skip
