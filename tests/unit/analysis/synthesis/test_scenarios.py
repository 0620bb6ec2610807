from __future__ import annotations

import numpy as np
import pytest

from app.analysis.synthesis.scenarios import SCENARIOS

CAUSES = {
    "healthy": (),
    "slow-worker": ("slow_worker",),
    "stage-imbalance": ("stage_imbalance",),
    "sequence-lengths": ("sequence_length_imbalance",),
    "garbage-collection": ("garbage_collection",),
    "network": ("network",),
    "data-loading": ("data_loading",),
    "tensor-parallel": ("tensor_parallel_straggler",),
    "memory-fragmentation": ("memory_fragmentation",),
    "kernel-dependency": ("false_kernel_dependency",),
    "virtual-stages": ("slow_worker",),
    "mixture": ("stage_imbalance", "sequence_length_imbalance"),
}
OF_A_WORKER = {
    "slow-worker",
    "network",
    "tensor-parallel",
    "memory-fragmentation",
    "virtual-stages",
}


def test_the_scenarios_are_those_documented() -> None:
    assert list(SCENARIOS) == list(CAUSES)


@pytest.mark.parametrize("name", CAUSES)
@pytest.mark.parametrize("seed", [1, 2026])
def test_a_scenario_is_what_it_says(name: str, seed: int) -> None:
    session = SCENARIOS[name].synthesize(seed)

    assert session.truth.causes == CAUSES[name]
    assert len(session.trace) <= 60_000
    if name == "healthy":
        assert session.truth.slowdown == 1.0
    else:
        assert 1.1 < session.truth.slowdown < 2.0
    assert len(session.truth.workers) == (name in OF_A_WORKER)
    assert session.truth.stage == (3 if name in ("stage-imbalance", "mixture") else None)


def test_equal_seeds_give_equal_sessions_and_another_seed_another_worker() -> None:
    scenario = SCENARIOS["slow-worker"]

    assert scenario.synthesize(5).truth == scenario.synthesize(5).truth
    assert len({scenario.synthesize(seed).truth.workers for seed in range(6)}) > 1


def test_sessions_of_one_job_have_the_same_worker_at_fault() -> None:
    one, other = (SCENARIOS["slow-worker"].synthesize(seed, fault_seed=4) for seed in (0, 1))
    assert one.truth.workers == other.truth.workers
    assert not np.array_equal(one.trace.duration_ns, other.trace.duration_ns)
