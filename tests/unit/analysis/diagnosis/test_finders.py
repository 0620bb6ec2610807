"""Finders on their own: each takes an observation and says what it sees, or nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.data_loading import find_data_loading, first_delays
from app.analysis.diagnosis.causes.garbage_collection import find_garbage_collection
from app.analysis.diagnosis.causes.kernel_dependency import held_up
from app.analysis.diagnosis.causes.network import find_network
from app.analysis.diagnosis.causes.sequence_lengths import find_sequence_lengths
from app.analysis.diagnosis.causes.slow_worker import find_slow_workers
from app.analysis.diagnosis.causes.stage_imbalance import find_stage_imbalance
from app.analysis.diagnosis.causes.tensor_ranks import (
    find_tensor_ranks,
    has_tensor_ranks,
    measure_waits,
)
from app.analysis.diagnosis.confidence import confidence
from app.analysis.diagnosis.observation import (
    lower_median,
    peers_median,
    sample,
    scatter_of_most,
    spread,
)
from app.analysis.diagnosis.places import Where
from app.analysis.diagnosis.usual import take_apart
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.injections.transfers import (
    FalseKernelDependency,
    SlowDataLoading,
    SlowLink,
)
from tests.unit.analysis.diagnosis.jobs import INTERLEAVED, JOB, MS, TENSOR, observe, session

HEALTHY = observe(session())


def test_nothing_is_found_in_a_healthy_job() -> None:
    usual = take_apart(HEALTHY.passes)

    assert find_slow_workers(HEALTHY, usual.worker) is None
    assert find_stage_imbalance(HEALTHY) is None
    assert find_sequence_lengths(HEALTHY, usual) is None
    assert find_garbage_collection(HEALTHY, usual) is None
    assert find_network(HEALTHY) is None
    assert find_data_loading(HEALTHY, first_delays(HEALTHY), 1e9) is None
    assert held_up(HEALTHY) == {}
    assert not has_tensor_ranks(HEALTHY.trace)


def test_a_slow_worker_without_it_computes_like_its_peers() -> None:
    observation = observe(session(SlowWorker((2, 1), 1.6)))
    finding = find_slow_workers(observation, take_apart(observation.passes).worker)

    assert finding is not None
    nodes = observation.passes["backward-compute"].nodes[1]
    for node in nodes.tolist():
        times = observation.recorded_ns[node] * finding.change.times[node]
        assert times[:, 2] == pytest.approx(times[:, [0, 1, 3]].mean(axis=1), rel=0.1)
        assert (finding.change.times[node][:, [0, 1, 3]] == 1).all()


def test_even_stages_keep_the_total_work() -> None:
    observation = observe(session(StageImbalance()))
    finding = find_stage_imbalance(observation)

    assert finding is not None
    assert finding.where == Where(stage=3)
    nodes = observation.passes["forward-compute"].nodes
    before = observation.recorded_ns[nodes].sum()
    after = sum(
        (observation.recorded_ns[node] * finding.change.times[node]).sum()
        for node in nodes.ravel().tolist()
    )
    assert after == pytest.approx(before, rel=0.01)


def test_even_microbatches_take_the_same_time_on_all_dp_ranks() -> None:
    observation = observe(session(SequenceLengths()))
    finding = find_sequence_lengths(observation, take_apart(observation.passes))

    assert finding is not None
    for nodes in observation.passes["backward-compute"].nodes:
        factors = np.stack([finding.change.times[node] for node in nodes.tolist()])
        times = observation.recorded_ns[nodes] * factors
        assert times.std() / times.mean() < 0.05
        assert times.mean() == pytest.approx(observation.recorded_ns[nodes].mean(), rel=0.05)


def test_stalls_are_as_long_as_the_pauses_were() -> None:
    observation = observe(session(GarbageCollection(100 * MS, pauses=0.5)))
    finding = find_garbage_collection(observation, take_apart(observation.passes))

    assert finding is not None
    stalls = np.concatenate([less[less > 0] for less in finding.change.less_ns.values()])
    assert np.mean(stalls) == pytest.approx(100 * MS, rel=0.1)


def test_slow_links_without_the_fault_take_the_median_of_their_type() -> None:
    observation = observe(session(SlowLink((2, 1), 30.0)))
    finding = find_network(observation)

    assert finding is not None
    assert finding.where.workers == ((2, 1),)
    ideal = observation.group.durations.ideal_ns
    for node, transfer in finding.change.transfers_ns.items():
        finite = transfer[np.isfinite(transfer)]
        assert (finite == ideal[node]).all()


def test_late_first_operations_are_as_late_as_the_batch() -> None:
    observation = observe(session(SlowDataLoading(200 * MS)))

    delays = first_delays(observation)
    assert len(delays) == JOB.sizes.pp
    assert np.mean(list(delays.values())) == pytest.approx(200 * MS, rel=0.3)


def test_computations_held_up_by_a_reduce_scatter_are_named_with_their_wait() -> None:
    observation = observe(session(FalseKernelDependency(), job=INTERLEAVED))

    held = held_up(observation)
    nodes = observation.layout.nodes
    assert {int(nodes.op[node]) for node in held} == {
        observation.layout.op_names.index("backward-compute")
    }
    assert held_up(observe(session(job=INTERLEAVED))) == {}


def test_a_group_waits_for_its_straggler_as_long_as_it_is_slower() -> None:
    observation = observe(session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR))

    waits = {wait.cell: wait for wait in measure_waits(observation)}
    assert len(waits) == 6
    assert set(waits[2, 1].last.tolist()) == {3}
    slow, fast = waits[2, 1].wait_ns.mean(), waits[0, 0].wait_ns.mean()
    assert slow > 10 * fast
    (finding,) = find_tensor_ranks(observation, list(waits.values()))
    total = sum(float(less.sum()) for less in finding.change.less_ns.values())
    assert total == pytest.approx(waits[2, 1].wait_ns.sum())


def test_an_explained_time_is_not_judged_again() -> None:
    observation = observe(session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR))
    (finding,) = find_tensor_ranks(observation, measure_waits(observation))
    explained = replace(observation, less_ns=finding.change.less_ns)

    assert find_slow_workers(observation, take_apart(observation.passes).worker) is not None
    assert find_slow_workers(explained, take_apart(explained.passes).worker) is None


def test_the_lower_median_is_not_moved_by_one_of_two() -> None:
    assert lower_median(np.array([[1.0], [9.0]]), axis=0).tolist() == [1.0]
    assert lower_median(np.array([3.0, 1.0, 2.0]), axis=0) == 2.0


def test_peers_are_the_others() -> None:
    assert peers_median(np.array([1.0, 2.0, 9.0])).tolist() == [5.5, 5.0, 1.5]
    assert peers_median(np.array([4.0])).tolist() == [4.0]


def test_scatter_is_that_of_the_usual_values_even_if_half_are_at_fault() -> None:
    usual = np.random.default_rng(1).normal(1.0, 0.01, 4000)

    assert scatter_of_most(usual) == pytest.approx(0.01, rel=0.1)
    assert scatter_of_most(np.concatenate([usual, usual[:1900] + 2])) < 0.03
    assert scatter_of_most(np.array([1.0, 3.0])) == 0.0


def test_scatter_of_a_sample_is_that_of_the_whole() -> None:
    values = np.random.default_rng(1).normal(5.0, 0.3, (400, 1000))

    assert sample(values).size < values.size / 5
    assert spread(values) == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize(
    ("cost", "expected"), [([0.1] * 10, 0.94), ([0.0] * 10, 0.0), ([0.4] + [0.0] * 9, 0.55)]
)
def test_confidence_is_low_where_few_steps_carry_the_cost(
    cost: list[float], expected: float
) -> None:
    sure = confidence(np.array(cost), np.ones(len(cost)), lost_s=0.16)

    assert sure == pytest.approx(expected, abs=0.1)
