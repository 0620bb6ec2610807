"""Pipelines on GPUs whose profiles have no labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce

import pytest

from app.analysis.report.build import analyze
from app.analysis.trace.limits import Limits
from app.analysis.trace.merge import TraceChunk, merge
from app.analysis.trace.metadata import Unmapped, join_metadata
from app.analysis.trace.model import Trace
from app.analysis.trace.recordings.kineto import decode_kineto
from tests.unit.analysis.trace.recordings.kineto_files import KinetoFile
from tests.unit.analysis.trace.recordings.profiler.device_files import MS, Job


def read(files: Sequence[KinetoFile]) -> tuple[Trace, list[Unmapped]]:
    found = [decode_kineto(file.body(), None, Limits(), part=True) for file in files]
    chunks = [TraceChunk(f"rank{rank}", 0, one.trace) for rank, one in enumerate(found)]
    meta = reduce(join_metadata, (one.trace.meta for one in found))
    return merge(chunks, meta).trace, [lost for one in found for lost in one.unmapped]


@pytest.mark.parametrize("fused", [False, True])
def test_computations_and_transfers_are_those_of_1f1b(*, fused: bool) -> None:
    trace, lost = read(Job(fused=fused).files())

    assert not lost
    counts = Counter(trace.op_names[code] for code in trace.op.tolist())
    computations = 6 * 5 * 6
    links = 2 * 2 * 5 * 6
    assert counts == {
        "forward-compute": computations,
        "backward-compute": computations,
        **{f"{way}-{end}": links for way in ("forward", "backward") for end in ("send", "recv")},
        "grads-reduce-scatter": 36,
        "optimizer": 36,
    }
    forwards = trace.op == trace.op_names.index("forward-compute")
    assert set(trace.duration_ns[forwards].tolist()) == {8 * MS}
    assert sorted(set(trace.mb[forwards].tolist())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fused", [False, True])
def test_a_slow_worker_is_named_with_its_slowdown(*, fused: bool) -> None:
    slow = Job(fused=fused, factor=1.5)
    slowed, _ = read(slow.files())
    healthy, _ = read(Job(fused=fused).files())

    report = analyze(slowed).report

    def step_ns(trace: Trace) -> int:
        first = [int(trace.start_ns[trace.step == step].min()) for step in (1, 5)]
        return (first[1] - first[0]) // 4

    assert report.fidelity.verdict
    assert report.causes[0].cause == "slow_worker"
    assert report.causes[0].where.workers == ((1, 1),)
    assert report.headline.slowdown == pytest.approx(step_ns(slowed) / step_ns(healthy), rel=0.05)
    assert analyze(healthy).report.headline.slowdown < 1.03


def test_steps_that_fit_no_schedule_are_divided_by_their_collectives_alone() -> None:
    job = Job()
    files = job.files()
    for file in files:
        # A file with the sends, but without the receives.
        file.events = [event for event in file.events if '"recv"' not in event]

    trace, lost = read(files)

    assert all(one.what.startswith("steps of a pipeline: ") for one in lost)
    assert sum(one.count for one in lost) == job.steps * len(files)
    report = analyze(trace).report
    assert not report.fidelity.verdict
    assert "fit no pipeline schedule" in (report.fidelity.reason or "")
    assert report.arrivals is not None
