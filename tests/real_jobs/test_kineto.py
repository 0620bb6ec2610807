"""Files written by PyTorch's profiler in this run, compared with hooks on the same computations."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from app.analysis.trace.model import Sizes
from app.cli.convert import read_recordings
from app.sessions.recordings.read import Recorded
from tests.conftest import skip_or_fail
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing, torch_python

ROOT = Path(__file__).parents[2]
RANKS, CHUNKS, MICROBATCHES, STEPS = 2, 2, 4, 2
# Tolerance: the profiler converts a counter of the processor to the host's clock.
CLOCKS_APART_NS = 1_000_000
LIMIT_S = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = missing(Framework.TORCH)
    if reason is not None:
        skip_or_fail(reason)
    path = tmp_path_factory.mktemp("kineto")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHINDUCTOR_CACHE_DIR": str(path / "inductor"),
    }
    done = subprocess.run(  # noqa: S603 - our own module
        [torch_python(), "-m", "tests.real_jobs.worker.profiled", path],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return path


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Recorded:
    files = [folder / f"rank{rank}.json.gz" for rank in range(RANKS)]
    return read_recordings(files, None, None)


def test_the_profiler_says_who_recorded_and_of_which_job(recorded: Recorded) -> None:
    trace = recorded.trace

    assert trace.meta.sizes == Sizes(dp=1, pp=2, vpp=2)
    assert set(trace.meta.hosts) == {0, 1}
    assert len(set(trace.step.tolist())) == STEPS
    counts = {
        name: int((trace.op == code).sum()) // STEPS for code, name in enumerate(trace.op_names)
    }
    computations = RANKS * CHUNKS * MICROBATCHES
    links = (RANKS * CHUNKS - 1) * MICROBATCHES
    assert {name: count for name, count in counts.items() if count} == {
        "forward-compute": computations,
        "backward-compute": computations,
        **{f"{way}-{end}": links for way in ("forward", "backward") for end in ("send", "recv")},
        "optimizer": RANKS,
    }


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_computation_is_where_hooks_saw_it(
    folder: Path, recorded: Recorded, rank: int
) -> None:
    trace = recorded.trace
    seen = json.loads((folder / f"hooks{rank}.json").read_text())
    wanted = sorted((op, mc, mb, start, end) for mc, op, mb, start, end in seen)
    rows = [
        (
            trace.op_names[trace.op[row]],
            int(trace.mc[row]),
            int(trace.mb[row]),
            int(trace.start_ns[row]),
            int(trace.start_ns[row] + trace.duration_ns[row]),
        )
        for row in range(len(trace))
        if trace.rank[row] == rank and trace.op_names[trace.op[row]].endswith("compute")
    ]
    found = sorted(rows)

    assert [row[:3] for row in found] == [row[:3] for row in wanted]
    assert len(found) == STEPS * 2 * CHUNKS * MICROBATCHES
    for (*_, start, end), (*_, hook_start, hook_end) in zip(found, wanted, strict=True):
        # The range contains the computation of the hook, without the wait before it.
        assert start <= hook_start + CLOCKS_APART_NS
        assert end >= hook_end - CLOCKS_APART_NS


def test_no_computation_begins_before_its_input_is_there(recorded: Recorded) -> None:
    trace = recorded.trace
    names = trace.op_names
    rows = range(len(trace))
    key = [
        (int(trace.rank[row]), int(trace.step[row]), int(trace.mc[row]), int(trace.mb[row]))
        for row in rows
    ]
    for way in ("forward", "backward"):
        arrived = {
            key[row]: int(trace.start_ns[row] + trace.duration_ns[row])
            for row in rows
            if names[trace.op[row]] == f"{way}-recv"
        }
        begins = {
            key[row]: int(trace.start_ns[row])
            for row in rows
            if names[trace.op[row]] == f"{way}-compute"
        }
        assert arrived
        assert all(begins[one] >= time for one, time in arrived.items())


def test_a_schedule_without_labels_is_recognized_by_its_sends_and_receives(folder: Path) -> None:
    files = [folder / "unlabelled.json", folder / "other.json"]

    trace = read_recordings(files, None, None).trace

    assert trace.meta.sizes == Sizes(dp=1, pp=2)
    counts = Counter(trace.op_names[code] for code in trace.op.tolist())
    one_each = STEPS * MICROBATCHES
    assert counts == {
        "forward-compute": RANKS * one_each,
        "backward-compute": RANKS * one_each,
        **{f"{way}-{end}": one_each for way in ("forward", "backward") for end in ("send", "recv")},
        "optimizer": RANKS * STEPS,
    }
