"""The second physics obeys its own laws, and the product can read its recordings."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.oracles.physics.draw import FAULTS, draw_job, draw_shape
from tests.oracles.physics.execute import Execution, events_of, execute
from tests.oracles.physics.shape import Posting, Schedule, Shape
from tests.oracles.physics.world import World, draw_world
from tests.referee.judging import judge, trace_of

SHAPE = Shape(
    dp=2,
    pp=4,
    vpp=1,
    tp=1,
    microbatches=6,
    steps=3,
    schedule=Schedule.ONE_F_ONE_B,
    posting=Posting.OVERLAP,
    host_waits=False,
)
INTERLEAVED = replace(SHAPE, schedule=Schedule.INTERLEAVED, vpp=2, microbatches=8)
ZERO_BUBBLE = replace(SHAPE, schedule=Schedule.ZERO_BUBBLE)
EXPERTS = replace(SHAPE, dp=4, ep=2)


def bare(shape: Shape, forward_s: float, backward_s: float) -> World:
    """Return a world in which only computing takes time."""
    world = draw_world(shape, np.random.default_rng(0))
    for name in World.__dataclass_fields__:
        times = getattr(world, name)
        if isinstance(times, np.ndarray):
            times[:] = 0
    world.forward_s[:] = forward_s
    world.backward_s[:] = backward_s
    world.rank_s[:] = 1
    world.context_s[:] = 1
    world.tokens[:] = 1
    return world


@pytest.mark.parametrize("posting", list(Posting))
@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
def test_without_transfers_a_step_is_its_passes_and_the_bubble(
    schedule: Schedule, posting: Posting
) -> None:
    shape = replace(SHAPE, schedule=schedule, posting=posting)
    step_s = execute(bare(shape, 1.0, 2.0)).step_s
    assert step_s == pytest.approx((shape.microbatches + shape.pp - 1) * 3.0)


def test_virtual_stages_divide_the_bubble() -> None:
    shape = INTERLEAVED
    step_s = execute(bare(shape, 1.0, 2.0)).step_s
    passes = shape.microbatches * shape.vpp + shape.pp - 1
    assert step_s == pytest.approx(passes * 3.0)


def test_weights_that_come_later_fill_the_bubble() -> None:
    # Backward passes of inputs and weights take as long as a forward pass: two of three passes in
    # each slot of the bubble are filled at the end (Qi et al. 2023, table 1).
    world = replace(bare(ZERO_BUBBLE, 1.0, 2.0), weights=0.5)
    bubble = ZERO_BUBBLE.pp - 1
    assert execute(world).step_s == pytest.approx(ZERO_BUBBLE.microbatches * 3.0 + bubble)


def test_who_shares_experts_goes_on_together_and_others_do_not() -> None:
    world = bare(EXPERTS, 1.0, 2.0)
    world.tokens[1, 0, 2, 0, :, 0] = 1.5
    world.tokens[1, 0, 2, 0, :, 1] = 0.5
    execution = execute(world)
    (late,) = (
        event
        for event in events_of(execution, "forward-compute")
        if (event.stage, event.microbatch) == (1, 2)
    )
    taken_s = late.end_s - late.start_s
    assert taken_s[:, :2] == pytest.approx(1.25)
    assert taken_s[:, 2:] == pytest.approx(1.0)
    after = [
        event
        for event in events_of(execution, "ep-all-to-all")
        if (event.stage, event.microbatch) == (1, 2)
    ][1]
    waited_s = after.end_s - after.start_s
    assert waited_s[:, 1] - waited_s[:, 0] == pytest.approx(0.5)


def test_the_earlier_receives_are_posted_the_shorter_is_the_step() -> None:
    world = draw_world(SHAPE, np.random.default_rng(1))
    overlap, window, blocking = (
        execute(replace(world, shape=replace(SHAPE, posting=posting))).step_s.sum()
        for posting in Posting
    )
    assert overlap <= window <= blocking
    assert overlap < blocking


@pytest.mark.parametrize(
    "shape", [SHAPE, INTERLEAVED, ZERO_BUBBLE], ids=["1f1b", "interleaved", "zero bubble"]
)
def test_a_stage_computes_one_pass_at_a_time_and_both_ends_of_a_transfer_end_together(
    shape: Shape,
) -> None:
    execution = execute(draw_world(shape, np.random.default_rng(2)))
    for stage in range(shape.pp):
        passes = [
            (event.start_s, event.end_s)
            for kind in ("forward-compute", "backward-compute", "backward-wgrad-compute")
            for event in events_of(execution, kind)
            if event.stage == stage
        ]
        passes.sort(key=lambda times: float(times[0][0, 0]))
        for (_, end_s), (start_s, _) in itertools.pairwise(passes):
            assert (start_s >= end_s - 1e-12).all()
    assert ends(execution, "forward-send") == ends(execution, "forward-recv")
    assert ends(execution, "backward-send") == ends(execution, "backward-recv")


def ends(execution: Execution, kind: str) -> list[float]:
    return sorted(float(event.end_s.sum()) for event in events_of(execution, kind))


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_slows_its_job_and_strikes_where_it_says(name: str) -> None:
    job = draw_job(8, name)
    assert job.slowdown > 1.0
    assert job.slowdown < 6.0
    cells = {(dp, pp) for dp in range(job.shape.dp) for pp in range(job.shape.pp)}
    assert job.workers <= cells


def test_a_seed_is_one_job_and_a_healthy_job_is_as_fast_as_itself() -> None:
    first, again = draw_job(11, None), draw_job(11, None)
    assert first.slowdown == 1.0
    recorded, anew = first.recording(), again.recording()
    assert recorded.op_names == anew.op_names
    np.testing.assert_array_equal(recorded.op, anew.op)
    for name, column in recorded.columns.items():
        np.testing.assert_array_equal(column, anew.columns[name])


def test_shapes_have_every_schedule_and_posting() -> None:
    shapes = [draw_shape(np.random.default_rng(seed)) for seed in range(200)]
    assert {shape.schedule for shape in shapes} == set(Schedule)
    assert {shape.posting for shape in shapes} == set(Posting)


@pytest.mark.parametrize("name", ["fragmented memory", "causal division", "experts by text"])
def test_the_product_reads_all_that_is_recorded(name: str) -> None:
    recording = draw_job(3, name).recording()
    trace = trace_of(recording)
    assert len(trace) == len(recording.op)
    assert {trace.op_names[code] for code in np.unique(trace.op)} == set(recording.op_names)


@pytest.mark.parametrize(
    "name",
    [
        "worker constant",
        "last stage heavy",
        "lengths uniform",
        "link",
        "tensor rank",
        "checkpoints",
        "slow launching",
        "slow launching host",
        "thermal throttling",
        "all by a spell",
        "all ever slower",
        "another worker in each step",
        "whole host",
        "congestion by the hour",
        "context rank",
        "causal division",
        "favorite experts",
        "loaders stall",
        "loader of a rank stalls",
        "checkpoints between steps",
        "evaluations",
        "standstills",
    ],
)
def test_plain_faults_are_distinguished(name: str) -> None:
    verdict = judge(2026, name)
    assert verdict.lead == verdict.cause
    assert verdict.worker_right is not False
    assert verdict.headline == pytest.approx(verdict.slowdown, rel=0.05)
