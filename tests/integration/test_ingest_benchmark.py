"""The benchmark of receiving sessions runs on the present server."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.analysis.trace.encode import to_parquet
from app.web.bodies import MAX_BODY_BYTES
from benchmarks import ingest
from benchmarks.traces import BenchTrace
from tests.factories import session
from tests.support.nightly import by_night


@by_night
def test_both_routes_take_a_body_as_large_as_measured_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_PAIRS", 2)
    monkeypatch.setattr(ingest, "_AT_LEAST_S", 0.0)
    trace = session(dp=16, steps=150).trace
    path = tmp_path / "trace.parquet"
    path.write_bytes(to_parquet(trace))
    assert path.stat().st_size > MAX_BODY_BYTES

    parquet, text = ingest.measure_ingest([BenchTrace("job", path, trace.meta, len(trace))])

    for line, kind in ((parquet, "job, Parquet"), (text, "job, NDJSON gzip")):
        assert line.startswith(kind)
        assert "% of it (quartiles" in line
