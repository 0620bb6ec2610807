"""The table "What your file gives" says what is true of generated files."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from app.cli.convert import read_recordings
from app.errors import InvalidTraceError
from tests.support.gpu_profiles.files import write_job
from tests.support.gpu_profiles.job import GpuJob, Naming, Sharding

if TYPE_CHECKING:
    from app.analysis.trace.model import Trace

PAGE = Path(__file__).parents[6] / "docs" / "converting.md"
DDP = GpuJob(layers=3, kernels=2, steps=3, ranks=2)
JOBS = {
    "DDP": DDP,
    "FSDP1, FSDP2": replace(DDP, sharding=Sharding.FSDP),
    "HSDP": replace(DDP, sharding=Sharding.HSDP, ranks=4, replicas=2),
}
SAME = {
    "a loop without the profiler's steps": replace(DDP, numbered=False),
    "files of PyTorch before 2.4": replace(DDP, naming=Naming.RANGES),
}


def table() -> dict[str, str]:
    """Return what the page says is had of each file."""
    section = PAGE.read_text().split("### What your file gives", 1)[1].split("\n###", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return {row[0]: row[1] for row in rows[2:]}


def types(trace: Trace) -> set[str]:
    return {name for code, name in enumerate(trace.op_names) if (trace.op == code).any()}


def read(job: GpuJob, folder: Path) -> Trace:
    write_job(job, folder)
    return read_recordings([folder], None, None).trace


@pytest.mark.parametrize("name", JOBS)
def test_operations_are_those_of_the_table(name: str, tmp_path: Path) -> None:
    assert types(read(JOBS[name], tmp_path)) == set(re.findall("`([^`]+)`", table()[name]))


@pytest.mark.parametrize("name", SAME)
def test_what_is_said_to_be_the_same_is(name: str, tmp_path: Path) -> None:
    assert table()[name].startswith("the same")
    found, wanted = read(SAME[name], tmp_path / "one"), read(DDP, tmp_path / "other")
    assert types(found) == types(wanted)
    assert found.start_ns.tolist() == wanted.start_ns.tolist()
    assert found.duration_ns.tolist() == wanted.duration_ns.tolist()


def test_rounds_and_clipping_are_as_said(tmp_path: Path) -> None:
    assert {"gradient accumulation", "clipping of gradients"} <= table().keys()
    trace = read(replace(DDP, rounds=3, clips=True), tmp_path)
    forwards = trace.op == trace.op_names.index("forward-compute")
    assert set(trace.mb[forwards].tolist()) == {0, 1, 2}
    reduced = trace.op == trace.op_names.index("grads-reduce-scatter")
    assert reduced.sum() == 2 * DDP.ranks * (DDP.steps + 1)


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
    write_job(DDP, tmp_path)
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
