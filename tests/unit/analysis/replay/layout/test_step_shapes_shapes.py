"""Steps of several shapes: grouped, or left out with a reason."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.analysis.replay.layout.arrange import lay_out
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError
from tests.factories import joined, select, session
from tests.lossy import losing
from tests.schedules import Job, executed


def later(trace: Trace, steps: int) -> Trace:
    return dataclasses.replace(trace, step=trace.step + steps)


def mixed(*jobs: tuple[Job, int]) -> tuple[Trace, list[int]]:
    """Return one session with the steps of several jobs, one job after the other."""
    whole: Trace | None = None
    times: list[int] = []
    for seed, (job, steps) in enumerate(jobs):
        trace, more = executed(job, steps=steps, seed=seed)
        whole = trace if whole is None else joined(whole, later(trace, len(times)))
        times += more
    assert whole is not None
    return whole, times


def simulated(replayed: Replayed) -> list[float]:
    times = replayed.over_steps(lambda g: g.simulator.step_times([g.simulator.keep()])[0])
    return [float(time) for time in times]


def dropped(trace: Trace) -> dict[int, str]:
    return {item.step: item.reason for item in lay_out(trace).dropped}


def test_steps_with_other_microbatches_are_groups_of_their_own() -> None:
    # Large, small and large batches are no warm-up.
    job = Job(pp=3, microbatches=8)
    small = dataclasses.replace(job, microbatches=5)
    trace, times = mixed((job, 4), (small, 3), (job, 4))
    replayed = prepare_replay(trace)
    assert [group.layout.steps.tolist() for group in replayed.groups] == [
        [0, 1, 2, 3, 7, 8, 9, 10],
        [4, 5, 6],
    ]
    assert simulated(replayed) == times
    assert replayed.dropped == ()


def test_steps_launched_in_another_order_are_groups_of_their_own() -> None:
    job = Job("1f1b", pp=3, microbatches=6)
    trace, times = mixed((job, 3), (dataclasses.replace(job, schedule="gpipe"), 5), (job, 1))
    replayed = prepare_replay(trace)
    steps = [group.layout.steps.tolist() for group in replayed.groups]
    assert steps == [[3, 4, 5, 6, 7], [0, 1, 2, 8]]
    assert simulated(replayed) == times


@pytest.mark.parametrize("dp", [1, 2])
def test_a_type_that_only_some_steps_run_makes_shapes(dp: int) -> None:
    job = Job(dp=dp, pp=2)
    rare = dataclasses.replace(job, types=job.types - {"embedding-grads-all-reduce"})
    trace, times = mixed((job, 4), (rare, 4))
    assert simulated(prepare_replay(trace)) == times


@pytest.mark.parametrize("seed", [13, 19, 20, 26])
def test_losses_of_a_single_dp_rank_make_no_shapes(seed: int) -> None:
    job = Job("interleaved", dp=1, pp=3, vpp=2, microbatches=6)
    trace, times = executed(job, steps=8, seed=seed)
    lossy = prepare_replay(losing(trace, 0.05, renumbered=True, seed=seed))
    assert len(lossy.groups) == 1
    assert all("operations are missing" in step.reason for step in lossy.dropped)
    assert simulated(lossy) == pytest.approx([times[step] for step in lossy.steps], rel=0.05)


def test_ideal_durations_are_pooled_over_groups() -> None:
    job = Job(pp=2, microbatches=4)
    trace, _ = mixed((dataclasses.replace(job, microbatches=6), 3), (job, 2))
    for group in prepare_replay(trace).groups:
        forward = group.layout.nodes.op == 0
        expected = trace.duration_ns[trace.op == 0].mean()
        assert group.durations.ideal_ns[forward] == pytest.approx(expected)


def test_steps_that_warm_up_are_left_out_by_name() -> None:
    job = Job(pp=2, microbatches=8)
    ramp = [(dataclasses.replace(job, microbatches=m), n) for m, n in ((2, 2), (4, 1))]
    trace, times = mixed(*ramp, (job, 6))
    assert dropped(trace) == {
        0: "warm-up: 2 of 8 microbatches",
        1: "warm-up: 2 of 8 microbatches",
        2: "warm-up: 4 of 8 microbatches",
    }
    assert simulated(prepare_replay(trace)) == times[3:]


def test_a_last_larger_step_makes_no_warm_up_of_all_others() -> None:
    job = Job(pp=2, microbatches=4)
    trace, times = mixed((job, 6), (dataclasses.replace(job, microbatches=8), 1))
    assert dropped(trace) == {}
    assert simulated(prepare_replay(trace)) == times


def test_evaluation_steps_are_left_out_by_name() -> None:
    trace = session(steps=12).trace
    chosen = np.unique(trace.step)[[3, 7]]
    forward = np.isin(trace.op, [trace.op_names.index(f"forward-{x}") for x in WHAT])
    evaluated = select(trace, ~np.isin(trace.step, chosen) | forward)
    assert dropped(evaluated) == dict.fromkeys(chosen.tolist(), "evaluation: it has no backward")


WHAT = ("compute", "send", "recv")


def test_a_session_that_only_evaluates_is_refused_in_words() -> None:
    trace = session().trace
    with pytest.raises(UnanalyzableError) as caught:
        lay_out(select(trace, trace.op == 0))
    assert caught.value.stable_code == "trace.no_complete_step"
    assert "no backward" in caught.value.faults[0].message


def test_a_rank_missing_from_a_step_drops_the_step_by_name() -> None:
    trace = session().trace
    step = int(np.unique(trace.step)[4])
    rank = int(trace.rank[(trace.dp == 2) & (trace.pp == 1)][0])
    lost = select(trace, (trace.rank != rank) | (trace.step != step))
    assert dropped(lost) == {step: f"rank {rank} (DP rank 2, stage 1) sent nothing"}


def test_ranks_that_never_meet_in_a_step_are_refused_in_words() -> None:
    trace = session(dp=2, pp=1, steps=6).trace
    apart = dataclasses.replace(trace, step=trace.step * 2 + trace.dp)
    with pytest.raises(UnanalyzableError) as caught:
        lay_out(apart)
    assert caught.value.stable_code == "trace.no_complete_step"
    assert "sent nothing" in caught.value.faults[0].message


def test_a_step_with_too_much_missing_is_dropped_by_name() -> None:
    trace = session().trace
    step = int(np.unique(trace.step)[4])
    here = (trace.dp == 1) & (trace.pp == 0) & (trace.step == step)
    lost = select(trace, ~(here & (trace.op < 5)))
    (reason,) = dropped(lost).values()
    assert "operations are missing, 12 of them on DP rank 1, stage 0" in reason


def test_a_step_with_more_than_it_should_have_is_dropped_by_name() -> None:
    trace = session().trace
    one = np.flatnonzero(trace.op == trace.op_names.index("optimizer"))[:1]
    again = select(trace, one)
    again = dataclasses.replace(again, order=again.order + 1, start_ns=again.start_ns + 5)
    assert dropped(joined(trace, again)) == {
        int(trace.step[one[0]]): "2 instead of 1 optimizer on stage 0 on DP rank 0"
    }


def test_more_shapes_than_are_analyzed_are_named() -> None:
    job = Job(dp=1, pp=1)
    many = [(dataclasses.replace(job, microbatches=m), 1) for m in range(20, 2, -1)]
    laid_out = lay_out(mixed(*many)[0])
    assert len(laid_out.groups) == 16
    assert [item.step for item in laid_out.dropped] == [16, 17]
    assert "not among the 16 most frequent" in laid_out.dropped[0].reason
