"""The row of facts below the verdict, as far as the report has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.wording import hours, sure
from app.dashboard.look.format import interval, percent, rough_percent, times, worker
from app.dashboard.look.parts import Fact

Document = Mapping[str, Any]


def verdict_facts(document: Document) -> list[Fact]:
    """Return the facts that come from the report: how slow, what it costs, why."""
    ci95 = document["slowdown_ci95"]
    causes = document["causes"]
    return [
        Fact(
            "Slowdown S",
            times(document["slowdown"], 3),
            f"95\N{NO-BREAK SPACE}%: {interval(*ci95)}" if ci95 else "no interval: one step",
            hint="Simulated time with the recorded durations ÷ with all of them ideal",
        ),
        Fact(
            "GPU-hours lost",
            hours(document["gpu_hours_lost"]),
            f"{hours(document['gpu_hours_lost_per_hour'])} more each hour",
            hint="In the analyzed steps, by all ranks together",
        ),
        _cause_fact(causes[0]) if causes else Fact("Cause", "None", "nothing found"),
        _runner_up(causes),
    ]


def quality_fact(document: Document) -> Fact:
    """Return whether the report may be believed."""
    fidelity = document["fidelity"]
    sign = "<" if fidelity["verdict"] else ">"
    return Fact(
        "Trace quality",
        "Good" if fidelity["verdict"] else "Poor",
        f"discrepancy {percent(fidelity['discrepancy'])} {sign} {percent(fidelity['limit'], 0)}",
        hint="Mean recorded step time ÷ replayed − 1; above the limit there is no verdict",
    )


def launch_facts(document: Document) -> list[Fact]:
    """Return the operation type that is launched latest, and the worker that has most of it."""
    shares = document["launch_by_optype"]
    name = max(shares, key=lambda key: shares[key], default=None)
    if name is None:
        return []
    note = f"{percent(shares[name])} of each step, before it"
    # Reports from before workers were told apart do not name them.
    for late in document["fidelity"].get("late_launches", ()):
        if late["op_type"] == name and late["workers"]:
            first = late["workers"][0]
            note += f"; worker {worker(*first['worker'])} alone {percent(first['share'])}"
    return [Fact("Most launch delay", name, note)]


def _cause_fact(cause: Mapping[str, Any], label: str = "Cause") -> Fact:
    share, confidence = cause["contribution"], cause["confidence"]
    parts = []
    if share is not None:
        parts.append(f"explains {rough_percent(share)}")
    if confidence is not None:
        parts.append(f"{sure(confidence)} sure")
    note = ", ".join(parts) or (cause["evidence"][0] if cause["evidence"] else "share not known")
    return Fact(label, title_of(cause["cause"]), note)


def _runner_up(causes: Sequence[Mapping[str, Any]]) -> Fact:
    label = "Runner-up"
    if len(causes) > 1:
        return _cause_fact(causes[1], label)
    other = causes[0].get("runner_up") if causes else None
    if other is None:
        return Fact(label, "None", "nothing else found")
    return Fact(label, title_of(other), "costs too little to name")
