"""Arrivals at collectives and the breakdown of steps, compared with known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.analysis.arrivals.build import MOST_CELLS, MOST_COLLECTIVES, arrivals_of
from app.analysis.arrivals.collective_matching import GroupKind
from app.analysis.arrivals.document import Arrivals
from app.analysis.synthesis.injections.computations import SlowWorker, TensorParallelStraggler
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import (
    DATA_LOADING,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    SessionMeta,
    Sizes,
    Trace,
)
from tests.factories import joined, select, session
from tests.lossy import without
from tests.oracles.arrivals import twin_of
from tests.random_jobs import random_job
from tests.support.nightly import drawn

MS = 1_000_000


def _arrivals(trace: Trace) -> Arrivals:
    found = arrivals_of(trace).arrivals
    assert found is not None
    return found


def _hand_made(rows: list[tuple[int, int, str, int, int, int]], dp: int) -> Trace:
    """Return a trace of rows (rank, step, type, order, start, duration), times in ms."""
    base = session(dp=dp, pp=1, steps=1).trace
    rank, step, op, order, start, duration = zip(*rows, strict=True)
    count = len(rows)
    names = base.op_names
    zeros = np.zeros(count, dtype=np.int32)
    return replace(
        base,
        meta=SessionMeta(Sizes(dp=dp, pp=1)),
        rank=np.array(rank, dtype=np.int32),
        dp=np.array(rank, dtype=np.int32),
        pp=zeros,
        step=np.array(step, dtype=np.int64),
        op=np.array([names.index(name) for name in op], dtype=np.int16),
        mb=zeros,
        mc=zeros - 1,
        order=np.array(order, dtype=np.int32),
        start_ns=np.array(start, dtype=np.int64) * MS,
        duration_ns=np.array(duration, dtype=np.int64) * MS,
    )


@drawn(60)
@given(
    st.builds(
        random_job,
        st.integers(0, 2**32 - 1),
        launch_overhead=st.booleans(),
        interleaved=st.booleans(),
        overlap=st.booleans(),
    )
)
def test_arrivals_equal_those_of_a_plain_loop_over_operations(job: object) -> None:
    trace = job.trace  # type: ignore[attr-defined]
    trace = replace(trace, meta=replace(trace.meta, hosts=_one_host(trace)))
    met = arrivals_of(trace)
    assert met.arrivals is None or trace.meta.sizes.dp > 1
    steps = len(np.unique(trace.step))
    told = twin_of(trace, met.breakdown.step_s * 1e9)
    for one in met.breakdown.ranks:
        assert one.computing_s * steps == pytest.approx(told.computing_ns[one.rank] * 1e-9)
    for each in () if met.arrivals is None else met.arrivals.ranks:
        assert each.last * steps == pytest.approx(told.last[each.rank], abs=0.01)
        for seconds, exact in (
            (each.rank_seconds, told.waited_for_ns[each.rank]),
            (each.waits_s, told.waits_ns[each.rank]),
        ):
            assert seconds * steps == pytest.approx(exact * 1e-9, abs=1e-4)


def _on_hosts_of_their_own(trace: Trace) -> Trace:
    hosts = {rank: f"node-{rank}" for rank in np.unique(trace.rank).tolist()}
    return replace(trace, meta=replace(trace.meta, hosts=hosts))


def _one_host(trace: Trace) -> dict[int, str]:
    return dict.fromkeys(np.unique(trace.rank).tolist(), "one")


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_a_slow_rank_comes_last_and_its_peers_wait_for_it(steps: int) -> None:
    trace = session(SlowWorker((2, 0), 1.6), dp=4, pp=1, steps=steps).trace
    found = _arrivals(trace)
    assert found.worst.rank == trace.rank[trace.dp == 2][0]
    assert found.straggles
    assert found.waiting.startswith("3 ranks wait ")
    assert found.sentence == f"Rank {found.worst.rank} comes last at 1 of 2 collectives of a step"
    waits = [one.waits_s for one in found.ranks[1:]]
    assert waits == pytest.approx([found.worst.waited_for_s] * 3, rel=0.1)
    assert found.worst.rank_seconds == pytest.approx(sum(waits), rel=0.01)


def test_of_a_pipeline_the_stage_that_is_slow_is_named() -> None:
    trace = session(SlowWorker((1, 0), 1.8), dp=3, pp=2, steps=8).trace
    assert _arrivals(trace).worst.rank == trace.rank[(trace.dp == 1) & (trace.pp == 0)][0]


def test_in_a_healthy_job_no_rank_keeps_others_waiting() -> None:
    found = _arrivals(session(dp=4, pp=1, steps=8).trace)
    assert not found.straggles
    assert found.sentence.startswith("No rank keeps others waiting: rank ")


def _computing(taken_ms: NDArray[np.int64]) -> Trace:
    """Return steps in which ranks compute, shape (ranks, steps), and then run a collective."""
    length = int(taken_ms.max()) + 10
    rows = []
    for (rank, step), takes in np.ndenumerate(taken_ms):
        begin = 1000 + step * length
        rows.append((rank, step, "forward-compute", 0, begin, int(takes)))
        rows.append((rank, step, GRADS_REDUCE_SCATTER, 0, begin + int(takes), length - int(takes)))
    return _hand_made(rows, dp=len(taken_ms))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_come_last_by_chance_keep_no_one_waiting(ranks: int) -> None:
    named = 0
    for seed in range(40):
        taken = np.random.default_rng(seed).lognormal(4.6, 0.25, (ranks, 6)).astype(np.int64)
        named += _arrivals(_computing(taken)).straggles
        taken[1] *= 4
        always = _arrivals(_computing(taken))
        assert always.straggles
        assert always.worst.rank == 1
    assert named <= 3


@pytest.mark.parametrize("steps", [1, 6])
def test_clocks_that_are_apart_change_nothing(steps: int) -> None:
    trace = session(SlowWorker((2, 0), 1.6), dp=4, pp=1, steps=steps).trace
    trace = _on_hosts_of_their_own(trace)
    ahead = np.array([0, 200, -150, 70])[trace.dp] * MS
    moved = replace(trace, start_ns=trace.start_ns + ahead)
    found, exact = _arrivals(moved), _arrivals(trace)
    assert found.worst.rank == exact.worst.rank
    assert found.worst.rank_seconds == pytest.approx(exact.worst.rank_seconds, rel=0.02)
    assert found.clocks_apart_s == pytest.approx(0.35, rel=0.02)
    assert exact.clocks_apart_s == 0.0


def test_clocks_of_hosts_are_compared_although_ranks_of_one_host_meet_most_often() -> None:
    job = JobModel(
        sizes=Sizes(dp=3, pp=1, tp=4), microbatches=8, steps=3, profiler=Profiler(tensor_ranks=True)
    )
    trace = synthesize(job, (SlowWorker((1, 0), 1.6),), seed=1).trace
    trace = _on_hosts_of_their_own(trace)
    ahead = np.array([0, 150, -200])[trace.dp] * MS
    found = _arrivals(replace(trace, start_ns=trace.start_ns + ahead))
    exact = _arrivals(trace)
    assert found.clocks_apart_s == pytest.approx(0.35, rel=0.02)
    assert found.worst.rank == exact.worst.rank
    assert found.worst.rank_seconds == pytest.approx(exact.worst.rank_seconds, rel=0.02)


def test_clocks_that_drift_are_compared_in_each_step() -> None:
    job = JobModel(sizes=Sizes(dp=3, pp=1), microbatches=4, steps=20)
    trace = _on_hosts_of_their_own(synthesize(job, (SlowWorker((1, 0), 1.6),), seed=1).trace)
    since = trace.start_ns - trace.start_ns.min()
    drifting = trace.start_ns + np.where(trace.dp == 2, since // 50, 0)
    found = _arrivals(replace(trace, start_ns=drifting))
    assert found.worst.rank == _arrivals(trace).worst.rank
    assert found.worst.last_share > 0.4


def test_a_rank_that_recorded_nothing_is_named_where_all_others_wait_for_it() -> None:
    rows = [
        (rank, 0, GRADS_REDUCE_SCATTER, order, start, end - start)
        for order, (starts, end) in enumerate(
            [
                ((0, 1, 2), 12),  # the last one that is there transfers for 10 ms
                ((20, 21, 22), 82),  # all wait 50 ms more
                ((90, 91, 92), 102),
            ]
        )
        for rank, start in zip((0, 1, 3), starts, strict=True)
    ]
    found = _arrivals(_hand_made(rows, dp=4))
    worst = found.worst
    assert (worst.rank, worst.missing, worst.last, worst.collectives) == (2, True, 1.0, 3.0)
    # Three ranks wait from 20, 21 and 22 ms until 72 ms.
    assert worst.rank_seconds == pytest.approx(0.153)
    (group,) = found.groups
    assert group.ranks == (0, 1, 2, 3)
    assert group.late_s[2] == (None, 0.052, None)
    assert [one.transfer_s for one in group.collectives] == [0.01] * 3


def test_a_rank_that_recorded_nothing_is_not_counted_among_those_that_wait() -> None:
    rows = [
        (rank, step, GRADS_REDUCE_SCATTER, 0, 100 * step + start, 90 - start)
        for step in range(6)
        for rank, start in ((0, 20), (1, 20), (2, 80))
    ]
    found = _arrivals(_hand_made(rows, dp=4))
    assert found.worst.rank == 2
    assert found.worst.waited_for_s == pytest.approx(0.06)
    assert found.words.endswith("; 2 ranks wait 60 ms a step for it")


def test_if_one_rank_alone_waits_it_is_named() -> None:
    taken = np.full((4, 6), 80)
    taken[2], taken[0] = 40, 81
    assert _arrivals(_computing(taken)).waiting == "Rank 2 alone waits 41 ms a step for rank 0"


def test_waiting_that_computing_hides_is_none() -> None:
    rows = [
        (0, 0, "backward-compute", 0, 0, 60),
        (0, 0, GRADS_REDUCE_SCATTER, 0, 10, 100),
        (1, 0, "backward-compute", 0, 0, 100),
        (1, 0, GRADS_REDUCE_SCATTER, 0, 100, 10),
    ]
    found = _arrivals(_hand_made(rows, dp=2))
    assert found.worst.rank == 1
    assert found.worst.rank_seconds == pytest.approx(0.04)


def test_waiting_inside_a_computation_is_no_computing() -> None:
    rows = [
        (0, 0, "forward-compute", 0, 0, 100),
        (0, 0, PARAMS_ALL_GATHER, 0, 20, 40),
        (1, 0, "forward-compute", 0, 0, 100),
        (1, 0, PARAMS_ALL_GATHER, 0, 50, 10),
    ]
    met = arrivals_of(_hand_made(rows, dp=2))
    assert [one.computing_s for one in met.breakdown.ranks] == pytest.approx([0.06, 0.09])
    assert [one.communication_s for one in met.breakdown.ranks] == pytest.approx([0.04, 0.01])
    assert met.arrivals is not None
    assert met.arrivals.worst.rank_seconds == pytest.approx(0.03)


def test_the_parts_of_a_step_add_up() -> None:
    rows = [
        (0, 0, DATA_LOADING, 0, 0, 10),
        (0, 0, "forward-compute", 0, 10, 30),
        (0, 0, GRADS_REDUCE_SCATTER, 0, 30, 30),
        (1, 0, "forward-compute", 0, 5, 45),
        (1, 0, GRADS_REDUCE_SCATTER, 0, 50, 10),
        (0, 1, "forward-compute", 0, 80, 20),
        (1, 1, "forward-compute", 0, 80, 40),
    ]
    found = arrivals_of(_hand_made(rows, dp=2)).breakdown
    # The first step lasts until the second one begins.
    assert found.step_s == pytest.approx((0.080 + 0.040) / 2)
    first, second = found.ranks
    assert (first.computing_s, first.communication_s) == pytest.approx((0.025, 0.010))
    assert (first.data_s, first.idle_s) == pytest.approx((0.005, 0.020))
    assert second.data_s == 0.0
    for one in found.ranks:
        total = one.computing_s + one.communication_s + one.data_s + one.idle_s
        assert total == pytest.approx(found.step_s)


def test_the_place_where_ranks_diverge_is_named_and_that_step_left_out() -> None:
    trace = session(dp=3, pp=1, steps=4).trace
    scatter = trace.op == trace.op_names.index(GRADS_REDUCE_SCATTER)
    more = select(trace, scatter)
    twice = joined(trace, replace(more, order=more.order + 1, start_ns=more.start_ns + 1))
    step = int(np.unique(trace.step)[1])
    lost = (twice.step == step) & (twice.rank == 1) & (twice.order == 0)
    lost &= twice.op == trace.op_names.index(GRADS_REDUCE_SCATTER)
    found = _arrivals(without(twice, lost, renumbered=True))
    (parting,) = found.partings
    assert (parting.op, parting.step, parting.rank) == (GRADS_REDUCE_SCATTER, step, 1)
    assert (parting.recorded, parting.others) == (1, 2)
    # Three steps with two reduce-scatters each, four steps with one all-gather.
    assert found.ranks[0].collectives == pytest.approx((3 * 2 + 4) / 4)
    assert _arrivals(without(twice, lost, renumbered=False)).partings == ()


def test_tensor_ranks_meet_within_their_worker() -> None:
    job = JobModel(
        sizes=Sizes(dp=2, pp=1, tp=4), microbatches=4, steps=4, profiler=Profiler(tensor_ranks=True)
    )
    trace = synthesize(job, (TensorParallelStraggler((1, 0), 3, 1.6),), seed=1).trace
    found = _arrivals(trace)
    tensor = [group for group in found.groups if group.kind is GroupKind.TENSOR]
    assert [len(group.ranks) for group in tensor] == [4, 4]
    assert found.worst.rank == np.unique(trace.rank[trace.dp == 1])[3]
    assert found.worst.last_share > 0.9


def test_ranks_that_meet_no_other_have_only_their_breakdown() -> None:
    trace = session(dp=3, pp=1, steps=2).trace
    met = arrivals_of(select(trace, trace.rank == trace.rank[0]))
    assert met.arrivals is None
    assert len(met.breakdown.ranks) == 1


def test_long_lists_are_told_together() -> None:
    count, dp = 3 * MOST_COLLECTIVES, 4
    rows = [
        (rank, 0, PARAMS_ALL_GATHER, order, 10 * order + 4 * (rank == 2), 9 - 4 * (rank == 2))
        for rank in range(dp)
        for order in range(count)
    ]
    found = _arrivals(_hand_made(rows, dp=dp))
    (group,) = found.groups
    assert len(group.collectives) <= MOST_COLLECTIVES
    assert sum(one.count for one in group.collectives) == count
    assert len(group.late_s) * len(group.collectives) <= MOST_CELLS
    assert (found.worst.rank, found.worst.last) == (2, count)
