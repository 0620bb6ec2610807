from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.diagnose import Diagnosis, diagnose
from app.analysis.diagnosis.observation import Observation
from app.analysis.json_text import to_json
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.job import Profiler
from app.analysis.synthesis.synthesize import SyntheticSession
from app.analysis.trace.model import Trace
from tests.random_jobs import random_job
from tests.unit.analysis.diagnosis.jobs import JOB, TENSOR, causes, diagnosed, session, where

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

MIXED = session(SlowWorker((2, 1), 1.6), GarbageCollection(120e6, pauses=0.4))


def of(trace: Trace) -> Diagnosis:
    replayed = prepare_replay(trace)
    return diagnose(Observation(trace, replayed.main), replayed, measure(replayed))


@pytest.mark.parametrize("seed", range(24))
def test_jobs_of_any_shape_and_noise_get_a_report_without_nan(seed: int) -> None:
    synthetic = random_job(
        seed,
        steps=10,
        launch_overhead=bool(seed % 2),
        interleaved=bool(seed % 3 == 0),
        overlap=bool(seed % 4 == 0),
        edge_transfers=bool(seed % 5 == 0),
    )
    report = analyze(synthetic.trace).report

    to_json(report)
    shares = [cause.contribution for cause in report.causes if cause.contribution is not None]
    assert all(share > 0 for share in shares)
    assert sum(shares) <= 1 + 1e-9


def test_durations_of_a_coarse_clock_many_of_them_zero_are_no_reason_to_fail() -> None:
    trace = session().trace
    coarse = dataclasses.replace(trace, duration_ns=trace.duration_ns // 30_000_000 * 30_000_000)

    to_json(analyze(coarse).report)


def test_a_session_twice_as_slow_in_everything_has_the_same_diagnosis() -> None:
    trace = MIXED.trace
    begin = trace.start_ns.min()
    doubled = dataclasses.replace(
        trace, start_ns=begin + 2 * (trace.start_ns - begin), duration_ns=2 * trace.duration_ns
    )
    once, twice = of(trace), of(doubled)

    assert causes(once) == causes(twice)
    assert where(once) == where(twice)
    assert twice.lost_s == pytest.approx(2 * once.lost_s)
    for one, two in zip(once.causes, twice.causes, strict=True):
        assert one.contribution == pytest.approx(two.contribution)


def test_renaming_the_dp_ranks_renames_the_worker_and_changes_nothing_else() -> None:
    trace = MIXED.trace
    dp = 3 - trace.dp
    rank = (trace.pp * 4 + dp).astype(np.int32)
    order = np.lexsort((trace.order, trace.op, trace.step, rank))
    columns = {
        name: getattr(trace, name)[order]
        for name in ("pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")
    }
    renamed = dataclasses.replace(trace, **columns, dp=dp[order], rank=rank[order])
    before, after = of(trace), of(renamed)

    assert [cause.cause for cause in before.causes] == [cause.cause for cause in after.causes]
    slow = {cause.cause: cause.where for cause in after.causes}["slow_worker"]
    assert slow.workers == ((1, 1),)
    assert after.lost_s == pytest.approx(before.lost_s)


@pytest.mark.parametrize(
    "synthetic",
    [
        session(SlowWorker((2, 1), 1.8), job=replace(JOB, warm_up_steps=3, evaluation_steps=2)),
        session(StageImbalance(), job=replace(JOB, warm_up_steps=3, evaluation_steps=2)),
        session(SequenceLengths(), job=replace(JOB, evaluation_steps=2)),
        session(TensorParallelStraggler((2, 1), 1, 1.7), job=replace(TENSOR, evaluation_steps=2)),
    ],
    ids=lambda synthetic: synthetic.truth.causes[0],
)
def test_warm_up_and_evaluation_steps_do_not_disturb(synthetic: SyntheticSession) -> None:
    assert causes(diagnosed(synthetic))[0] == synthetic.truth.causes[0]


def test_tensor_ranks_with_lost_records_still_show_the_straggler() -> None:
    lossy = Profiler(tensor_ranks=True)
    synthetic = session(
        TensorParallelStraggler((2, 1), 1, 1.7), job=replace(TENSOR, profiler=lossy)
    )
    trace = synthetic.trace
    tensor = trace.op >= trace.op_names.index("tp-all-gather")
    lost = tensor & (np.random.default_rng(1).random(len(trace)) < 0.01)
    kept = {
        column.name: getattr(trace, column.name)[~lost]
        for column in dataclasses.fields(trace)
        if isinstance(getattr(trace, column.name), np.ndarray)
    }
    diagnosis = of(dataclasses.replace(trace, **kept))

    assert causes(diagnosis) == ["tensor_parallel_straggler"]
    assert where(diagnosis).ranks == (TENSOR.traced_rank(2, 1, 1),)
