from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.injections.delays import Standstill
from app.analysis.synthesis.job import CostModel, JobModel
from tests.unit.analysis.diagnosis.causes.stalling import (
    DEEP,
    FLAT,
    GATHERING,
    TWICE,
    S,
    report_of,
    said_share,
    stalled,
    true_share,
)


@pytest.mark.parametrize("job", [FLAT, GATHERING, DEEP], ids=["flat", "gathering", "stages"])
@pytest.mark.parametrize(
    "stall",
    [TWICE, Standstill(128, 60 * S, 20), Standstill(8, 5 * S, 13), Standstill(32, 30 * S, 15)],
    ids=["twice", "once", "every 8", "every 32"],
)
def test_what_is_lost_between_steps_is_named_with_its_share_of_the_time(
    stall: Standstill, job: JobModel
) -> None:
    session = stalled(stall, job=job)
    report = analyze(session.trace).report

    (cause,) = report.causes
    assert cause.cause == stall.cause
    assert said_share(report) == pytest.approx(true_share(session), abs=0.01)
    assert cause.cost_s == cause.between_s
    assert cause.contribution == 1.0
    assert cause.confidence is not None
    assert cause.confidence <= 0.7
    assert report.headline.slowdown == pytest.approx(1.0, abs=0.03)
    (fix,) = report.recommendations
    assert fix.predicted_gain == pytest.approx(true_share(session), abs=0.01)


def test_the_steps_and_their_interval_are_said_and_what_it_is_likeliest_to_be() -> None:
    evenly = report_of(Standstill(8, 5 * S, 13)).causes[0]
    once = report_of(Standstill(128, 60 * S, 20)).causes[0]
    one_by_one = report_of(Standstill(8, 5 * S, 13, own=0.2)).causes[0]
    twice = report_of(TWICE).causes[0]

    assert (
        "before steps 13, 21, 29, 37, 45, every 8 steps; usually 20 ms pass" in evenly.evidence[0]
    )
    assert evenly.evidence[1].startswith("Likeliest a checkpoint or an evaluation: as long each")
    assert once.evidence[1].startswith("Likeliest a checkpoint or an evaluation: there once")
    assert one_by_one.evidence[1].startswith("Likeliest data: workers go on one by one")
    assert "every" not in twice.evidence[0]
    assert twice.confidence == 0.5


def test_workers_that_go_on_later_are_late_for_the_same_cause() -> None:
    session = stalled(Standstill(8, 5 * S, 13, own=0.2))
    report = analyze(session.trace).report

    (cause,) = report.causes
    assert cause.cause == "between_steps"
    assert 0 < cause.between_s < (cause.cost_s or 0.0)
    assert said_share(report) == pytest.approx(true_share(session), abs=0.02)


def test_next_to_a_slow_worker_both_are_named_by_what_they_cost() -> None:
    slow = SlowWorker((2, 0), 1.5)
    session = stalled(Standstill(8, 5 * S, 13), slow)
    report = analyze(session.trace).report
    alone = report_of(slow)

    assert [cause.cause for cause in report.causes] == ["between_steps", "slow_worker"]
    assert sum(cause.contribution or 0.0 for cause in report.causes) == pytest.approx(1.0)
    assert said_share(report) == pytest.approx(true_share(session), abs=0.01)
    assert report.headline.slowdown == pytest.approx(alone.headline.slowdown, rel=0.002)
    assert alone.verdict.sentence in report.verdict.sentence
    assert "of the time is lost between steps: the job stands still" in report.verdict.sentence


@pytest.mark.parametrize("usual_ms", [0, 20, 80])
def test_regular_small_gaps_are_no_loss(usual_ms: int) -> None:
    job = replace(FLAT, costs=CostModel(step_gap_ns=usual_ms * 1e6))

    assert report_of(job=job).causes == ()


def test_what_passes_before_every_step_is_named_when_it_takes_a_fifth_of_the_time() -> None:
    report = report_of(Standstill(1, 0.4 * S, 0))

    assert [cause.cause for cause in report.causes] == ["between_steps"]
    assert "before each step" in report.causes[0].evidence[0]
    assert report.causes[0].confidence == 0.5


def test_no_gap_is_invented_between_windows_that_were_recorded_apart() -> None:
    trace = stalled().trace
    later = trace.step >= 30
    apart = replace(
        trace,
        step=trace.step + 1000 * later,
        start_ns=trace.start_ns + later * np.int64(3600 * S),
    )

    assert analyze(apart).report.causes == ()


def test_where_no_steps_follow_one_another_it_cannot_be_judged() -> None:
    trace = stalled(TWICE).trace
    every_other = replace(trace, step=2 * trace.step)
    unjudged = {one.cause for one in analyze(every_other).report.diagnosis.cannot_judge}

    assert {"between_steps", "data_loading", "checkpoint"} <= unjudged
    assert analyze(every_other).report.causes == ()
