"""`paceline analyze`: a trace file in, a verdict in the terminal or a report as JSON out."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.analysis.json_text import to_json
from app.analysis.report.build import analyze
from app.analysis.report.coverage import MadeAdaptation
from app.analysis.report.document import Report
from app.analysis.report.timeline import perfetto, step_timeline
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import Trace
from app.analysis.wording import percent
from app.cli.files import read_metadata, reading, writing

# The dashboard's fixed scale, 1.0 to 1.5 and above in steps of 0.05: pale to dark.
SCALE: Final = (
    "#dfe2e7", "#e3d5b1", "#e2c37e", "#e3ad4d", "#e1931e", "#d97a06",
    "#cd6006", "#c04203", "#a82d13", "#8a1f1b", "#6b131b",
)  # fmt: skip
SCALE_STEP: Final = 0.05
FIRST_WITH_LIGHT_TEXT: Final = 6
WORST_WORKERS: Final = 6
NUMBERED_CELL: Final = 6
STAGE_COLUMN: Final = 9
# S and the slowdown against the job without its causes are both said when they differ by more.
WORTH_SAYING: Final = 0.02


def analyze_file(
    path: Path, meta_path: Path | None, *, as_json: bool, timeline: Path | None
) -> None:
    """Analyze a trace file and print what came out.

    Raises
    ------
    PacelineError
        The file is no trace, no verdict can come from it, or the timeline cannot be written.
    """
    trace = read_trace(path, meta_path)
    report = analyze(trace).report
    if timeline is not None:
        _write_timeline(trace, report, timeline)
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
    else:
        show(report, Console())


def read_trace(path: Path, meta_path: Path | None) -> Trace:
    """Read a trace file and its metadata, which an NDJSON trace may hold itself.

    Raises
    ------
    PacelineError
        A file cannot be read, or is not what it should be.
    """
    meta = None if meta_path is None else load_metadata(read_metadata(meta_path))
    with reading(path):
        return decode(path, meta, limits=Limits()).trace


def show(report: Report, console: Console) -> None:
    """Print the verdict, and unless it is withheld the heatmap, the worst workers and fixes."""
    sizes, fidelity = report.sizes, report.fidelity
    steps, dropped = report.steps.analyzed, report.steps.dropped
    console.print(Text(report.verdict.sentence, style="bold"), soft_wrap=True)
    console.print(
        f"DP {sizes.dp} × PP {sizes.pp} × TP {sizes.tp}, {sizes.world} GPUs, "
        f"{len(steps)} steps" + (f", {len(dropped)} dropped" if dropped else ""),
        highlight=False,
    )
    if not fidelity.verdict:
        console.print(fidelity.reason, highlight=False)
        return
    low, high = report.slowdown_ci95
    console.print(
        f"S {report.slowdown:.3f} (95 %: {low:.3f}–{high:.3f}), "
        f"{report.gpu_hours_lost:.3g} GPU-hours lost in these steps, "
        f"{report.gpu_hours_lost_per_hour:.3g} each hour; "
        f"the replay differs from the recording by {fidelity.discrepancy * 100:.1f} %",
        highlight=False,
        soft_wrap=True,
    )
    _show_headline(report, console)
    for adaptation in fidelity.adaptations:
        console.print(_adaptation(adaptation), highlight=False, soft_wrap=True)
    console.print()
    _show_heatmap(report, console)
    console.print()
    console.print(_worst_workers(report))
    for fix in report.recommendations:
        console.print(
            f"{fix.title}: {fix.predicted_step_time:.2f} s a step, "
            f"−{fix.predicted_gain * 100:.1f} %",
            highlight=False,
        )


def _show_headline(report: Report, console: Console) -> None:
    """Print the slowdown against the job without its causes, where that is another than S."""
    shown = report.headline
    if abs(shown.slowdown / report.slowdown - 1) <= WORTH_SAYING or shown.ci95 is None:
        return
    low, high = shown.ci95
    console.print(
        f"{shown.slowdown:.3f} (95 %: {low:.3f}–{high:.3f}) against the job without its causes: "
        "the ideal of S is a mean, which the straggler is part of",
        highlight=False,
        soft_wrap=True,
    )


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
    """Draw stages down and DP ranks across; numbers where there is room for them.

    What does not fit the terminal continues in further blocks of DP ranks.
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
        host = [report.host_of((dp, pp)) or ""] if report.hosts else []
        table.add_row(
            f"({dp}, {pp})",
            str(ranks[dp][pp]),
            *host,
            f"{slowdown:.3f}×",
            *("no peers" if value is None else f"{value:.2f}×" for value in ratios),
        )
    return table


def _write_timeline(trace: Trace, report: Report, path: Path) -> None:
    """Write the slowest step, recorded and ideal, for Perfetto."""
    slowdowns = report.step_slowdown
    step = report.steps.analyzed[slowdowns.index(max(slowdowns))]
    hosts = {
        (dp, pp): report.hosts[rank]
        for dp, row in enumerate(report.workers.rank)
        for pp, rank in enumerate(row)
        if rank in report.hosts
    }
    events = perfetto(step_timeline(trace, step), hosts)
    with writing(path), gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(events, file)
    sys.stderr.write(f"Step {step} written to {path}; open it at ui.perfetto.dev\n")
