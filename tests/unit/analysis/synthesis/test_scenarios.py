from __future__ import annotations

import numpy as np
import pytest

from app.analysis.report.build import analyze
from app.analysis.synthesis.host_sessions import HOST_SCENARIOS
from app.analysis.synthesis.scenarios import ALL_SCENARIOS, RECORDINGS, SCENARIOS

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

# Causes between steps, which make no step longer.
BETWEEN_STEPS = ("standstills", "evaluations")
CAUSES = {
    "healthy": (),
    "slow-worker": ("slow_worker",),
    "hot-device": ("thermal_throttling",),
    "uneven-microbatches": ("uneven_microbatches",),
    "slow-together": ("slow_together",),
    "rotating": ("rotating",),
    "stage-imbalance": ("stage_imbalance",),
    "sequence-lengths": ("sequence_length_imbalance",),
    "garbage-collection": ("garbage_collection",),
    "network": ("network",),
    "congestion": ("network_congestion",),
    "data-loading": ("data_loading",),
    "checkpoints": ("checkpoint",),
    "standstills": ("between_steps",),
    "evaluations": ("evaluation",),
    "slow-launching": ("host_overhead",),
    "tensor-parallel": ("tensor_parallel_straggler",),
    "context-parallel": ("context_parallel_straggler",),
    "experts": ("expert_parallel_imbalance",),
    "memory-fragmentation": ("memory_fragmentation",),
    "kernel-dependency": ("false_kernel_dependency",),
    "virtual-stages": ("slow_worker",),
    "mixture": ("stage_imbalance", "sequence_length_imbalance"),
}
HARD_TO_READ = {
    "skewed-clocks": ("slow_worker",),
    "lossy-recorder": ("stage_imbalance",),
    "warm-up-and-evaluation": ("slow_worker",),
}
# Ways of execution, and the adaptation of the replay to each.
AS_HOSTS_RUN = {
    "blocking-transfers": "blocking_transfers",
    "windowed-transfers": None,
    "overlapping-steps": "overlapping_steps",
    "nested-gathers": "nested_collectives",
    "nested-collections": "nested_gc",
    "late-ends": "late_ends",
    "handover-delays": "regular_delays",
    "v-shaped": "v_shaped_placement",
}
OF_A_WORKER = {
    "hot-device",
    "slow-worker",
    "network",
    "tensor-parallel",
    "context-parallel",
    "uneven-microbatches",
    "memory-fragmentation",
    "virtual-stages",
    "skewed-clocks",
    "warm-up-and-evaluation",
}
HEAVY_LAST_STAGE = {"stage-imbalance", "mixture", "lossy-recorder"}


def test_the_scenarios_are_those_documented() -> None:
    assert list(SCENARIOS) == list(CAUSES)
    assert list(RECORDINGS) == list(HARD_TO_READ)
    assert list(HOST_SCENARIOS) == list(AS_HOSTS_RUN)
    assert list(ALL_SCENARIOS) == [*CAUSES, *HARD_TO_READ, *AS_HOSTS_RUN]


@pytest.mark.parametrize("name", [*CAUSES, *HARD_TO_READ])
@pytest.mark.parametrize("seed", [1, 2026])
def test_a_scenario_shows_its_declared_cause(name: str, seed: int) -> None:
    session = ALL_SCENARIOS[name].synthesize(seed)

    assert session.truth.causes == {**CAUSES, **HARD_TO_READ}[name]
    assert len(session.trace) <= 60_000
    if name == "healthy":
        assert session.truth.slowdown == 1.0
    elif name in BETWEEN_STEPS:
        assert session.truth.slowdown == pytest.approx(1.0, abs=0.001)
        assert 1.1 < session.truth.turn_slowdown < 2.5
    else:
        assert 1.1 < session.truth.slowdown < 2.0
    assert len(session.truth.workers) == (2 if name == "slow-launching" else name in OF_A_WORKER)
    assert session.truth.stage == (3 if name in HEAVY_LAST_STAGE else None)


@pytest.mark.parametrize("name", AS_HOSTS_RUN)
def test_a_job_as_its_hosts_run_it_gets_its_adaptation_and_the_right_verdict(name: str) -> None:
    session = HOST_SCENARIOS[name].synthesize(4)
    report = analyze(session.trace).report
    (cause,) = report.causes
    collects = name == "nested-collections"

    assert len(session.trace) <= 60_000
    assert 1.1 < session.truth.slowdown < 2.0
    made = [item.adaptation for item in report.fidelity.adaptations]
    assert made == [name for name in [AS_HOSTS_RUN[name]] if name]
    # Receives that are posted ahead are not in the model, and have little effect.
    assert report.fidelity.discrepancy < (0.01 if made else 0.02)
    assert cause.cause == ("garbage_collection" if collects else "slow_worker")
    assert cause.where.workers == session.truth.workers
    assert report.headline.slowdown == pytest.approx(session.truth.slowdown, rel=0.03)


def test_equal_seeds_give_equal_sessions_and_another_seed_another_worker() -> None:
    scenario = SCENARIOS["slow-worker"]

    assert scenario.synthesize(5).truth == scenario.synthesize(5).truth
    assert len({scenario.synthesize(seed).truth.workers for seed in range(6)}) > 1


def test_sessions_of_one_job_have_the_same_worker_at_fault() -> None:
    one, other = (SCENARIOS["slow-worker"].synthesize(seed, fault_seed=4) for seed in (0, 1))
    assert one.truth.workers == other.truth.workers
    assert not np.array_equal(one.trace.duration_ns, other.trace.duration_ns)


@pytest.mark.parametrize("name", HARD_TO_READ)
def test_the_cause_is_found_in_what_is_hard_to_read(name: str) -> None:
    session = RECORDINGS[name].synthesize(3)
    (cause,) = analyze(session.trace).report.causes
    assert cause.cause == HARD_TO_READ[name][0]
    assert cause.where.workers == tuple(session.truth.workers)


def test_skewed_clocks_are_apart_and_drift() -> None:
    session = RECORDINGS["skewed-clocks"].synthesize(3)
    offsets, rates = session.truth.clock_offset_ns, session.truth.clock_rate_ppm
    assert set(offsets) == set(rates) == set(session.trace.meta.hosts.values())
    assert 10e6 < np.std(list(offsets.values())) < 40e6
    assert 25 < np.std(list(rates.values())) < 100
    assert not session.trace.step_relative
    assert analyze(session.trace).report.clocks.aligned


def test_a_lossy_recorder_loses_one_operation_in_a_hundred() -> None:
    session = RECORDINGS["lossy-recorder"].synthesize(3)
    lost = session.truth.lost_operations
    assert lost / (len(session.trace) + lost) == pytest.approx(0.01, abs=0.003)
    recreated = analyze(session.trace).report.coverage.recreated.operations
    # Operations that only some steps have are not re-created.
    assert 0.95 * lost < recreated <= lost


def test_warm_up_and_evaluation_are_left_out_by_name() -> None:
    session = RECORDINGS["warm-up-and-evaluation"].synthesize(3)
    truth, dropped = session.truth, analyze(session.trace).report.steps.dropped
    reasons = {entry.step: entry.reason.split(":")[0] for entry in dropped}
    assert reasons == {
        **dict.fromkeys(truth.warm_up_steps, "warm-up"),
        **dict.fromkeys(truth.evaluation_steps, "evaluation"),
    }
    assert (len(truth.warm_up_steps), len(truth.evaluation_steps)) == (3, 2)
