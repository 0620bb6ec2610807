"""Recordings of other programs, in the folders next to the published traces."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from app.analysis.report.build import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import ABSENT, Sizes, Trace
from app.cli.convert import read_recordings
from tests.conftest import skip_or_fail

RANKS = range(4)


@pytest.fixture(scope="module")
def folder() -> Path:
    named = os.environ.get("PACELINE_REFERENCE_DATA")
    if not named:
        skip_or_fail(
            "PACELINE_REFERENCE_DATA is not set; next to its folder are those of Kineto files and "
            "of MegaScan (https://github.com/OpenSQZ/MegatronApp)"
        )
    return Path(named).resolve().parent


@cache
def by_hooks(folder: Path) -> Trace:
    path = folder / "kineto-pipelining" / "recorded-by-hooks.ndjson.gz"
    return decode(path, None, limits=Limits()).trace


def operations(trace: Trace, rank: int) -> dict[tuple[int, str, int, int], tuple[int, int]]:
    """Return start and end of a rank's computations and transfers; steps are counted from 0."""
    rows = np.flatnonzero((trace.rank == rank) & (trace.mb != ABSENT))
    step = trace.step[rows] - trace.step.min()
    return {
        (int(step[at]), trace.op_names[trace.op[row]], int(trace.mb[row]), int(trace.mc[row])): (
            int(trace.start_ns[row]),
            int(trace.start_ns[row] + trace.duration_ns[row]),
        )
        for at, row in enumerate(rows)
    }


@pytest.mark.parametrize("rank", RANKS)
def test_every_action_of_a_kineto_file_is_where_hooks_saw_it(folder: Path, rank: int) -> None:
    path = folder / "kineto-pipelining" / f"rank{rank}.json.gz"
    read = decode(path, None, limits=Limits(), part=True)
    found, wanted = operations(read.trace, rank), operations(by_hooks(folder), rank)

    assert read.trace.meta.sizes == Sizes(dp=2, pp=2, vpp=2) == by_hooks(folder).meta.sizes
    assert len(wanted) == 240
    assert found.keys() == wanted.keys()
    off_ns = np.array([np.subtract(found[key], wanted[key]) for key in wanted])
    assert np.median(np.abs(off_ns[:, 0])) < 200_000
    assert np.median(np.abs(off_ns[:, 1])) < 200_000
    # gloo's collectives name no groups, so those outside of pipeline actions are counted as
    # unmapped.
    assert [one.count for one in read.unmapped] == [9]


def test_the_files_of_all_ranks_are_one_trace(folder: Path) -> None:
    files = [folder / "kineto-pipelining" / f"rank{rank}.json.gz" for rank in RANKS]
    recorded = read_recordings(files, None, "kineto")
    trace, hooks = recorded.trace, by_hooks(folder)

    assert sorted(trace.meta.hosts) == [0, 1, 2, 3]
    assert len(operations(trace, 0)) == 240
    # Pipeline actions and optimizer steps, without the 36 collectives.
    assert len(trace) == 4 * (240 + 3)
    for column in ("dp", "pp"):
        place = {rank: getattr(trace, column)[trace.rank == rank][0] for rank in RANKS}
        assert place == {rank: getattr(hooks, column)[hooks.rank == rank][0] for rank in RANKS}


def test_a_recording_of_megascan_is_replayed_closely(folder: Path) -> None:
    path = folder / "megascan" / "pp4-tp1-aggregated.json.gz"
    read = decode(path, None, limits=Limits())
    trace = read.trace

    assert read.trace_format == "megascan"
    assert trace.meta.sizes == Sizes(dp=1, pp=4, vpp=4)
    # 640 forward and 640 backward passes of each of four stages in 20 iterations.
    assert len(trace) == 4 * (640 + 640 + 20)
    assert read.unmapped == ()
    report = analyze(trace).report
    fidelity = report.fidelity
    assert fidelity.verdict
    assert fidelity.discrepancy < 0.04
    # the first iteration takes 3.5 s, the other 19 take 0.71 to 0.78 s
    assert [odd.step for odd in report.steps.odd] == [0]
    assert [cause.cause for cause in report.causes] == ["stage_imbalance"]
    assert report.headline.slowdown == pytest.approx(1.21, abs=0.01)
