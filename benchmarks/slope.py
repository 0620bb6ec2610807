"""What each further operation costs: the report's time over decoding's, between two sizes."""

from __future__ import annotations

import statistics
from typing import Final

from app.analysis.replay.engine.executors import warm_up
from benchmarks.analysis import read_with_pyarrow, report_of
from benchmarks.pairs import Pairs, time_pairs
from benchmarks.traces import BenchTrace

_ROUNDS: Final = 9


def measure_slope(small: BenchTrace, large: BenchTrace) -> str:
    """Measure two sizes of a job in turns; return the ratio of the medians, and that of rounds."""
    warm_up()
    rounds = [(_pair(small), _pair(large)) for _ in range(_ROUNDS)]
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
