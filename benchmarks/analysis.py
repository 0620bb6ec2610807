"""Times from a Parquet file to the report: against decoding, by size, as command, by executor."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from app.analysis.loops import COMPILED_FROM
from app.analysis.replay.engine.executors import warm_up
from app.analysis.report.build import Analysis, analyze
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.decode import decode
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import metadata_document, parse_metadata
from app.analysis.trace.model import Sizes
from benchmarks.support.measuring import Pairs, peak_bytes, time_pairs
from benchmarks.traces import BenchTrace

if TYPE_CHECKING:
    from app.analysis.trace.model import SessionMeta

_PAIRS: Final = 15
_AT_LEAST_S: Final = 6.0
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AnalysisFigures:
    """Time and memory of one trace; peak memory is that of separate processes, bytes."""

    trace: BenchTrace
    times: Pairs
    decode_peak_bytes: int
    report_peak_bytes: int

    def line(self) -> str:
        """Return the figures as a line of text."""
        low, high = self.times.spread
        return (
            f"{self.trace.name:<18} {self.trace.operations:>9,} operations: "
            f"pyarrow {statistics.median(self.times.base_s) * 1e3:.0f} ms, "
            f"report {statistics.median(self.times.ours_s) * 1e3:.0f} ms, "
            f"ratio {self.times.ratio:.1f} (quartiles {low:.1f} to {high:.1f}); peak memory: "
            f"pyarrow {self.decode_peak_bytes / MIB:.0f} MiB, "
            f"report {self.report_peak_bytes / MIB:.0f} MiB"
        )


def read_with_pyarrow(path: Path) -> pa.Table:
    """Decode the file on one thread and discard the result."""
    return pq.read_table(path, use_threads=False)


def report_of(path: Path, meta: SessionMeta) -> Analysis:
    """Return the report as `paceline analyze` computes it, without printing."""
    return analyze(decode(path, meta, limits=Limits()).trace)


def measure_analysis(trace: BenchTrace) -> AnalysisFigures:
    """Measure one trace with loaded compiled loops, as in a worker."""
    warm_up()
    times = time_pairs(
        lambda _: report_of(trace.path, trace.meta),
        lambda _: read_with_pyarrow(trace.path),
        pairs=_PAIRS,
        at_least_s=_AT_LEAST_S,
    )
    return AnalysisFigures(
        trace=trace,
        times=times,
        decode_peak_bytes=_peak_bytes("pyarrow", trace),
        report_peak_bytes=_peak_bytes("report", trace),
    )


def _peak_bytes(what: str, trace: BenchTrace) -> int:
    done = subprocess.run(  # noqa: S603 - this interpreter and our own module
        [sys.executable, "-m", "benchmarks.analysis", what, str(trace.path)],
        input=json.dumps(metadata_document(trace.meta)),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(done.stdout)


def run_once(what: str, path: Path, meta_text: str) -> None:
    """Report or decode a trace, in a process that measures its own memory."""
    if what == "pyarrow":
        read_with_pyarrow(path)
    else:
        report_of(path, parse_metadata(json.loads(meta_text)))


_SLOPE_ROUNDS: Final = 9


def measure_slope(small: BenchTrace, large: BenchTrace) -> str:
    """Measure two sizes of a job in turns; return the ratio of medians, and of each round."""
    warm_up()
    rounds = [(_pair(small), _pair(large)) for _ in range(_SLOPE_ROUNDS)]
    reports_s = [more.ours_s[0] - less.ours_s[0] for less, more in rounds]
    decodings_s = [more.base_s[0] - less.base_s[0] for less, more in rounds]
    report_s, decoding_s = statistics.median(reports_s), statistics.median(decodings_s)
    ratios = [ours / base for ours, base in zip(reports_s, decodings_s, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    each = 1e9 / (large.operations - small.operations)
    return (
        f"{small.name}, {small.operations:,}, to {large.operations:,} operations: "
        f"pyarrow {decoding_s * each:.0f} ns each, report {report_s * each:.0f} ns each, "
        f"ratio {report_s / decoding_s:.1f} (quartiles {low:.1f} to {high:.1f})"
    )


def _pair(trace: BenchTrace) -> Pairs:
    return time_pairs(
        lambda _: report_of(trace.path, trace.meta),
        lambda _: read_with_pyarrow(trace.path),
        pairs=1,
    )


_COMMAND_PAIRS: Final = 9
_SMALL_JOB: Final = JobModel(sizes=Sizes(dp=2, pp=2), steps=6, microbatches=4)


def measure_small_trace() -> str:
    """Return the ratio of the command's time to the base's, as text."""
    trace = synthesize(_SMALL_JOB, seed=1).trace
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        path, meta = Path(directory) / "trace.parquet", Path(directory) / "meta.yaml"
        path.write_bytes(to_parquet(trace))
        meta.write_text(yaml.safe_dump(metadata_document(trace.meta)), encoding="utf-8")
        command = ("-m", "app.cli.main", "analyze", str(path), "--meta", str(meta), "--json")
        least = ("-c", "import numpy, pyarrow")
        # The first, unmeasured run of each reads files into memory and compiles modules.
        _processor_s(command)
        _processor_s(least)
        pairs = [(_processor_s(command), _processor_s(least)) for _ in range(_COMMAND_PAIRS)]
    ours, base = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    ratio = statistics.median(ours / base for ours, base in pairs)
    return (
        f"{len(trace):,} operations: importing NumPy and pyarrow {base:.0f} ms, "
        f"paceline analyze {ours:.0f} ms, ratio {ratio:.1f}"
    )


def _processor_s(arguments: Sequence[str]) -> float:
    """Return the processor time of an interpreter with these arguments."""
    before = _children_s()
    subprocess.run(  # noqa: S603 - this interpreter and our own program
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=_compiling()
    )
    return _children_s() - before


def _compiling() -> dict[str, str]:
    """Return the environment with caching of bytecode, which the caller may have switched off."""
    return {name: to for name, to in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_COMPILED: Final = "compiled"
_ARRAYS: Final = "arrays"
# Number of processes of each kind, which run in turns; the fastest counts.
_TURNS: Final = 3
_REPORTS: Final = 20


def measure_loops(trace: BenchTrace) -> str | None:
    """Return a line with the processor time of a report by both executors; None if one is missing.

    A process that has loaded the compiled loops uses them, so each time is measured in a separate
    process.
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
        [sys.executable, "-m", "benchmarks.analysis", kind, str(trace.path)],
        input=json.dumps(metadata_document(trace.meta)),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def _fastest_report(kind: str, path: Path, meta_text: str) -> float:
    """Return the smallest processor time of a report, s."""
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
    kind, path, meta_text = sys.argv[1], Path(sys.argv[2]), sys.stdin.read()
    if kind in {_COMPILED, _ARRAYS}:
        print(_fastest_report(kind, path, meta_text))
    else:
        pa.set_cpu_count(1)
        run_once(kind, path, meta_text)
        print(peak_bytes())
