from __future__ import annotations

from dataclasses import replace

import pytest

from tests.real_jobs.analyzing import Answer, NamedCause
from tests.real_jobs.jobs import Place
from tests.real_jobs.judging import Judged, faults_of, last_line, not_run, summary, table
from tests.real_jobs.scenarios import SCENARIOS
from tests.real_jobs.truth import Truth, truth_of

SLOW = truth_of(SCENARIOS["hwC-slow1.8"], [1.6], [1.0])
SLOW_LAST_OF_FOUR = truth_of(SCENARIOS["hw4-fourth1.8"], [1.4], [1.0])
SLOW_SECOND_OF_FOUR = truth_of(SCENARIOS["hw4-second1.8"], [1.4], [1.0])
HEAVY = truth_of(SCENARIOS["hwC-heavy-last"], [1.2], [1.0])
HEALTHY = truth_of(SCENARIOS["hwC-healthy"], [1.0], [1.0])


def slow_worker(dp: int, pp: int, confidence: float = 1.0) -> NamedCause:
    return NamedCause("slow_worker", confidence, (Place(dp, pp),), None)


def heavy_stage(stage: int, confidence: float = 1.0) -> NamedCause:
    return NamedCause("stage_imbalance", confidence, (), stage)


def said(headline: float, *causes: NamedCause) -> Answer:
    return Answer(verdict=True, discrepancy=0.01, headline=headline, causes=causes)


RIGHT = said(1.62, slow_worker(1, 0))


def test_an_answer_with_verdict_headline_cause_and_worker_is_right() -> None:
    assert faults_of(RIGHT, SLOW) == ()


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Answer(refused="the rank 3 is missing"), "refused: the rank 3 is missing"),
        (replace(RIGHT, verdict=False), "no verdict"),
        (replace(RIGHT, discrepancy=0.02), "discrepancy 2.0%"),
        (replace(RIGHT, headline=1.69), "headline 1.690 for 1.600"),
        (replace(RIGHT, headline=1.51), "headline 1.510 for 1.600"),
        (replace(RIGHT, causes=()), "None for slow_worker"),
        (said(1.6, heavy_stage(0), slow_worker(1, 0)), "stage_imbalance for slow_worker"),
        (said(1.6, slow_worker(0, 0)), "workers 0/0 for 1/0"),
        (
            said(1.6, NamedCause("slow_worker", 1.0, (Place(1, 0), Place(1, 1)), None)),
            "workers 1/0 1/1 for 1/0",
        ),
    ],
)
def test_each_deviation_is_one_named_fault(answer: Answer, wrong: str) -> None:
    assert faults_of(answer, SLOW) == (wrong,)


def test_a_healthy_job_must_have_no_cause() -> None:
    assert faults_of(said(1.01), HEALTHY) == ()
    assert faults_of(said(1.01, slow_worker(0, 0)), HEALTHY) == ("slow_worker for None",)


def test_a_heavy_stage_must_be_the_right_one() -> None:
    assert faults_of(said(1.2, heavy_stage(1)), HEAVY) == ()
    assert faults_of(said(1.2, heavy_stage(0)), HEAVY) == ("stage 0 for 1",)


def test_without_peers_an_end_must_be_called_either_and_not_surely() -> None:
    either = (heavy_stage(3, 0.6), slow_worker(0, 3, 0.4))
    assert faults_of(said(1.4, *either), SLOW_LAST_OF_FOUR) == ()
    assert faults_of(said(1.4, *reversed(either)), SLOW_LAST_OF_FOUR) == ()
    as_runner_up = replace(heavy_stage(3, 0.6), runner_up="slow_worker")
    assert faults_of(said(1.4, as_runner_up), SLOW_LAST_OF_FOUR) == ()


@pytest.mark.parametrize(
    ("causes", "wrong"),
    [
        ((heavy_stage(3, 0.6),), "slow_worker at stage 3 not named"),
        ((slow_worker(0, 3, 0.6), heavy_stage(0, 0.2)), "stage_imbalance at stage 3 not named"),
        (
            (heavy_stage(3, 0.95), slow_worker(0, 3, 0.1)),
            "stage_imbalance with confidence 0.95",
        ),
        (
            (NamedCause("network", 0.5, (), None), heavy_stage(3, 0.4), slow_worker(0, 3, 0.4)),
            "network for slow_worker",
        ),
    ],
)
def test_without_peers_half_of_it_is_wrong(causes: tuple[NamedCause, ...], wrong: str) -> None:
    assert faults_of(said(1.4, *causes), SLOW_LAST_OF_FOUR) == (wrong,)


def test_without_peers_a_slow_middle_stage_is_a_slow_worker() -> None:
    assert faults_of(said(1.4, slow_worker(0, 1)), SLOW_SECOND_OF_FOUR) == ()
    wrong = faults_of(said(1.4, heavy_stage(1, 0.6), slow_worker(0, 1, 0.4)), SLOW_SECOND_OF_FOUR)
    assert wrong == ("stage_imbalance for slow_worker",)


def judged(name: str, truth: Truth, answer: Answer, *, retried: bool = False) -> Judged:
    return Judged(SCENARIOS[name], truth, answer, faults_of(answer, truth), 0.012, retried)


RESULTS = [
    judged("hwC-slow1.8", SLOW, replace(RIGHT, headline=1.632)),
    judged("hwC-heavy-last", HEAVY, said(1.14, heavy_stage(0)), retried=True),
    judged("hwC-healthy", HEALTHY, said(1.0)),
    judged("hw4-fourth1.8", SLOW_LAST_OF_FOUR, Answer(refused="no such chunk")),
    not_run(SCENARIOS["hwL-healthy"], "hwL failed\nrank 0: …"),
]


def test_the_last_line_counts_all_and_takes_errors_of_those_that_have_a_headline() -> None:
    assert last_line(RESULTS) == (
        "real jobs: 2 of 5 right, headline off by median 2.0%, worst 5.0%"
    )
    assert summary(RESULTS)[-1] == last_line(RESULTS)


def test_the_last_line_does_without_headlines() -> None:
    assert last_line(RESULTS[3:]) == "real jobs: 0 of 2 right, no headline"


def test_the_table_has_a_line_each_with_what_is_wrong_and_what_was_retried() -> None:
    heading, *lines = table(RESULTS)
    assert heading.split()[:3] == ["scenario", "dp×pp", "fault"]
    assert len(lines) == len(RESULTS)
    assert lines[0].split()[0] == "hwC-slow1.8"
    assert "1.2%" in lines[0].split()
    assert lines[0].endswith("yes")
    assert lines[1].endswith("stage 0 for 1 (retried)")
    assert lines[3].endswith("refused: no such chunk")
    assert lines[4].endswith("not run: hwL failed")
    assert summary(RESULTS)[-2].startswith("1 retried")
