"""The form for what-if questions on a session's page."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.report.document import Report
from app.web.format import seconds, times


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of a selection list; scripts and URLs use `value`."""

    value: str
    name: str


@dataclass(frozen=True, slots=True)
class WhatIfForm:
    """The choices of the form, and the step times that answers are compared with.

    `reference` is the step time without the job's causes; empty if the reference is the ideal.
    """

    op_types: tuple[Choice, ...]
    now: str
    now_slowdown: str
    ideal: str
    ideal_slowdown: str
    reference: str
    note: str


def what_if_form(report: Report) -> WhatIfForm:
    """Return the form with the session's operation types, the most expensive type first."""
    costs = report.by_optype
    names = sorted(costs, key=lambda name: (-costs[name], name))
    computing = [name for name in names if name.endswith("-compute")]
    groups = [Choice(".".join(computing), "all computing")] if len(computing) > 1 else []
    simulated, ideal = report.step_times.simulated, report.step_times.ideal
    now_s, ideal_s = sum(simulated) / len(simulated), sum(ideal) / len(ideal)
    shown = report.headline
    reference_s = now_s / shown.slowdown
    against_causes = shown.kind.without_causes
    return WhatIfForm(
        op_types=(*groups, *(Choice(name, name) for name in names)),
        now=seconds(now_s),
        now_slowdown=times(shown.slowdown, 3),
        ideal=seconds(ideal_s),
        ideal_slowdown=times(ideal_s / reference_s, 3),
        reference=seconds(reference_s) if against_causes else "",
        note=f"Slowdown and gain: against the job without its causes, {seconds(reference_s)}, as "
        "those of the fixes. Peers' time is the median of the stage's other DP ranks, as if the "
        "worker were replaced; an ideal time is a mean over all workers, stragglers included."
        if against_causes
        else f"Slowdown and gain: against all of it ideal, {seconds(reference_s)}, as the "
        "published S.",
    )
