from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.injections.delays import SlowDataLoading, SlowLink
from app.analysis.synthesis.job import CostModel, JobModel, Schedule, stream
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    Sizes,
)
from tests.random_jobs import random_job
from tests.unit.analysis.synthesis.jobs import EXACT, rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

JOB = JobModel(sizes=Sizes(dp=4, pp=4), microbatches=8, steps=6, costs=CostModel(contention=0.0))
EXACT_JOB = JobModel(sizes=Sizes(dp=4, pp=4), microbatches=8, steps=6, costs=EXACT)
HEALTHY = synthesize(JOB, seed=7)
PASSES = (FORWARD_COMPUTE, BACKWARD_COMPUTE)


def ratios(session: SyntheticSession, *ops: str) -> NDArray[np.float64]:
    """Return the durations of computations relative to those without the injection."""
    mask = rows(session.trace, *ops)
    return session.trace.duration_ns[mask] / HEALTHY.trace.duration_ns[mask]


def test_a_slow_worker_is_slow_in_both_directions_and_alone() -> None:
    session = synthesize(JOB, [SlowWorker((2, 1), 1.5)], seed=7)

    ratio = ratios(session, *PASSES)
    mask = rows(session.trace, *PASSES)
    own = (session.trace.dp[mask] == 2) & (session.trace.pp[mask] == 1)
    assert ratio[own] == pytest.approx(1.5, rel=1e-6)
    assert (ratio[~own] == 1).all()
    assert session.truth.workers == ((2, 1),)
    assert session.truth.stage is None
    assert session.truth.causes == ("slow_worker",)


def test_a_slow_worker_slows_the_whole_job_by_its_share_of_the_pipeline() -> None:
    session = synthesize(EXACT_JOB, [SlowWorker((2, 1), 2.0)], seed=7)

    # F of stage 0, then 8 slots of 60 ms on the slow stage 1, which waits 20 ms for its first
    # backward pass because the stages after it are not slow, then B of stage 0.
    assert session.truth.step_times_s == pytest.approx([0.010 + 8 * 0.060 + 0.020 + 0.020] * 6)
    assert session.truth.healthy_step_times_s == pytest.approx([0.33] * 6)


def test_a_heavy_last_stage_is_heavy_on_every_dp_rank() -> None:
    session = synthesize(JOB, [StageImbalance(2.0, 1.5)], seed=7)

    last = session.trace.pp[rows(session.trace, FORWARD_COMPUTE)] == 3
    assert ratios(session, FORWARD_COMPUTE)[last] == pytest.approx(2.0, rel=1e-6)
    assert ratios(session, BACKWARD_COMPUTE)[last] == pytest.approx(1.5, rel=1e-6)
    assert (ratios(session, *PASSES)[session.trace.pp[rows(session.trace, *PASSES)] < 3] == 1).all()
    assert session.truth.stage == 3
    assert session.truth.slowdown > 1.2


def test_with_virtual_stages_only_the_last_chunk_carries_the_surplus() -> None:
    job = JobModel(
        sizes=Sizes(dp=1, pp=2, vpp=2),
        microbatches=2,
        steps=1,
        schedule=Schedule.INTERLEAVED,
        costs=EXACT,
    )
    trace = synthesize(job, [StageImbalance(2.0, 1.0)], seed=7).trace

    forwards = rows(trace, FORWARD_COMPUTE, pp=1)
    assert trace.duration_ns[forwards & (trace.mc == 0)].tolist() == [5_000_000] * 2
    assert trace.duration_ns[forwards & (trace.mc == 1)].tolist() == [15_000_000] * 2


def test_sequence_lengths_move_both_passes_of_a_microbatch_on_all_stages_alike() -> None:
    session = synthesize(JOB, [SequenceLengths()], seed=7)
    trace = session.trace

    by_place = {}
    for op in PASSES:
        mask = rows(trace, op)
        keys = zip(trace.dp[mask], trace.pp[mask], trace.step[mask], trace.mb[mask], strict=True)
        by_place[op] = dict(zip(keys, trace.duration_ns[mask].tolist(), strict=True))
    forward = np.array([by_place[FORWARD_COMPUTE][key] for key in by_place[FORWARD_COMPUTE]])
    backward = np.array([by_place[BACKWARD_COMPUTE][key] for key in by_place[FORWARD_COMPUTE]])
    assert np.corrcoef(forward, backward)[0, 1] > 0.98
    assert forward.std() / forward.mean() > 0.1
    assert ratios(session, FORWARD_COMPUTE).mean() == pytest.approx(1.0, rel=0.01)
    assert session.truth.slowdown > 1.1
    assert session.truth.workers == ()


def test_microbatches_are_packed_to_the_maximum_length() -> None:
    lengths = SequenceLengths(max_length=4096).draw(500, stream(1, "lengths"))

    assert (lengths.sum(axis=1) == 4096).all()
    assert (lengths >= 0).all()
    # A long tail: a few microbatches have one sequence, others have many.
    assert lengths.max() == 4096
    assert np.count_nonzero(lengths, axis=1).max() > 5


def test_garbage_collection_stalls_some_forwards_and_no_backward() -> None:
    session = synthesize(JOB, [GarbageCollection(200e6, pauses=0.5)], seed=7)

    mask = rows(session.trace, FORWARD_COMPUTE)
    pause = session.trace.duration_ns[mask] - HEALTHY.trace.duration_ns[mask]
    stalled = pause > 0
    assert 0.5 * stalled.sum() == pytest.approx(0.5 * 0.5 * 4 * 4 * 6, rel=0.4)
    assert pause[stalled].mean() == pytest.approx(200e6, rel=0.15)
    assert (ratios(session, BACKWARD_COMPUTE) == 1).all()
    assert len(set(session.trace.rank[mask][stalled].tolist())) > 8
    assert session.truth.slowdown > 1.1


def test_garbage_collection_pauses_grow_over_the_session() -> None:
    session = synthesize(EXACT_JOB, [GarbageCollection(100e6, pauses=8.0, growth=1.0)], seed=7)

    trace = session.trace
    steps = sorted(set(trace.step.tolist()))
    first, last = (
        trace.duration_ns[rows(trace, FORWARD_COMPUTE, step=step)].mean() - 10e6
        for step in (steps[0], steps[-1])
    )
    assert first == pytest.approx(100e6, rel=0.1)
    assert last == pytest.approx(200e6, rel=0.1)


def test_a_slow_link_slows_its_transfers_at_both_ends_and_its_collectives() -> None:
    costs = CostModel(**{**_dials(EXACT), "p2p_ns": 1e6, "params_ns": 3e6, "grads_ns": 5e6})
    job = JobModel(sizes=Sizes(dp=2, pp=4), microbatches=1, steps=1, costs=costs)
    trace = synthesize(job, [SlowLink((1, 2), 10.0)], seed=7).trace

    def milliseconds(op: str, dp: int, pp: int) -> float:
        """Return the transfer times in ms: the shorter record of the two ends of each pair."""
        (duration,) = trace.duration_ns[rows(trace, op, dp=dp, pp=pp)]
        return float(duration) / 1e6

    pairs = ((FORWARD_SEND, FORWARD_RECV, 1), (BACKWARD_SEND, BACKWARD_RECV, -1))
    for send, recv, hop in pairs:
        for dp in (0, 1):
            for pp in range(4):
                if not 0 <= pp + hop < 4:
                    continue
                slow = dp == 1 and 2 in (pp, pp + hop)
                both = min(milliseconds(send, dp, pp), milliseconds(recv, dp, pp + hop))
                assert both == (10.0 if slow else 1.0)
    assert [milliseconds(PARAMS_ALL_GATHER, 0, pp) for pp in range(4)] == [3, 3, 30, 3]
    grads = rows(trace, GRADS_REDUCE_SCATTER, pp=2)
    assert trace.duration_ns[grads].min() == 50e6
    assert trace.duration_ns[rows(trace, GRADS_REDUCE_SCATTER, pp=1)].min() == 5e6
    assert (trace.duration_ns[rows(trace, FORWARD_COMPUTE)] == 10e6).all()


def _dials(costs: CostModel) -> dict[str, float]:
    return {name: getattr(costs, name) for name in CostModel.__slots__}


def test_slow_data_loading_delays_launches_and_lengthens_nothing() -> None:
    session = synthesize(EXACT_JOB, [SlowDataLoading(100e6)], seed=7)

    trace = session.trace
    for step in set(trace.step.tolist()):
        begin = trace.start_ns[rows(trace, step=step)].min()
        first = trace.start_ns[rows(trace, FORWARD_COMPUTE, pp=0, step=step) & (trace.order == 0)]
        assert (first - begin > 30e6).all()
        received = rows(trace, FORWARD_RECV, pp=2, step=step) & (trace.order == 0)
        assert (trace.start_ns[received] == first).all()
    assert (trace.duration_ns[rows(trace, FORWARD_COMPUTE)] == 10e6).all()
    assert session.truth.slowdown == pytest.approx(1 + 0.1 / 0.33, rel=0.25)
    assert session.truth.causes == ("data_loading",)


@pytest.mark.parametrize("injection", [SlowWorker((4, 0), 2.0), SlowLink((0, 4), 2.0)])
def test_a_worker_outside_the_job_is_refused(injection: Injection) -> None:
    with pytest.raises(ValueError, match="outside DP 4 by PP 4"):
        synthesize(JOB, [injection], seed=7)


def test_several_injections_add_up_in_the_truth() -> None:
    session = synthesize(JOB, [SlowWorker((2, 1), 1.5), StageImbalance()], seed=7)
    alone = synthesize(JOB, [SlowWorker((2, 1), 1.5)], seed=7)

    assert session.truth.causes == ("slow_worker", "stage_imbalance")
    assert session.truth.workers == ((2, 1),)
    assert session.truth.stage == 3
    assert session.truth.slowdown > alone.truth.slowdown
    assert session.truth.healthy_step_times_s == alone.truth.healthy_step_times_s


def test_nothing_injected_is_no_slowdown() -> None:
    assert HEALTHY.truth.slowdown == 1.0
    assert HEALTHY.truth.causes == ()
    assert HEALTHY.truth.document()["slowdown"] == 1.0
    assert any(random_job(seed).truth.causes == () for seed in range(10))
