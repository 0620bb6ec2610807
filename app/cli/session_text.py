"""A report as tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.analysis.arrivals.document import RankBreakdown
from app.analysis.budget.split import Part
from app.analysis.diagnosis.headline import WHY_S_DIFFERS, Headline, HeadlineKind, why_published
from app.analysis.replay.confidence import Interval
from app.analysis.report.coverage import MadeAdaptation
from app.analysis.report.document import Report
from app.analysis.wording import gpu_time, hours, percent

# The dashboard's fixed scale of slowdowns, 1.0 to 1.5 and above in steps of 0.05: pale to dark.
SCALE: Final = (
    "#dfe2e7", "#e3d5b1", "#e2c37e", "#e3ad4d", "#e1931e", "#d97a06",
    "#cd6006", "#c04203", "#a82d13", "#8a1f1b", "#6b131b",
)  # fmt: skip
SCALE_STEP: Final = 0.05
# The dashboard's colors of the parts of the step time; lost time has the colors of slowdowns.
BUDGET: Final = {
    Part.COMPUTING: "#7f8fc0",
    Part.OWN_SLOWNESS: "#d97a06",
    Part.SLOW_TOGETHER: "#a82d13",
    Part.WAITING: "#e3ad4d",
    Part.BUBBLE: "#c5d3e6",
    Part.COMMUNICATION: "#8fb4bf",
    Part.COMMUNICATION_ABOVE: "#e3d5b1",
    Part.LAUNCH_DELAYS: "#cd6006",
    Part.BETWEEN_STEPS: "#b9b2dd",
    Part.BETWEEN_STEPS_ABOVE: "#6b131b",
    Part.MISSING: "#b4bbc5",
}
BAR_WIDTH: Final = 80
# Smallest share of the time that is printed.
WORTH_SAYING: Final = 0.005
FIRST_WITH_LIGHT_TEXT: Final = 6
WORST_WORKERS: Final = 6
NUMBERED_CELL: Final = 6
STAGE_COLUMN: Final = 9
# Parts of a rank's step time, each with its field in the report.
BREAKDOWN: Final = {
    "computing": "computing_s",
    "exposed communication": "communication_s",
    "data": "data_s",
    "idle": "idle_s",
}
# Number of left-out steps that are named individually.
ODD_NAMED: Final = 4


def print_report(report: Report) -> None:
    """Print a report on standard output."""
    show(report, Console())


def show(report: Report, console: Console) -> None:
    """Print the verdict and, unless it is withheld, heatmap, slowest workers and fixes."""
    sizes, fidelity = report.sizes, report.fidelity
    steps, dropped = report.steps.analyzed, report.steps.dropped
    console.print(Text(report.verdict.sentence, style="bold"), soft_wrap=True)
    console.print(
        f"DP {sizes.dp} × PP {sizes.pp} × TP {sizes.tp}, {sizes.world} GPUs, "
        f"{len(steps)} step{'s' if len(steps) != 1 else ''}"
        + (f", {len(dropped)} dropped" if dropped else ""),
        highlight=False,
    )
    for line in _odd(report):
        console.print(line, highlight=False, soft_wrap=True)
    if not fidelity.verdict:
        if report.has_verdict:
            console.print(_headline_costs(report), highlight=False, soft_wrap=True)
        console.print(fidelity.reason, highlight=False)
        _show_arrivals(report, console)
        _show_budget(report, console)
        if report.known_waste is not None and not report.has_verdict:
            console.print(
                _costs_of_causes(report, report.known_waste), highlight=False, soft_wrap=True
            )
        _show_fixes(report, console)
        return
    for line in _slowdowns(report):
        console.print(line, highlight=False, soft_wrap=True)
    _show_budget(report, console)
    _show_arrivals(report, console)
    for adaptation in fidelity.adaptations:
        console.print(_adaptation(adaptation), highlight=False, soft_wrap=True)
    console.print()
    _show_heatmap(report, console)
    console.print()
    console.print(_worst_workers(report))
    _show_fixes(report, console)


def _show_budget(report: Report, console: Console) -> None:
    """Print the parts of the step time as a bar, and their shares."""
    if report.budget is None:
        return
    shares = {part: report.budget.shares.of(part) for part in Part}
    said = [part for part in Part if shares[part] >= WORTH_SAYING]
    bar, words = Text(), Text("Where the time goes: ")
    width = min(console.width, BAR_WIDTH)
    ends = [round(width * sum(shares[p] for p in said[: n + 1])) for n in range(len(said))]
    for number, (part, begin, end) in enumerate(zip(said, [0, *ends], ends, strict=False)):
        bar.append(" " * (end - begin), style=f"on {BUDGET[part]}")
        words.append(", " if number else "")
        words.append("■ ", style=BUDGET[part])
        words.append(f"{part.words} {percent(shares[part], 0)}")
    console.print(words, highlight=False, soft_wrap=True)
    console.print(bar, no_wrap=True, crop=True)


def _show_arrivals(report: Report, console: Console) -> None:
    """Print the ranks that arrive last at collectives, and the parts of the leading rank's time."""
    arrivals = report.arrivals
    if arrivals is not None:
        at = report.machine(arrivals.worst.rank).called if arrivals.straggles else ""
        console.print(
            f"{arrivals.words}{f' ({at})' if at else ''}", highlight=False, soft_wrap=True
        )
    for line in _breakdown(report):
        console.print(line, highlight=False, soft_wrap=True)


def _breakdown(report: Report) -> Iterator[str]:
    if report.breakdown is None or (compared := report.breakdown_of_worst()) is None:
        return
    worst, peers = compared
    straggles = report.arrivals.straggles if report.arrivals else len(report.breakdown.ranks) == 1
    if not straggles:
        return
    yield f"A step of rank {worst.rank}: {_parts([worst])}"
    if peers:
        whose = "Its peer" if len(peers) == 1 else f"Median of its {len(peers)} peers"
        yield f"{whose}: {_parts(peers)}"


def _parts(ranks: Sequence[RankBreakdown]) -> str:
    """Return the median parts of the step time of some ranks."""
    return ", ".join(
        # Times are rounded to a microsecond: nanoseconds are rounding errors of clocks.
        f"{name} {round(median(getattr(rank, field) for rank in ranks), 6):.3g} s"
        for name, field in BREAKDOWN.items()
    )


def _odd(report: Report) -> Iterator[str]:
    """Yield lines about the parts of the recording that are unreliable or left out."""
    dropped = (*report.steps.odd, *report.steps.dropped)
    for step in dropped[:ODD_NAMED]:
        yield f"Step {step.step} is left out: {step.reason}"
    if len(dropped) > ODD_NAMED:
        yield f"{len(dropped) - ODD_NAMED} more steps are left out"
    if report.coverage.copies:
        yield f"Operations that are there twice, dropped once: {report.coverage.copies:,}"
    impossible = report.coverage.impossible_durations
    if impossible:
        first, more = impossible[0], len(impossible) - 1
        yield (
            f"Impossible: {first.op_type} of rank {first.rank} takes {first.recorded_s:,.1f} s in "
            f"step {first.step}, but the rank goes on before"
            + (f"; {more} more like it" if more else "")
            + "; repaired"
        )
    yield from report.clocks.warnings


def _headline_costs(report: Report) -> str:
    """Return the slowdown's line for a session whose S is withheld."""
    shown = report.headline
    return (
        f"Slowdown {shown.slowdown:.3f}{_of(shown)} against the job without its causes; "
        f"{gpu_time(report.lost_gpu_hours)} lost in these steps, "
        f"{gpu_time(report.lost_gpu_hours_per_hour)} each hour"
    )


def _costs_of_causes(report: Report, waste: float) -> str:
    """Return the cost of the named causes for a session whose S is withheld."""
    return (
        f"The named causes take {percent(waste, 0)} of each step, "
        f"{hours(report.sizes.world * waste)} GPU-hours each hour; at least that is lost"
    )


def _show_fixes(report: Report, console: Console) -> None:
    for fix in report.recommendations:
        console.print(
            f"{fix.title}: {fix.predicted_step_time:.2f} s a step, "
            f"{'up to ' if fix.at_most else ''}−{fix.predicted_gain * 100:.1f} %",
            highlight=False,
        )
        if fix.division is not None:
            console.print(f"  Megatron-LM: {fix.division.flag}", highlight=False, soft_wrap=True)


def _slowdowns(report: Report) -> Iterator[str]:
    """Yield lines of the slowdown, its cost and the published S."""
    shown = report.headline
    costs = (
        f"{gpu_time(report.lost_gpu_hours)} lost in these steps, "
        f"{gpu_time(report.lost_gpu_hours_per_hour)} each hour; "
        f"the replay differs from the recording by {report.fidelity.discrepancy * 100:.1f} %"
    )
    if shown.kind is HeadlineKind.PUBLISHED:
        published = f"S {report.slowdown:.3f}{_of(shown)}"
        yield f"{published} as published, {why_published(named=bool(report.causes))}; {costs}"
        return
    published = f"S {report.slowdown:.3f}{_interval(report.slowdown_ci95)}"
    measured = f"Slowdown {shown.slowdown:.3f}{_of(shown)}"
    yield f"{measured} against the job without its causes; {costs}"
    why = f": {WHY_S_DIFFERS}" if shown.differs(report.slowdown) else ""
    yield f"Published {published}{why}"


def _of(shown: Headline) -> str:
    """Return the interval of the slowdown, or the reason why there is none."""
    if shown.ci95 is None and shown.ci95_reason is not None:
        return f" (no interval: {shown.ci95_reason})"
    return _interval(shown.ci95)


def _interval(ci95: Interval | None) -> str:
    return "" if ci95 is None else f" (95 %: {ci95[0]:.3f}–{ci95[1]:.3f})"


def _adaptation(made: MadeAdaptation) -> str:
    before, after = made.discrepancy_before, made.discrepancy_after
    closer = ""
    if before is not None and after is not None:
        closer = f"; with that the replay differs by {percent(after)}, without by {percent(before)}"
    return f"{made.sentence}{closer}"


def _color(slowdown: float) -> tuple[str, str]:
    """Return background and text color of a slowdown."""
    index = min(max(int((slowdown - 1) / SCALE_STEP + 0.5), 0), len(SCALE) - 1)
    return SCALE[index], "#ffffff" if index >= FIRST_WITH_LIGHT_TEXT else "#000000"


def _show_heatmap(report: Report, console: Console) -> None:
    """Draw stages from top to bottom and DP ranks from left to right, with numbers if they fit.

    If the heatmap is wider than the terminal, it continues in further blocks of DP ranks.
    """
    exact = report.by_worker.exact
    room = max(console.width - STAGE_COLUMN, NUMBERED_CELL)
    numbered = len(exact) * NUMBERED_CELL <= room
    width = NUMBERED_CELL if numbered else 1
    console.print("Slowdown if only this worker kept its recorded durations", highlight=False)
    for first in range(0, len(exact), room // width):
        ranks = exact[first : first + room // width]
        last = first + len(ranks) - 1
        for stage in range(report.sizes.pp):
            line = Text(f"stage {stage:<3}")
            for rank in ranks:
                background, color = _color(rank[stage])
                cell = f"{rank[stage]:^{width}.3f}" if numbered else " "
                line.append(cell, style=f"{color} on {background}")
            console.print(line, no_wrap=True, crop=True)
        if numbered:
            header = "".join(f"{first + i:^{width}}" for i in range(len(ranks)))
            console.print(f"{'DP rank':<{STAGE_COLUMN}}{header}", highlight=False)
        else:
            console.print(f"{'':<{STAGE_COLUMN}}DP ranks {first}–{last}", highlight=False)


def _worst_workers(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, title="Worst workers", title_justify="left")
    table.add_column("Worker")
    table.add_column("Rank", justify="right")
    if report.hosts:
        table.add_column("Host", no_wrap=True)
    for name in ("S_w", "Forward", "Backward"):
        table.add_column(name, justify="right")
    by_worker, ranks = report.by_worker, report.workers.rank
    for slowdown, dp, pp in report.ranked_workers()[:WORST_WORKERS]:
        ratios = (by_worker.forward_ratio[dp][pp], by_worker.backward_ratio[dp][pp])
        host = [report.machine(ranks[dp][pp]).called] if report.hosts else []
        table.add_row(
            f"({dp}, {pp})",
            str(ranks[dp][pp]),
            *host,
            f"{slowdown:.3f}×",
            *("no peers" if value is None else f"{value:.2f}×" for value in ratios),
        )
    return table
