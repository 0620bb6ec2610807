"""Tables of a session's page: workers, fixes, operation types, coverage, work control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from app.analysis.mitigation.tensor.document import Alternative, Method, RankShare
from app.analysis.mitigation.tensor.session_advice import GroupAdvice
from app.analysis.replay.layout.dense import DroppedStep
from app.analysis.report.coverage import MadeAdaptation
from app.analysis.report.document import Recommendation, Recovery, Report
from app.analysis.report.session_verdict import BlamedGpu, GpuOfWorker
from app.analysis.trace.metadata import Unmapped
from app.analysis.wording import hours
from app.sessions.pages import findings
from app.tensor.pages.parts import CRITERIA, METHOD_NAMES, RISKS, ColumnsBar, columns_bar
from app.web import html
from app.web.format import (
    SCALE_HIGH,
    SCALE_LOW,
    count,
    heat_color,
    interval,
    percent,
    plural,
    rough_digits,
    rough_percent,
    seconds,
    times,
    worker,
)
from app.web.parts import Row
from app.web.tables import Drawn, Shown, drawn
from app.web.terms import term

# Rows of the worker table that are visible at first; a button shows the other rows.
SHORT_TABLE: Final = 6
# Limit of the rows of the worker table on the page; the CSV file has all workers.
LONG_TABLE: Final = 128
# Limit of the operation types in the table of launch delays.
LAUNCH_ROWS: Final = 4
# Limits of the listed dropped steps, operations with impossible durations, and missing workers.
NAMED_STEPS: Final = 8
IMPOSSIBLE_NAMED: Final = 4
MISSING_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker in the table next to the map; texts of unknown values are empty."""

    dp: int
    pp: int
    name: str
    place: str
    guessed: bool  # whether the host's name is a guess
    gpu: str
    gpu_hint: str
    slowdown: float
    hint: str
    share: float  # position on the color scale, 0 to 1
    forward: float | None
    backward: float | None


@dataclass(frozen=True, slots=True)
class BarRow:
    """A row with a bar; `share` is the bar's length in per cent of the longest possible bar."""

    name: str
    share: float
    text: str
    second: str = ""
    hint: str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Workers:
    """The table of workers."""

    title: str
    rows: tuple[WorkerRow, ...]
    hosts: bool
    gpus: bool
    total: int
    note: str


@dataclass(frozen=True, slots=True)
class Fixes:
    """Fixes with their predicted step times, as bars from 0 with a mark at the reference.

    `reference` is the headline's reference step time, in words; no fix is faster.
    """

    title: str
    rows: tuple[BarRow, ...]
    reference_share: float
    reference: str
    detail: str
    choices: tuple[Recommendation, ...]  # fixes that can be marked as applied
    saves: str
    empty: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """Slowdown S_t by operation type, with bars from 1.0."""

    title: str
    table: Drawn


def workers_table(report: Report) -> Workers:
    """Return the table of workers, the slowest worker first."""
    ranked, gpu_of = report.ranked_workers(), GpuOfWorker(report)
    worst = report.by_worker.worst
    intervals = {item.worker: interval(*item.ci95) for item in worst if item.ci95 is not None}
    rest = ranked[SHORT_TABLE:]
    note = ""
    if rest:
        bound = math.floor(rest[0][0] * 100 + 1) / 100
        note = f"the other {count(len(rest))} are below {times(bound)}"
    return Workers(
        title=findings.workers_finding(report),
        rows=tuple(
            _worker_row(report, gpu_of((dp, pp)), dp, pp, intervals.get((dp, pp)))
            for _, dp, pp in ranked[:LONG_TABLE]
        ),
        hosts=bool(report.hosts),
        gpus=bool(report.gpus),
        total=len(ranked),
        note=note,
    )


def _worker_row(report: Report, at: BlamedGpu, dp: int, pp: int, between: str | None) -> WorkerRow:
    by_worker = report.by_worker
    slowdown = by_worker.exact[dp][pp]
    return WorkerRow(
        dp=dp,
        pp=pp,
        name=worker(dp, pp),
        place=at.host or "" if report.hosts else str(at.rank),
        guessed=at.guessed,
        gpu=f"1 of {at.one_of}" if at.one_of > 1 else at.gpu or "",
        gpu_hint=at.words,
        slowdown=slowdown,
        hint=f"95\N{NO-BREAK SPACE}%: {between}" if between else "",
        share=min(max(slowdown - SCALE_LOW, 0.0) / (SCALE_HIGH - SCALE_LOW), 1.0),
        forward=by_worker.forward_ratio[dp][pp],
        backward=by_worker.backward_ratio[dp][pp],
    )


def fixes_table(report: Report) -> Fixes:
    """Return the table of fixes, the fix with the largest gain first."""
    best = findings.best_fix(report)
    simulated = report.step_times.simulated
    now_s = sum(simulated) / len(simulated)
    if best is not None:
        # Computed back from the gain: includes late launches with a known cause, which the replay
        # leaves out.
        now_s = best.predicted_step_time / (1 - best.predicted_gain)
    shown = report.headline
    reference_s = now_s / shown.slowdown
    against = "without its causes" if shown.kind.without_causes else "ideal"
    fixes = sorted(report.recommendations, key=lambda fix: -fix.predicted_gain)
    longest = max([now_s, *(fix.predicted_step_time for fix in fixes)])
    rows = [BarRow("As it is", 100 * now_s / longest, seconds(now_s))]
    rows += [
        BarRow(
            fix.title,
            100 * fix.predicted_step_time / longest,
            seconds(fix.predicted_step_time),
            f"{'up to ' if fix.at_most else ''}{rough_percent(-fix.predicted_gain)}",
            hint=percent(-fix.predicted_gain),
            strong=fix is best,
        )
        for fix in fixes
    ]
    detail = best.detail if best else ""
    relief = next((fix for fix in fixes if fix.redistribution is not None), None)
    if relief is not None and relief is not best:
        # The best fix needs another machine, this one can come before it.
        detail = f"{detail} {relief.title}. {relief.detail}"
    per_hour = report.sizes.world * (best.predicted_gain if best else 0.0)
    negligible = shown.waste < findings.NEGLIGIBLE
    return Fixes(
        title=findings.fix_finding(report),
        rows=tuple(rows) if fixes else (),
        reference_share=100 * reference_s / longest,
        reference=f"{against}, {seconds(reference_s)}",
        detail=detail,
        choices=tuple(fixes),
        saves=f"{'up to ' if best.at_most else ''}{hours(per_hour)} GPU-hours each hour"
        if best
        else "",
        empty=f"The job loses {rough_percent(shown.waste)} of its time to stragglers."
        if negligible or report.verdict.level == "ok"
        else "No replayed change (another machine for a worker, a lighter stage) shortens the "
        "step enough to be worth recommending.",
    )


def attribution_table(report: Report, path: str) -> Attribution:
    """Return the slowdown by operation type, the slowest type first; `path` is the page's."""
    slowdowns = report.by_optype
    types = sorted(slowdowns, key=lambda name: -slowdowns[name])
    top = max(1.1, math.ceil(slowdowns[types[0]] * 10 + 1e-9) / 10)

    def bar(name: str) -> Markup:
        return html.bar(100 * max(0.0, slowdowns[name] - 1) / (top - 1))

    columns: tuple[Shown[str], ...] = (
        Shown("Operation type", lambda name: name, of_cells="nowrap"),
        Shown(f"1.0 to {top:.1f}", bar, classes="wide"),
        Shown(Markup("S<sub>t</sub>"), lambda name: times(slowdowns[name], 3), classes="num"),
        Shown("Waste", lambda name: percent(report.waste_by_optype[name]), classes="num"),
    )
    table = drawn(columns, types, csv=f"{path}/optypes.csv", classes="plain optypes")
    return Attribution(findings.attribution_finding(report), table)


def recovered_rows(report: Report) -> tuple[Row, ...]:
    """Return the recoverable shares of the lost time (What-if paper, M_W and M_S), and k50."""
    m_w, m_s, k50 = report.m_w, report.m_s, report.k50
    stage = report.sizes.pp - 1
    published = m_w.published
    as_published = (
        f"; {_share(published.rem)} as published, ranked by DP rank and stage"
        if published is not None and _share(published.rem) != _share(m_w.rem)
        else ""
    )
    rows = [
        Row(
            Markup("Slowest 3\N{NO-BREAK SPACE}% of workers ({})").format(
                term("Mw", Markup("M<sub>W</sub>"))
            ),
            _share(m_w.rem),
            f"{plural(len(m_w.workers), 'worker')}{_range(m_w)}; "
            f"if only they kept their times: {_share(m_w.add)}{as_published}",
        ),
        Row(
            Markup("Last stage ({})").format(term("Ms", Markup("M<sub>S</sub>"))),
            _share(m_s.rem),
            f"stage {stage}{_range(m_s)}; if only it kept its times: {_share(m_s.add)}"
            if stage
            else "there is one stage only",
        ),
    ]
    if k50 is not None:
        rows.append(
            Row(
                "Half of the lost time",
                plural(k50, "worker"),
                "the fewest that recover it, slowest first",
            )
        )
    return tuple(rows)


def _range(recovery: Recovery) -> str:
    ci95 = recovery.ci95
    if ci95 is None:
        return ""
    # The interval has as many digits as the share: otherwise the rounded share could lie outside of
    # it.
    digits = rough_digits(recovery.rem or 0.0)
    low, high = (percent(end, digits) for end in ci95)
    return f", 95\N{NO-BREAK SPACE}% interval {low} to {high}"


def _share(value: float | None) -> str:
    return "unknown: too little lost" if value is None else rough_percent(value)


def launches_table(report: Report, path: str) -> Drawn:
    """Return the operation types with the longest launch delays; `path` is the page's."""
    delays = report.launch_by_optype
    longest = sorted(delays, key=lambda name: -delays[name])[:LAUNCH_ROWS]
    columns: tuple[Shown[str], ...] = (
        Shown("Launched late", lambda name: name, of_cells="nowrap"),
        Shown("Share of a step", lambda name: percent(delays[name], 2), classes="num"),
    )
    return drawn(columns, [name for name in longest if delays[name] > 0], csv=f"{path}/optypes.csv")


def coverage_rows(report: Report) -> tuple[Row, ...]:
    """Return the coverage of a report: received, repaired and dropped operations and steps."""
    coverage, steps, clocks = report.coverage, report.steps, report.clocks
    dropped = steps.dropped
    unknown = coverage.unknown_op_types
    present, expected = coverage.ranks_present, coverage.ranks_expected
    read = "starts are host clock readings" if clocks.absolute else "starts count from each step"
    clock_note = "; ".join([read, *clocks.warnings])
    rows = [
        Row("Workers", f"{count(present)} of {count(expected)}", "one rank of each is traced"),
        *(
            [Row("Missing", plural(expected - present, "worker"), _missing(report))]
            if coverage.missing
            else []
        ),
        Row("Operations", count(coverage.operations)),
        Row(
            "Of these re-created",
            count(coverage.recreated.operations),
            ", ".join(f"{name} ({count(n)})" for name, n in coverage.recreated.by_optype.items()),
        ),
        Row("Steps analyzed", count(len(steps.analyzed))),
        Row("Steps left out", count(len(dropped)), _dropped(dropped)),
        *([Row("Odd steps", count(len(steps.odd)), _dropped(steps.odd))] if steps.odd else []),
        Row("Clocks", "aligned" if clocks.aligned else "as recorded", clock_note),
        Row("Transfers below 0, cut", count(coverage.clamped_transfers)),
        Row("Launch delays below 0, cut", count(coverage.clamped_launch_delays)),
    ]
    rows += [_adaptation(made) for made in report.fidelity.adaptations]
    if unknown:
        named = ", ".join(f"{name} ({count(number)})" for name, number in unknown.items())
        rows.append(Row("Operations of unknown types", count(sum(unknown.values())), named))
    if coverage.unanswered:
        total = count(sum(coverage.unanswered.values()))
        rows.append(Row("Sends without receives, left out", total, ", ".join(coverage.unanswered)))
    if coverage.copies:
        rows.append(Row("Operations twice, dropped once", count(coverage.copies)))
    if coverage.impossible_durations:
        durations = coverage.impossible_durations
        named = "; ".join(
            f"{item.op_type} of rank {item.rank} in step {item.step}, {item.recorded_s:,.1f} s"
            for item in durations[:IMPOSSIBLE_NAMED]
        )
        rows.append(Row("Impossible durations, repaired", count(len(durations)), named))
    absent = coverage.absent_op_types
    if absent:
        rows.append(Row("Types not recorded", count(len(absent)), ", ".join(absent)))
    return (*rows, *unmapped_rows(coverage.unmapped))


def _missing(report: Report) -> str:
    """Return the missing workers, each with the number of steps in which others waited for it."""
    named = [
        f"{worker(*missing.worker)}, rank {missing.rank}"
        + (f", last in {plural(len(missing.came_last), 'step')}" if missing.came_last else "")
        for missing in report.coverage.missing[:MISSING_NAMED]
    ]
    if len(report.coverage.missing) > MISSING_NAMED:
        named.append(f"and {count(len(report.coverage.missing) - MISSING_NAMED)} more")
    return "; ".join(named)


def unmapped_rows(unmapped: Sequence[Unmapped]) -> tuple[Row, ...]:
    """Return the recorded contents that map to no operation, each with the remedy."""
    return tuple(
        Row(f"Not mapped: {entry.what}", count(entry.count), entry.remedy or "")
        for entry in unmapped
    )


def _adaptation(made: MadeAdaptation) -> Row:
    """Return an adaptation of the dependency model, with the discrepancy before and after it."""
    value = "as recorded"
    if made.discrepancy_before is not None and made.discrepancy_after is not None:
        value = f"{percent(made.discrepancy_before)} → {percent(made.discrepancy_after)} off"
    return Row(made.sentence, value, "; ".join(made.where))


def _dropped(dropped: Sequence[DroppedStep]) -> str:
    named = [f"{item.step}: {item.reason}" for item in dropped[:NAMED_STEPS]]
    if len(dropped) > NAMED_STEPS:
        named.append(f"and {count(len(dropped) - NAMED_STEPS)} more")
    return ", ".join(named)


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A rank of the tensor-parallel group, with its columns before and after work control."""

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
    """A method of work control; `share` is in per cent of the slowest rank's current time."""

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
    """Work control of the tensor-parallel group with the longest wait."""

    title: str
    note: str
    ranks: tuple[ShareRow, ...]
    methods: tuple[MethodRow, ...]
    remarks: str


def session_tensor(report: Report) -> SessionTensor | None:
    """Return the work control of the group with the longest wait; None if none is advised."""
    tensor = report.tensor
    if tensor is None or tensor.groups[0].advice.best.method is Method.NONE:
        return None
    group = tensor.groups[0]
    advice = group.advice
    fix = next((item for item in report.recommendations if item.action == "shed_work"), None)
    gain = tensor.predicted_gain if fix is None else fix.predicted_gain
    step_s = tensor.predicted_step_time if fix is None else fix.predicted_step_time
    slow = group.ranks[advice.stragglers[0]]
    more = len(tensor.groups) - 1
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
            amount=lambda columns: (
                count(columns) if group.columns_known else percent(columns / group.advice.columns)
            ),
        ),
        slow=share.rank in advice.stragglers,
    )


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
