from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.errors import NotFoundError
from app.synth_files import TraceFormat, write_scenario

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits(max_decompressed_bytes=1 << 28, max_rows=1 << 20, max_header_bytes=1 << 20)
COLUMNS = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")


@pytest.mark.parametrize(
    ("trace_format", "name"),
    [(TraceFormat.PARQUET, "trace.parquet"), (TraceFormat.NDJSON, "trace.ndjson.gz")],
)
def test_the_written_trace_is_read_back_as_the_same_operations(
    tmp_path: Path, trace_format: TraceFormat, name: str
) -> None:
    files = write_scenario(
        "slow-worker", tmp_path / "deep" / "er", seed=4, trace_format=trace_format
    )

    meta = load_metadata(files.meta.read_text())
    decoded = decode(files.trace, meta, limits=LIMITS)
    original = SCENARIOS["slow-worker"].synthesize(4).trace
    assert files.trace.name == name
    assert decoded.trace.meta == meta == original.meta
    assert len(decoded.trace) == len(original)
    assert all(
        np.array_equal(getattr(decoded.trace, column), getattr(original, column))
        for column in COLUMNS
    )


def test_the_truth_says_what_was_injected(tmp_path: Path) -> None:
    files = write_scenario("slow-worker", tmp_path, seed=4)

    truth = json.loads(files.truth.read_text())
    (worker,) = SCENARIOS["slow-worker"].synthesize(4).truth.workers
    assert truth["schema"] == "paceline.truth/1"
    assert (truth["scenario"], truth["seed"]) == ("slow-worker", 4)
    assert truth["causes"] == ["slow_worker"]
    assert truth["workers"] == [list(worker)]
    assert truth["slowdown"] == pytest.approx(
        sum(truth["step_times_s"]) / sum(truth["healthy_step_times_s"])
    )


def test_writing_again_replaces_the_files(tmp_path: Path) -> None:
    first = write_scenario("healthy", tmp_path, seed=1).truth.read_text()
    second = write_scenario("healthy", tmp_path, seed=2).truth.read_text()

    assert first != second
    assert len(list(tmp_path.iterdir())) == 3


def test_an_unknown_scenario_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no scenario 'slow'; there are healthy, slow-worker"):
        write_scenario("slow", tmp_path, seed=1)

    assert list(tmp_path.iterdir()) == []
