"""Time to read a body in the server's process, against a process of its own.

``python -m benchmarks.reading [PAIRS]`` prints a line for each body: medians of pairs, each of
which reads the same bytes once in either way, in turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.analysis.trace.decode import decode
from app.analysis.trace.encode import to_ndjson_gz
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.readers import ndjson_compiled
from app.platform.killable import allowance, call
from app.sessions.body import Body, Read, read_body
from benchmarks.traces import REFERENCE

_PAIRS: Final = 31
_MS: Final = 1000.0
_MEMORY_KIB: Final = 4 * 1024 * 1024
_WARM_UP: Final = f"{ndjson_compiled.__name__}:{ndjson_compiled.warm_up.__name__}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians in ms, and the median of the differences of the pairs."""

    name: str
    size: int
    operations: int
    within_ms: float
    apart_ms: float
    more_ms: float

    def line(self) -> str:
        """Return the figures for a person."""
        return (
            f"{self.name:<12} {self.size / 1e6:>5.2f} MB {self.operations:>9,} operations: "
            f"here {self.within_ms:6.1f} ms, in a process of its own {self.apart_ms:6.1f} ms, "
            f"difference {self.more_ms:5.1f} ms"
        )


def measure_reading(pairs: int = _PAIRS) -> Iterator[Figures]:
    """Yield the figures of each body."""
    directory = Path(os.environ[REFERENCE])
    meta = load_metadata((directory / "meta-AR.yaml").read_text())
    parquet = (directory / "trace-AR.parquet").read_bytes()
    trace = decode(parquet, meta, limits=Limits()).trace
    text = to_ndjson_gz(trace)
    steps = sorted(set(trace.step.tolist()))
    for share in (1.0, 1e6 / len(text)):
        kept = trace.step <= steps[max(0, int(len(steps) * min(share, 1.0)) - 1)]
        part = trace.of_rows(kept.nonzero()[0])
        yield _measured(f"NDJSON {share:.0%}", to_ndjson_gz(part), meta, len(part), pairs)
    yield _measured("Parquet", parquet, meta, len(trace), pairs)


def _measured(name: str, body: bytes, meta: SessionMeta, rows: int, pairs: int) -> Figures:
    limits = allowance(len(body), _MEMORY_KIB)

    whole = Body(body, len(body), None, None, meta)

    def within() -> Read:
        return read_body(whole, None, Limits(), Path())

    def apart() -> Read:
        return call(read_body, whole, None, Limits(), Path(), limits=limits, prepare=_WARM_UP)

    for way in (within, apart):
        way()
    times = [(_seconds(within), _seconds(apart)) for _ in range(pairs)]
    return Figures(
        name,
        len(body),
        rows,
        _MS * statistics.median(pair[0] for pair in times),
        _MS * statistics.median(pair[1] for pair in times),
        _MS * statistics.median(apart_s - within_s for within_s, apart_s in times),
    )


def _seconds(way: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    way()
    return time.perf_counter() - begun_s


def main() -> None:
    """Print the figures."""
    for figures in measure_reading(int(sys.argv[1]) if len(sys.argv) > 1 else _PAIRS):
        sys.stdout.write(f"{figures.line()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
