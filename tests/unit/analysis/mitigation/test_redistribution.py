"""Fewer microbatches for a slow DP rank: predicted steps against the job executed with them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.diagnosis.diagnose import diagnose
from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.fixes import Redistribution
from app.analysis.mitigation.redistribution import PipelineTimes, fewest_moved, redistribute
from app.analysis.replay.fidelity import DISCREPANCY_LIMIT
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.report.document import Recommendation, Report
from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import USUAL_OP_TYPES, JobModel, Schedule
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
    Sizes,
)
from tests.referee.fixes.own import executed_s, redistributed

ACTION = "redistribute_microbatches"
JOB = JobModel(Sizes(dp=4, pp=2), microbatches=8, steps=6)
INTERLEAVED = JobModel(
    Sizes(dp=4, pp=2, vpp=2), microbatches=16, steps=6, schedule=Schedule.INTERLEAVED
)
GPIPE = replace(JOB, schedule=Schedule.GPIPE)


def advice(report: Report) -> Recommendation | None:
    """Return the recommended numbers of microbatches."""
    return next((fix for fix in report.recommendations if fix.action == ACTION), None)


def error_of(session: SyntheticSession, report: Report, fix: Recommendation) -> float:
    """Return the relative error of the predicted step time."""
    assert fix.redistribution is not None
    executed = executed_s(redistributed(session, fix.redistribution.microbatches), session)
    gain = 1 - executed / sum(session.truth.step_times_s)
    assert report.fidelity.verdict
    return (1 - fix.predicted_gain) / (1 - gain) - 1


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    dp=st.integers(2, 6),
    pp=st.integers(1, 4),
    microbatches=st.integers(4, 16),
    factor=st.floats(1.3, 2.5),
    schedule=st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE]),
    seed=st.integers(0, 999),
)
def test_the_job_executed_with_the_numbers_takes_the_predicted_time(  # noqa: PLR0917 - a job
    dp: int, pp: int, microbatches: int, factor: float, schedule: Schedule, seed: int
) -> None:
    job = JobModel(Sizes(dp=dp, pp=pp), microbatches, steps=4, schedule=schedule)
    session = synthesize(job, (SlowWorker((dp - 1, pp - 1), factor),), seed=seed)
    report = analyze(session.trace).report
    fix = advice(report)
    if fix is None:
        return
    plan = fix.redistribution
    assert plan is not None
    assert sum(plan.microbatches) == dp * microbatches
    assert 1 <= plan.microbatches[dp - 1] < microbatches
    assert abs(error_of(session, report, fix)) < 0.04


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        INTERLEAVED,
        GPIPE,
        replace(JOB, gathers_at_end=True),
        replace(JOB, op_types=USUAL_OP_TYPES | {SEPARATE_ALL_REDUCE}),
    ],
    ids=["1f1b", "interleaved", "gpipe", "gathers-at-end", "overlapped-gradients"],
)
def test_every_schedule_is_predicted(job: JobModel) -> None:
    session = synthesize(job, (SlowWorker((1, 0), 1.8),), seed=3)
    report = analyze(session.trace).report
    fix = advice(report)
    assert fix is not None
    assert fix.predicted_gain > 0.2
    assert abs(error_of(session, report, fix)) < 0.02


def test_interleaved_schedules_move_whole_groups() -> None:
    fix = advice(analyze(synthesize(INTERLEAVED, (SlowWorker((1, 0), 1.8),), seed=3).trace).report)
    assert fix is not None
    assert fix.redistribution is not None
    assert all(count % 2 == 0 for count in fix.redistribution.microbatches)


def test_memory_grows_only_where_all_forwards_come_first() -> None:
    of = {}
    for job in (JOB, GPIPE):
        fix = advice(analyze(synthesize(job, (SlowWorker((1, 0), 1.8),), seed=3).trace).report)
        assert fix is not None
        assert fix.redistribution is not None
        of[job.schedule] = fix.redistribution
    one = of[Schedule.ONE_F_ONE_B]
    assert (one.held_today, one.held) == (2, 2)
    both = of[Schedule.GPIPE]
    assert (both.held_today, both.held) == (8, max(both.microbatches))


def test_the_fix_says_the_order_and_the_line() -> None:
    report = analyze(synthesize(JOB, (SlowWorker((1, 0), 1.8),), seed=3).trace).report
    fix = advice(report)
    assert fix is not None
    (replacement,) = (one for one in report.recommendations if one.action == "replace_worker")
    assert replacement.predicted_gain > fix.predicted_gain
    assert "First redistribute" in fix.detail
    assert "replace the worker last" in fix.detail
    assert fix.redistribution is not None
    assert fix.redistribution.line in fix.detail


@pytest.mark.parametrize(
    ("job", "injections"),
    [
        (JOB, (SlowWorker((1, 0), 1.8, Spells(share=0.5)),)),
        (replace(JOB, microbatches=1), (SlowWorker((1, 0), 1.8),)),
        (replace(JOB, experts_over=2), (SlowWorker((1, 0), 1.8),)),
        (replace(JOB, sizes=Sizes(dp=1, pp=4)), (SlowWorker((0, 1), 1.8),)),
    ],
    ids=["spells", "one microbatch", "shared experts", "one rank"],
)
def test_numbers_stay_where_no_move_helps(
    job: JobModel, injections: tuple[SlowWorker, ...]
) -> None:
    assert advice(analyze(synthesize(job, injections, seed=3).trace).report) is None


@pytest.mark.parametrize("name", [PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER])
def test_numbers_stay_where_ranks_communicate_in_each_microbatch(name: str) -> None:
    trace = synthesize(replace(JOB, buckets=8), (SlowWorker((1, 0), 1.8),), seed=3).trace
    replayed = prepare_replay(trace)
    observation = Observation(trace, replayed.main)
    (cause,) = diagnose(observation, replayed, measure(replayed)).causes_within(DISCREPANCY_LIMIT)
    assert redistribute(observation, cause) is not None
    # As FSDP, which gathers parameters for each backward and reduces gradients after it.
    layout = replayed.layout
    launch = layout.launch.copy()
    launch[layout.of(name, 1)] = launch[layout.of(BACKWARD_COMPUTE, 1)] - 1.0
    fsdp = replace(replayed.main, layout=replace(layout, launch=launch))
    assert redistribute(Observation(trace, fsdp), cause) is None


@pytest.mark.parametrize("seed", range(40))
def test_no_other_numbers_end_earlier_or_move_fewer_microbatches(seed: int) -> None:
    """All numbers of microbatches of a small job are tried."""
    rng = np.random.default_rng(seed)
    ranks, today = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    slow = list(range(int(rng.integers(1, ranks))))
    each = np.ones(ranks)
    each[slow] += 2 * rng.random(len(slow))
    times = PipelineTimes(today, 1, each, np.full(ranks, 3 * rng.random()))
    every = [
        np.array(counts)
        for counts in itertools.product(range(1, ranks * today), repeat=ranks)
        if sum(counts) == ranks * today
    ]
    found = fewest_moved(times, slow)
    chosen = np.full(ranks, today) if found is None else found
    shortest = min(times.total_ns(counts).max() for counts in every)
    assert times.total_ns(chosen).max() == pytest.approx(shortest)
    as_good = [counts for counts in every if times.total_ns(counts).max() <= shortest * (1 + 1e-6)]
    moved = min(np.maximum(today - counts, 0).sum() for counts in as_good)
    assert np.maximum(today - chosen, 0).sum() == moved


def test_many_numbers_are_read_from_the_list() -> None:
    few, many = Redistribution(4, (5, 3), 1, 1), Redistribution(4, (5,) * 9 + (1,), 1, 1)
    assert few.line == "n = {0: 5, 1: 3}.get(dp_rank, 4); weight = n / 4"
    assert many.line == "n = microbatches[dp_rank]; weight = n / 4"


def test_a_healthy_job_keeps_its_numbers() -> None:
    assert advice(analyze(synthesize(JOB, seed=3).trace).report) is None


def test_the_line_weighs_each_loss_by_its_microbatches() -> None:
    fix = advice(analyze(synthesize(JOB, (SlowWorker((1, 0), 1.8),), seed=3).trace).report)
    assert fix is not None
    plan = fix.redistribution
    assert plan is not None
    weights = []
    for dp_rank in range(4):
        scope: dict[str, float] = {"dp_rank": dp_rank}
        exec(plan.line, scope)  # noqa: S102 - the line that the report recommends
        assert scope["n"] == plan.microbatches[dp_rank]
        weights.append(scope["weight"])
    # The mean over DP ranks of weighted means is the mean over all microbatches.
    of_rank = np.array([3.0, 5.0, 7.0, 11.0])
    counts = np.array(plan.microbatches)
    assert np.mean(weights * of_rank) == pytest.approx((counts * of_rank).sum() / counts.sum())
