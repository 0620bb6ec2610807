from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.computations import (
    SequenceLengths,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.injections.delays import FalseKernelDependency, SlowLink
from app.analysis.synthesis.job import USUAL_OP_TYPES, JobModel, Profiler, Schedule, stream
from app.analysis.synthesis.recording import EPOCH_NS
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.metadata import metadata_document, parse_metadata
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    FORWARD_COMPUTE,
    GRADS_REDUCE_SCATTER,
    SEPARATE_ALL_REDUCE,
    Sizes,
    Trace,
)
from tests.unit.analysis.synthesis.jobs import EXACT, rows

JOB = JobModel(sizes=Sizes(dp=2, pp=2), microbatches=4, steps=10, costs=EXACT, gpus_per_host=1)


def forwards(trace: Trace, step: int) -> int:
    return int(rows(trace, FORWARD_COMPUTE, step=step).sum())


def test_a_fault_is_there_from_its_step_on() -> None:
    session = synthesize(JOB, [SlowWorker((1, 0), 2.0, Spells(from_step=6))], seed=1)
    trace = session.trace

    steps = sorted(set(trace.step.tolist()))
    assert session.truth.steps == tuple(steps)
    assert session.truth.slow_steps == tuple(steps[6:])
    means = [
        trace.duration_ns[rows(trace, FORWARD_COMPUTE, dp=1, pp=0, step=step)].mean() / 10e6
        for step in steps
    ]
    assert means == [1.0] * 6 + [2.0] * 4


def test_an_intermittent_fault_comes_and_goes_in_spells() -> None:
    active = Spells(share=0.4, length=4.0).active(4000, stream(1, "spells"))

    assert active.mean() == pytest.approx(0.4, abs=0.06)
    starts = np.count_nonzero(np.diff(active.astype(int)) == 1)
    assert active.sum() / starts == pytest.approx(4.0, abs=0.8)
    assert all(Spells(share=0.01).active(5, stream(seed, "rare")).any() for seed in range(20))


def test_a_link_that_flaps_is_slow_in_some_steps_only() -> None:
    costs = replace(EXACT, grads_ns=5e6)
    job = replace(JOB, steps=20, costs=costs)
    trace = synthesize(job, [SlowLink((0, 1), 9.0, Spells(share=0.5))], seed=2).trace

    taken = set((trace.duration_ns[rows(trace, GRADS_REDUCE_SCATTER, dp=0, pp=1)] / 1e6).tolist())
    assert taken == {5.0, 45.0}


def test_any_stage_can_be_the_heavy_one() -> None:
    job = replace(JOB, sizes=Sizes(dp=1, pp=4))
    session = synthesize(job, [StageImbalance(2.0, 2.0, at=1)], seed=1)

    assert session.truth.stage == 1
    durations = session.trace.duration_ns
    assert (durations[rows(session.trace, FORWARD_COMPUTE, pp=1)] == 20e6).all()
    assert (durations[rows(session.trace, FORWARD_COMPUTE, pp=2)] == 10e6).all()


def test_warm_up_steps_come_first_and_are_shorter_and_evaluation_does_no_backward() -> None:
    session = synthesize(replace(JOB, warm_up_steps=2, evaluation_steps=2), seed=1)
    trace, truth = session.trace, session.truth

    steps = sorted(set(trace.step.tolist()))
    assert len(steps) == 14
    assert tuple(steps[:2]) == truth.warm_up_steps
    assert [forwards(trace, step) for step in truth.warm_up_steps] == [2 * 2 * 2] * 2
    for step in truth.evaluation_steps:
        assert steps[2] < step < steps[-1]
        assert forwards(trace, step) == 4 * 2 * 2
        assert not rows(trace, BACKWARD_COMPUTE, step=step).any()
    assert len(truth.step_times_s) == 10
    end = trace.start_ns + trace.duration_ns
    begins = [trace.start_ns[trace.step == step].min() for step in steps]
    finishes = [end[trace.step == step].max() for step in steps]
    assert all(f <= b for f, b in zip(finishes, begins[1:], strict=False))


def test_virtual_stages_warm_up_with_whole_groups_of_microbatches() -> None:
    job = replace(
        JOB, sizes=Sizes(dp=1, pp=2, vpp=2), schedule=Schedule.INTERLEAVED, microbatches=6
    )
    session = synthesize(replace(job, warm_up_steps=1, evaluation_steps=1), seed=1)

    (warm_up,), (evaluation,) = session.truth.warm_up_steps, session.truth.evaluation_steps
    assert forwards(session.trace, warm_up) == 2 * 2 * 2
    assert forwards(session.trace, evaluation) == 6 * 2 * 2


def test_clocks_of_hosts_differ_and_drift_by_what_the_truth_says() -> None:
    profiler = Profiler(clock_skew_ns=20e6, clock_drift_ppm=5.0)
    right = synthesize(JOB, seed=4).trace
    session = synthesize(replace(JOB, profiler=profiler), seed=4)
    trace, truth = session.trace, session.truth

    assert len(truth.clock_offset_ns) == 4
    for rank in range(4):
        host = trace.meta.hosts[rank]
        own = trace.rank == rank
        elapsed = right.start_ns[own] - EPOCH_NS
        expected = truth.clock_offset_ns[host] + truth.clock_rate_ppm[host] * 1e-6 * elapsed
        assert trace.start_ns[own] - right.start_ns[own] == pytest.approx(expected, abs=1)
    assert (trace.duration_ns == right.duration_ns).all()


def test_lost_operations_are_missing_and_counted() -> None:
    whole = synthesize(JOB, seed=4)
    session = synthesize(replace(JOB, profiler=Profiler(lost_share=0.02)), seed=4)

    lost = session.truth.lost_operations
    assert lost == len(whole.trace) - len(session.trace) > 0
    assert lost / len(whole.trace) == pytest.approx(0.02, abs=0.015)


def test_sequence_lengths_are_in_the_metadata_and_explain_the_times() -> None:
    job = replace(JOB, profiler=Profiler(sequence_lengths=True))
    injection = SequenceLengths(max_length=4096, fixed=0.1, linear=0.4, quadratic=2.0)
    trace = synthesize(job, [injection], seed=4).trace

    meta = parse_metadata(metadata_document(trace.meta))
    recorded = meta.extra["sequence_lengths"]
    squares, times = [], []
    for step, lanes in recorded.items():
        for dp, microbatches in enumerate(lanes):
            for mb, lengths in enumerate(microbatches):
                assert sum(lengths) == 4096
                squares.append(sum((s / 4096) ** 2 for s in lengths))
                mask = rows(trace, FORWARD_COMPUTE, dp=dp, pp=1, step=int(step))
                times.append(trace.duration_ns[mask & (trace.mb == mb)].item())
    assert np.corrcoef(squares, times)[0, 1] == pytest.approx(1.0, abs=1e-6)
    assert synthesize(JOB, [injection], seed=4).trace.meta.extra == {}


INTERLEAVED = replace(
    JOB,
    sizes=Sizes(dp=2, pp=2, vpp=2),
    schedule=Schedule.INTERLEAVED,
    op_types=USUAL_OP_TYPES | {SEPARATE_ALL_REDUCE},
    costs=replace(EXACT, grads_ns=60e6),
)


def test_a_false_dependency_holds_up_what_comes_after_a_chunk_is_reduced() -> None:
    healthy = synthesize(INTERLEAVED, seed=1)
    session = synthesize(INTERLEAVED, [FalseKernelDependency()], seed=1)
    trace = session.trace

    step = int(trace.step.min())
    scatters = rows(trace, GRADS_REDUCE_SCATTER, dp=0, pp=0, step=step) & (trace.mc == 1)
    (end,) = (trace.start_ns + trace.duration_ns)[scatters]
    backwards = rows(trace, BACKWARD_COMPUTE, dp=0, pp=0, step=step)
    assert end in trace.start_ns[backwards]
    assert session.truth.slowdown > 1.02
    computing = rows(trace, FORWARD_COMPUTE, BACKWARD_COMPUTE)
    assert (trace.duration_ns == healthy.trace.duration_ns)[computing].all()
    with pytest.raises(ValueError, match="virtual stages"):
        synthesize(JOB, [FalseKernelDependency()], seed=1)


def test_computing_during_transfers_takes_longer_by_the_contention() -> None:
    costs = replace(EXACT, params_ns=40e6)
    job = replace(INTERLEAVED, costs=costs)
    quiet = synthesize(job, seed=1).trace
    busy = synthesize(replace(job, costs=replace(costs, contention=0.5)), seed=1).trace

    longer = busy.duration_ns / np.maximum(quiet.duration_ns, 1)
    computing = rows(busy, FORWARD_COMPUTE)
    # The second chunk's parameters are gathered while the first chunk computes.
    assert longer[computing].max() == pytest.approx(1.5)
    assert (longer[rows(busy, BACKWARD_COMPUTE)] == 1).all()


def test_a_job_cannot_have_fewer_than_no_steps() -> None:
    with pytest.raises(ValueError, match="warm-up"):
        replace(JOB, warm_up_steps=-1)
