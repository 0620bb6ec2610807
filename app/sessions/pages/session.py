"""The page of a session in each state, with the sections of its report."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import Depends, Query
from markupsafe import Markup

from app.analysis.report.charts import HEATMAP_SCALE
from app.analysis.report.document import Report
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.metadata import unmapped_of
from app.incidents.everywhere import Onset
from app.incidents.pages.parts import Actions
from app.platform.database.states import SessionState
from app.sessions.history import Around, verdict_values
from app.sessions.pages import figures, findings
from app.sessions.pages.arrivals import (
    ArrivalsView,
    BreakdownView,
    arrivals_view,
    breakdown_view,
    unsaid_rows,
)
from app.sessions.pages.causes import CauseRow, causes_table
from app.sessions.pages.facts import (
    Body,
    arriving,
    chunk_rows,
    ended,
    fault_rows,
    known_fact,
    launch_fact,
    quality_fact,
    received_fact,
    underway,
    verdict_facts,
    without_report,
)
from app.sessions.pages.figures import BudgetTable, FirstMap, budget_table, first_map
from app.sessions.pages.findings import EXACT_DIGITS, exact_rows, places_of, step_slowdowns
from app.sessions.pages.tables import (
    Attribution,
    Fixes,
    SessionTensor,
    Workers,
    attribution_table,
    coverage_rows,
    fixes_table,
    launches_table,
    recovered_rows,
    session_tensor,
    unmapped_rows,
    workers_table,
)
from app.sessions.pages.template import SessionTemplate, session_template
from app.sessions.pages.what_if import WhatIfForm, what_if_form
from app.sessions.read import SessionRow, SessionView
from app.web.figures import stretch_starts
from app.web.format import age, byte_size, count, percent, plural, seconds, sizes, times
from app.web.links import QueryText, asked_for
from app.web.moments import when
from app.web.parts import ANALYZED_STATE, SLOW_STATE, STATES, Fact, Row, StateLabel, sparkline
from app.web.tables import Drawn

# Limit of the timeline lanes drawn at a time; each lane is one worker.
LANES: Final = 32


@dataclass(frozen=True, slots=True)
class ChosenStep:
    """The step and the worker selected when the page opens.

    `ranks` are the DP ranks of its timeline, around the worker; empty if all are drawn.
    """

    index: int
    step: int
    by_request: bool
    dp: int
    pp: int
    ranks: tuple[int, ...]

    @property
    def timeline_query(self) -> str:
        """Return the query string of the timeline's URL."""
        return urlencode([("step", self.step), *(("dp", rank) for rank in self.ranks)])

    @property
    def timeline_words(self) -> str:
        """Return the timeline's step and ranks in words."""
        if not self.ranks:
            return f"step {self.step}"
        first, last = self.ranks[0], self.ranks[-1]
        named = f"DP rank {first}" if first == last else f"DP ranks {first} to {last}"
        return f"step {self.step}, {named}"


@dataclass(frozen=True, slots=True)
class ReportView:
    """The sections of a report on the page of a session."""

    verdict: bool
    replayed: bool
    arrivals: ArrivalsView | None
    breakdown: BreakdownView | None
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
    launches: Drawn
    recorded_title: str
    coverage_title: str
    coverage: tuple[Row, ...]
    template: SessionTemplate | None
    tensor: SessionTensor | None
    data: Mapping[str, Any]


def report_view(  # noqa: PLR0913 - what the address of a page selects
    report: Report,
    path: str = "",
    *,
    step: int | None = None,
    dp: int | None = None,
    pp: int | None = None,
    collective: str = "",
) -> ReportView:
    """Return the sections of a report for the page.

    Parameters
    ----------
    path : str
        Path of the session's page, which begins the URLs of its CSV files.
    step, dp, pp : int, optional
        The selected step and worker; values that the report lacks are ignored.
    collective : str
        Key of the selected collective; an unknown key is ignored.
    """
    chosen = _choose(report, step, dp, pp)
    times_s = report.step_times
    correlation = report.fb_correlation
    starts = stretch_starts(report.steps.analyzed)
    drawn = len(correlation.sample.forward_s)
    return ReportView(
        verdict=report.fidelity.verdict,
        replayed=report.fidelity.replayed,
        arrivals=arrivals_view(report, path, collective),
        breakdown=breakdown_view(report, path),
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
        attribution=attribution_table(report, path),
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
        launches=launches_table(report, path),
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
    ranks: Sequence[int] = ()
    drawn = max(1, LANES // sizes.pp)
    if sizes.dp > drawn:
        first = min(max(0, cell[0] - (drawn - 1) // 2), sizes.dp - drawn)
        ranks = range(first, first + drawn)
    return ChosenStep(index, steps[index], by_request, *cell, tuple(ranks))


def _data(report: Report, chosen: ChosenStep) -> Mapping[str, Any]:
    """Return the data for the page's script; times in seconds."""
    sizes = report.sizes
    data: dict[str, Any] = {
        "dp": sizes.dp,
        "pp": sizes.pp,
        "steps": report.steps.analyzed,
        "recorded_s": _rounded(report.step_times.recorded),
        "ideal_s": _rounded(report.step_times.ideal),
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
        "simulated_s": _rounded(report.step_times.simulated, 6),
        # Transposed to a row per stage, with the number of digits that the page shows.
        "map": [_rounded(row, EXACT_DIGITS) for row in zip(*report.by_worker.exact, strict=True)],
        "step_slowdown": _rounded(step_slowdowns(report)),
        "by_dp": _rounded(report.by_dp),
        "by_pp": _rounded(report.by_pp),
        "by_dp_step": [_rounded(row, 3) for row in per_step.by_dp],
        "by_pp_step": [_rounded(row, 3) for row in per_step.by_pp],
        "places": places_of(report),
        # The script needs the scale to decode the heatmaps of steps that it requests.
        "heatmap_scale": HEATMAP_SCALE,
    }
    if report.coverage.missing:
        data["missing"] = [missing.worker for missing in report.coverage.missing]
    data["figures"]["strip"] = asdict(figures.strip(report))
    if report.fb_correlation.sample.forward_s:
        data["figures"]["scatter"] = figures.scatter(report)
    return data


def _rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    return [round(value, digits) for value in values]


@dataclass(frozen=True, slots=True)
class Kept:
    """Which parts of a session are stored; the page offers actions accordingly."""

    note: str  # parts deleted by retention; empty if none
    pinned: bool
    again: bool  # whether the session can be analyzed again
    trace: bool  # whether operations are stored, for timelines and questions
    heatmaps: bool  # whether heatmaps of single steps are stored; the report has the mean


def kept(view: SessionView) -> Kept:
    """Return which parts of a session are stored."""
    row = view.row
    gone = [
        (what, at)
        for what, at in (
            ("its operations", row.trace_removed_at),
            ("its report", row.report_removed_at),
        )
        if at is not None
    ]
    note = ""
    if gone:
        note = f"Deleted: {', '.join(f'{what} since {at:%-d %B %Y}' for what, at in gone)}."
        if [what for what, _ in gone] == ["its operations"]:
            note += " The report stays; timelines, questions and another analysis need operations."
    if view.has_report and not view.has_heatmaps:
        note = f"{note} Only the mean of the heatmaps over the steps is kept."
    return Kept(
        note=note.strip(),
        pinned=row.pinned,
        again=row.trace_removed_at is None and not row.state.underway,
        trace=row.trace_removed_at is None,
        heatmaps=view.has_heatmaps,
    )


@dataclass(frozen=True, slots=True)
class SessionPage:
    """The contents of a session's page; `report` is None if there is no report."""

    id: uuid.UUID
    now: datetime
    title: str
    job: str
    job_url: str
    number: int
    sizes: str
    before: SessionRow | None  # the previous session of the job
    after: SessionRow | None  # the next session of the job
    status: SessionState
    state: StateLabel
    line: tuple[str, ...]
    heading: str
    facts: tuple[Fact, ...]
    why: str
    faults: tuple[Row, ...]
    unmapped: tuple[Row, ...]
    ghosts: tuple[str, ...]
    report: ReportView | None
    incidents: Sequence[Actions]
    kept: Kept


def session_page(  # noqa: PLR0913 - parts of the page
    view: SessionView,
    around: Around,
    report: Report | None,
    shown: ReportView | None,
    *,
    onset: Onset | None,
    max_attempts: int,
    incidents: Sequence[Actions],
) -> SessionPage:
    """Return the page of a session.

    Parameters
    ----------
    onset : Onset or None
        Start of the job's slowness; None if it was not slow.
    max_attempts : int
        Limit of the attempts of an analysis.
    """
    row = view.row
    body = _body(view, around, onset, report, max_attempts)
    # Until there is a report, only the metadata have the hosts.
    hosts = set((view.meta.get("hosts", {}) if report is None else report.hosts).values())
    gpus = plural(row.world, "GPU")
    where = f"{gpus} on {plural(len(hosts), 'host')}" if hosts else gpus
    return SessionPage(
        id=row.id,
        now=view.now,
        title=f"{row.job}, session {row.number}: {body.short}",
        job=row.job,
        job_url=f"/jobs/{quote(row.job)}",
        number=row.number,
        sizes=f"{sizes(row.dp, row.pp, row.tp, row.cp, row.vpp)} · {where}",
        before=around.sessions[-2] if len(around.sessions) > 1 else None,
        after=around.after,
        status=row.state,
        state=body.state,
        line=body.line,
        heading=body.heading,
        facts=tuple(body.facts),
        why=body.why,
        faults=fault_rows(view),
        # If there is a report, its coverage has these rows.
        unmapped=unmapped_rows(unmapped_of(view.meta)) if report is None else (),
        ghosts=body.ghosts,
        report=shown,
        incidents=incidents,
        kept=kept(view),
    )


def _body(
    view: SessionView,
    around: Around,
    onset: Onset | None,
    report: Report | None,
    max_attempts: int,
) -> Body:
    state = view.row.state
    if state == SessionState.ANALYZED and report is not None:
        return _analyzed(view, around, onset, report)
    if state == SessionState.NO_VERDICT and report is not None:
        return _no_verdict(view, report)
    if state == SessionState.OPEN and view.intake is not None:
        return arriving(view, view.intake)
    if state in SessionState.UNDERWAY:
        return underway(view, max_attempts)
    if state in SessionState.REPORTED:
        return without_report(view)
    return ended(view)


def _analyzed(view: SessionView, around: Around, onset: Onset | None, report: Report) -> Body:
    row, steps = view.row, report.steps.analyzed
    slow = report.verdict.level == "slow"
    facts = verdict_facts(report)
    facts.append(_before(view, around) if onset is None else _since(view, around, onset))
    facts.append(quality_fact(report))
    facts.append(
        Fact(
            "Data age",
            "",
            Markup("last step {}, {}").format(steps[-1], when(row.received_at, view.now)),
            moment=row.received_at,
        )
    )
    return Body(
        state=SLOW_STATE if slow else ANALYZED_STATE,
        short=_short(report),
        heading=report.verdict.sentence,
        line=(
            f"{plural(len(steps), 'step')}, {plural(row.operations, 'operation')}",
            f"{FORMATS[row.trace_format].title}, {byte_size(row.body_bytes)}",
        ),
        facts=facts,
    )


def _short(report: Report) -> str:
    text = f"{times(report.headline.slowdown)} slower"
    causes = report.causes
    if report.verdict.level == "slow" and causes:
        workers = causes[0].where.workers
        if len(workers) == 1:
            return f"{text}, worker ({workers[0][0]}, {workers[0][1]})"
    return text


def _before(view: SessionView, around: Around) -> Fact:
    """Return the slowdown of the previous session, with a sparkline of all sessions."""
    *earlier, _ = around.sessions
    if not earlier:
        return Fact("Before", "First session", "nothing to compare with")
    with_verdict = [session for session in earlier if session.headline is not None]
    if not with_verdict:
        last = earlier[-1]
        word = STATES[last.state].word if last.state in STATES else "without a verdict"
        return Fact("Before", "No verdict", f"session {last.number}: {word.lower()}")
    last = with_verdict[-1]
    assert last.headline is not None  # noqa: S101 - selected so
    passed_s = (view.row.received_at - last.received_at).total_seconds()
    return Fact(
        "Before",
        times(last.headline.slowdown),
        f"session {last.number}, {age(passed_s)} earlier",
        spark=sparkline(verdict_values(around.sessions)),
    )


def _since(view: SessionView, around: Around, onset: Onset) -> Fact:
    """Return the session since which the job has been slow, and the job's slowdown before it."""
    was = "the first with a verdict" if onset.was is None else f"was {times(onset.was)}"
    return Fact(
        "Since",
        f"Session {onset.number}",
        Markup("{}, {}").format(when(onset.at, view.now), was),
        spark=sparkline(verdict_values(around.sessions)),
    )


def _no_verdict(view: SessionView, report: Report) -> Body:
    row = view.row
    if not report.fidelity.replayed:
        return _unreplayed(view, report)
    simulated = report.step_times.simulated
    facts = [
        _step_recorded(report),
        Fact(
            "Step replayed",
            seconds(sum(simulated) / len(simulated)),
            "without launch delays",
        ),
    ]
    known_loss = known_fact(report)
    facts += [known_loss] if known_loss else []
    fixable = bool(report.recommendations)
    shown = "the cause and its fix, " if fixable else ""
    off = "S and the map" if fixable else "S, the map and fixes"
    facts += [quality_fact(report), launch_fact(report)]
    facts.append(received_fact(view))
    return Body(
        state=STATES[SessionState.NO_VERDICT],
        short="no verdict",
        heading=report.verdict.sentence,
        line=(
            plural(row.operations, "operation"),
            "a cause is known" if report.causes else "no cause is named",
        ),
        facts=facts,
        why=f"Recorded times, {shown}launch delays and coverage are shown below. {off} are not: "
        "they would rest on a replay that is off.",
    )


def _step_recorded(report: Report) -> Fact:
    recorded = report.step_times.recorded
    mean_s = sum(recorded) / len(recorded)
    return Fact("Step recorded", seconds(mean_s), f"mean of {plural(len(recorded), 'step')}")


def _unreplayed(view: SessionView, report: Report) -> Body:
    """Return the head for a report that has arrivals, but no replay and thus no slowdown."""
    row, arrivals = view.row, report.arrivals
    facts = [_step_recorded(report)]
    if arrivals is not None:
        worst = arrivals.worst
        facts += [
            Fact(
                "Waited for", f"Rank {worst.rank}", f"last at {percent(worst.last_share, 0)} of all"
            ),
            Fact(
                "Others wait", seconds(worst.waited_for_s), "for it in a step, those of one group"
            ),
        ]
    facts.append(received_fact(view))
    return Body(
        state=STATES[SessionState.NO_VERDICT],
        short="no slowdown" if arrivals is None else arrivals.sentence,
        heading=report.verdict.sentence,
        line=(plural(row.operations, "operation"), "arrivals and breakdown alone"),
        facts=facts,
        why=report.fidelity.reason or "",
    )


# Limit of the digits of a number in the query: a longer number is no valid step, and slow to parse.
MAX_DIGITS: Final = 19


class SessionQuery:
    """The query of a session's page: step, worker, collective, exact numbers.

    A parameter that should be a number and is none is ignored.
    """

    def __init__(
        self,
        step: QueryText = "",
        dp: QueryText = "",
        pp: QueryText = "",
        collective: QueryText = "",
        exact: Annotated[str | None, Query()] = None,
    ) -> None:
        self.step, self.dp, self.pp = _number(step), _number(dp), _number(pp)
        self.collective = collective
        # The parameter `exact` has no value: its presence counts.
        self.exact = exact is not None


def _number(text: str) -> int | None:
    """Return a step, DP rank or stage of the query; None if the text is no number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS else None


SessionQueryParam = Annotated[SessionQuery, Depends(asked_for(SessionQuery))]
