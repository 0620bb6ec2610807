"""The form on a session's page that asks what the step would take with other durations."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.report.document import Report
from app.dashboard.look.format import seconds, times


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of a list; `value` is as the script and the address write it."""

    value: str
    name: str


@dataclass(frozen=True, slots=True)
class WhatIfForm:
    """What the form offers, and the two step times that its answers are held against."""

    op_types: tuple[Choice, ...]
    now: str
    now_slowdown: str
    ideal: str


def what_if_form(report: Report) -> WhatIfForm:
    """Return the form: operation types that the session has, the costliest first."""
    costs = report.by_optype
    names = sorted(costs, key=lambda name: (-costs[name], name))
    computing = [name for name in names if name.endswith("-compute")]
    groups = [Choice(".".join(computing), "all computing")] if len(computing) > 1 else []
    simulated, ideal = report.step_times.simulated, report.step_times.ideal
    return WhatIfForm(
        op_types=(*groups, *(Choice(name, name) for name in names)),
        now=seconds(sum(simulated) / len(simulated)),
        now_slowdown=times(report.slowdown, 3),
        ideal=seconds(sum(ideal) / len(ideal)),
    )
