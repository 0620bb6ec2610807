"""From a Parquet file to the report: time against plain decoding, and peak memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from app.analysis.replay.engine.executors import warm_up
from app.analysis.report.build import Analysis, analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import metadata_document, parse_metadata
from benchmarks.pairs import Pairs, time_pairs
from benchmarks.traces import BenchTrace

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from app.analysis.trace.model import SessionMeta

_PAIRS: Final = 15
_AT_LEAST_S: Final = 6.0
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AnalysisFigures:
    """Time and memory of one trace; peaks are resident bytes of processes that do nothing else."""

    trace: BenchTrace
    times: Pairs
    decode_peak_bytes: int
    report_peak_bytes: int

    def line(self) -> str:
        """Return the figures for a person."""
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
    """Decode the file on one thread and look at nothing."""
    return pq.read_table(path, use_threads=False)


def report_of(path: Path, meta: SessionMeta) -> Analysis:
    """Do what `paceline analyze` does, without printing."""
    return analyze(decode(path, meta, limits=Limits()).trace)


def measure_analysis(trace: BenchTrace) -> AnalysisFigures:
    """Measure one trace, as a worker analyzes it: with its compiled loops loaded."""
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
        [sys.executable, "-m", "benchmarks.peak", what, str(trace.path)],
        input=json.dumps(metadata_document(trace.meta)),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(done.stdout)


def run_once(what: str, path: Path, meta_text: str) -> None:
    """Do one of the two things; for a process that measures its own memory."""
    if what == "pyarrow":
        read_with_pyarrow(path)
    else:
        report_of(path, parse_metadata(json.loads(meta_text)))
