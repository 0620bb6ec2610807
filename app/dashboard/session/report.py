"""What the page of an analyzed session shows, made from its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlencode

from app.analysis.report.document import Report
from app.analysis.report.heatmaps import HEATMAP_SCALE
from app.dashboard.session import findings
from app.dashboard.session.arrivals.view import (
    ArrivalsView,
    BreakdownTable,
    arrivals_view,
    breakdown_view,
    unsaid_rows,
)
from app.dashboard.session.causes.rows import CauseRow, causes_table
from app.dashboard.session.chunks import chunk_rows
from app.dashboard.session.drawing import figures
from app.dashboard.session.drawing.budget import BudgetTable, budget_table
from app.dashboard.session.drawing.first_map import FirstMap, first_map
from app.dashboard.session.places import places_of
from app.dashboard.session.slowdown import EXACT_DIGITS, exact_rows, step_slowdowns
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
from app.dashboard.session.tensor import SessionTensor, session_tensor
from app.dashboard.session.what_if import WhatIfForm, what_if_form
from app.dashboard.ui.figure_parts import stretch_starts
from app.dashboard.ui.format import count
from app.dashboard.ui.parts import Row

# Most lanes of recorded operations that are drawn at once: stages of DP ranks.
LANES: Final = 32


@dataclass(frozen=True, slots=True)
class ChosenStep:
    """The step and the worker that the page opens with.

    `ranks` are the DP ranks of its timeline, those around the worker; empty where these are all.
    """

    index: int
    step: int
    by_request: bool
    dp: int
    pp: int
    ranks: tuple[int, ...]

    @property
    def timeline_query(self) -> str:
        """Return what an address of the timeline asks for."""
        return urlencode([("step", self.step), *(("dp", rank) for rank in self.ranks)])

    @property
    def timeline_words(self) -> str:
        """Return what such an address leads to."""
        if not self.ranks:
            return f"step {self.step}"
        first, last = self.ranks[0], self.ranks[-1]
        named = f"DP rank {first}" if first == last else f"DP ranks {first} to {last}"
        return f"step {self.step}, {named}"


@dataclass(frozen=True, slots=True)
class ReportView:
    """Everything that the sections of a report's page show."""

    verdict: bool
    replayed: bool
    arrivals: ArrivalsView | None
    breakdown: BreakdownTable | None
    unsaid: tuple[Row, ...]
    budget: BudgetTable | None
    exact: tuple[Row, ...]
    step_count: int
    chosen: ChosenStep
    map_title: str
    first_map: FirstMap | None
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
    tensor: SessionTensor | None
    data: Mapping[str, Any]


def report_view(
    report: Report,
    *,
    step: int | None = None,
    dp: int | None = None,
    pp: int | None = None,
    collective: str = "",
) -> ReportView:
    """Return what the page of a report shows.

    Parameters
    ----------
    step, dp, pp : int, optional
        The step and the worker that the address asks for; what does not exist is ignored.
    collective : str
        The collective that it asks for; likewise.
    """
    chosen = _choose(report, step, dp, pp)
    times_s = report.step_times
    correlation = report.fb_correlation
    starts = stretch_starts(report.steps.analyzed)
    drawn = len(correlation.sample.forward_s)
    return ReportView(
        verdict=report.fidelity.verdict,
        replayed=report.fidelity.replayed,
        arrivals=arrivals_view(report, collective),
        breakdown=breakdown_view(report),
        unsaid=unsaid_rows(report),
        budget=budget_table(report),
        exact=exact_rows(report) if report.fidelity.verdict else (),
        step_count=len(report.steps.analyzed),
        chosen=chosen,
        map_title=findings.map_finding(report),
        first_map=first_map(report),
        strip_title=findings.strip_finding(report),
        strip_note="Slowdown of each step; dashed: that of the job"
        + (", dotted: steps between were not recorded" if starts else ""),
        timeline_title=findings.timeline_finding(
            chosen.step, times_s.recorded[chosen.index], times_s.ideal[chosen.index]
        ),
        workers=workers_table(report),
        fixes=fixes_table(report),
        what_if=what_if_form(report),
        attribution=attribution_table(report),
        causes_title=findings.causes_finding(report),
        causes=causes_table(report),
        named=bool(report.causes),
        confidences=any(cause.confidence is not None for cause in report.causes),
        recovered_title=findings.recovery_finding(report),
        recovered=recovered_rows(report),
        scatter_title=findings.correlation_finding(report),
        scatter_note="Forward against backward time of a microbatch on stage "
        f"{correlation.stage}; {count(drawn)} of {count(correlation.points)} drawn",
        launch_title=findings.launch_finding(report),
        launches=launch_rows(report),
        recorded_title=findings.recorded_finding(report),
        coverage_title=findings.coverage_finding(report),
        coverage=(*coverage_rows(report), *chunk_rows(report)),
        template=session_template(report),
        tensor=session_tensor(report),
        data=_data(report, chosen),
    )


def _choose(report: Report, step: int | None, dp: int | None, pp: int | None) -> ChosenStep:
    steps = report.steps.analyzed
    slowdowns = report.step_slowdown
    by_request = step in steps
    index = steps.index(step) if by_request else slowdowns.index(max(slowdowns))
    sizes = report.sizes
    if dp is not None and pp is not None and 0 <= dp < sizes.dp and 0 <= pp < sizes.pp:
        cell = (dp, pp)
    else:
        cell = report.worst_worker()[1:]
    ranks = _timeline_ranks(sizes.dp, sizes.pp, cell[0])
    return ChosenStep(index, steps[index], by_request, *cell, ranks)


def _timeline_ranks(dp: int, pp: int, around: int) -> tuple[int, ...]:
    """Return the DP ranks whose lanes are drawn; none where there is room for all."""
    most = max(1, LANES // pp)
    if dp <= most:
        return ()
    first = min(max(0, around - (most - 1) // 2), dp - most)
    return tuple(range(first, first + most))


def _data(report: Report, chosen: ChosenStep) -> Mapping[str, Any]:
    """Return what the page's script needs; times in seconds."""
    sizes = report.sizes
    data: dict[str, Any] = {
        "dp": sizes.dp,
        "pp": sizes.pp,
        "steps": report.steps.analyzed,
        "recorded_s": _short(report.step_times.recorded),
        "ideal_s": _short(report.step_times.ideal),
        "index": chosen.index,
        "by_request": chosen.by_request,
        "cell": [chosen.dp, chosen.pp],
        "lanes": LANES,
        "figures": {"launch": asdict(figures.launch_delays(report))},
    }
    if not report.fidelity.verdict:
        data["figures"]["recorded"] = asdict(figures.recorded_times(report))
        return data
    per_step = report.per_step
    data |= {
        "slowdown": report.headline.slowdown,
        "simulated_s": _short(report.step_times.simulated, 6),
        "map": _stages(report),
        "step_slowdown": _short(step_slowdowns(report)),
        "by_dp": _short(report.by_dp),
        "by_pp": _short(report.by_pp),
        "by_dp_step": [_short(row, 3) for row in per_step.by_dp],
        "by_pp_step": [_short(row, 3) for row in per_step.by_pp],
        "places": places_of(report),
        # how the heatmaps of steps come over HTTP
        "heatmap_scale": HEATMAP_SCALE,
    }
    if report.coverage.missing:
        data["missing"] = [one.worker for one in report.coverage.missing]
    data["figures"]["strip"] = asdict(figures.strip(report))
    if report.fb_correlation.sample.forward_s:
        data["figures"]["scatter"] = figures.scatter(report)
    return data


def _stages(report: Report) -> list[list[float]]:
    """Return the slowdown of each worker in the digits that the page can show, by stage."""
    return [_short(row, EXACT_DIGITS) for row in zip(*report.by_worker.exact, strict=True)]


def _short(values: Sequence[float], digits: int = 4) -> list[float]:
    return [round(value, digits) for value in values]
