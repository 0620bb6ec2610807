"""Page of a tensor-parallel group, its CSV files, and the routes of all pages of such groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response
from markupsafe import Markup

from app.access.guard import RequestContainer
from app.analysis.json_text import to_json
from app.analysis.mitigation.tensor.advice import advise
from app.analysis.mitigation.tensor.document import Method, MitigationDocument
from app.analysis.mitigation.tensor.group import STRAGGLES
from app.analysis.mitigation.tensor.methods import pruning_ratios
from app.errors import NotFoundError
from app.platform.database.states import TensorMode, TensorPlanState
from app.tensor.pages.parts import (
    TimesFigure,
    active_plan,
    alternatives_table,
    alternatives_title,
    columns_bar,
    groups_page,
    replace_note,
    replace_title,
    state_of,
    times_figure,
)
from app.tensor.read import GroupView, JobGroups, PlanRow, group_view, list_groups
from app.tensor.versions import Switched
from app.web import html
from app.web.format import EN_DASH, NBSP, count, percent, plural, seconds, times
from app.web.links import job_url
from app.web.moments import when
from app.web.pages import Pages
from app.web.parts import Fact, StateLabel
from app.web.tables import Drawn, Shown, Table, csv_file, drawn
from app.web.terms import term

PLAN_STATES: Final = {
    TensorPlanState.ADVISED: "advised",
    TensorPlanState.OFFERED: "offered",
    TensorPlanState.IN_FORCE: "in force",
    TensorPlanState.REFUSED: "refused",
    TensorPlanState.WITHDRAWN: "withdrawn",
    TensorPlanState.SUPERSEDED: "superseded",
    TensorPlanState.EXPIRED: "expired",
}


@dataclass(frozen=True, slots=True)
class SwitchView:
    """The switch between advice and application, and its history."""

    on: bool
    job_applies: bool
    budget: str
    own_budget: str
    expires: int
    note: str
    history: tuple[Switched, ...]


@dataclass(frozen=True, slots=True)
class GroupPage:
    """A group's page."""

    job: str
    name: str
    title: str
    subject: str
    state: StateLabel
    line: str
    heading: str
    facts: tuple[Fact, ...]
    now: datetime
    version: str
    slow: str
    others: int
    figure: TimesFigure | None
    figure_title: str
    slow_now: str
    others_now: str
    ranks_title: str
    ranks_note: str
    ranks: Drawn
    switch: SwitchView
    history_title: str
    plans: Drawn
    replace_title: str
    replace_note: str
    alternatives_title: str
    alternatives: Drawn
    costs_sampled: bool
    neighbors: tuple[str, ...]


def group_page(view: GroupView) -> GroupPage:
    """Return a group's page."""
    row, latest = view.row, view.row.latest
    active = active_plan(row)
    document, base = advise(view.problem), f"{job_url(view.job)}/tensor/{row.name}"
    slow, free_slow = _slow_rank(view, active), _slow_rank(view, None)
    name_of = [str(number) for number in view.row.ranks or range(view.row.world_size)]
    slowest = view.hosts[free_slow] if view.hosts else f"rank {name_of[free_slow]}"
    figure = times_figure(view.reports, slow, view.plans)
    ranks = f", ranks {row.ranks[0]}{EN_DASH}{row.ranks[-1]}" if row.ranks else ""
    others = [t for rank, t in enumerate(latest.times_s) if rank != slow]
    return GroupPage(
        job=view.job,
        name=row.name,
        title=f"{view.job}, tensor group {row.name}",
        subject=f"TP{NBSP}{row.world_size}{ranks}, attempt {row.attempt}",
        state=state_of(active, straggles=bool(document.stragglers)),
        line=(
            f"acts above {times(STRAGGLES)}, plans anew above |Δγ| 0.05, expires after "
            f"{plural(view.switch.expires_after_steps, 'step')} unless renewed"
        ),
        heading=_heading(view, active, document, name_of[slow]),
        facts=_facts(view, active, document, name_of[slow]),
        now=view.now,
        version=f"{row.attempt}.{len(view.plans)}.{row.step}.{view.switch.mode}.{len(view.history)}",
        slow=name_of[slow],
        others=row.world_size - 1,
        figure=figure,
        figure_title=_figure_title(view, active, slow, name_of[slow]),
        slow_now=seconds(latest.times_s[slow]),
        others_now=seconds(sum(others) / len(others)),
        ranks_title=_ranks_title(active, name_of),
        ranks_note=f"K = {count(row.columns)} columns a rank; per rank without a plan and now",
        ranks=_ranks_table(view, active, slow, name_of, f"{base}/ranks.csv"),
        switch=_switch(view),
        history_title=_history_title(view.plans),
        plans=drawn(_PLANS, view.plans, csv=f"{base}/plans.csv", classes="plain tpplans"),
        replace_title=replace_title(view, document, slowest),
        replace_note=replace_note(view, document),
        alternatives_title=alternatives_title(document),
        alternatives=alternatives_table(document, active, f"{base}/alternatives.csv"),
        costs_sampled=document.costs_sampled,
        neighbors=tuple(name for name in view.others if name != row.name),
    )


def _slow_rank(view: GroupView, active: PlanRow | None) -> int:
    if active is not None:
        shed = [rank.resized_columns + rank.migrated_columns for rank in active.ranks]
        return max(range(len(shed)), key=shed.__getitem__)
    free = view.row.latest.free_times_s
    return max(range(len(free)), key=free.__getitem__)


def _heading(
    view: GroupView, active: PlanRow | None, document: MitigationDocument, slow: str
) -> str:
    if active is None:
        if not document.stragglers:
            return (
                f"The {view.row.world_size} ranks compute evenly: none is over {times(STRAGGLES)}"
            )
        over = document.slowest_time_s / document.fastest_time_s
        return f"Rank {slow} takes {times(over)} as long as the fastest of its group"
    each = [rank.resized_columns + rank.migrated_columns for rank in active.ranks]
    shedding = sum(shed > 0 for shed in each)
    gain = 1 - active.predicted_time_s / active.slowest_time_s
    columns = (
        f"{count(sum(each))} of {plural(view.row.columns, 'column')} of rank {slow}"
        if shedding == 1
        else f"{plural(sum(each), 'column')} of {plural(shedding, 'rank')}"
    )
    if active.state is TensorPlanState.IN_FORCE and active.measured_time_s is not None:
        took = 1 - active.measured_time_s / active.slowest_time_s
        return (
            f"Shedding {columns} took {percent(took)} off its group’s computing; "
            f"predicted {percent(gain)}"
        )
    return f"Shedding {columns} would take {percent(gain)} off its group’s computing"


def _facts(
    view: GroupView, active: PlanRow | None, document: MitigationDocument, slow: str
) -> tuple[Fact, ...]:
    row, latest = view.row, view.row.latest
    over = document.slowest_time_s / document.fastest_time_s
    index = _slow_rank(view, active)
    facts = [
        Fact("Slowest rank", slow, view.hosts[index] if view.hosts else "without a plan"),
        Fact(
            "Slower by",
            times(over),
            f"{seconds(document.fastest_time_s)} → {seconds(document.slowest_time_s)} a step",
        ),
        Fact(
            "Slowest rank now",
            seconds(max(latest.times_s)),
            "" if active is None else f"predicted {seconds(active.predicted_time_s)}",
        ),
        Fact(
            "Excess work", f"γ {_to_shed(view):.3f}", "columns that the slowest rank has too many"
        ),
        Fact("Accuracy budget", f"γ {view.problem.accuracy_budget:g}", _budget_note(view, active)),
    ]
    if active is not None:
        step = active.applied_step or active.created_step
        acknowledged = f"{active.acknowledged} of {row.world_size} acknowledged"
        note = acknowledged if active.apply else "advice: nothing is applied"
        facts.append(Fact("Plan since", f"Step {count(step)}", f"version {active.version}, {note}"))
    facts.append(Fact("Timings", "", f"step {count(row.step)}", moment=row.reported_at))
    return tuple(facts)


def _to_shed(view: GroupView) -> float:
    """Return the excess share of the slowest rank's columns (Eq. 1)."""
    group = view.problem.group
    return float(pruning_ratios(group.time_s, group.matmul_s, group.fastest_s).max())


def _budget_note(view: GroupView, active: PlanRow | None) -> str:
    if active is None or not active.resized_columns:
        return "nothing is resized"
    most = max(rank.resized_columns for rank in active.ranks)
    return f"{count(most)} of {plural(view.row.columns, 'column')} resized"


def _figure_title(view: GroupView, active: PlanRow | None, slow: int, name: str) -> str:
    latest = view.row.latest.times_s
    rest = [value for rank, value in enumerate(latest) if rank != slow]
    share = latest[slow] / (sum(rest) / len(rest)) - 1
    near = f"{percent(abs(share), 0)} {'above' if share >= 0 else 'below'} its peers"
    if active is not None and active.applied_step is not None:
        return f"Rank {name} is {near} since step {count(active.applied_step)}"
    return f"Rank {name} is {near}"


def _ranks_title(active: PlanRow | None, names: list[str]) -> str:
    if active is None:
        return "Every rank computes its own columns"
    shedding = [rank for rank in active.ranks if rank.resized_columns or rank.migrated_columns]
    if len(shedding) > 1:
        return (
            f"{plural(len(shedding), 'rank')} leave out {count(active.resized_columns)} columns "
            f"and hand {count(active.migrated_columns)} to the others"
        )
    share = shedding[0]
    parts = []
    if share.resized_columns:
        parts.append(f"leaves out {plural(share.resized_columns, 'column')}")
    if share.migrated_columns:
        takers = len(share.to)
        parts.append(f"hands {count(share.migrated_columns)} to {plural(takers, 'other')}")
    would = "" if active.state is TensorPlanState.IN_FORCE else ", once it is applied"
    return f"Rank {names[share.rank]} {' and '.join(parts)}{would}"


def _ranks_table(
    view: GroupView, active: PlanRow | None, slow: int, names: list[str], csv: str
) -> Drawn:
    latest, columns = view.row.latest, view.row.columns
    free, shares = latest.free_times_s, () if active is None else active.ranks
    most = columns + max((share.received_columns for share in shares), default=0)
    bars = [
        columns_bar(
            columns,
            most,
            resized=share.resized_columns,
            given=share.migrated_columns,
            received=share.received_columns,
        )
        for share in shares
    ] or [columns_bar(columns, most, resized=0, given=0, received=0) for _ in free]

    def over(rank: int) -> float:
        return free[rank] / min(free)

    def selected(rank: int) -> bool:
        return rank == slow and (active is not None or over(rank) > STRAGGLES)

    return drawn(
        (
            Shown(
                term("rank", "Rank"),
                lambda rank: html.element("b", names[rank]) if selected(rank) else names[rank],
            ),
            Shown(
                "Host",
                lambda rank: view.hosts[rank] if view.hosts else "",
                classes="opt",
                of_cells="nowrap muted",
            ),
            Shown("÷ fastest", lambda rank: html.slowdown(over(rank)), classes="num opt"),
            Shown("Without", lambda rank: seconds(free[rank]), classes="num"),
            Shown("Now", lambda rank: seconds(latest.times_s[rank]), classes="num"),
            Shown("Columns", lambda rank: bars[rank].drawn, classes="b"),
            Shown("Kept", lambda rank: bars[rank].kept, classes="num opt"),
            Shown("Resized", lambda rank: bars[rank].resized, classes="num opt"),
            Shown("Migrated", lambda rank: bars[rank].migrated, classes="num opt"),
        ),
        range(len(free)),
        csv=csv,
        classes="tpranks",
        attributes=lambda rank: {"aria-selected": "true"} if selected(rank) else {},
    )


def _switch(view: GroupView) -> SwitchView:
    switch, on = view.switch, view.switch.mode is TensorMode.APPLY
    if view.history:
        last = view.history[0]
        note = Markup("Switched to {} by {}, {}.").format(
            last.mode, last.by, when(last.at, view.now)
        )
    else:
        note = Markup("It was never switched: plans are advice.")
    if on and not view.apply:
        note += " The job’s own code does not apply plans."
    return SwitchView(
        on=on,
        job_applies=view.apply,
        budget=f"{switch.budget(view.max_gamma):g}",
        own_budget=f"{view.max_gamma:g}",
        expires=switch.expires_after_steps,
        note=note,
        history=view.history,
    )


def _history_title(plans: tuple[PlanRow, ...]) -> str:
    off = [
        abs(plan.measured_time_s / plan.predicted_time_s - 1)
        for plan in plans
        if plan.measured_time_s is not None and plan.method is not Method.NONE
    ]
    if not plans:
        return "No plan yet"
    if not off:
        return f"{plural(len(plans), 'version')}, none measured yet"
    each = "The plan" if len(off) == 1 else f"Each of {len(off)} plans"
    return f"{each} measured within {percent(max(off))} of its prediction"


def _steps(plan: PlanRow) -> str:
    since = plan.applied_step if plan.applied_step is not None else plan.created_step
    return f"{count(since)}{EN_DASH}{'' if plan.ended_step is None else count(plan.ended_step)}"


def _time_under(plan: PlanRow, time_s: float | None) -> str:
    return "" if plan.method is Method.NONE or time_s is None else seconds(time_s)


_PLANS: Final[tuple[Shown[PlanRow], ...]] = (
    Shown("Plan", lambda plan: plan.version),
    Shown("Steps", _steps, of_cells="nowrap"),
    Shown(
        "Method",
        lambda plan: "taken back" if plan.method is Method.NONE else plan.method.short,
    ),
    Shown(
        "State",
        lambda plan: PLAN_STATES[plan.state] + (f": {plan.reason}" if plan.reason else ""),
        classes="opt",
        of_cells="muted",
    ),
    Shown("Predicted", lambda plan: _time_under(plan, plan.predicted_time_s), classes="num"),
    Shown("Measured", lambda plan: _time_under(plan, plan.measured_time_s), classes="num"),
)


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


FILES: Final[Mapping[str, Callable[[GroupView], Table | str]]] = {
    "times.csv": _times,
    "ranks.csv": _ranks,
    "plans.csv": _plans,
    "alternatives.csv": _alternatives,
    "switches.csv": lambda view: Table.of(Switched, view.history),
    "advice.json": lambda view: to_json(advise(view.problem)),
}


def groups_csv(groups: JobGroups) -> Table:
    """Return the table of a job's groups."""
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
            for row in groups.groups
        ),
    )  # fmt: skip


# Not cached, since a group sends reports continuously.
FILE_HEADERS: Final = {"Cache-Control": "no-store"}


def add_tensor_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of tensor-parallel groups to the dashboard."""

    @routes.get("/jobs/{job}/tensor")
    def groups_route(container: RequestContainer, job: str) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                groups = list_groups(tx, job)
            except NotFoundError:
                return pages.not_found(f"tensor-parallel group of job {job}", nav)
        return pages.render("tensor/list.html", nav, page=groups_page(groups), now=groups.now)

    @routes.get("/jobs/{job}/tensor.csv")
    def groups_file_route(container: RequestContainer, job: str) -> Response:
        with container.reading() as tx:
            groups = list_groups(tx, job)
        return csv_file("paceline-tensor-groups.csv", groups_csv(groups))

    @routes.get("/jobs/{job}/tensor/{group}")
    def group_route(container: RequestContainer, job: str, group: str) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                view = group_view(tx, job, group)
            except NotFoundError:
                return pages.not_found(f"tensor-parallel group {group} of job {job}", nav)
        return pages.render("tensor/page.html", nav, page=group_page(view), now=view.now)

    @routes.get("/jobs/{job}/tensor/{group}/{name}")
    def file_route(container: RequestContainer, job: str, group: str, name: str) -> Response:
        make = FILES.get(name)
        if make is None:
            raise NotFoundError(f"There is no {name} of a tensor-parallel group.")
        with container.reading() as tx:
            view = group_view(tx, job, group)
        made, file_name = make(view), f"paceline-tensor-{view.row.name}-{name}"
        if isinstance(made, Table):
            return csv_file(file_name, made)
        disposition = f'attachment; filename="{file_name}"'
        return Response(
            made,
            media_type="application/json",
            headers=FILE_HEADERS | {"Content-Disposition": disposition},
        )
