from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from app.analysis.synthesis.scenarios import ALL_SCENARIOS, SCENARIOS
from app.analysis.trace.decode import decode
from app.analysis.trace.formats.registry import WRITERS
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.cli.commands.program import app
from app.cli.synthetic import write_fleet, write_scenario
from app.errors import NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

LIMITS = Limits(max_decompressed_bytes=1 << 28, max_rows=1 << 20, max_header_bytes=1 << 20)
COLUMNS = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("parquet", "trace.parquet"),
        ("ndjson", "trace.ndjson.gz"),
        ("ndjson-zstd", "trace.ndjson.zst"),
    ],
)
def test_the_written_trace_is_read_back_as_the_same_operations(
    tmp_path: Path, form: str, name: str
) -> None:
    files = write_scenario("slow-worker", tmp_path / "deep" / "er", seed=4, writer=WRITERS[form])

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


def test_the_columns_of_the_published_traces_are_read_back_to_their_precision(
    tmp_path: Path,
) -> None:
    files = write_scenario("healthy", tmp_path, seed=4, writer=WRITERS["published"])

    decoded = decode(files.trace, load_metadata(files.meta.read_text()), limits=LIMITS)
    original = SCENARIOS["healthy"].synthesize(4).trace
    assert decoded.trace_format == "parquet-published"
    assert decoded.trace.step_relative
    for column in ("rank", "dp", "pp", "step", "op", "mb", "mc", "order"):
        assert np.array_equal(getattr(decoded.trace, column), getattr(original, column))
    assert np.abs(decoded.trace.duration_ns - original.duration_ns).max() < 200


def test_the_collectives_of_all_tensor_parallel_ranks_are_read_back(tmp_path: Path) -> None:
    files = write_scenario("tensor-parallel", tmp_path, seed=4)

    decoded = decode(files.trace, load_metadata(files.meta.read_text()), limits=LIMITS).trace
    original = SCENARIOS["tensor-parallel"].synthesize(4).trace
    assert len(set(decoded.rank.tolist())) == original.meta.sizes.world
    assert all(
        np.array_equal(getattr(decoded, column), getattr(original, column)) for column in COLUMNS
    )


def test_a_fleet_is_a_folder_a_job_and_a_list_of_them(tmp_path: Path) -> None:
    files = list(write_fleet(5, tmp_path, seed=5))

    fleet = json.loads((tmp_path / "fleet.json").read_text())
    assert (fleet["schema"], fleet["seed"], len(fleet["jobs"])) == ("paceline.fleet/1", 5, 5)
    for listed, written in zip(fleet["jobs"], files, strict=True):
        assert written.trace.parent == tmp_path / listed["job"]
        truth = json.loads(written.truth.read_text())
        assert truth["causes"] == listed["causes"]
        assert truth["slowdown"] == listed["slowdown"]
        decode(written.trace, load_metadata(written.meta.read_text()), limits=LIMITS)


def test_the_truth_says_what_was_injected(tmp_path: Path) -> None:
    files = write_scenario("slow-worker", tmp_path, seed=4)

    truth = json.loads(files.truth.read_text())
    (worker,) = SCENARIOS["slow-worker"].synthesize(4).truth.workers
    assert truth["schema"] == "paceline.truth/1"
    assert (truth["scenario"], truth["seed"]) == ("slow-worker", 4)
    assert truth["causes"] == ["slow_worker"]
    assert truth["workers"] == [list(worker)]
    assert truth["slow_steps"] == truth["steps"]
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


def test_the_command_writes_a_scenario_or_a_fleet_but_not_both(tmp_path: Path) -> None:
    runner = CliRunner()

    one = runner.invoke(app, ["synth", "healthy", "--out", str(tmp_path / "one")])
    assert one.exit_code == 0
    names = ("trace.parquet", "meta.yaml", "truth.json")
    assert one.output.split() == [str(tmp_path / "one" / name) for name in names]
    many = ["synth", "--fleet", "2", "--seed", "1", "--format", "ndjson"]
    assert runner.invoke(app, [*many, "--out", str(tmp_path / "many")]).exit_code == 0
    assert len(list((tmp_path / "many").glob("*/trace.ndjson.gz"))) == 2
    listed = runner.invoke(app, ["synth", "list"]).output
    assert [line.split()[0] for line in listed.splitlines()] == list(ALL_SCENARIOS)
    for wrong in (["synth"], ["synth", "healthy", "--fleet", "2"], [*many[:-1], "csv"]):
        assert runner.invoke(app, wrong).exit_code == 2
