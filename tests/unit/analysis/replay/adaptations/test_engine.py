"""Chained steps and regular delays: both executors, compared with a readable implementation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.replay.engine.compiled_replay import CompiledReplay
from app.analysis.replay.engine.replay import ArrayReplay, Batch, Block, prepare
from app.analysis.replay.engine.simulator import Durations, Simulator
from app.analysis.replay.host_delays import launch_delays
from app.analysis.replay.session import prepare_replay, with_lags
from tests.oracles.adaptations import chained_step_times
from tests.random_jobs import random_job
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)
jobs = drawn(25)


def lags_of(graph: object, rng: np.random.Generator) -> dict[tuple[int, int], float]:
    edges = [
        (node, other)
        for unit in graph.units  # type: ignore[attr-defined]
        for node, after in zip(unit.members, unit.after, strict=True)
        for other in after
    ]
    return {edge: float(rng.uniform(0, 5e6)) for edge in edges if rng.random() < 0.5}


@pytest.mark.slow
@jobs
@given(seeds, st.booleans(), st.booleans())
def test_both_executors_replay_as_the_twin(seed: int, chained: bool, lagged: bool) -> None:  # noqa: FBT001
    group = prepare_replay(random_job(seed).trace).main
    layout, rng = group.layout, np.random.default_rng(seed)
    graph = replace(
        group.graph, chained=chained, lags_ns=lags_of(group.graph, rng) if lagged else {}
    )
    recorded = np.maximum(group.durations.recorded_ns, 0.0)
    program = prepare(graph, layout.nodes.pp, recorded.min(axis=(1, 2)))
    durations = [
        {
            (node, dp): float(recorded[node, step, dp])
            for node in range(len(layout.nodes))
            for dp in range(layout.dp)
        }
        for step in range(len(layout.steps))
    ]
    if chained:
        expected = chained_step_times(layout, graph, durations)
    else:
        expected = [chained_step_times(layout, graph, [of_step])[0] for of_step in durations]

    for executor in (ArrayReplay(program), CompiledReplay(program)):
        simulator = Simulator(layout, Durations(recorded, group.durations.ideal_ns), executor)
        times = simulator.step_times([simulator.keep(), simulator.keep(types=[])])
        assert times[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@jobs
@given(seeds)
def test_any_variants_of_chained_steps_end_alike(seed: int) -> None:
    group = prepare_replay(random_job(seed).trace).main
    rng = np.random.default_rng(seed)
    nodes, steps, dp = group.durations.recorded_ns.shape
    graph = replace(group.graph, chained=True, lags_ns=lags_of(group.graph, rng))
    program = prepare(graph, group.layout.nodes.pp, group.durations.recorded_ns.min(axis=(1, 2)))
    values = rng.normal(1e6, 1e6, (7, steps, dp))
    for partnered in (False, True):
        batch = Batch(
            takes=rng.integers(-2, 7, (5, nodes), dtype=np.int32),
            masks=np.empty((0, dp), dtype=bool),
            late=None if partnered else rng.integers(-1, 7, (5, nodes), dtype=np.int32),
            partnered=partnered,
        )
        block = Block(
            slice(0, steps), group.durations.recorded_ns, group.durations.ideal_ns, values, values
        )
        arrays = ArrayReplay(program).step_ends(batch, block)
        assert np.array_equal(CompiledReplay(program).step_ends(batch, block), arrays)


@pytest.mark.slow
@jobs
@given(seeds)
def test_regular_delays_are_no_launch_delays(seed: int) -> None:
    group = prepare_replay(random_job(seed, launch_overhead=True).trace).main
    layout, rng = group.layout, np.random.default_rng(seed)
    lags = lags_of(group.graph, rng)
    delays, _ = launch_delays(with_lags(group, lags))
    for unit in group.graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            ends = [
                layout.start_ns[n] + layout.duration_ns[n] + lags.get((node, n), 0.0) for n in after
            ]
            late = layout.start_ns[node] - (np.max(ends, axis=0) if ends else 0.0)
            assert delays[node] == pytest.approx(np.where(late <= -10e6, 0.0, late), abs=1e-3)
