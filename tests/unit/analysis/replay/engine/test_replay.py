"""The vectorized replay, compared with a readable one, brute force and executed jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.replay.engine.simulator import FAULT_NS
from app.analysis.replay.host_delays import delays_of, launch_delays
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from tests.oracles import replay as reference
from tests.oracles.replay import replay_step, transfer_durations
from tests.random_jobs import random_job
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)
jobs = drawn(40)


def prepared(seed: int, **how: bool) -> Replayed:
    return prepare_replay(random_job(seed, **how).trace)


def as_mapping(values: FloatArray) -> dict[tuple[int, int], float]:
    return {
        (node, dp): float(values[node, dp])
        for node in range(values.shape[0])
        for dp in range(values.shape[1])
    }


@pytest.mark.slow
@jobs
@given(seeds)
def test_durations_without_waiting_equal_the_twins(seed: int) -> None:
    replayed = prepared(seed, launch_overhead=True)
    for step in range(len(replayed.layout.steps)):
        twin = transfer_durations(replayed.layout, replayed.graph, step)
        assert as_mapping(replayed.durations.recorded_ns[:, step]) == pytest.approx(twin, abs=1e-3)


@pytest.mark.slow
@jobs
@given(seeds)
def test_recorded_durations_replay_as_the_twin_says(seed: int) -> None:
    replayed = prepared(seed, launch_overhead=True)
    simulator = replayed.simulator
    times = simulator.step_times([simulator.keep()])[0]
    for step, time_ns in enumerate(times):
        durations = as_mapping(replayed.durations.recorded_ns[:, step])
        assert time_ns == pytest.approx(
            replay_step(replayed.layout, replayed.graph, durations), rel=1e-12
        )


@pytest.mark.slow
@jobs
@given(seeds, st.booleans(), st.booleans(), st.booleans())
def test_a_job_without_launch_delays_replays_to_its_executed_times(
    seed: int,
    interleaved: bool,  # noqa: FBT001 - drawn by hypothesis
    overlap: bool,  # noqa: FBT001
    at_end: bool,  # noqa: FBT001
) -> None:
    session = random_job(seed, interleaved=interleaved, overlap=overlap, gathers_at_end=at_end)
    replayed = prepare_replay(session.trace)
    simulator = replayed.simulator
    times_s = simulator.step_times([simulator.keep()])[0] * 1e-9
    # The executor rounds all times to whole nanoseconds.
    assert times_s == pytest.approx(np.array(session.truth.step_times_s), rel=0, abs=2e-6)


@pytest.mark.slow
@jobs
@given(seeds, st.booleans())
def test_launches_are_as_late_as_the_twin_says(
    seed: int,
    faulty: bool,  # noqa: FBT001 - drawn by hypothesis
) -> None:
    replayed = prepared(seed, launch_overhead=True)
    layout = replayed.layout
    if faulty:
        layout.start_ns[:] += np.random.default_rng(seed).normal(0, 3e7, layout.dp)
    delays, clamped = launch_delays(replayed.main)
    assert (clamped > 0) <= faulty
    for step in range(len(layout.steps)):
        twin = reference.launch_delays(layout, replayed.graph, step)
        assert as_mapping(delays[:, step]) == twin


def test_delays_that_are_kept_are_those_that_are_computed() -> None:
    group = prepare_replay(random_job(5, launch_overhead=True).trace).main
    delays, _ = launch_delays(group)
    nodes = np.arange(0, len(delays), 3)

    for _ in range(2):
        assert np.array_equal(delays_of(group, nodes), delays[nodes])


@pytest.mark.slow
@jobs
@given(seeds)
def test_recorded_durations_and_all_launch_delays_replay_to_the_recording(seed: int) -> None:
    replayed = prepared(seed, launch_overhead=True)
    layout = replayed.layout
    delays, _ = launch_delays(replayed.main)
    recorded = (layout.start_ns + layout.duration_ns).max(axis=(0, 2))
    for step, time_ns in enumerate(recorded):
        twin = replay_step(
            layout,
            replayed.graph,
            as_mapping(replayed.durations.recorded_ns[:, step]),
            as_mapping(delays[:, step]),
        )
        assert time_ns == pytest.approx(twin, rel=1e-9)


@pytest.mark.slow
@jobs
@given(seeds, st.booleans())
def test_every_worker_alone_equals_a_full_replay_of_that_worker(
    seed: int,
    interleaved: bool,  # noqa: FBT001
) -> None:
    replayed = prepared(seed, launch_overhead=True, interleaved=interleaved)
    layout, simulator = replayed.layout, replayed.simulator
    by_worker, by_dp = simulator.worker_step_times()
    for dp in range(layout.dp):
        cells = np.zeros((layout.dp, layout.pp), dtype=bool)
        cells[dp] = True
        brute = simulator.step_times([simulator.keep(cells=cells)])[0]
        assert by_dp[:, dp] == pytest.approx(brute, rel=1e-12)
        for pp in range(layout.pp):
            cells = np.zeros((layout.dp, layout.pp), dtype=bool)
            cells[dp, pp] = True
            brute = simulator.step_times([simulator.keep(cells=cells)])[0]
            assert by_worker[:, dp, pp] == pytest.approx(brute, rel=1e-12)


@pytest.mark.slow
@jobs
@given(seeds)
def test_launch_delays_of_one_type_replay_as_the_twin_says(seed: int) -> None:
    replayed = prepared(seed, launch_overhead=True)
    layout = replayed.layout
    delays, _ = launch_delays(replayed.main)
    times = replayed.simulator.delayed_step_times(
        [["forward-compute"]], lambda steps: delays[:, steps]
    )[0]
    forward = layout.nodes.op == layout.codes("forward-compute")[0]
    chosen = np.where(forward[:, None, None], delays, 0.0)
    for step, time_ns in enumerate(times):
        twin = replay_step(
            layout,
            replayed.graph,
            as_mapping(replayed.durations.recorded_ns[:, step]),
            as_mapping(chosen[:, step]),
        )
        assert time_ns == pytest.approx(twin, rel=1e-12)


def test_blocks_of_steps_and_variants_do_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replayed = prepared(11, launch_overhead=True)
    simulator = replayed.simulator
    keeps = [simulator.keep(), simulator.keep(types=["forward-compute"]), simulator.keep(types=[])]
    whole, lanes = simulator.step_times(keeps), simulator.worker_step_times()
    monkeypatch.setattr("app.analysis.replay.engine.replay._BATCH_ELEMENTS", 1)
    assert np.array_equal(simulator.step_times(keeps), whole)
    assert np.array_equal(simulator.worker_step_times()[0], lanes[0])


def test_an_ideal_replay_of_all_lanes_equals_the_single_lane() -> None:
    simulator = prepared(5).simulator
    lanes = simulator.step_times([simulator.keep(types=[])])
    assert lanes == pytest.approx(np.full(lanes.shape, simulator.ideal_step_times()[0]), rel=1e-15)


def test_transfers_at_fault_count_as_instantaneous_and_are_counted() -> None:
    job = JobModel(sizes=Sizes(dp=2, pp=2), microbatches=2, steps=3)
    trace = synthesize(job, seed=1).trace
    victim = np.flatnonzero(trace.op == trace.op_names.index("params-all-gather"))[0]
    trace.duration_ns[victim] = 0
    trace.start_ns[victim] -= int(-FAULT_NS) * 4
    replayed = prepare_replay(trace)
    assert replayed.clamped == 1
    layout = replayed.layout
    step = int(np.flatnonzero(layout.steps == trace.step[victim])[0])
    twin = transfer_durations(layout, replayed.graph, step)
    assert as_mapping(replayed.durations.recorded_ns[:, step]) == pytest.approx(twin, abs=1e-3)
