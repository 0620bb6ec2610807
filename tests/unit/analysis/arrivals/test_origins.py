"""Waits are credited to the rank whose own work causes them, through groups and pipelines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.arrivals.build import absent_ranks, arrivals_of, breakdown_of
from app.analysis.arrivals.collective_matching import GroupKind
from app.analysis.arrivals.document import Arrivals
from app.analysis.arrivals.lanes import lanes_of
from app.analysis.arrivals.lateness import lateness_of, own_computing
from app.analysis.arrivals.origins import Credits, credits_of
from app.analysis.quantities import NS
from app.analysis.synthesis.injections.computations import SlowWorker, TensorParallelStraggler
from app.analysis.synthesis.job import JobModel, Profiler, Schedule
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import (
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    Sizes,
    Trace,
)
from tests.factories import select, session
from tests.support.nested_jobs import nested_job, run


def _arrivals(trace: Trace) -> Arrivals:
    arrivals = arrivals_of(trace).arrivals
    assert arrivals is not None
    return arrivals


def _caused_s(arrivals: Arrivals, rank: int) -> float:
    """Return the waiting that a rank causes, rank-seconds per step."""
    return next((item.rank_seconds for item in arrivals.ranks if item.rank == rank), 0.0)


def _waiting_s(arrivals: Arrivals) -> float:
    """Return the waiting of all ranks, rank-seconds per step."""
    return sum(item.waits_s for item in arrivals.ranks)


@pytest.mark.parametrize("seed", range(24))
def test_a_slow_rank_is_credited_with_the_waits_that_it_causes(seed: int) -> None:
    job = nested_job(seed)
    assert job.origin is not None
    slow, healthy = _arrivals(run(job)), _arrivals(run(job.healthy))
    caused_s = _waiting_s(slow) - _waiting_s(healthy)
    assert _caused_s(slow, job.origin) >= 0.9 * caused_s
    assert slow.worst.rank == job.origin
    assert slow.straggles
    assert not healthy.straggles


@pytest.mark.parametrize("seed", [1, 4, 8])
def test_credits_add_up_to_the_waits(seed: int) -> None:
    for job in (nested_job(seed), nested_job(seed).healthy):
        arrivals = _arrivals(run(job))
        credited_s = sum(item.rank_seconds for item in arrivals.ranks)
        assert credited_s == pytest.approx(_waiting_s(arrivals), rel=1e-3)


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_late_stage_is_not_blamed_for_its_pipeline(schedule: Schedule, stage: int) -> None:
    vpp = 2 if schedule is Schedule.INTERLEAVED else 1
    sizes = Sizes(dp=4, pp=4, vpp=vpp)
    job = JobModel(sizes=sizes, microbatches=8, steps=3, schedule=schedule)
    trace = synthesize(job, (SlowWorker((1, stage), 1.5),), seed=2).trace
    arrivals = _arrivals(trace)
    origin = int(trace.rank[(trace.dp == 1) & (trace.pp == stage)][0])
    assert arrivals.worst.rank == origin
    assert _caused_s(arrivals, origin) >= 0.95 * _waiting_s(arrivals)
    assert arrivals.waiting.startswith("Other ranks wait up to ")


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_computations_show_handovers_whose_transfers_are_not_recorded(stage: int) -> None:
    trace = session(SlowWorker((1, stage), 1.8), dp=3, pp=3, steps=3).trace
    transfers = [
        trace.op_names.index(name)
        for name in (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
    ]
    arrivals = _arrivals(select(trace, ~np.isin(trace.op, transfers)))
    origin = int(trace.rank[(trace.dp == 1) & (trace.pp == stage)][0])
    assert arrivals.worst.rank == origin
    assert _caused_s(arrivals, origin) >= 0.9 * _waiting_s(arrivals)


def test_transfers_of_one_rank_hold_up_all_ranks_of_its_worker() -> None:
    job = JobModel(
        sizes=Sizes(dp=3, pp=2, tp=4), microbatches=6, steps=3, profiler=Profiler(tensor_ranks=True)
    )
    trace = synthesize(job, (TensorParallelStraggler((1, 0), 3, 1.8),), seed=1).trace
    arrivals = _arrivals(trace)
    origin = np.unique(trace.rank[(trace.dp == 1) & (trace.pp == 0)])[3]
    assert arrivals.worst.rank == origin
    assert _caused_s(arrivals, int(origin)) >= 0.9 * _waiting_s(arrivals)


def test_a_rank_without_collectives_is_named_where_it_makes_others_late() -> None:
    trace = session(SlowWorker((1, 0), 1.8), dp=3, pp=2, steps=4).trace
    collective = np.array([name.startswith(("params", "grads")) for name in trace.op_names])
    arrivals = _arrivals(select(trace, (trace.pp == 1) | ~collective[trace.op]))
    assert [group.stage for group in arrivals.groups] == [1]
    worst = arrivals.worst
    assert worst.rank == trace.rank[(trace.dp == 1) & (trace.pp == 0)][0]
    assert (worst.collectives, worst.last) == (0, 0)
    assert arrivals.sentence == f"Rank {worst.rank} makes other ranks come late to collectives"


def test_ranks_that_share_experts_are_a_group() -> None:
    job = replace(nested_job(22), noise=0.0)
    assert job.experts == 2
    groups = [group for group in _arrivals(run(job)).groups if group.kind is GroupKind.EXPERT]
    assert {len(group.ranks) for group in groups} == {2}


def _credits(trace: Trace, most: int) -> tuple[Credits, float]:
    """Return the credits, and the whole waiting, if about `most` operations are sampled."""
    lanes = lanes_of(trace, most=most)
    computing = own_computing(lanes)
    step_ns = breakdown_of(lanes, computing).step_s / NS
    lateness = lateness_of(lanes, computing, absent_ranks(trace, lanes.meetings.groups), step_ns)
    return credits_of(lanes, lateness, computing), float(lateness.waited_ns.sum())


def test_steps_that_are_not_sampled_have_the_shares_of_those_that_are() -> None:
    trace = session(SlowWorker((1, 0), 1.8), dp=3, pp=2, steps=12).trace
    origin = trace.rank[(trace.dp == 1) & (trace.pp == 0)][0]
    for most in (len(trace) // 4, 1):
        found, waited_ns = _credits(trace, most)
        assert found.waited_ns.sum() == pytest.approx(waited_ns)
        assert found.waited_ns[found.rank == origin].sum() >= 0.95 * waited_ns


def test_a_last_rank_that_was_never_sampled_is_credited_itself() -> None:
    trace = session(SlowWorker((1, 0), 1.8), dp=3, pp=1, steps=4).trace
    late = int(np.unique(trace.step)[-1])
    scatter = trace.op == trace.op_names.index(GRADS_REDUCE_SCATTER)
    moved = scatter & (trace.step == late) & (trace.dp == 2)
    shift_ns = np.where(moved, trace.duration_ns * 9 // 10, 0)
    trace = replace(
        trace, start_ns=trace.start_ns + shift_ns, duration_ns=trace.duration_ns - shift_ns
    )
    found, waited_ns = _credits(trace, most=1)
    assert found.waited_ns.sum() == pytest.approx(waited_ns)
