"""Growth of the time and memory of a report with the session: ``python -m benchmarks.scale``.

Each session is analyzed in a separate process that contains only its columns; memory is the
increase above them.
"""

from __future__ import annotations

import argparse
import pickle
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.analysis.replay.engine.executors import warm_up
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SequenceLengths,
    SlowWorker,
)
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes

# Three orders of magnitude of operations, with four stages.
DP_RANKS: Final = (4, 16, 64, 256, 1024, 4096)
GROWING: Final = [JobModel(sizes=Sizes(dp=dp, pp=4), microbatches=16, steps=20) for dp in DP_RANKS]
# 16,384 workers, and the largest number of steps with fewer than 30 million operations.
LARGEST: Final = JobModel(sizes=Sizes(dp=1024, pp=16), microbatches=32, steps=9)
_RUNS: Final = 3
# A report with several causes needs more memory than that of a healthy job.
_TROUBLES: Final = (
    SlowWorker((2, 1), 1.6),
    SequenceLengths(),
    GarbageCollection(pause_ns=3e8, pauses=0.5),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Time and memory of one session: median and peak over the runs, above its columns."""

    job: JobModel
    operations: int
    report_s: float
    peak_bytes: int

    def line(self) -> str:
        """Return the figures as a line of text."""
        return (
            f"DP {self.job.sizes.dp:>5} x PP {self.job.sizes.pp:>2} {self.operations:>11,} "
            f"operations: {self.report_s:8.3f} s, {self.report_s / self.operations * 1e9:6.0f} ns "
            f"and {self.peak_bytes / self.operations:6.1f} bytes an operation"
        )


def measure_scale(job: JobModel) -> Figures:
    """Analyze a synthetic session of the given size."""
    trace = synthesize(job, _TROUBLES, seed=1).trace
    with tempfile.TemporaryDirectory(prefix="paceline-scale-") as directory:
        path = Path(directory) / "columns"
        with path.open("wb") as file:
            pickle.dump(trace, file, protocol=5)
        operations = len(trace)
        del trace
        done = subprocess.run(  # noqa: S603 - this interpreter and our own module
            [sys.executable, "-m", "benchmarks.scale", "--columns", str(path)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    report_s, peak_bytes = done.stdout.split()
    return Figures(job, operations, float(report_s), int(peak_bytes))


def _analyze(path: Path) -> None:
    """Analyze the columns in a file; print seconds, and the peak of bytes above the columns."""
    with path.open("rb") as file:
        trace = pickle.load(file)  # noqa: S301 - our own, of a moment ago
    warm_up()
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    times_s = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        analyze(trace)
        times_s.append(time.perf_counter() - start)
    print(statistics.median(times_s), _resident("VmHWM") - before)


def _resident(field: str) -> int:
    """Return a value of Linux's memory statistics of this process, bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    match = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"The system does not tell {field}")
    return int(match[1]) * 1024


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.columns is not None:
        _analyze(arguments.columns)
        return
    for job in (*GROWING, LARGEST):
        print(measure_scale(job).line(), flush=True)


if __name__ == "__main__":
    main()
