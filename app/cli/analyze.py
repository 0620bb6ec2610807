"""`paceline analyze`: read a trace and print its verdict, or its report as JSON."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from app.analysis.json_text import to_json
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.what_if import MOST_SCALE, TYPE_NAMES, Selection
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.trace.model import Trace
from app.cli.convert import read_recordings, say_unmapped
from app.cli.files import writing
from app.errors import Fault, InvalidQuestionError


def analyze_file(  # noqa: PLR0913 - what the command is told
    path: Path,
    meta_path: Path | None,
    *,
    as_json: bool,
    timeline: Path | None,
    without: Collection[Name] = (),
    labels: Path | None = None,
) -> None:
    """Analyze a trace file and print the report."""
    trace = read_trace(path, meta_path, labels)
    report = analyze(trace, without).report
    if timeline is not None:
        _write_timeline(trace, report, timeline)
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
    else:
        from app.cli.session_text import print_report  # noqa: PLC0415 - tables are slow to load

        print_report(report)


def read_trace(path: Path, meta_path: Path | None, labels: Path | None = None) -> Trace:
    """Read a trace and its metadata, which the trace itself may contain.

    Parameters
    ----------
    path : Path
        A file, or a folder or an archive with files of one format: one file for each rank, and
        a ``meta.yaml`` if the files do not contain the sizes.
    labels : Path or None
        File that maps the job's own range names to operations.

    Raises
    ------
    PacelineError
        A file cannot be read, or has invalid content.
    """
    recorded = read_recordings([path], meta_path, None, labels=labels)
    say_unmapped(recorded.unmapped)
    return recorded.trace


def _write_timeline(trace: Trace, report: Report, path: Path) -> None:
    """Write the slowest step, as recorded and as replayed with ideal durations, for Perfetto."""
    from app.analysis.report.charts import perfetto, step_timeline  # noqa: PLC0415 - rarely asked

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


_FACTOR: Final = f"a number from 0 to {MOST_SCALE:.0f}"
_COUNT: Final = "a whole number of 0 or more"


def parse_selection(text: str) -> Selection:
    """Parse a selection of the command line: ``stage=3,op=forward-compute|optimizer``.

    Keys are ``op``, ``step``, ``stage``, ``dp`` and ``worker`` (``DP:STAGE``), each at most once;
    several values of a key are separated by ``|``.

    Raises
    ------
    InvalidQuestionError
        The selection is invalid; the message names the invalid part.
    """
    selected: dict[str, tuple[Any, ...]] = {}
    for part in text.split(","):
        key, _, values = (piece.strip() for piece in part.partition("="))
        if key not in _KEYS or not values:
            keys = "op=, step=, stage=, dp=, worker=DP:STAGE"
            message = (
                f"{part!r} is not one of" if part else "A selection is missing, one or more of"
            )
            _refuse("selection", f"{message} {keys}", part)
        name, read, what = _KEYS[key]
        if name in selected:
            message = f"{text!r} has {key}= twice; several values are separated by |"
            _refuse("selection", message, part)
        try:
            selected[name] = tuple(read(value.strip()) for value in values.split("|"))
        except ValueError as error:
            _refuse("selection", f"{part!r} does not name {what}", part, error)
    return Selection(**selected)


def parse_factor(text: str) -> float:
    """Parse the factor of a scaled selection."""
    try:
        factor = float(text)
    except ValueError as error:
        _refuse("scale", f"{text!r} is no factor: {_FACTOR}", text, error)
    if not 0 <= factor <= MOST_SCALE:
        _refuse("scale", f"{text!r} is no factor: {_FACTOR}", text)
    return factor


def _refuse(code: str, message: str, column: str, cause: ValueError | None = None) -> NoReturn:
    raise InvalidQuestionError(message, faults=(Fault(code, message, column=column),)) from cause


def _type_name(text: str) -> str:
    if text not in TYPE_NAMES:
        raise ValueError(text)
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def _worker(text: str) -> tuple[int, int]:
    dp, pp = map(_count, text.split(":"))
    return dp, pp


# For each key of the command line: its field, the parser of a value, and a description of a value.
_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any], str]]] = {
    "op": ("op_types", _type_name, f"one of the types {', '.join(TYPE_NAMES)}"),
    "step": ("steps", _count, f"a step, {_COUNT}"),
    "stage": ("stages", _count, f"a stage, {_COUNT}"),
    "dp": ("dp_ranks", _count, f"a DP rank, {_COUNT}"),
    "worker": ("workers", _worker, "a worker as DP:STAGE, such as worker=0:3"),
}
