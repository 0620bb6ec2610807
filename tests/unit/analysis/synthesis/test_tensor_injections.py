from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.computations import (
    MemoryFragmentation,
    TensorParallelStraggler,
)
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, Sizes
from tests.unit.analysis.synthesis.jobs import EXACT, rows

JOB = JobModel(
    sizes=Sizes(dp=2, pp=2, tp=4),
    microbatches=4,
    steps=6,
    costs=replace(EXACT, tensor_share=0.1),
    profiler=Profiler(tensor_ranks=True),
)
TENSOR = ("tp-all-gather", "tp-reduce-scatter")


def arrivals(session: SyntheticSession, dp: int, pp: int) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of a cell's collectives, shape (collectives, ranks)."""
    trace = session.trace
    chosen = np.flatnonzero(rows(trace, *TENSOR, dp=dp, pp=pp))
    keys = (trace.rank, trace.order, trace.op, trace.step)
    chosen = chosen[np.lexsort([key[chosen] for key in keys])]
    start = trace.start_ns[chosen]
    return (start.reshape(-1, 4), (start + trace.duration_ns[chosen]).reshape(-1, 4))


def test_every_tensor_parallel_rank_records_two_collectives_of_each_computation() -> None:
    trace = synthesize(JOB, seed=3).trace

    computations = rows(trace, FORWARD_COMPUTE, BACKWARD_COMPUTE).sum()
    assert rows(trace, *TENSOR).sum() == 2 * 4 * computations
    assert sorted(set(trace.rank[rows(trace, *TENSOR, dp=1, pp=1)].tolist())) == [12, 13, 14, 15]
    # Only the first rank of a cell records computations; rows stay sorted.
    assert set(trace.rank[rows(trace, FORWARD_COMPUTE)].tolist()) == {0, 4, 8, 12}
    keys = np.stack([trace.rank, trace.step, trace.op, trace.order])
    assert (np.lexsort(keys[::-1]) == np.arange(len(trace))).all()
    assert len(np.unique(keys, axis=1).T) == len(trace)


def test_a_tensor_parallel_straggler_is_last_at_every_collective_and_all_end_together() -> None:
    session = synthesize(JOB, [TensorParallelStraggler((1, 0), 2, 1.5)], seed=3)

    start, end = arrivals(session, 1, 0)
    assert (start.argmax(axis=1) == 2).all()
    # 90 % of computations of 10 and 20 ms is the rank's own work, in two halves, here 1.5 times as
    # long.
    waits = start[:, 2] - np.median(start, axis=1)
    assert waits.min() > 0.5 * 0.45 * 10e6 - 1e6
    assert np.ptp(end, axis=1).max() < 100e3
    healthy_start, _ = arrivals(session, 0, 0)
    assert np.ptp(healthy_start, axis=1).max() < 1e6
    trace = session.trace
    assert trace.duration_ns[rows(trace, FORWARD_COMPUTE, dp=1, pp=0)] == pytest.approx(14.5e6)
    assert session.truth.workers == ((1, 0),)
    assert session.truth.injections[0]["tensor_rank"] == 2


def test_fragmentation_makes_another_rank_late_each_time_and_only_by_spells() -> None:
    job = replace(JOB, steps=20)
    injection = MemoryFragmentation((0, 1), 30e6, spells=Spells(share=0.5))
    session = synthesize(job, [injection], seed=3)

    trace = session.trace
    slow = rows(trace, BACKWARD_COMPUTE, dp=0, pp=1) & (trace.duration_ns > 22e6)
    steps = set(trace.step[slow].tolist())
    assert 3 < len(steps) < 17
    start, _ = arrivals(session, 0, 1)
    spread = np.ptp(start, axis=1)
    late = start.argmax(axis=1)[spread > 5e6]
    assert len(late) > 20
    assert set(late.tolist()) == {0, 1, 2, 3}


def test_a_tensor_rank_outside_the_group_is_refused() -> None:
    with pytest.raises(ValueError, match="outside 4"):
        synthesize(JOB, [TensorParallelStraggler((1, 0), 4, 1.5)], seed=3)
    with pytest.raises(ValueError, match="need TP > 1"):
        replace(JOB, sizes=Sizes(dp=2, pp=2))
