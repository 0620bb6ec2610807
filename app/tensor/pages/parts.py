"""Parts of the pages of tensor-parallel groups: states, ranking, bars, SVG of times, costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from app.analysis.mitigation.tensor.document import (
    Alternative,
    Criterion,
    LossRisk,
    Method,
    MitigationDocument,
)
from app.analysis.mitigation.tensor.group import STRAGGLES
from app.platform.database.states import TensorMode, TensorPlanState
from app.tensor.read import GroupRow, GroupView, JobGroups, PlanRow, ReportRow
from app.web import html
from app.web.format import MINUS, age, byte_size, count, heat_color, percent, plural, seconds, times
from app.web.parts import StateLabel
from app.web.tables import Drawn, Shown, drawn

METHOD_NAMES: Final = {
    Method.NONE: "None",
    Method.ZERO: "ZERO, resize",
    Method.MIGRATE: "Migrate all",
    Method.SEMI: "SEMI, resize and migrate",
    Method.WATERFILL: "Water-filled",
    Method.STICKY: "Sticky, move once",
}
CRITERIA: Final = {Criterion.T_MIN: "", Criterion.T_AVG: " to the mean", None: ""}
RISKS: Final = {
    LossRisk.NONE: "none",
    LossRisk.SMALL: "small: measure it",
    LossRisk.LARGE: "large: measure it",
    LossRisk.BEYOND_BUDGET: "beyond the budget",
}


IN_FORCE: Final = StateLabel("run", "Plan in force", 0)
ADVISED: Final = StateLabel("slow", "Plan advised", 0)
OFFERED: Final = StateLabel("wait", "Plan offered", 0)
STRAGGLING: Final = StateLabel("slow", "Straggler", 0)
EVEN: Final = StateLabel("ok", "Even", 2, quiet=True)


def active_plan(row: GroupRow) -> PlanRow | None:
    """Return the active plan of a group; None if its method is ``none``."""
    plan = row.plan
    if plan is None or not plan.state.active or plan.method is Method.NONE:
        return None
    return plan


def state_of(active: PlanRow | None, *, straggles: bool) -> StateLabel:
    """Return the state of a group: of its active plan, or else whether a rank straggles."""
    if active is None:
        return STRAGGLING if straggles else EVEN
    return {
        TensorPlanState.IN_FORCE: IN_FORCE,
        TensorPlanState.OFFERED: OFFERED,
    }.get(active.state, ADVISED)


def alternatives_table(document: MitigationDocument, active: PlanRow | None, csv: str) -> Drawn:
    """Return the ranking of methods; the active plan's, or else the best method, is marked."""

    def own(item: Alternative) -> bool:
        if active is None:
            return item is document.best
        same = (item.method, item.criterion) == (active.method, active.criterion)
        return item.within_budget and same

    def name(item: Alternative) -> str | Markup:
        text = METHOD_NAMES[item.method] + CRITERIA[item.criterion]
        if item.method is Method.ZERO and item.within_budget:
            text += ", within the budget"
        return html.element("b", text) if own(item) else text

    def of_slowest(item: Alternative) -> float:
        return item.predicted_time_s / document.slowest_time_s

    def attributes(item: Alternative) -> dict[str, str]:
        selected = {"aria-selected": "true"} if own(item) else {}
        return selected if item.within_budget else selected | {"class": "beyond"}

    return drawn(
        (
            Shown("Method", name),
            Shown(
                "Slowest rank",
                lambda item: html.bar(100 * of_slowest(item), "sel" if own(item) else ""),
                classes="b",
            ),
            Shown("A step", lambda item: seconds(item.predicted_time_s), classes="num"),
            Shown(
                "Change",
                lambda item: "" if item.method is Method.NONE else percent(of_slowest(item) - 1),
                classes="num",
            ),
            Shown("γ", lambda item: f"{item.gamma:.3f}" if item.gamma else "0", classes="num opt"),
            Shown("Migrated", lambda item: count(item.migrated_columns), classes="num opt"),
            Shown("Extra", _extra, classes="num opt w3"),
            Shown("Loss risk", lambda item: RISKS[item.loss_risk], classes="opt"),
        ),
        document.alternatives,
        csv=csv,
        classes="tpmethods",
        attributes=attributes,
    )


def _extra(item: Alternative) -> str:
    if item.extra_bytes is None:
        return ""
    if item.extra_bytes == 0:
        return "0"
    return f"{byte_size(item.extra_bytes)} {'once' if item.method is Method.STICKY else 'a step'}"


def alternatives_title(document: MitigationDocument) -> str:
    """Return the title of the ranking: the fastest method within the accuracy budget."""
    if not document.stragglers:
        return "There is nothing to gain: no rank straggles"
    within = [item for item in document.alternatives if item.within_budget]
    best = within[0]
    title = f"{best.method.short} is fastest within the budget"
    title = title[0].upper() + title[1:]
    lossless = next(
        (i for i in within if i.loss_risk is LossRisk.NONE and i.method is not Method.NONE), None
    )
    if lossless is None or lossless is best:
        return f"{title}, without loss" if lossless is best else title
    slower = lossless.predicted_time_s / best.predicted_time_s - 1
    return f"{title}; {lossless.method.short} is lossless and {percent(slower)} slower"


@dataclass(frozen=True, slots=True)
class ColumnsBar:
    """The columns of a rank as a bar with labels; widths in per cent of the widest bar."""

    kept_width: float
    resized_width: float
    given_width: float
    received_width: float
    kept: str
    resized: str
    migrated: str

    @property
    def drawn(self) -> Markup:
        """Return the bar as SVG: kept, left out, and migrated or received columns."""
        after = self.kept_width + self.resized_width
        pieces = [
            ("k", 0.0, self.kept_width, "1", "12"),
            ("r", self.kept_width, self.resized_width, "1.5", "11"),
            ("m", after, self.given_width, "1", "12"),
            ("m", self.kept_width, self.received_width, "1", "12"),
        ]
        rects = "".join(
            f'<rect class="{kind}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{high}"/>'
            for kind, x, width, y, high in pieces
            if width or kind == "k"
        )
        return Markup(  # noqa: S704 - numbers
            '<svg class="cols2" viewBox="0 0 100 14" preserveAspectRatio="none"'
            f' aria-hidden="true">{rects}</svg>'
        )


def columns_bar(  # noqa: PLR0913 - one number for each part of the bar
    columns: int,
    most: int,
    *,
    resized: int,
    given: int,
    received: int,
    amount: Callable[[int], str] = count,
) -> ColumnsBar:
    """Return the bar of a rank's columns.

    Parameters
    ----------
    columns, most : int
        Columns of each rank without a plan, and columns of the widest bar.
    resized, given, received : int
        Columns that the rank leaves out, migrates to others, and receives from others.
    amount : callable
        Returns a number of columns as a text.
    """
    kept = columns - resized - given
    migrated = ""
    if given:
        migrated = f"{MINUS}{amount(given)}"
    elif received:
        migrated = f"+{amount(received)}"
    return ColumnsBar(
        kept_width=100 * kept / most,
        resized_width=100 * resized / most,
        given_width=100 * given / most,
        received_width=100 * received / most,
        kept=amount(kept),
        resized=amount(resized) if resized else "",
        migrated=migrated,
    )


# Size of the drawing in its own units; the page stretches the drawing.
WIDTH: Final = 1000.0
HEIGHT: Final = 120.0
# Margin above the highest and below the lowest value, as a share of the range of values.
_MARGIN: Final = 0.08
_TICKS: Final = 4
_STEP_TICKS: Final = 4
# Multiple of the typical gap between reports above which no line joins two reports.
_GAP: Final = 5.0
# Largest number of versions marked in the drawing; these are the newest applied ones.
_MOST_MARKS: Final = 6
# Position in per cent to the right of which a label is written to the left of its line.
_LATE: Final = 70.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of an axis; its position in per cent of the axis' length."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line; its position in per cent of the width."""

    at: float
    label: str

    @property
    def late(self) -> bool:
        """Return whether the label is written to the left of the line."""
        return self.at > _LATE


@dataclass(frozen=True, slots=True)
class TimesFigure:
    """Times T of the slow rank and of the others by step, and the predicted times."""

    # slow, others: SVG paths in `WIDTH` × `HEIGHT`; `others` is the mean of all other ranks
    slow: str
    others: str
    predicted: str  # the prediction of each version while it was in force
    values: tuple[Tick, ...]
    steps: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    from_s: float


@dataclass(frozen=True, slots=True)
class _Scale:
    """Positions of steps and times as shares of the drawing; y counts from the top."""

    first: int
    span: int
    low: float
    high: float

    def x(self, step: float) -> float:
        return (step - self.first) / self.span

    def within(self, step: float) -> float:
        return min(max(self.x(step), 0.0), 1.0)

    def y(self, value: float) -> float:
        return 1 - (value - self.low) / (self.high - self.low)


def times_figure(
    reports: Sequence[ReportRow], slow: int, plans: Sequence[PlanRow]
) -> TimesFigure | None:
    """Return the figure of times by step; None if there is only one report."""
    if len(reports) == 1:
        return None
    steps = [report.step for report in reports]
    own = [report.times_s[slow] for report in reports]
    rest = [(sum(r.times_s) - r.times_s[slow]) / (len(r.times_s) - 1) for r in reports]
    ticks = _nice(min(*own, *rest), max(*own, *rest))
    scale = _Scale(steps[0], steps[-1] - steps[0], ticks[0], ticks[-1])
    parts = []
    for plan in plans:
        if plan.method is Method.NONE or plan.applied_step is None:
            continue
        begin = scale.within(plan.applied_step)
        end = 1.0 if plan.ended_step is None else scale.within(plan.ended_step)
        if end > begin and scale.low <= plan.predicted_time_s <= scale.high:
            level = scale.y(plan.predicted_time_s) * HEIGHT
            parts.append(f"M{begin * WIDTH:.1f} {level:.1f}H{end * WIDTH:.1f}")
    return TimesFigure(
        slow=_path(scale, steps, own),
        others=_path(scale, steps, rest),
        predicted="".join(parts),
        values=tuple(Tick(100 * scale.y(value), f"{value:g}") for value in ticks),
        steps=tuple(
            Tick(100 * n / _STEP_TICKS, count(round(scale.first + scale.span * n / _STEP_TICKS)))
            for n in range(_STEP_TICKS + 1)
        ),
        marks=tuple(
            Mark(
                100 * scale.x(plan.applied_step),
                "withdrawn" if plan.method is Method.NONE else f"plan {plan.version}",
            )
            for plan in plans
            if plan.applied_step is not None and 0 <= scale.x(plan.applied_step) <= 1
        )[:_MOST_MARKS],
        from_s=scale.low,
    )


def _path(scale: _Scale, steps: Sequence[int], values: Sequence[float]) -> str:
    between = sorted(b - a for a, b in pairwise(steps))
    longest = _GAP * between[(len(between) - 1) // 2]
    parts, before = [], None
    for step, value in zip(steps, values, strict=True):
        joined = before is not None and step - before <= longest
        place = f"{scale.x(step) * WIDTH:.1f} {scale.y(value) * HEIGHT:.1f}"
        parts.append(("L" if joined else "M") + place)
        before = step
    return "".join(parts)


def _nice(low: float, high: float) -> list[float]:
    """Return ticks around values, at multiples of 1, 2 or 5 times a power of ten."""
    margin = _MARGIN * (high - low) or 0.05 * high
    low, high = max(low - margin, 0.0), high + margin
    rough = (high - low) / _TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]


_HOUR_S: Final = 3600.0
# Gain below which a replacement is not advised: it is within the measurement error of T.
_LEAST_GAIN: Final = 0.005
# Gain from which on it is written in whole per cent.
_ROUND: Final = 0.02


def replace_title(view: GroupView, document: MitigationDocument, where: str) -> str:
    """Return a title with the gain of replacing the slow host or rank; "" if no rank straggles."""
    if not document.stragglers:
        return ""
    gain = _gain(view, document)
    if gain < _LEAST_GAIN:
        return f"Replacing {where} would gain no more than the plan"
    again = " again" if view.row.latest.plan_version is not None else ""
    return f"Or replace {where}: {percent(gain, 0 if gain >= _ROUND else 1)} less{again}, no loss"


def replace_note(view: GroupView, document: MitigationDocument) -> str:
    """Return the cost of the restart, and the time until the replacement pays off, in words."""
    restart, gain = view.restart, _gain(view, document)
    cost = f"about {age(restart.takes_s)} of restart"
    if restart.gpus:
        hours = restart.gpus * restart.takes_s / _HOUR_S
        spent = count(round(hours)) if hours >= 1 else f"{hours:.1g}"
        cost += f", {spent} GPU-hours of this job"
    parts = [f"Replacing costs {cost}"]
    if gain >= _LEAST_GAIN:
        # After this time the saved time equals the length of the restart.
        pays_s = restart.takes_s / gain
        planned = view.row.latest.plan_version is not None
        so = "at this plan" if planned else "without a plan"
        parts[0] += f"; it pays after {age(pays_s)} {so}"
    if restart.measured:
        parts.append("The job’s last restart took this long for this group")
    else:
        parts.append("The restart’s length is assumed: no restart was recorded yet")
    if view.row.replace_node:
        parts.append(
            "It has straggled for over 1,000 steps; resize, migrate and sticky are for short ones"
        )
    return ". ".join(parts) + "."


def _gain(view: GroupView, document: MitigationDocument) -> float:
    """Return the share of the current step time that would be saved if no rank were slow."""
    latest = view.row.latest
    now_s = max(latest.times_s)
    step_s = max(latest.measured_step_s or now_s, now_s)
    return max(now_s - document.fastest_time_s, 0.0) / step_s


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
    """The page that lists the tensor-parallel groups of a job."""

    job: str
    heading: str
    now: datetime
    applied: bool
    rows: tuple[GroupLine, ...]


def groups_page(groups: JobGroups) -> GroupsPage:
    """Return the list of a job's groups."""
    rows = tuple(_group_line(groups.job, row) for row in groups.groups)
    slow = sum(
        max(g.latest.free_times_s) > STRAGGLES * min(g.latest.free_times_s) for g in groups.groups
    )
    heading = (
        f"{slow} of {plural(len(rows), 'tensor-parallel group')} "
        f"{'has' if slow == 1 else 'have'} a straggler"
        if slow
        else f"No straggler in {plural(len(rows), 'tensor-parallel group')}"
    )
    return GroupsPage(groups.job, heading, groups.now, groups.switch.mode is TensorMode.APPLY, rows)


def _group_line(job: str, row: GroupRow) -> GroupLine:
    free = row.latest.free_times_s
    slow = max(range(len(free)), key=free.__getitem__)
    over = free[slow] / min(free)
    plan = active_plan(row)
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
