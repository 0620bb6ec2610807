from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.slow_worker import SLOW_WORKER
from app.analysis.diagnosis.causes.thermal_throttling import THERMAL_THROTTLING
from app.analysis.diagnosis.observation import Explained
from app.analysis.diagnosis.session_view import Signs
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    SlowWorker,
    TensorParallelStraggler,
    ThermalThrottling,
)
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import SyntheticSession
from tests.unit.analysis.diagnosis.jobs import (
    INTERLEAVED,
    JOB,
    ONE_RANK,
    ONE_STAGE,
    TENSOR,
    causes,
    check_named_alone,
    diagnosed,
    evidence,
    found,
    session,
    signs_of,
    where,
)

LONG = replace(JOB, steps=24)
HOT = ThermalThrottling((2, 1), 1.9, 10, 3)


@pytest.mark.parametrize(
    "job",
    [LONG, replace(LONG, sizes=ONE_STAGE.sizes), replace(INTERLEAVED, steps=20)],
    ids=["stages", "one stage", "virtual stages"],
)
def test_it_is_named_alone_with_its_worker_and_most_of_the_lost_time(job: JobModel) -> None:
    check_named_alone(replace(HOT, worker=(2, 0)), job)


@pytest.mark.parametrize(
    "slow",
    [
        SlowWorker((2, 1), 1.7),
        SlowWorker((2, 1), 1.7, Spells(from_step=9)),
        SlowWorker((2, 1), 1.9, Spells(share=0.5)),
    ],
    ids=["always", "since a step", "by spells"],
)
def test_a_worker_of_one_or_two_speeds_is_slow_and_not_hot(slow: Injection) -> None:
    assert THERMAL_THROTTLING.find(signs_of(session(slow, job=LONG))) is None
    assert causes(diagnosed(session(slow, job=LONG))) == ["slow_worker"]


def with_speeds(factor: FloatArray) -> Signs:
    """Return the signs of a job with a worker that takes `factor` times as long in each step."""
    synthetic = session(job=replace(JOB, steps=len(factor)))
    trace = synthetic.trace
    mine = (trace.dp == 2) & (trace.pp == 1) & (trace.op <= 1)
    of_step = factor[np.searchsorted(np.unique(trace.step), trace.step)]
    duration_ns = np.where(mine, trace.duration_ns * of_step, trace.duration_ns)
    changed = replace(trace, duration_ns=duration_ns.astype(np.int64))
    return signs_of(replace(synthetic, trace=changed))


def test_a_worker_whose_speed_is_another_in_each_step_is_slow_and_not_hot() -> None:
    signs = with_speeds(np.random.default_rng(3).uniform(1.2, 2.2, LONG.steps))

    assert THERMAL_THROTTLING.find(signs) is None
    assert SLOW_WORKER.find(signs) is not None


@pytest.mark.parametrize("seed", range(5))
def test_random_changes_of_a_very_slow_worker_are_no_heat(seed: int) -> None:
    scatter = np.random.default_rng(seed).normal(0, 0.01, 36)

    assert THERMAL_THROTTLING.find(with_speeds(5 * (1 + scatter))) is None


@pytest.mark.parametrize("seed", range(5))
def test_heat_of_many_small_changes_is_found_by_all_of_them_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    wave = np.sin(2 * np.pi * (np.arange(40) / 26 + rng.random()))

    assert THERMAL_THROTTLING.find(with_speeds(1.2 + 0.16 * wave + rng.normal(0, 0.012, 40)))


def test_a_device_nears_its_heat_ever_more_slowly() -> None:
    nearing = 1 + 0.6 * (1 - np.exp(-np.arange(6) / 1.1))
    cycle = np.concatenate([nearing, [1.05]])

    assert THERMAL_THROTTLING.find(with_speeds(np.tile(cycle, 2)))


def test_nothing_is_found_in_a_healthy_job_nor_in_a_single_worker() -> None:
    assert THERMAL_THROTTLING.find(signs_of(session(job=LONG))) is None
    alone = replace(ONE_RANK, sizes=replace(ONE_RANK.sizes, pp=1), steps=24)
    assert (
        THERMAL_THROTTLING.find(signs_of(session(replace(HOT, worker=(0, 0)), job=alone))) is None
    )


def test_with_one_dp_rank_a_worker_is_held_against_its_own_coolest_step() -> None:
    job = replace(ONE_RANK, steps=24)
    synthetic = session(replace(HOT, worker=(0, 1)), job=job)
    diagnosis = diagnosed(synthetic)

    assert causes(diagnosis) == ["thermal_throttling"]
    assert where(diagnosis).workers == ((0, 1),)
    assert "× its own coolest step in step" in evidence(diagnosis)
    assert diagnosis.slowdown == pytest.approx(synthetic.truth.slowdown, rel=0.05)
    assert THERMAL_THROTTLING.find(signs_of(session(job=job))) is None


def test_a_drift_on_all_workers_is_no_heat() -> None:
    everywhere = [replace(HOT, worker=(0, pp)) for pp in range(4)]
    signs = signs_of(session(*everywhere, job=replace(ONE_RANK, steps=24)))

    assert THERMAL_THROTTLING.find(signs) is None


def test_a_hot_and_a_slow_worker_are_two_causes() -> None:
    diagnosis = diagnosed(session(HOT, SlowWorker((0, 3), 1.5), job=LONG))
    by_name = {cause.cause: cause for cause in diagnosis.causes}

    assert by_name["thermal_throttling"].where.workers == ((2, 1),)
    assert by_name["slow_worker"].where.workers == ((0, 3),)


def test_time_of_heat_is_no_slow_worker() -> None:
    signs = signs_of(session(HOT, job=LONG))
    finding = found(THERMAL_THROTTLING, signs)

    assert SLOW_WORKER.find(signs) is not None
    assert SLOW_WORKER.find(signs.net_of(Explained(finding.change.less_ns))) is None


def test_what_a_tensor_parallel_rank_costs_is_taken_off_before() -> None:
    job = replace(TENSOR, sizes=replace(TENSOR.sizes, dp=4), steps=24)
    late = TensorParallelStraggler((2, 1), 3, 1.5)
    diagnosis = diagnosed(session(late, HOT, job=job))

    assert sorted(causes(diagnosis)) == ["tensor_parallel_straggler", "thermal_throttling"]


def test_it_is_said_how_it_grows_and_what_cools_it() -> None:
    synthetic = session(HOT, job=LONG)
    report = analyze(synthetic.trace).report

    assert "slows down over several steps, up to 1.9×, as when hot" in report.verdict.sentence
    assert "and in between in" in evidence(diagnosed(synthetic))
    assert report.recommendations[0].title.startswith("Cool worker (2, 1)")


def test_a_hot_host_is_named() -> None:
    job = replace(LONG, sizes=replace(LONG.sizes, tp=4))
    hot = (HOT, replace(HOT, worker=(3, 1)))
    diagnosis = diagnosed(session(*hot, job=job))
    host = session(*hot, job=job).trace.meta.hosts[job.traced_rank(2, 1)]

    assert set(where(diagnosis).workers) == {(2, 1), (3, 1)}
    assert f"They are all workers of {host}" in evidence(diagnosis)


def on_end(synthetic: SyntheticSession) -> SyntheticSession:
    """Return a session of consecutive steps without gaps."""
    trace = synthetic.trace
    step = np.unique(trace.step, return_inverse=True)[1].astype(trace.step.dtype)
    return replace(synthetic, trace=replace(trace, step=step))


def test_its_cycle_is_named_if_seen_twice() -> None:
    long = signs_of(on_end(session(HOT, job=LONG)))
    short = signs_of(on_end(session(HOT, job=replace(LONG, steps=11))))

    assert found(THERMAL_THROTTLING, long).uncertainty.cycle == pytest.approx(HOT.period, abs=1)
    assert found(THERMAL_THROTTLING, short).uncertainty.cycle is None


def test_steps_with_gaps_do_not_tell_its_cycle() -> None:
    synthetic = session(HOT, job=LONG)

    assert (np.diff(np.unique(synthetic.trace.step)) > 1).any()
    assert found(THERMAL_THROTTLING, signs_of(synthetic)).uncertainty.cycle is None


def test_its_interval_is_that_of_cycles() -> None:
    synthetic = on_end(session(HOT, job=LONG))
    headline = analyze(synthetic.trace).report.headline

    assert headline.ci95 is not None
    low, high = headline.ci95
    assert low < synthetic.truth.slowdown < high
    assert high - low < 0.1 * headline.slowdown
