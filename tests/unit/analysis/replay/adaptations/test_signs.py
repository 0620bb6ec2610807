"""Signs of adaptations and their consequences, each compared with a readable implementation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.replay.adaptations.blocking_transfers import find_blocking
from app.analysis.replay.adaptations.idle_transfers import _cheapest
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.adaptations.late_ends import _arrival, _pairs
from app.analysis.replay.adaptations.nested_gc import without_nested_gc
from app.analysis.replay.adaptations.regular_delays import _is_chance
from app.analysis.replay.adaptations.signs import (
    NOWHERE,
    Precheck,
    containing,
    regular_share,
    sampled,
    typical_ns,
)
from app.analysis.replay.adaptations.v_shaped_placement import find_placement
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.host_jobs import HostJob
from app.analysis.synthesis.host_sessions import run
from app.analysis.synthesis.injections.delays import SlowDataLoading
from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import GC, Sizes
from tests.oracles import adaptations as twins
from tests.schedules import Job, executed
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)
jobs = settings(max_examples=12, deadline=None)


def host_job(seed: int) -> HostJob:
    rng = np.random.default_rng(seed)
    return HostJob(
        dp=int(rng.integers(1, 4)),
        pp=int(rng.integers(2, 4)),
        microbatches=int(rng.integers(2, 6)),
        steps=3,
        wire_ns=float(rng.uniform(0.1e6, 30e6)),
        noise=float(rng.uniform(0.0, 0.3)),
        gathers=bool(rng.random() < 0.5),
        pause_ns=50e6,
        pauses=0.2,
        seed=seed,
    )


def as_recorded(seed: int) -> Layout:
    return prepare_replay(run(host_job(seed)).trace, without=tuple(Name)).layout


@pytest.mark.slow
@jobs
@given(seeds)
def test_blocking_operations_are_found_as_by_the_twin(seed: int) -> None:
    replayed = prepare_replay(run(host_job(seed)).trace, without=tuple(Name))
    layout = replayed.layout
    blocking = find_blocking(layout, replayed.graph)

    assert blocking is not None
    for posted in blocking.stages:
        found = {twins.name_of(layout, node) for group in posted for node in group.blocking}
        assert found == twins.blocking_types(layout, [group.nodes for group in posted])
        assert found >= twins.TRANSFERS & {
            twins.name_of(layout, node) for group in posted for node in group.nodes
        }


@pytest.mark.slow
@jobs
@given(seeds)
def test_delaying_operations_are_found_as_by_the_twin(seed: int) -> None:
    replayed = prepare_replay(run(host_job(seed)).trace, without=tuple(Name))
    layout, graph = replayed.layout, replayed.graph
    blocking = find_blocking(layout, graph)
    assert blocking is not None

    held_up = [
        twins.holding_up_types(layout, graph, [group.nodes for group in posted])
        for posted in blocking.stages
    ]
    assert sum(bool(twins.TRANSFERS & types) for types in held_up) > layout.pp / 2


def test_what_holds_nothing_up_does_not_block() -> None:
    # All microbatches pass once through all stages before a stage can choose between two
    # computations.
    job = JobModel(
        sizes=Sizes(dp=1, pp=6, vpp=3), microbatches=6, steps=6, schedule=Schedule.INTERLEAVED
    )
    late = SlowDataLoading(1.5 * job.costs.forward_ns)
    replayed = prepare_replay(synthesize(job, (late,), seed=3).trace, without=tuple(Name))

    assert Precheck(replayed.layout).may_block()
    assert find_blocking(replayed.layout, replayed.graph) is None


@pytest.mark.slow
@jobs
@given(seeds)
def test_nested_operations_are_found_as_by_the_twin(seed: int) -> None:
    layout = as_recorded(seed)
    for node in range(len(layout.nodes)):
        if twins.name_of(layout, node) in twins.COMPUTE:
            continue
        inside = containing(layout, node)
        for step, dp in np.ndindex(inside.shape):
            expected = twins.containing_computation(layout, node, step, dp)
            assert inside[step, dp] == (NOWHERE if expected is None else expected)


@pytest.mark.slow
@jobs
@given(seeds)
def test_pauses_are_those_of_the_twin(seed: int) -> None:
    layout = as_recorded(seed)
    collections = np.flatnonzero(layout.nodes.op == layout.codes(GC)[0]).tolist()
    found = without_nested_gc(layout)
    paused = {} if found is None else found[0].paused_ns
    for step in range(len(layout.steps)):
        for dp in range(layout.dp):
            own = {n: float(p[step, dp]) for n, p in paused.items() if p[step, dp] > 0}
            assert own == twins.paused(layout, collections, step, dp)


@pytest.mark.slow
@jobs
@given(seeds)
def test_late_receives_end_as_the_twin_says(seed: int) -> None:
    replayed = prepare_replay(run(host_job(seed)).trace, without=tuple(Name))
    layout = replayed.layout
    for pair in _pairs(layout, replayed.graph)[:10]:
        stage = int(layout.nodes.pp[pair.receive])
        computes = [
            node
            for node in np.flatnonzero(layout.nodes.pp == stage).tolist()
            if twins.name_of(layout, node) in twins.COMPUTE
        ]
        arrivals = _arrival(layout, pair, computes)
        ends = layout.start_ns + layout.duration_ns
        for step, dp in np.ndindex(arrivals.shape):
            begin = max(layout.start_ns[node, step, dp] for node in (pair.send, pair.receive))
            expected = twins.arrival(
                begin, ends[pair.receive, step, dp], ends[computes, step, dp].tolist()
            )
            assert arrivals[step, dp] == pytest.approx(expected)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), seeds)
def test_transfers_are_chosen_at_the_least_cost(count: int, spare: int, seed: int) -> None:
    costs = np.random.default_rng(seed).uniform(0, 1, (count, count + spare))
    chosen = _cheapest(costs)

    assert (np.diff(chosen) > 0).all()
    total = costs[np.arange(count), chosen].sum()
    assert total == pytest.approx(twins.cheapest_choice(costs.tolist()))


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e9), min_size=1, max_size=40))
def test_usual_delays_are_those_of_the_twin(late: list[float]) -> None:
    assert typical_ns(np.array(late)[:, None]) == pytest.approx(twins.usual_delay(late), abs=1.0)


def test_clocks_that_jump_make_no_launch_earlier_than_its_input() -> None:
    late = np.full((20, 2), 1e6)
    late[:2] = -1e9

    assert regular_share(late) == pytest.approx(0.9)
    assert typical_ns(late) == 0.0


@pytest.mark.slow
@drawn(200)
@given(seeds, st.integers(1, 40), st.integers(5, 200))
def test_delays_without_memory_are_chance(seed: int, kinds: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    late = [rng.exponential(3e6, (count, 2)) for _ in range(kinds)]

    assert _is_chance([(regular_share(values), values) for values in late])


@pytest.mark.slow
@drawn(200)
@given(seeds, st.integers(1, 40))
def test_delays_of_a_length_are_none_whatever_else_is_late_by_a_little(
    seed: int, kinds: int
) -> None:
    rng = np.random.default_rng(seed)
    late = [rng.exponential(0.05e6, (20, 2)) for _ in range(kinds)]
    late.append(rng.normal(4e6, 0.5e6, (20, 2)))

    assert not _is_chance([(regular_share(values), values) for values in late])


@pytest.mark.parametrize("pp", [2, 3, 4])
def test_a_v_is_found_with_and_without_transfers(pp: int) -> None:
    for transfers in (True, False):
        job = HostJob(pp=pp, v_shaped=True, microbatches=3, steps=2, transfers=transfers)
        found = find_placement(run(job).trace)
        assert found is not None
        assert found[0] == twins.routes_of_v(pp)


@given(
    schedule=st.sampled_from(["v", "two-way"]),
    pp=st.integers(2, 4),
    microbatches=st.integers(2, 5),
    seed=seeds,
)
@jobs
def test_routes_are_those_of_the_twin_with_and_without_transfers(
    schedule: str, pp: int, microbatches: int, seed: int
) -> None:
    job = Job(schedule, pp=pp, vpp=2, microbatches=microbatches, compute_ns=50_000_000)
    trace, _ = executed(job, steps=2, seed=seed)
    expected = twins.routes_of_v(pp) if schedule == "v" else twins.routes_of_two_ways(pp)
    bare = twins.without_types(trace, twins.TRANSFERS)

    for recorded in (trace, bare):
        found = find_placement(recorded)
        assert found is not None
        assert found[0] == expected
        assert found[1].confidence >= 0.98


@pytest.mark.parametrize(
    ("placement", "routes"),
    [
        ([0, 1, 1, 0], (((0, 0), (1, 0), (1, 1), (0, 1)),)),
        ({"0": 0, "1": 1, "2": 1, "3": 0}, (((0, 0), (1, 0), (1, 1), (0, 1)),)),
        ([[0, 1], [1, 0]], (((0, 0), (1, 0)), ((1, 1), (0, 1)))),
        ([0, 1, 0, 1], None),
        ([[0, 1], [1, "0"]], None),
        ([[0, 1], []], None),
        ([0, 1, 2, 0], None),
        ("0110", None),
        ([0, 0, 0, 1], None),
    ],
)
def test_metadata_say_which_stage_has_which_chunk(placement: object, routes: object) -> None:
    plain = executed(Job("interleaved", pp=2, vpp=2, microbatches=2), steps=1)[0]
    meta = replace(plain.meta, extra={"placement": placement})
    found = find_placement(replace(plain, meta=meta))

    assert (None if found is None else found[0]) == routes


def test_a_sample_has_the_lanes_of_the_whole() -> None:
    layout = prepare_replay(run(HostJob(dp=10, steps=9, microbatches=2)).trace).layout
    few = sampled(layout)

    assert (len(few.steps), few.dp) == (8, 8)
    assert few.steps[-1] == layout.steps[-1]
    assert np.array_equal(few.start_ns[:, -1, -1], layout.start_ns[:, -1, -1])
    assert few.ranks[-1].tolist() == layout.ranks[-1].tolist()
