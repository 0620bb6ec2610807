"""The headline holds a job against itself without its causes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.headline import ERROR, Headline, HeadlineKind
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.injections.hosts import Checkpoint
from app.analysis.synthesis.injections.transfers import SlowLink
from app.analysis.trace.model import GRADS_REDUCE_SCATTER
from tests.unit.analysis.diagnosis.jobs import JOB, MS, session


def test_a_strong_straggler_is_not_underestimated() -> None:
    synthetic = session(SlowWorker((1, 0), 3.0))
    report = analyze(synthetic.trace).report
    shown = report.headline

    healthy_s = float(np.mean(synthetic.truth.healthy_step_times_s))
    truth = float(np.mean(report.step_times.simulated)) / healthy_s
    assert shown.kind == "causes"
    assert shown.slowdown == pytest.approx(truth, rel=0.03)
    assert shown.reference_step_time_s == pytest.approx(healthy_s, rel=0.03)
    assert shown.slowdown == report.diagnosis.slowdown > 1.1 * report.slowdown


@pytest.mark.parametrize(
    "injection", [Checkpoint(3, 150 * MS), SlowWorker((1, 1), 1.15)], ids=lambda one: one.cause
)
def test_what_every_healthy_job_loses_is_no_loss(injection: Injection) -> None:
    costs = replace(JOB.costs, compute_noise=0.04)
    synthetic = session(injection, job=replace(JOB, steps=24, costs=costs))
    report = analyze(synthetic.trace).report

    assert report.headline.kind == "causes"
    assert report.headline.slowdown == pytest.approx(synthetic.truth.slowdown, rel=0.003)
    assert sum(cause.contribution or 0 for cause in report.causes) == pytest.approx(1)


def test_reducing_that_is_not_recorded_is_part_of_the_steps() -> None:
    costs = replace(JOB.costs, grads_ns=400 * MS)
    job = replace(JOB, costs=costs, op_types=JOB.op_types - {GRADS_REDUCE_SCATTER})
    synthetic = session(SlowWorker((1, 0), 2.0), job=job)
    shown = analyze(synthetic.trace).report.headline

    assert shown.slowdown == pytest.approx(synthetic.truth.slowdown, rel=0.01)


def test_the_interval_needs_steps_enough_to_tell_spells_by() -> None:
    few = analyze(session(SlowWorker((1, 0), 3.0)).trace).report.headline
    assert few.ci95 is None
    assert few.ci95_reason is not None
    assert few.ci95_reason.startswith("12 steps do not tell")

    job = replace(JOB, steps=20)
    enough = analyze(session(SlowWorker((1, 0), 3.0), job=job).trace).report.headline
    assert enough.ci95_reason is None
    assert enough.ci95 is not None
    low, high = enough.ci95
    # steps are alike, so that only the headline's own error is left
    assert low == pytest.approx(enough.slowdown / (1 + ERROR), rel=0.01)
    assert high == pytest.approx(enough.slowdown * (1 + ERROR), rel=0.01)


def test_costs_are_counted_against_the_reference() -> None:
    report = analyze(session(SlowWorker((1, 0), 3.0)).trace).report
    lost_s = sum(report.step_times.simulated) - 12 * report.headline.reference_step_time_s

    assert len(report.steps.analyzed) == 12
    assert report.lost_gpu_hours == pytest.approx(report.sizes.world * lost_s / 3600, rel=1e-3)
    assert report.lost_gpu_hours_per_hour == report.sizes.world * report.headline.waste
    assert report.lost_gpu_hours > 1.1 * report.gpu_hours_lost


def test_without_a_cause_costs_are_the_published_ones() -> None:
    report = analyze(session().trace).report

    assert report.headline.waste == pytest.approx(report.waste)
    assert report.lost_gpu_hours == pytest.approx(report.gpu_hours_lost)
    assert report.lost_gpu_hours_per_hour == pytest.approx(report.gpu_hours_lost_per_hour)


def test_without_a_cause_the_headline_is_the_published_slowdown() -> None:
    report = analyze(session().trace).report

    assert report.causes == ()
    ideal_s = report.headline.reference_step_time_s
    assert ideal_s == pytest.approx(np.mean(report.step_times.ideal))
    assert report.headline == Headline(
        report.slowdown, report.slowdown_ci95, ideal_s, HeadlineKind.PUBLISHED
    )


@pytest.mark.parametrize(
    "injection",
    [SlowWorker((1, 0), 2.0), StageImbalance(), SlowLink((2, 1), 30.0)],
    ids=lambda injection: injection.cause,
)
def test_no_fix_beats_the_reference(injection: Injection) -> None:
    report = analyze(session(injection).trace).report

    assert report.recommendations
    for fix in report.recommendations:
        assert fix.predicted_step_time >= report.headline.reference_step_time_s - 1e-9
        assert fix.predicted_gain <= report.headline.waste + 1e-9
