"""The predicted gain of replacing slow workers, compared with the same job without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.finding import Stalls
from app.analysis.report.build import analyze
from app.analysis.report.document import Recommendation
from app.analysis.synthesis.host_jobs import HostJob
from app.analysis.synthesis.host_sessions import run
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    MemoryFragmentation,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.injections.delays import (
    FalseKernelDependency,
    SlowDataLoading,
    SlowLink,
)
from app.analysis.synthesis.job import USUAL_OP_TYPES, CostModel, JobModel, Profiler, Schedule
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import (
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_RECV,
    FORWARD_SEND,
    SEPARATE_ALL_REDUCE,
    Sizes,
    Trace,
)

JOB = JobModel(Sizes(dp=4, pp=4), microbatches=8, steps=16)
# A job with late launches, which the replay does not model, so that it is some per cent off.
LATE = JobModel(
    Sizes(dp=6, pp=4, vpp=3),
    microbatches=8,
    steps=12,
    schedule=Schedule.INTERLEAVED,
    costs=CostModel(launch_overhead_ns=0.4e6),
)
MS = 1e6
TENSOR = JobModel(
    Sizes(dp=3, pp=2, tp=4), microbatches=8, steps=14, profiler=Profiler(tensor_ranks=True)
)
OVERLAPPED = JobModel(
    Sizes(dp=3, pp=2, vpp=2),
    microbatches=8,
    steps=12,
    schedule=Schedule.INTERLEAVED,
    op_types=USUAL_OP_TYPES | {SEPARATE_ALL_REDUCE},
    costs=CostModel(grads_ns=200 * MS),
)


def replacement(synthetic: SyntheticSession) -> tuple[Recommendation, float]:
    """Return the recommended replacement, and the relative error of its step time."""
    report = analyze(synthetic.trace).report
    (fix,) = (f for f in report.recommendations if f.action == "replace_worker")
    now_s = float(np.mean(report.step_times.simulated))
    recorded_s = float(np.mean(report.step_times.recorded))
    predicted_s = recorded_s - (now_s - fix.predicted_step_time)
    healthy_s = float(np.mean(synthetic.truth.healthy_step_times_s))
    return fix, predicted_s / healthy_s - 1


@pytest.mark.parametrize(
    "injections",
    [
        (SlowWorker((1, 2), 2.0),),
        (SlowWorker((1, 2), 2.0, Spells(share=0.5)),),
        (SlowWorker((1, 2), 2.0), SlowWorker((3, 0), 1.9), SlowWorker((0, 3), 1.8)),
    ],
)
def test_the_step_without_slow_workers_is_predicted(injections: tuple[Injection, ...]) -> None:
    _, error = replacement(synthesize(JOB, injections, seed=3))
    assert abs(error) < 0.01


def test_all_workers_that_are_called_slow_are_replaced_together() -> None:
    slow = (SlowWorker((1, 2), 2.0), SlowWorker((3, 0), 1.9))
    fix, _ = replacement(synthesize(JOB, slow, seed=3))
    assert fix.title == "Replace workers (1, 2), (3, 0)"


@pytest.mark.slow
def test_late_launches_that_a_slow_worker_hides_come_back_without_it() -> None:
    synthetic = synthesize(LATE, (SlowWorker((2, 1), 1.8),), seed=3)
    _, error = replacement(synthetic)
    assert abs(error) < 0.005
    # The prediction must contain the launches: the replay of durations alone has a larger error.
    healthy = analyze(synthesize(LATE, seed=3).trace).report
    assert healthy.fidelity.discrepancy > 0.01


def sends_from_the_exchange(trace: Trace) -> Trace:
    """Return the trace with each send recorded only once its receive is posted."""
    keys = zip(
        *(a.tolist() for a in (trace.op, trace.dp, trace.pp, trace.step, trace.mb)), strict=True
    )
    row_of = {(trace.op_names[op], *rest): row for row, (op, *rest) in enumerate(keys)}
    start_ns = trace.start_ns.copy()
    for (op, dp, pp, *rest), row in row_of.items():
        receive, to = {FORWARD_SEND: (FORWARD_RECV, 1), BACKWARD_SEND: (BACKWARD_RECV, -1)}.get(
            op, (op, 0)
        )
        start_ns[row] = max(start_ns[row], start_ns[row_of[receive, dp, pp + to, *rest]])
    duration_ns = trace.duration_ns - (start_ns - trace.start_ns)
    return replace(trace, start_ns=start_ns, duration_ns=duration_ns)


def test_a_send_recorded_from_the_exchange_on_is_not_a_late_launch() -> None:
    job = HostJob(dp=2, pp=4, microbatches=8, steps=8, wire_ns=MS, factors={(0, 2): 1.5})
    session = run(job)
    healthy_s = run(job.healthy).step_time_s
    report = analyze(sends_from_the_exchange(session.trace)).report
    first = report.recommendations[0]
    assert first.action == "replace_worker"
    saved_s = float(np.mean(report.step_times.simulated)) - first.predicted_step_time
    assert session.step_time_s - saved_s == pytest.approx(healthy_s, rel=0.01)


def test_a_replacement_brings_nothing_to_a_healthy_job() -> None:
    report = analyze(synthesize(replace(JOB, steps=8), seed=3).trace).report
    assert report.recommendations == ()


@pytest.mark.parametrize(
    ("injection", "job", "action", "title"),
    [
        (SlowLink((2, 1), 30.0), JOB, "repair_link", "Repair the link of worker (2, 1) on node-"),
        (
            SequenceLengths(),
            JOB,
            "even_microbatches",
            "Even out the sequence lengths of microbatches",
        ),
        (SlowDataLoading(200 * MS), JOB, "load_ahead", "Load batches ahead"),
        (
            FalseKernelDependency(),
            OVERLAPPED,
            "separate_kernels",
            "Keep reduce-scatters from holding up computations",
        ),
        (
            TensorParallelStraggler((2, 1), 3, 1.6),
            TENSOR,
            "replace_rank",
            f"Replace rank {TENSOR.traced_rank(2, 1, 3)} on node-",
        ),
        (
            MemoryFragmentation((2, 1), 40 * MS),
            TENSOR,
            "defragment_memory",
            "Stop the memory fragmentation of worker (2, 1) on node-",
        ),
        (SlowWorker((1, 2), 1.6), JOB, "replace_worker", "Replace worker (1, 2)"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_best_fix_of_a_cause_removes_it(
    injection: Injection, job: JobModel, action: str, title: str
) -> None:
    synthetic = synthesize(job, (injection,), seed=5)
    report = analyze(synthetic.trace).report

    best, *others = report.recommendations
    assert best.action == action
    assert best.title.startswith(title)
    # No second fix recommends the same replacement.
    replaced = [fix.action for fix in others if fix.action.startswith("replace")]
    assert replaced == []
    # The fix saves the cost of its cause.
    truth = synthetic.truth
    lost = 1 - np.mean(truth.healthy_step_times_s) / np.mean(report.step_times.recorded)
    assert best.predicted_gain == pytest.approx(lost, rel=0.2)


def test_what_removes_late_launches_is_predicted_though_there_is_no_verdict() -> None:
    synthetic = synthesize(JOB, (SlowDataLoading(300 * MS),), seed=5)
    report = analyze(synthetic.trace).report

    assert not report.fidelity.verdict
    (fix,) = report.recommendations
    healthy_s = np.mean(synthetic.truth.healthy_step_times_s)
    assert fix.predicted_step_time == pytest.approx(healthy_s, rel=0.03)
    now_s = fix.predicted_step_time / (1 - fix.predicted_gain)
    assert now_s == pytest.approx(np.mean(report.step_times.recorded), rel=0.03)


def test_planned_collections_pause_everybody_as_often_as_one_worker_stalls_now() -> None:
    synthetic = synthesize(JOB, (GarbageCollection(100 * MS, pauses=0.5),), seed=5)
    report = analyze(synthetic.trace).report

    (cause,) = report.causes
    fix = report.recommendations[0]
    assert fix.action == "plan_garbage_collection"
    # Each worker pauses in every second step on average.
    assert fix.title == "Collect garbage on all workers at once, every 2 steps"
    # All stalled forward passes take their usual time, but every second step has a pause.
    assert isinstance(cause.figure, Stalls)
    longest_s = cause.figure.longest_s
    assert longest_s > 0.1
    healthy_s = np.mean(synthetic.truth.healthy_step_times_s)
    assert fix.predicted_step_time == pytest.approx(healthy_s + longest_s / 2, rel=0.03)
    assert "as often as a worker stalls now" in fix.detail


def test_each_cause_of_a_mixture_has_its_fix() -> None:
    both = (StageImbalance(), SlowLink((2, 1), 30.0))
    report = analyze(synthesize(JOB, both, seed=5).trace).report

    fixes = report.recommendations
    assert {fix.action for fix in fixes} == {"even_stages", "repair_link"}
    assert list(fixes) == sorted(fixes, key=lambda fix: -fix.predicted_gain)


def test_a_slow_link_is_not_replaced_with_a_slow_worker() -> None:
    link = SlowLink((1, 1), 40.0)
    both = synthesize(JOB, (link, SlowWorker((1, 1), 1.6)), seed=3)
    left_s = np.mean(synthesize(JOB, (link,), seed=3).truth.step_times_s)
    fix, _ = replacement(both)
    gain = 1 - left_s / np.mean(both.truth.step_times_s)
    assert gain < 0.1
    assert fix.predicted_gain == pytest.approx(gain, abs=0.01)


def test_a_division_may_gain_more_than_an_even_one_would() -> None:
    job = JobModel(Sizes(dp=2, pp=8), microbatches=4, steps=8, layers=(16,) * 8)
    report = analyze(synthesize(job, [StageImbalance(1.8, 1.5)], seed=3).trace).report
    (fix,) = (f for f in report.recommendations if f.division is not None)
    assert not fix.at_most
    assert fix.predicted_gain > report.headline.waste + 0.03
