"""The row of facts below the verdict, as far as the report has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.analysis.budget.document import WORTH_SAYING
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.verdict import lost_between
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.document import SECONDS_AN_HOUR, Report
from app.analysis.report.findings import NamedCause
from app.analysis.wording import gpu_time, hours, sure
from app.dashboard.session.slowdown import against, shown_interval, whole
from app.dashboard.ui.format import percent, rough_percent, times, worker
from app.dashboard.ui.parts import Fact

# Fewer are said in minutes or seconds.
_FEW_GPU_HOURS: Final = 0.01


def verdict_facts(report: Report) -> list[Fact]:
    """Return the facts that come from the report: how slow, what it costs, why."""
    causes = report.causes
    return [
        _slowdown_fact(report),
        _lost_fact(report),
        _cause_fact(causes[0]) if causes else Fact("Cause", "None", "nothing found"),
        _runner_up(causes),
    ]


def _lost_fact(report: Report) -> Fact:
    """Return what is lost: first what the verdict says first."""
    in_steps = "to its causes" if report.headline.kind.without_causes else "to stragglers, by S"
    hint = "In the session, by all ranks together"
    of_all = _lost_by_all(report)
    if not of_all:
        more = f"{_lost(report.lost_gpu_hours_per_hour)} more each hour"
        return Fact(
            "GPU-hours lost", _lost(report.lost_gpu_hours), more, hint=f"{hint}: {in_steps}"
        )
    parts = sorted({**of_all, in_steps: report.lost_gpu_hours}.items(), key=lambda one: -one[1])
    (first, most), *rest = parts
    also = " and ".join(f"{_lost(lost)} {what}" for what, lost in rest)
    return Fact("GPU-hours lost", _lost(most), f"{first}; {also}", hint=hint)


def _lost_by_all(report: Report) -> dict[str, float]:
    """Return what is in no slowdown, GPU-hours, as far as it is worth saying."""
    budget = report.budget
    if budget is None:
        return {}
    known_s = sum(cause.between_s for cause in report.causes)
    shares = {"between steps": lost_between(budget.shares, known_s, report.diagnosis.turn_s)}
    if report.headline.slowdown < STRAGGLING:
        # else it is one of the causes
        shares["as all compute slower"] = budget.shares.slow_together
    gpu_hours = report.sizes.world * budget.wall_s / SECONDS_AN_HOUR
    return {what: gpu_hours * share for what, share in shares.items() if share >= WORTH_SAYING}


def _lost(gpu_hours: float) -> str:
    """Return GPU-hours, the unit left to the label, unless they are next to none."""
    return gpu_time(gpu_hours) if 0 < abs(gpu_hours) < _FEW_GPU_HOURS else hours(gpu_hours)


def known_fact(report: Report) -> Fact | None:
    """Return what the named causes cost where S is withheld; None where none is named."""
    waste = report.known_waste
    if waste is None:
        return None
    return Fact(
        "Known loss",
        percent(waste),
        f"of each step; {hours(report.sizes.world * waste)} GPU-hours each hour",
        hint="What the named causes take of each step, by replay; at least that is lost",
    )


def quality_fact(report: Report) -> Fact:
    """Return whether the report may be believed."""
    fidelity = report.fidelity
    sign = "<" if fidelity.verdict else ">"
    return Fact(
        "Trace quality",
        "Good" if fidelity.verdict else "Poor",
        f"discrepancy {percent(fidelity.discrepancy)} {sign} {percent(fidelity.limit, 0)}",
        hint="Mean recorded step time ÷ replayed − 1; above the limit there is no verdict",
    )


def launch_fact(report: Report) -> Fact:
    """Return the operation type that is launched latest, and the worker that has most of it."""
    shares = report.launch_by_optype
    name = max(shares, key=lambda key: shares[key])
    note = f"{percent(shares[name])} of each step, before it"
    for late in report.fidelity.late_launches:
        if late.op_type == name and late.workers:
            first = late.workers[0]
            note += f"; worker {worker(*first.worker)} alone {percent(first.share)}"
    return Fact("Most launch delay", name, note)


def _slowdown_fact(report: Report) -> Fact:
    """Return the slowdown as everything on the first screen says it."""
    return Fact(
        "Slowdown",
        times(report.headline.slowdown),
        shown_interval(report.headline),
        hint=f"{whole(report.headline)}: {against(report.headline)}",
    )


def _cause_fact(cause: NamedCause, label: str = "Cause") -> Fact:
    share = cause.contribution
    note = "is another possible cause" if share is None else f"explains {rough_percent(share)}"
    if cause.confidence is not None:
        note += f", {sure(cause.confidence)} sure"
    return Fact(label, title_of(cause.cause), note)


def _runner_up(causes: Sequence[NamedCause]) -> Fact:
    label = "Runner-up"
    if len(causes) > 1:
        return _cause_fact(causes[1], label)
    other = causes[0].runner_up if causes else None
    if other is None:
        return Fact(label, "None", "nothing else found")
    return Fact(label, title_of(other), "costs too little to name")
