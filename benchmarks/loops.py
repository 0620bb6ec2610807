"""What compiled loops bring: the report of a small trace with and without them.

Sessions of over a million operations always use them, so only smaller ones can be compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.analysis.loops import COMPILED_FROM
from app.analysis.replay.engine.executors import warm_up
from app.analysis.trace.metadata import metadata_document, parse_metadata
from benchmarks.analysis import report_of

if TYPE_CHECKING:
    from benchmarks.traces import BenchTrace

_COMPILED: Final = "compiled"
_ARRAYS: Final = "arrays"
# Processes of each kind, in turns; their best counts.
_TURNS: Final = 3
_REPORTS: Final = 20


def measure_loops(trace: BenchTrace) -> str | None:
    """Return a line with the processor time of a report by both executors; None where one is not.

    A process that has loaded the loops uses them, so each time is taken in a process of its own.
    """
    if trace.operations >= COMPILED_FROM:
        return None
    taken: dict[str, list[float]] = {_COMPILED: [], _ARRAYS: []}
    for _ in range(_TURNS):
        for kind, seconds in taken.items():
            seconds.append(_in_a_process(kind, trace))
    compiled_ms, arrays_ms = (min(taken[kind]) * 1e3 for kind in (_COMPILED, _ARRAYS))
    return (
        f"{trace.name:<18} processor time of a report: compiled loops {compiled_ms:.0f} ms, "
        f"NumPy alone {arrays_ms:.0f} ms, {arrays_ms / compiled_ms:.1f} times as much"
    )


def _in_a_process(kind: str, trace: BenchTrace) -> float:
    done = subprocess.run(  # noqa: S603 - this interpreter and our own module
        [sys.executable, "-m", "benchmarks.loops", kind, str(trace.path)],
        input=json.dumps(metadata_document(trace.meta)),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def _fastest_report(kind: str, path: Path, meta_text: str) -> float:
    """Return the least processor time of a report, s."""
    if kind == _COMPILED:
        warm_up()
    meta = parse_metadata(json.loads(meta_text))
    taken = []
    for _ in range(_REPORTS):
        began = time.process_time()
        report_of(path, meta)
        taken.append(time.process_time() - began)
    return min(taken)


if __name__ == "__main__":
    print(_fastest_report(sys.argv[1], Path(sys.argv[2]), sys.stdin.read()))
