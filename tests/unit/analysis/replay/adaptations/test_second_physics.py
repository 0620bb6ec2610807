"""Jobs of the second physics whose receives and all-gathers are not where the model has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.replay.adaptations.blocking_transfers import propose_blocking
from app.analysis.replay.adaptations.candidate import LEAST_GAIN, Draft, Recording, discrepancy
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.adaptations.posted_in_turn import (
    find_posted_in_turn,
    in_turn,
    propose_posted_in_turn,
)
from app.analysis.replay.adaptations.signs import sampled
from app.analysis.replay.layout.dependency_graph import with_edges
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from tests.oracles.physics.draw import draw_worlds, run_job
from tests.oracles.physics.execute import execute
from tests.oracles.physics.shape import Posting, Schedule, Shape
from tests.oracles.physics.world import World
from tests.referee.judging import trace_of
from tests.unit.analysis.diagnosis.second_physics import (
    INTERLEAVED,
    healthy,
    names,
    pass_s,
    report_of,
    struck,
)

WINDOW = replace(INTERLEAVED, posting=Posting.WINDOW)


def slow_link(world: World) -> None:
    for times in (world.activation_s, world.gradient_s):
        times[1::4, ..., 2] += 1.5 * pass_s(world)


@pytest.mark.parametrize("dp", [3, 4])
@pytest.mark.parametrize("shape", [WINDOW, INTERLEAVED], ids=["window", "overlap"])
def test_a_slow_link_costs_what_it_does_with_many_chunks(shape: Shape, dp: int) -> None:
    report, slowdown = report_of(replace(shape, dp=dp), slow_link)
    made = {item.adaptation for item in report.fidelity.adaptations}

    assert report.fidelity.verdict
    assert not made & {"posted_in_turn", "blocking_transfers"} or shape is WINDOW
    assert names(report) == ["network"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("vpp", [2, 3])
def test_sends_behind_others_wait_for_no_call_that_blocks(vpp: int) -> None:
    shape = replace(WINDOW, vpp=vpp, microbatches=12, pp=6, host_waits=True)
    even_world = healthy(shape).copy()

    def strike(world: World) -> None:
        for name in ("forward_s", "backward_s"):
            times = getattr(world, name)
            usual_s = times.mean()
            times[2] *= 2.5
            # The reference divides the heavy stage's work evenly.
            getattr(even_world, name)[:] *= times.mean() / usual_s

    report, slowdown = report_of(shape, strike)
    even = execute(even_world).step_s.sum() / execute(healthy(shape)).step_s.sum()

    # Receives are posted in turn, but the host does not block in them, although it launches nothing
    # then.
    made = {item.adaptation for item in report.fidelity.adaptations}
    assert "posted_in_turn" in made
    assert "blocking_transfers" not in made
    assert report.headline.slowdown == pytest.approx(slowdown / even, rel=0.01)


def waits_and_posts_in_turn(shape: Shape) -> bool:
    small = shape.dp * shape.pp * shape.vpp * shape.microbatches * shape.tp <= 240
    waits = shape.posting is Posting.WINDOW and shape.host_waits
    return small and waits and shape.pp > 2 and shape.dp < 4


@pytest.mark.parametrize("seed", [5200001664, 5200001672, 5200001674, 5200001681])
def test_a_transfer_that_ends_before_its_host_launches_on_holds_up_nothing(seed: int) -> None:
    drawn = draw_worlds(seed, "collectives of a stage", fits=waits_and_posts_in_turn, steps=12)
    replayed = prepare_replay(trace_of(run_job(drawn).recording()), without=tuple(Name))
    draft = Draft.of([replayed.layout], [replayed.graph], Recording(absolute=True))

    assert find_posted_in_turn(sampled(replayed.layout)) is not None
    assert propose_blocking(draft) is None


@pytest.mark.slow
def test_calls_that_seem_to_block_hide_no_receives_posted_in_turn() -> None:
    def strike(world: World) -> None:
        world.activation_s[:, :, ::2] += 0.7 * pass_s(world)
        world.gradient_s[:, :, ::2] += 0.7 * pass_s(world)

    report, slowdown = report_of(replace(WINDOW, pp=8, microbatches=24, dp=3), strike)

    assert "posted_in_turn" in {item.adaptation for item in report.fidelity.adaptations}
    assert report.fidelity.discrepancy < 0.01
    assert names(report) == ["network_congestion"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)


@pytest.mark.parametrize(("times", "tried"), [(0.7, True), (0.0005, False)])
def test_receives_posted_in_turn_are_tried_where_their_transfers_take_any_time(
    times: float, *, tried: bool
) -> None:
    def strike(world: World) -> None:
        for transfers in (world.activation_s, world.gradient_s):
            transfers[:] = times * pass_s(world)

    shape = replace(WINDOW, vpp=1, schedule=Schedule.ONE_F_ONE_B)
    replayed = prepare_replay(struck(shape, strike)[0], without=tuple(Name))
    layout, graph = replayed.layout, replayed.graph
    found = find_posted_in_turn(sampled(layout))
    proposal = propose_posted_in_turn(Draft.of([layout], [graph], Recording(absolute=True)))

    assert found is not None
    in_turn = with_edges(graph, layout, found.after, {})
    gain = discrepancy([layout], [graph]) - discrepancy([layout], [in_turn])
    assert (abs(gain) >= LEAST_GAIN) is tried
    assert (proposal is not None) is tried


def heavy_stage(world: World) -> None:
    world.forward_s[1] *= 1.8
    world.backward_s[1] *= 1.8


def test_receives_posted_in_turn_follow_a_computation_once() -> None:
    trace, _ = struck(replace(WINDOW, vpp=1, schedule=Schedule.ONE_F_ONE_B), heavy_stage)
    replayed = prepare_replay(trace, without=tuple(Name))
    few, graph = sampled(replayed.layout), replayed.graph

    turned = in_turn(few, graph)
    assert turned is not graph
    assert in_turn(few, turned) is turned
    overlapped = prepare_replay(
        struck(replace(INTERLEAVED, vpp=1, schedule=Schedule.ONE_F_ONE_B), heavy_stage)[0]
    )
    assert in_turn(sampled(overlapped.layout), overlapped.graph) is overlapped.graph


def test_a_graph_that_receives_in_turn_contradict_stays_as_it_is() -> None:
    trace, _ = struck(replace(WINDOW, vpp=1, schedule=Schedule.ONE_F_ONE_B), heavy_stage)
    replayed = prepare_replay(trace, without=tuple(Name))
    found = find_posted_in_turn(replayed.layout)
    assert found is not None
    receive, (before,) = next(iter(found.after.items()))
    backwards = with_edges(replayed.graph, replayed.layout, {before: (receive,)}, {})

    assert in_turn(replayed.layout, backwards) is backwards


def test_a_job_without_its_cause_receives_in_turn_though_the_recording_hardly_shows_it() -> None:
    def strike(world: World) -> None:
        world.gather_s[1] += 6 * pass_s(world)
        world.scatter_s[1] += 6 * pass_s(world)

    shape = replace(
        WINDOW, vpp=1, pp=2, dp=3, microbatches=12, schedule=Schedule.ONE_F_ONE_B, steps=24
    )
    report, slowdown = report_of(shape, strike)

    assert not report.fidelity.adaptations
    assert names(report) == ["network"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.0003)


def slow_gathers(world: World) -> None:
    world.gather_s[:] += 4 * pass_s(world)


def slow_transfers(world: World) -> None:
    for transfers in (world.activation_s, world.gradient_s):
        transfers[:] = 0.7 * pass_s(world)


# Adaptations that no real job needs, each with a job that needs it.
NEEDED = {
    Name.GATHERED_FIRST: (INTERLEAVED, slow_gathers),
    Name.POSTED_IN_TURN: (replace(WINDOW, vpp=1, schedule=Schedule.ONE_F_ONE_B), slow_transfers),
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_job_is_replayed_wrong_without_the_adaptation_that_it_needs(name: Name) -> None:
    trace, _ = struck(*NEEDED[name])
    report, without = analyze(trace).report, analyze(trace, {name}).report

    assert name in {item.adaptation for item in report.fidelity.adaptations}
    assert names(report) == []
    assert report.fidelity.discrepancy < 0.02
    assert without.fidelity.discrepancy > 0.04


def posts_on_demand(shape: Shape) -> bool:
    small = shape.dp * shape.pp * shape.vpp * shape.microbatches <= 1500
    return small and shape.posting is Posting.WINDOW and shape.pp > 1 and shape.tp == 1


@pytest.mark.parametrize(
    "seed",
    [2093, pytest.param(2106, marks=pytest.mark.slow), pytest.param(2114, marks=pytest.mark.slow)],
)
def test_steps_that_ranks_begin_late_now_and_then_do_not_make_all_steps_take_longer(
    seed: int,
) -> None:
    drawn = draw_worlds(seed, "checkpoints between steps", fits=posts_on_demand)
    job = run_job(drawn)
    replayed = prepare_replay(trace_of(job.recording()))
    metrics = measure(replayed)
    gap = job.execution.step_s.max() / np.median(job.execution.step_s)

    assert gap > 1.1
    assert Name.BLOCKING_TRANSFERS not in {item.name for item in replayed.adaptations}
    typical = np.median(metrics.simulated_s / metrics.recorded_s)
    assert typical == pytest.approx(1.0, abs=0.003)
