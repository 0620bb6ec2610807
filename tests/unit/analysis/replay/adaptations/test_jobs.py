"""Jobs with various ways of execution get the right adaptations, and the right verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.analysis.replay.adaptations.kind import SENTENCES, Name
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.host_jobs import HostJob
from app.analysis.synthesis.host_sessions import run
from app.analysis.synthesis.random_sessions import draw_session
from tests.random_jobs import random_job

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

PLAIN = HostJob()
KINDS: dict[Name, dict[str, Any]] = {
    Name.BLOCKING_TRANSFERS: {"wire_ns": 30e6},
    Name.OVERLAPPING_STEPS: {"barrier": False},
    Name.NESTED_COLLECTIVES: {"gathers": True},
    Name.LATE_ENDS: {"late_ends": True},
    Name.REGULAR_DELAYS: {"handover_ns": 4e6, "transfers": False, "wire_ns": 0.0},
    Name.PLACEMENT: {"v_shaped": True},
}
SLOW = {(1, 0): 1.8}


@pytest.mark.parametrize("name", KINDS, ids=lambda name: name.value)
@pytest.mark.parametrize("factors", [{}, SLOW], ids=["healthy", "slow"])
def test_each_job_gets_its_adaptation_and_its_measured_slowdown(
    name: Name, factors: dict[tuple[int, int], float]
) -> None:
    job = replace(PLAIN, **KINDS[name])
    slow = run(replace(job, factors=factors))
    truth = slow.step_time_s / run(job).step_time_s
    report = analyze(slow.trace).report
    fidelity = report.fidelity

    made = [item.adaptation for item in fidelity.adaptations]
    assert made == [name.value]
    assert fidelity.adaptations[0].sentence == SENTENCES[name]
    assert fidelity.adaptations[0].where
    assert fidelity.verdict
    assert fidelity.discrepancy < 0.005
    assert report.headline.slowdown == pytest.approx(truth, rel=0.03)
    causes = [(cause.cause, cause.where.workers) for cause in report.causes]
    assert causes == ([("slow_worker", ((1, 0),))] if factors else [])


def test_recorded_collections_inside_of_forwards_count_once() -> None:
    job = replace(PLAIN, pause_ns=200e6, pauses=0.08, microbatches=8)
    paused = run(job)
    report = analyze(paused.trace).report

    made = [item.adaptation for item in report.fidelity.adaptations]
    assert made == ["nested_gc"]
    assert report.fidelity.discrepancy < 0.005
    assert [cause.cause for cause in report.causes] == ["garbage_collection"]
    truth = paused.step_time_s / run(replace(job, pauses=0.0)).step_time_s
    assert report.headline.slowdown == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("name", [Name.BLOCKING_TRANSFERS, Name.OVERLAPPING_STEPS, Name.LATE_ENDS])
def test_a_switched_off_adaptation_is_not_made(name: Name) -> None:
    trace = run(replace(PLAIN, **KINDS[name], factors=SLOW)).trace
    # Where transfers block, receives are posted in turn as well, with the same effect in this job.
    with_it = prepare_replay(trace)
    without = prepare_replay(trace, without=(name, Name.POSTED_IN_TURN))

    assert [item.name for item in with_it.adaptations] == [name]
    assert name not in {item.name for item in without.adaptations}
    assert measure(with_it).discrepancy + 0.02 < measure(without).discrepancy


@pytest.mark.parametrize("seed", range(40))
def test_jobs_of_the_paper_call_for_none(seed: int) -> None:
    trace = random_job(
        seed,
        launch_overhead=seed % 2 == 0,
        interleaved=seed % 3 == 0,
        overlap=seed % 4 == 0,
        edge_transfers=seed % 5 == 0,
    ).trace

    assert prepare_replay(trace).adaptations == ()


def test_a_plain_job_calls_for_none() -> None:
    assert prepare_replay(run(PLAIN).trace).adaptations == ()


def test_collectives_inside_that_are_not_recorded_withhold_the_verdict() -> None:
    recorded = run(replace(PLAIN, gathers=True, microbatches=10, factors=SLOW)).trace
    gathers = recorded.op == recorded.op_names.index("params-all-gather")
    report = analyze(recorded.of_rows(np.flatnonzero(~gathers))).report
    fidelity = report.fidelity

    # The replay is near the recording, but its slowdown is wrong.
    assert fidelity.discrepancy < fidelity.limit
    assert fidelity.verdict is False
    assert "Record them" in (fidelity.reason or "")
    assert report.causes == ()
    assert report.verdict.level == "none"


@pytest.mark.parametrize("seed", [46, 116, 166, 176])
def test_receives_that_are_alone_by_chance_hide_no_false_dependency(seed: int) -> None:
    # Because of late launches, nothing is launched inside the last receives at the pipeline's ends.
    session = draw_session(("false_kernel_dependency",), 1.4, seed)
    assert prepare_replay(session.trace).adaptations == ()
