"""The headline compares a job with the same job without its causes."""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from typing import Any

import numpy as np
import pytest

from app.analysis.diagnosis.finding import Judged, Uncertainty
from app.analysis.diagnosis.headline import (
    THRESHOLDS,
    Headline,
    HeadlineKind,
    interval_of,
)
from app.analysis.replay.confidence import spread_by_blocks
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.injections.delays import Checkpoint, SlowLink
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
def test_the_usual_loss_of_healthy_jobs_is_no_loss(injection: Injection) -> None:
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
    assert few.ci95_reason.endswith("these are 12")

    job = replace(JOB, steps=20)
    enough = analyze(session(SlowWorker((1, 0), 3.0), job=job).trace).report.headline
    assert enough.ci95_reason is None
    assert enough.ci95 is not None
    low, high = enough.ci95
    assert low < enough.slowdown < high


def half_widths(judged: Judged) -> tuple[float, float]:
    """Return the distances of the interval's ends below and above the slowdown, as logarithms."""
    found = interval_of(judged)
    assert found is not None
    slowdown = judged.steps_s.mean() / judged.reference_s.mean()
    return float(np.log(slowdown / found[0])), float(np.log(found[1] / slowdown))


def alike(**changes: Any) -> Judged:  # noqa: ANN401 - fields of Judged
    """Return identical steps, twice as long as without their causes."""
    known = Judged(np.full(24, 2.0), np.full(24, 1.0), unknown_share=0.0, recorded_s=2.0)
    return replace(known, **changes)


def test_what_is_not_known_of_the_healthy_job_widens_the_interval_to_both_sides() -> None:
    assert half_widths(alike()) == pytest.approx((THRESHOLDS.model, THRESHOLDS.model))
    assert half_widths(alike(uncertainty=Uncertainty(0.01))) == pytest.approx(
        (0.01, 0.01), rel=0.01
    )


def test_what_healthy_jobs_do_too_makes_the_slowdown_less_and_never_more() -> None:
    below, above = half_widths(alike(uncertainty=Uncertainty(0.003, 0.004)))

    assert above == pytest.approx(0.003, rel=0.1)
    assert below == pytest.approx(0.005, rel=0.1)


def test_no_job_is_faster_with_its_causes_than_without() -> None:
    spells = np.where(np.arange(24) < 4, 3.0, 1.0)
    found = interval_of(alike(steps_s=spells, recorded_s=spells.mean()))

    assert found is not None
    assert found[0] == 1
    assert found[1] > spells.mean()


def test_no_interval_is_narrower_than_what_drawing_steps_anew_gives() -> None:
    steps_s = np.random.default_rng(5).uniform(1.5, 2.5, 24)
    drawn = spread_by_blocks(steps_s, np.ones(24))
    assert drawn is not None

    for changes in (
        {},
        {"uncertainty": Uncertainty(0.02)},
        {"recorded_s": 2.1},
        {"recorded_s": 1.9},
    ):
        judged = alike(steps_s=steps_s, **({"recorded_s": steps_s.mean()} | changes))
        for half, least in zip(half_widths(judged), drawn, strict=True):
            assert half >= least


def test_launches_that_are_late_anyhow_would_make_the_slowdown_less() -> None:
    below, above = half_widths(alike(recorded_s=2.04))

    assert above == pytest.approx(THRESHOLDS.model)
    # 0.04 s are added to 1 s, a slowdown of 2.04 / 1.04; `hidden` times as much more may be hidden.
    assert below > np.log(2 / (2.04 / 1.04))
    assert below == pytest.approx(np.log(2 / (2.04 / 1.04)) + THRESHOLDS.hidden * 0.04, abs=1e-3)


def test_a_cause_hides_late_launches_of_the_workers_that_it_keeps_waiting() -> None:
    stays = float(np.log(2 / (2.04 / 1.04)))
    for hiding in (0.0, 0.5, 1.0):
        below, _ = half_widths(alike(recorded_s=2.04, uncertainty=Uncertainty(hiding=hiding)))
        assert below == pytest.approx(
            stays + hypot(THRESHOLDS.model, THRESHOLDS.hidden * hiding * 0.04)
        )


def test_what_is_late_where_hosts_wait_for_transfers_may_be_late_because_of_the_causes() -> None:
    late = alike(recorded_s=2.04)
    _, above = half_widths(late)
    below_waiting, above_waiting = half_widths(replace(late, hosts_wait=True))

    # All or nothing of it: 0.04 s of the second that a step takes without the causes.
    assert above_waiting == pytest.approx(hypot(above, 0.04))
    assert below_waiting == half_widths(late)[0]
    in_time = alike(recorded_s=2.0)
    assert half_widths(replace(in_time, hosts_wait=True)) == half_widths(in_time)


def test_a_recording_that_is_shorter_than_its_replay_may_be_slowed_down_more() -> None:
    below, above = half_widths(alike(recorded_s=1.98))

    assert below == pytest.approx(THRESHOLDS.model)
    assert above == pytest.approx(THRESHOLDS.hidden * 0.02, rel=0.01)


def test_a_replay_off_by_the_most_that_is_believed_has_an_interval() -> None:
    for recorded_s in (1.9, 2.1):
        found = interval_of(alike(reference_s=np.full(24, 0.05), recorded_s=recorded_s))
        assert found is not None
        assert 0 < found[0] < 40 < found[1] < np.inf


def test_steps_that_compute_more_are_no_slower_where_all_would_compute_the_mean() -> None:
    work = np.random.default_rng(2).normal(1, 0.1, 24)
    work /= work.mean()
    chance = alike(steps_s=2.0 * work)

    assert sum(half_widths(chance)) > 0.05
    assert half_widths(replace(chance, uncertainty=Uncertainty(work=work))) == pytest.approx(
        (THRESHOLDS.model, THRESHOLDS.model)
    )


def test_the_better_peers_tell_what_is_healthy_the_narrower_the_interval_is() -> None:
    def width(worker_noise: float) -> float:
        costs = replace(
            JOB.costs, worker_noise=worker_noise, launch_overhead_ns=0, host_stall_probability=0
        )
        job = replace(JOB, steps=20, costs=costs)
        found = analyze(session(SlowWorker((1, 0), 2.0), job=job).trace).report.headline.ci95
        assert found is not None
        return float(np.log(found[1] / found[0]))

    assert width(0.01) > 1.5 * width(0.001)


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
