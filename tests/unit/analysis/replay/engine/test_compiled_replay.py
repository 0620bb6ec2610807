"""The compiled replay, compared bit for bit with the implementation in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.loops import COMPILED_FROM
from app.analysis.replay.engine.compiled_replay import CompiledReplay, replay_lanes
from app.analysis.replay.engine.executors import executor_for
from app.analysis.replay.engine.replay import (
    FIRST_MASK,
    ON_TIME,
    RECORDED,
    ArrayReplay,
    Batch,
    Block,
    Executor,
)
from app.analysis.replay.engine.simulator import Simulator
from app.analysis.replay.session import prepare_replay
from tests.random_jobs import random_job
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)
jobs = drawn(40)


@pytest.mark.slow
@jobs
@given(seeds, st.booleans(), st.booleans())
def test_any_variants_end_alike(seed: int, late: bool, partnered: bool) -> None:  # noqa: FBT001
    group = prepare_replay(random_job(seed, launch_overhead=True).trace).main
    rng = np.random.default_rng(seed)
    nodes, steps, dp = group.durations.recorded_ns.shape
    variants, rows, masks = 5, 7, 3
    steps_of_block = slice(steps // 2, steps)
    shape = (rows, steps - steps // 2, dp)
    batch = Batch(
        takes=rng.integers(FIRST_MASK - masks + 1, rows, (variants, nodes), dtype=np.int32),
        masks=rng.random((masks, dp)) < 0.5,
        late=rng.integers(ON_TIME, rows, (variants, nodes), dtype=np.int32)
        if late and not partnered
        else None,
        partnered=partnered,
    )
    block = Block(
        steps_of_block,
        group.durations.recorded_ns,
        group.durations.ideal_ns,
        rng.normal(1e6, 1e6, shape),
        rng.normal(0, 1e6, shape),
    )
    program = group.simulator.executor.program
    arrays = ArrayReplay(program).step_ends(batch, block)

    assert np.array_equal(CompiledReplay(program).step_ends(batch, block), arrays)


@pytest.mark.slow
@jobs
@given(seeds)
def test_the_metrics_replays_are_alike(seed: int) -> None:
    group = prepare_replay(random_job(seed, launch_overhead=True).trace).main
    program = group.simulator.executor.program

    def lanes(executor: Executor) -> tuple[np.ndarray, ...]:
        simulator = Simulator(group.layout, group.durations, executor)
        cells = np.zeros((group.layout.dp, group.layout.pp), dtype=bool)
        cells[0] = True
        keeps = [simulator.keep(), simulator.keep(types=[]), simulator.keep(cells=cells)]
        return simulator.step_times(keeps), *simulator.worker_step_times()

    for one, other in zip(lanes(ArrayReplay(program)), lanes(CompiledReplay(program)), strict=True):
        assert np.array_equal(one, other)


def test_large_sessions_are_replayed_by_the_compiled_executor() -> None:
    group = prepare_replay(random_job(3).trace).main
    program = group.simulator.executor.program

    assert isinstance(executor_for(program, COMPILED_FROM), CompiledReplay)


def test_whatever_the_layout_of_arrays_the_loops_are_compiled_once() -> None:
    group = prepare_replay(random_job(3).trace).main
    nodes, steps, dp = group.durations.recorded_ns.shape
    executor = CompiledReplay(group.simulator.executor.program)
    plain = Batch(np.full((2, nodes), RECORDED, dtype=np.int32), np.empty((0, dp), dtype=bool))
    transposed = np.full((nodes, 2), RECORDED, dtype=np.int32).T
    repeated = np.broadcast_to(np.int32(ON_TIME), (2, nodes))
    sliced = np.ones((1, 2 * steps, dp))[:, ::2]

    ends = [
        executor.step_ends(
            batch,
            Block(
                slice(0, steps), group.durations.recorded_ns, group.durations.ideal_ns, rows, rows
            ),
        )
        for batch in (plain, replace(plain, takes=transposed, late=repeated))
        for rows in (np.ones((1, steps, dp)), sliced)
    ]

    assert all(np.array_equal(one, ends[0]) for one in ends)
    assert len(replay_lanes.signatures) == 1  # type: ignore[attr-defined]
