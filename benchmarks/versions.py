"""Times of reports of this version and of another one: ``python -m benchmarks.versions DIR``.

DIR is a checkout of the other version, whose source runs in this interpreter with the installed
packages. One process of each version reports and decodes the same files in turns; processor time
counts. Both are divided by the same time of decoding by pyarrow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from app.analysis.trace.metadata import metadata_document
from benchmarks.traces import BenchTrace, make_traces

_TURNS: Final = 15
_HERE: Final = Path(__file__).resolve().parent.parent

# The process reads paths of a file and its metadata, a line each pair, and prints the times of a
# report and of decoding, s.
_DRIVER: Final = """
import gc, json, sys, time
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import parse_metadata
from app.analysis.warm_up import warm_up
try:
    from app.analysis.report.build import analyze
except ImportError:
    from app.analysis.report import analyze

def taken(work, collect=True):
    if collect:
        gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began

pa.set_cpu_count(1)
warm_up()
for line in sys.stdin:
    asked = json.loads(line)
    path, meta = Path(asked["path"]), parse_metadata(asked["meta"])
    report = taken(lambda: analyze(decode(path, meta, limits=Limits()).trace))
    # Of three: the first one brings back what collecting garbage drove out of the caches.
    decoding = min(taken(lambda: pq.read_table(path, use_threads=False), False) for _ in range(3))
    print(report, decoding, flush=True)
"""


@dataclass(frozen=True, slots=True)
class _Times:
    """Processor seconds of one version's reports, and of decoding after each."""

    report_s: tuple[float, ...]
    decode_s: tuple[float, ...]

    def over(self, decode_s: tuple[float, ...]) -> float:
        """Return the median report time over the median decoding time."""
        return statistics.median(self.report_s) / statistics.median(decode_s)


def measure_versions(other: Path, traces: list[BenchTrace], turns: int) -> Iterator[str]:
    """Yield a line for each trace with both versions' report over decoding."""
    with _process(_HERE) as ours, _process(other) as other_process:
        for trace in traces:
            pairs = _in_turns(ours, other_process, trace, turns)
            reports, base = (
                _Times(*zip(*times, strict=True)) for times in zip(*pairs, strict=True)
            )
            # pyarrow decodes for both versions; the other version's garbage must not count, so it
            # is collected before.
            both_s = reports.decode_s + base.decode_s
            against = [new / old for new, old in zip(reports.report_s, base.report_s, strict=True)]
            low, middle, high = statistics.quantiles(against, n=4)
            yield (
                f"{trace.name:<12} {trace.operations:>9,} operations: report over decoding "
                f"{reports.over(both_s):.2f}, the other {base.over(both_s):.2f}; reports alone "
                f"{min(reports.report_s) / min(base.report_s):.3f} at best, "
                f"{middle:.3f} in pairs (quartiles {low:.3f} to {high:.3f}); "
                f"best {min(reports.report_s) * 1e3:.1f} and {min(base.report_s) * 1e3:.1f} ms"
            )


def _in_turns(
    ours: subprocess.Popen[str], other: subprocess.Popen[str], trace: BenchTrace, turns: int
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return the times of both versions, each first equally often, after one unmeasured turn."""
    pairs = []
    for turn in range(-1, turns):
        if turn % 2:
            old = _ask(other, trace)
            pairs.append((_ask(ours, trace), old))
        else:
            new = _ask(ours, trace)
            pairs.append((new, _ask(other, trace)))
    return pairs[1:]


@contextmanager
def _process(checkout: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(  # noqa: S603 - this interpreter and a checkout that a person named
        [sys.executable, "-c", _DRIVER],
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def _ask(process: subprocess.Popen[str], trace: BenchTrace) -> tuple[float, float]:
    request = {"path": str(trace.path), "meta": metadata_document(trace.meta)}
    print(json.dumps(request), file=process.stdin, flush=True)
    answer = next(iter(process.stdout or ()), "")
    if not answer:
        raise SystemExit("A version failed: see above")
    report, decoding = answer.split()
    return float(report), float(decoding)


def main() -> None:
    """Print a line for each trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="checkout of the other version")
    parser.add_argument("--turns", type=int, default=_TURNS)
    parser.add_argument("--only", default="", help="names of traces that contain this")
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        traces = [trace for trace in make_traces(Path(directory)) if arguments.only in trace.name]
        for line in measure_versions(arguments.other.resolve(), traces, arguments.turns):
            print(line, flush=True)


if __name__ == "__main__":
    main()
