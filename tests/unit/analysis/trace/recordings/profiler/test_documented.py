"""The table "What your file gives" agrees with the results for generated files."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.cli.convert import read_recordings
from app.errors import InvalidTraceError
from tests.support.trainings.files import write_training
from tests.support.trainings.job import Kind, Style, Training, Writer

if TYPE_CHECKING:
    from app.analysis.trace.model import Trace

PAGE = Path(__file__).parents[6] / "docs" / "converting.md"
DDP = Training(Kind.DDP, layers=3, kernels=2, steps=4, ranks=2)
JOBS = {
    "DDP": [DDP],
    "FSDP1, FSDP2": [replace(DDP, kind=Kind.FSDP1), replace(DDP, kind=Kind.FSDP2)],
    "HSDP": [replace(DDP, kind=Kind.HSDP, ranks=4, inner=2)],
}
SAME = {
    "a loop without the profiler's steps": [Style(numbered=False)],
    "files of PyTorch before 2.4": [Style(Writer.RECORDS), Style(Writer.OLD)],
}


def table() -> dict[str, str]:
    """Return the table's result for each file."""
    section = PAGE.read_text().split("### What your file gives", 1)[1].split("\n###", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return {row[0]: row[1] for row in rows[2:]}


def types(trace: Trace) -> set[str]:
    return {name for code, name in enumerate(trace.op_names) if (trace.op == code).any()}


def read(training: Training, folder: Path, style: Style | None = None) -> Trace:
    write_training(training, style or Style(), folder)
    return read_recordings([folder], None, None).trace


@pytest.mark.parametrize("name", JOBS)
def test_operations_are_those_of_the_table(name: str, tmp_path: Path) -> None:
    for training in JOBS[name]:
        found = types(read(training, tmp_path / training.kind.name))
        assert found == set(re.findall("`([^`]+)`", table()[name]))


@pytest.mark.parametrize("name", SAME)
def test_documented_equalities_hold(name: str, tmp_path: Path) -> None:
    assert table()[name].startswith("the same")
    wanted = read(DDP, tmp_path / "other")
    for style in SAME[name]:
        found = read(DDP, tmp_path / style.writer.name, style)
        assert types(found) == types(wanted)
        assert np.diff(found.start_ns).tolist() == np.diff(wanted.start_ns).tolist()
        assert found.duration_ns.tolist() == wanted.duration_ns.tolist()


def test_rounds_and_clipping_are_as_said(tmp_path: Path) -> None:
    assert {"gradient accumulation", "clipping of gradients"} <= table().keys()
    trace = read(replace(DDP, rounds=3), tmp_path / "rounds")
    forwards = trace.op == trace.op_names.index("forward-compute")
    assert set(trace.mb[forwards].tolist()) == {0, 1, 2}
    assert reductions(trace) == DDP.ranks * DDP.steps
    clips = replace(DDP, kind=Kind.FSDP_CLIPS)
    more = reductions(read(clips, tmp_path / "clips"))
    without = reductions(read(replace(clips, kind=Kind.FSDP1), tmp_path / "without"))
    assert more == without + DDP.ranks * DDP.steps


def reductions(trace: Trace) -> int:
    return int((trace.op == trace.op_names.index("grads-reduce-scatter")).sum())


def test_a_rank_is_that_of_the_files_name(tmp_path: Path) -> None:
    assert "a file without a rank" in table()
    wanted = read(DDP, tmp_path)
    for path in tmp_path.iterdir():
        said = json.loads(gzip.decompress(path.read_bytes()))
        del said["distributedInfo"]["rank"]
        path.write_bytes(gzip.compress(json.dumps(said).encode()))
    found = read_recordings([tmp_path], None, None).trace
    assert found.rank.tolist() == wanted.rank.tolist()


def test_without_the_host_nothing_is_guessed(tmp_path: Path) -> None:
    assert "`trace.no_labels`" in table()["CUDA activities alone"]
    write_training(DDP, Style(), tmp_path)
    for path in tmp_path.iterdir():
        said = json.loads(gzip.decompress(path.read_bytes()))
        events = said["traceEvents"]
        said["traceEvents"] = [
            one for one in events if one.get("cat") not in {"cpu_op", "user_annotation"}
        ]
        path.write_bytes(gzip.compress(json.dumps(said).encode()))
    with pytest.raises(InvalidTraceError) as caught:
        read_recordings([tmp_path], None, None)
    assert caught.value.stable_code == "trace.no_labels"
