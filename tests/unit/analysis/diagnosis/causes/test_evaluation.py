from __future__ import annotations

import pytest

from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.delays import (
    CheckpointWritten,
    Evaluation,
    LoaderStall,
    Standstill,
)
from app.analysis.synthesis.job import JobModel
from tests.unit.analysis.diagnosis.causes.stalling import (
    DEEP,
    FLAT,
    GATHERING,
    S,
    report_of,
    said_share,
    stalled,
    true_share,
)


@pytest.mark.parametrize("kind", [Evaluation, CheckpointWritten, LoaderStall])
@pytest.mark.parametrize("job", [FLAT, GATHERING, DEEP], ids=["flat", "gathering", "stages"])
@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize("own", [0.0, 0.2])
def test_what_ranks_record_between_steps_names_the_cause(
    kind: type[Standstill], job: JobModel, seed: int, own: float
) -> None:
    session = stalled(kind(8, 5 * S, 13, own=own), job=job, seed=seed)
    report = analyze(session.trace).report

    assert [cause.cause for cause in report.causes] == [kind.cause]
    assert report.causes[0].confidence is not None
    assert report.causes[0].confidence > 0.8
    assert said_share(report) == pytest.approx(true_share(session), abs=0.02)


def test_the_evidence_names_who_evaluates_and_when() -> None:
    (line,) = report_of(Evaluation(8, 5 * S, 13)).causes[0].evidence

    assert line.endswith("before steps 13, 21, 29, 37, 45, every 8 steps; all workers do")


def test_a_single_rank_that_evaluates_while_others_wait_is_late() -> None:
    session = stalled(Evaluation(8, 1.5 * S, 13, (3,)))
    report = analyze(session.trace).report

    (cause,) = report.causes
    assert cause.cause == "evaluation"
    assert cause.where.dp == 3
    assert cause.between_s == 0.0
    assert report.headline.kind == "launches"
    assert report.headline.slowdown == pytest.approx(session.truth.slowdown, rel=0.02)


def test_short_evaluations_are_not_worth_a_name() -> None:
    assert report_of(Evaluation(8, 0.02 * S, 13)).causes == ()
