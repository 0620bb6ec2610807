from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.causes.rotating import ROTATING
from app.analysis.diagnosis.finding import Rotation
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    RotatingWorker,
    SequenceLengths,
    SlowWorker,
    ThermalThrottling,
)
from app.analysis.synthesis.injections.delays import Congestion
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import true_slowdown
from app.analysis.trace.model import Sizes
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    MS,
    ONE_STAGE,
    causes,
    diagnosed,
    session,
    signs_of,
)

LONG = replace(JOB, steps=24)
FLAT = replace(ONE_STAGE, sizes=Sizes(dp=8, pp=1), steps=40)


@pytest.mark.parametrize("factor", [1.2, 1.4])
@pytest.mark.parametrize(
    "sizes",
    [Sizes(dp=4, pp=1), Sizes(dp=8, pp=1), Sizes(dp=4, pp=2), Sizes(dp=16, pp=4)],
    ids=["4", "8", "4 by 2", "16 by 4"],
)
def test_another_worker_in_each_step_is_named_alone(sizes: Sizes, factor: float) -> None:
    job = replace(FLAT, sizes=sizes)
    synthetic = session(RotatingWorker(factor), job=job)
    diagnosis = diagnosed(synthetic)

    assert causes(diagnosis) == ["rotating"]
    assert diagnosis.slowdown == pytest.approx(
        true_slowdown(job, (RotatingWorker(factor),), seed=5), rel=0.02
    )


def test_no_worker_is_to_be_replaced() -> None:
    report = analyze(session(RotatingWorker(1.4), job=FLAT).trace).report

    assert "no worker is slow: another one in each step, 1.40×" in report.verdict.sentence
    assert [fix.action for fix in report.recommendations] == ["even_steps"]
    assert report.causes[0].where.workers == ()
    figure = report.causes[0].figure
    assert isinstance(figure, Rotation)
    assert sum(map(sum, figure.slowest)) == 40
    assert len(figure.slowest) == 8


def test_it_may_leave_out_steps() -> None:
    report = analyze(session(RotatingWorker(1.4, Spells(share=0.6)), job=FLAT).trace).report

    assert [cause.cause for cause in report.causes] == ["rotating"]
    assert "of 40 steps, 1.40×" in report.verdict.sentence


@pytest.mark.parametrize(
    "injection",
    [
        SlowWorker((2, 0), 1.5),
        SlowWorker((2, 0), 1.5, Spells(share=0.5)),
        SlowWorker((2, 0), 1.5, Spells(from_step=10)),
        ThermalThrottling((2, 0), 1.9, 10, 3),
        SequenceLengths(),
        GarbageCollection(250 * MS, pauses=0.4),
        Congestion(8.0, 9),
    ],
    ids=["slow", "by spells", "since a step", "hot", "lengths", "collections", "congestion"],
)
def test_other_causes_are_not_taken_for_it(injection: Injection) -> None:
    for job in (FLAT, LONG):
        assert "rotating" not in causes(diagnosed(session(injection, job=job)))


def test_two_workers_with_spells_are_slow() -> None:
    spells = Spells(share=0.5, length=4)
    synthetic = session(SlowWorker((2, 0), 1.5, spells), SlowWorker((5, 0), 1.5, spells), job=FLAT)
    diagnosis = diagnosed(synthetic)

    assert causes(diagnosis) == ["slow_worker"]
    assert sorted(diagnosis.causes[0].where.workers) == [(2, 0), (5, 0)]


def test_a_slow_worker_as_well_is_named_alone_among_workers() -> None:
    both = (RotatingWorker(1.4), SlowWorker((2, 0), 1.4))
    diagnosis = diagnosed(session(*both, job=FLAT))

    assert sorted(causes(diagnosis)) == ["rotating", "slow_worker"]
    (worker,) = (cause for cause in diagnosis.causes if cause.cause == "slow_worker")
    assert worker.where.workers == ((2, 0),)
    assert diagnosis.slowdown == pytest.approx(true_slowdown(FLAT, both, seed=5), rel=0.03)


@pytest.mark.parametrize("job", [FLAT, LONG])
def test_a_healthy_job_has_none(job: JobModel) -> None:
    assert ROTATING.find(signs_of(session(job=job))) is None
