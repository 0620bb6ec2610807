"""`paceline analyze`: a trace in, a verdict in the terminal or a report as JSON out."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Collection
from pathlib import Path

from app.analysis.json_text import to_json
from app.analysis.replay.adaptations.evidence import Name
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.trace.model import Trace
from app.cli.convert import read_recordings, say_unmapped
from app.cli.files import writing


def analyze_file(  # noqa: PLR0913 - what the command is told
    path: Path,
    meta_path: Path | None,
    *,
    as_json: bool,
    timeline: Path | None,
    without: Collection[Name] = (),
    labels: Path | None = None,
) -> None:
    """Analyze a trace file and print what came out."""
    trace = read_trace(path, meta_path, labels)
    report = analyze(trace, without).report
    if timeline is not None:
        _write_timeline(trace, report, timeline)
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
    else:
        from app.cli.sessions.shown import print_report  # noqa: PLC0415 - what draws tables is slow to load

        print_report(report)


def read_trace(path: Path, meta_path: Path | None, labels: Path | None = None) -> Trace:
    """Read a trace and its metadata, which the trace may hold itself.

    Parameters
    ----------
    path : Path
        A file, or a folder or an archive of files of one format: those of a job's ranks, with a
        ``meta.yaml`` where they do not say the sizes.
    labels : Path or None
        What the job calls ranges of its own.

    Raises
    ------
    PacelineError
        A file cannot be read, or is not what it should be.
    """
    recorded = read_recordings([path], meta_path, None, labels=labels)
    say_unmapped(recorded.unmapped)
    return recorded.trace


def _write_timeline(trace: Trace, report: Report, path: Path) -> None:
    """Write the slowest step, recorded and ideal, for Perfetto."""
    from app.analysis.report.timeline import perfetto, step_timeline  # noqa: PLC0415 - rarely asked

    slowdowns = report.step_slowdown
    step = report.steps.analyzed[slowdowns.index(max(slowdowns))]
    hosts = {
        (dp, pp): report.hosts[rank]
        for dp, row in enumerate(report.workers.rank)
        for pp, rank in enumerate(row)
        if rank in report.hosts
    }
    pieces = perfetto(step_timeline(trace, step), hosts)
    with writing(path), gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(pieces)
    sys.stderr.write(f"Step {step} written to {path}; open it at ui.perfetto.dev\n")
