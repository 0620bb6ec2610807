"""Measure Paceline side by side with the minimal alternative for each task; `make bench` runs this.

Ratios compare two programs that are measured in turns in one process, so that they are valid on a
slow, a busy and a fast machine; seconds and megabytes a second are not.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from benchmarks.analysis import measure_analysis, measure_loops, measure_slope, measure_small_trace
from benchmarks.ingest import measure_ingest
from benchmarks.planner import measure_planner
from benchmarks.profiler_files import measure_profiler_files
from benchmarks.published import measure_published
from benchmarks.scale import GROWING, LARGEST, measure_scale
from benchmarks.traces import make_growing, make_traces


def main() -> None:
    """Print every figure that the README quotes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--published", type=Path, metavar="DIR", help="checkout of the published analyzer"
    )
    parser.add_argument(
        "--published-python", default=sys.executable, help="interpreter with its requirements"
    )
    arguments = parser.parse_args()
    # One thread each, because the base is single-threaded too.
    pa.set_cpu_count(1)
    print(
        f"Python {platform.python_version()}, pyarrow {pa.__version__}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        traces = make_traces(Path(directory))
        print("\nFrom a Parquet file to the whole report, against decoding the file with pyarrow")
        for trace in traces:
            print(measure_analysis(trace).line(), flush=True)
        print("\nThe same between two sizes: what each further operation costs")
        print(measure_slope(*make_growing(Path(directory))), flush=True)
        print("\nThe command on a small trace, against importing NumPy and pyarrow")
        print(measure_small_trace(), flush=True)
        print("\nWhat compiled loops bring where NumPy alone would do")
        for line in filter(None, map(measure_loops, traces)):
            print(line, flush=True)
        if arguments.published is not None:
            print("\nAgainst the published analyzer: whole processes, and both in process")
            for line in measure_published(arguments.published, arguments.published_python, traces):
                print(line, flush=True)
        print("\nFrom files of PyTorch's profiler to the whole report, against json.load")
        for line in measure_profiler_files():
            print(line, flush=True)
        print("\nReceiving a session, against the same server storing the same bytes unseen")
        for line in measure_ingest(traces):
            print(line, flush=True)
    print("\nFrom columns in memory to the whole report, by size; bytes beyond the columns")
    for job in (*GROWING, LARGEST):
        print(measure_scale(job).line(), flush=True)
    print("\nPlanning; `too slow` is over 10 s")
    for line in measure_planner():
        print(line, flush=True)


if __name__ == "__main__":
    main()
