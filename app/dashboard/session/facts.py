"""The row of facts below the verdict, as far as the report has them."""

from __future__ import annotations

from collections.abc import Sequence

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.headline import WHY_S_DIFFERS, HeadlineKind, why_published
from app.analysis.replay.confidence import Interval
from app.analysis.report.document import Report
from app.analysis.report.findings import NamedCause
from app.analysis.wording import hours, sure
from app.dashboard.ui.format import interval, percent, rough_percent, times, worker
from app.dashboard.ui.parts import Fact


def verdict_facts(report: Report) -> list[Fact]:
    """Return the facts that come from the report: how slow, what it costs, why."""
    causes = report.causes
    against = "its causes" if report.headline.kind is HeadlineKind.CAUSES else "stragglers, by S"
    return [
        _slowdown_fact(report),
        Fact(
            "GPU-hours lost",
            hours(report.lost_gpu_hours),
            f"{hours(report.lost_gpu_hours_per_hour)} more each hour",
            hint=f"To {against}, in the analyzed steps, by all ranks together",
        ),
        _cause_fact(causes[0]) if causes else Fact("Cause", "None", "nothing found"),
        _runner_up(causes),
    ]


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


def published_remark(report: Report) -> str:
    """Return the note on the headline and S; empty where they agree."""
    shown = report.headline
    if shown.kind is HeadlineKind.PUBLISHED:
        return f"The slowdown is the published S: {why_published(named=bool(report.causes))}."
    if not shown.differs(report.slowdown):
        return ""
    return (
        f"The published S is {times(report.slowdown, 3)} ({_interval(report.slowdown_ci95)}): "
        f"{WHY_S_DIFFERS}."
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
    """Return the headline with the published S, or S where the headline is S."""
    shown = report.headline
    if shown.kind is HeadlineKind.PUBLISHED:
        return Fact(
            "Slowdown S",
            times(report.slowdown, 3),
            _interval(report.slowdown_ci95),
            hint="Simulated time with the recorded durations ÷ with all of them ideal",
        )
    measured = "no interval" if shown.ci95 is None else _interval(shown.ci95)
    # else the remark below says it, and a second line would push the page down
    published = (
        "" if shown.differs(report.slowdown) else f"; published S {times(report.slowdown, 3)}"
    )
    return Fact(
        "Slowdown",
        times(shown.slowdown, 3),
        f"{measured}{published}",
        hint="Against the job without its causes: step time ÷ step time without them"
        + (f". No interval: {shown.ci95_reason}" if shown.ci95_reason else ""),
    )


def _interval(ci95: Interval) -> str:
    return f"95\N{NO-BREAK SPACE}%: {interval(*ci95)}"


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
