"""Work control of a slow tensor-parallel group on the page of a session."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from app.analysis.mitigation.tensor.document import Alternative, Method, RankShare
from app.analysis.mitigation.tensor.recorded import GroupAdvice
from app.analysis.report.document import Report
from app.dashboard.tensor.columns import ColumnsBar, columns_bar
from app.dashboard.tensor.words import CRITERIA, METHOD_NAMES, RISKS
from app.dashboard.ui.format import count, heat_color, percent, seconds, times, worker


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A rank in the table."""

    rank: int
    where: str
    color: str
    over: str
    before: str
    after: str
    columns: ColumnsBar
    slow: bool


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A method; `share` is per cent of the slowest rank's time today."""

    name: str
    share: float
    time: str
    change: str
    gamma: str
    risk: str
    own: bool
    beyond: bool


@dataclass(frozen=True, slots=True)
class SessionTensor:
    """The region of the group that waits longest."""

    title: str
    note: str
    ranks: tuple[ShareRow, ...]
    methods: tuple[MethodRow, ...]
    remarks: str


def session_tensor(report: Report) -> SessionTensor | None:
    """Return the region of a report's page; None where no work is to be shed."""
    found = report.tensor
    if found is None or found.groups[0].advice.best.method is Method.NONE:
        return None
    group = found.groups[0]
    advice = group.advice
    fix = next((item for item in report.recommendations if item.action == "shed_work"), None)
    gain = found.predicted_gain if fix is None else fix.predicted_gain
    step_s = found.predicted_step_time if fix is None else fix.predicted_step_time
    slow = group.ranks[advice.stragglers[0]]
    more = len(found.groups) - 1
    return SessionTensor(
        title=f"Taking work off rank {slow} would save {percent(gain)} of every step",
        note=f"Tensor-parallel group {worker(*group.worker)}, a step without waiting at "
        f"collectives; the whole step would take {seconds(step_s)}",
        ranks=tuple(_rank(group, share, report) for share in advice.best.ranks),
        methods=tuple(_method(item, group) for item in advice.alternatives),
        remarks=_remarks(group, more),
    )


def _rank(group: GroupAdvice, share: RankShare, report: Report) -> ShareRow:
    advice = group.advice
    columns = advice.columns
    most = columns + max(rank.received_columns for rank in advice.best.ranks)
    over = share.time_s / advice.fastest_time_s
    number = group.ranks[share.rank]
    return ShareRow(
        rank=number,
        where=report.machine(number).called,
        color=heat_color(over),
        over=times(over),
        before=seconds(share.time_s),
        after=seconds(share.predicted_time_s),
        columns=columns_bar(
            columns,
            most,
            resized=share.resized_columns,
            given=share.migrated_columns,
            received=share.received_columns,
            amount=partial(_amount, group),
        ),
        slow=share.rank in advice.stragglers,
    )


def _amount(group: GroupAdvice, columns: int) -> str:
    if group.columns_known:
        return count(columns)
    return percent(columns / group.advice.columns)


def _method(item: Alternative, group: GroupAdvice) -> MethodRow:
    slowest_s = group.advice.slowest_time_s
    return MethodRow(
        name=METHOD_NAMES[item.method] + CRITERIA[item.criterion],
        share=100 * item.predicted_time_s / slowest_s,
        time=seconds(item.predicted_time_s),
        change="" if item.method is Method.NONE else percent(item.predicted_time_s / slowest_s - 1),
        gamma=f"{item.gamma:.3f}" if item.gamma else "0",
        risk=RISKS[item.loss_risk],
        own=item is group.advice.best,
        beyond=not item.within_budget,
    )


def _remarks(group: GroupAdvice, more: int) -> str:
    parts = ["A job that reports its times gets such plans while it runs, and may apply them."]
    if not group.columns_known:
        parts.insert(
            0,
            "Shares of the columns of a rank; tensor_columns in the metadata names their number.",
        )
    if more:
        parts.insert(0, f"{more} other group{'s' if more > 1 else ''} would be planned alike.")
    return " ".join(parts)
