"""What the page of an analyzed session shows, made from its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.analysis.report.heatmaps import HEATMAP_MISSING, HEATMAP_SCALE
from app.dashboard.look.figure_parts import stretch_starts
from app.dashboard.look.format import count
from app.dashboard.look.parts import Row
from app.dashboard.session import figures, findings
from app.dashboard.session.cause_rows import CauseRow, causes_table
from app.dashboard.session.chunks import chunk_rows
from app.dashboard.session.tables import (
    Attribution,
    Fixes,
    Workers,
    attribution_table,
    coverage_rows,
    fixes_table,
    launch_rows,
    recovered_rows,
    workers_table,
)
from app.dashboard.session.template import SessionTemplate, session_template
from app.dashboard.session.what_if import WhatIfForm, what_if_form

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The step and the worker that the page opens with."""

    index: int
    step: int
    by_request: bool
    dp: int
    pp: int


@dataclass(frozen=True, slots=True)
class ReportView:
    """Everything that the sections of a report's page show."""

    verdict: bool
    step_count: int
    chosen: Chosen
    map_title: str
    strip_title: str
    strip_note: str
    timeline_title: str
    workers: Workers
    fixes: Fixes
    what_if: WhatIfForm
    attribution: Attribution
    causes_title: str
    causes: tuple[CauseRow, ...]
    named: bool
    confidences: bool
    recovered_title: str
    recovered: tuple[Row, ...]
    scatter_title: str
    scatter_note: str
    launch_title: str
    launches: tuple[Row, ...]
    recorded_title: str
    coverage_title: str
    coverage: tuple[Row, ...]
    template: SessionTemplate | None
    data: Mapping[str, Any]


def report_view(
    document: Document, *, step: int | None = None, dp: int | None = None, pp: int | None = None
) -> ReportView:
    """Return what the page of a report shows.

    Parameters
    ----------
    document : mapping
        A ``paceline.report/1``.
    step, dp, pp : int, optional
        The step and the worker that the address asks for; what does not exist is ignored.
    """
    chosen = _choose(document, step, dp, pp)
    times_s = document["step_times"]
    correlation = document["fb_correlation"]
    starts = stretch_starts(document["steps"]["analyzed"])
    drawn = len(correlation["sample"]["forward_s"])
    return ReportView(
        verdict=document["fidelity"]["verdict"],
        step_count=len(document["steps"]["analyzed"]),
        chosen=chosen,
        map_title=findings.map_finding(document),
        strip_title=findings.strip_finding(document),
        strip_note="Slowdown of each step: simulated time ÷ ideal time; dashed: S"
        + (f", dotted: one of {len(starts) + 1} recorded stretches ends" if starts else ""),
        timeline_title=findings.timeline_finding(
            chosen.step, times_s["recorded"][chosen.index], times_s["ideal"][chosen.index]
        ),
        workers=workers_table(document),
        fixes=fixes_table(document),
        what_if=what_if_form(document),
        attribution=attribution_table(document),
        causes_title=findings.causes_finding(document),
        causes=causes_table(document),
        named=bool(document["causes"]),
        confidences=any(cause["confidence"] is not None for cause in document["causes"]),
        recovered_title=findings.recovery_finding(document),
        recovered=recovered_rows(document),
        scatter_title=findings.correlation_finding(document),
        scatter_note="Forward against backward time of a microbatch on stage "
        f"{correlation['stage']}; {count(drawn)} of {count(correlation['points'])} drawn",
        launch_title=findings.launch_finding(document),
        launches=launch_rows(document),
        recorded_title=findings.recorded_finding(document),
        coverage_title=findings.coverage_finding(document),
        coverage=(*coverage_rows(document), *chunk_rows(document)),
        template=session_template(document),
        data=_data(document, chosen),
    )


def _choose(document: Document, step: int | None, dp: int | None, pp: int | None) -> Chosen:
    steps = document["steps"]["analyzed"]
    slowdowns = document["step_slowdown"]
    by_request = step in steps
    index = steps.index(step) if by_request else slowdowns.index(max(slowdowns))
    sizes = document["sizes"]
    if dp is not None and pp is not None and 0 <= dp < sizes["dp"] and 0 <= pp < sizes["pp"]:
        cell = (dp, pp)
    else:
        ranked = findings.ranked_workers(document)
        cell = (ranked[0][1], ranked[0][2]) if ranked else (0, 0)
    return Chosen(index, steps[index], by_request, *cell)


def _data(document: Document, chosen: Chosen) -> Mapping[str, Any]:
    """Return what the page's script needs; times in seconds."""
    sizes, ranks = document["sizes"], document["workers"]["rank"]
    data: dict[str, Any] = {
        "dp": sizes["dp"],
        "pp": sizes["pp"],
        "steps": document["steps"]["analyzed"],
        "recorded_s": _short(document["step_times"]["recorded"]),
        "ideal_s": _short(document["step_times"]["ideal"]),
        "index": chosen.index,
        "by_request": chosen.by_request,
        "cell": [chosen.dp, chosen.pp],
        "figures": {"launch": figures.launch_delays(document)},
    }
    if not document["fidelity"]["verdict"]:
        data["figures"]["recorded"] = figures.recorded_times(document)
        return data
    per_step = document["per_step"]
    hosts, gpus = document["hosts"], document["gpus"]
    data |= {
        "slowdown": document["slowdown"],
        "simulated_s": _short(document["step_times"]["simulated"], 6),
        "step_slowdown": _short(document["step_slowdown"]),
        "by_dp": _short(document["by_dp"]),
        "by_pp": _short(document["by_pp"]),
        "by_dp_step": [_short(row, 3) for row in per_step["by_dp"]],
        "by_pp_step": [_short(row, 3) for row in per_step["by_pp"]],
        "places": [[_place(rank, hosts, gpus) for rank in row] for row in ranks],
        # how the heatmaps of steps come over HTTP
        "heatmap_scale": HEATMAP_SCALE,
        "heatmap_missing": HEATMAP_MISSING,
    }
    data["figures"] |= {
        "heatmap": figures.heatmap(document),
        "strip": figures.strip(document),
    }
    if document["fb_correlation"]["sample"]["forward_s"]:
        data["figures"]["scatter"] = figures.scatter(document)
    return data


def _place(rank: int | None, hosts: Mapping[str, str], gpus: Mapping[str, str]) -> str:
    if rank is None:
        return ""
    host, gpu = hosts.get(str(rank)), gpus.get(str(rank))
    if host is None:
        return f"rank {rank}"
    if gpu is None:
        return host
    return f"{host} · {f'GPU {gpu}' if gpu.isdecimal() else gpu}"


def _short(values: list[float | None], digits: int = 4) -> list[float | None]:
    return [None if value is None else round(value, digits) for value in values]
