"""The list of the tensor-parallel groups of a job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.analysis.mitigation.tensor.group import STRAGGLES
from app.dashboard.tensor.standing import standing_of, state_of
from app.dashboard.ui.format import count, heat_color, plural, seconds, times
from app.dashboard.ui.parts import StateLabel
from app.db.states import TensorMode
from app.services.tensor.read import GroupRow, JobGroups


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A row of the list of groups."""

    url: str
    name: str
    state: StateLabel
    ranks: int
    slow: str
    over: str
    color: str
    plan: str
    predicted: str
    measured: str
    step: str
    reported_at: datetime


@dataclass(frozen=True, slots=True)
class GroupsPage:
    """The groups of a job."""

    job: str
    heading: str
    now: datetime
    applied: bool
    rows: tuple[GroupLine, ...]


def groups_page(found: JobGroups) -> GroupsPage:
    """Return the list of a job's groups."""
    rows = tuple(_group_line(found.job, row) for row in found.groups)
    slow = sum(
        max(g.latest.free_times_s) > STRAGGLES * min(g.latest.free_times_s) for g in found.groups
    )
    heading = (
        f"{slow} of {plural(len(rows), 'tensor-parallel group')} "
        f"{'has' if slow == 1 else 'have'} a straggler"
        if slow
        else f"No straggler in {plural(len(rows), 'tensor-parallel group')}"
    )
    return GroupsPage(found.job, heading, found.now, found.switch.mode is TensorMode.APPLY, rows)


def _group_line(job: str, row: GroupRow) -> GroupLine:
    free = row.latest.free_times_s
    slow = max(range(len(free)), key=free.__getitem__)
    over = free[slow] / min(free)
    plan = standing_of(row)
    straggles = over > STRAGGLES
    return GroupLine(
        url=f"/jobs/{job}/tensor/{row.name}",
        name=row.name,
        state=state_of(plan, straggles=straggles),
        ranks=row.world_size,
        slow=str(row.ranks[slow] if row.ranks else slow) if straggles else "",
        over=times(over),
        color=heat_color(over),
        plan="" if plan is None else f"{plan.version}, {plan.method.short}",
        predicted="" if plan is None else seconds(plan.predicted_time_s),
        measured=seconds(max(row.latest.times_s)),
        step=count(row.step),
        reported_at=row.reported_at,
    )
