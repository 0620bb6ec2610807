from __future__ import annotations

from dataclasses import replace

import pytest

from tests.real_jobs.analyzing import Answer, NamedCause
from tests.real_jobs.comparing import Pair, pairs_of, side_by_side
from tests.real_jobs.jobs import Place
from tests.real_jobs.judging import Judged, not_run
from tests.real_jobs.scenarios import SCENARIOS
from tests.real_jobs.truth import truth_of

SCENARIO = SCENARIOS["tpF-slow1.8"]
CAUSE = NamedCause("slow_worker", 1.0, (Place(1, 0),), None)
TOLD = Judged(
    SCENARIO,
    truth_of(SCENARIO, [1.6], [1.0]),
    Answer(verdict=True, discrepancy=0.01, headline=1.61, causes=(CAUSE,)),
    (),
)


def otherwise(**answer: object) -> Judged:
    return replace(TOLD, answer=replace(TOLD.answer, **answer))  # type: ignore[arg-type]


def test_the_same_report_of_a_launch_of_its_own_is_no_difference() -> None:
    slower = replace(TOLD, truth=truth_of(SCENARIO, [1.7], [1.0]))
    slower = replace(slower, answer=replace(TOLD.answer, headline=1.7))
    assert Pair(TOLD, slower).differences == ()


@pytest.mark.parametrize(
    ("by_hooks", "difference"),
    [
        (otherwise(verdict=False), "verdict False for True"),
        (otherwise(causes=()), "no cause for slow_worker 1/0"),
        (
            otherwise(causes=(replace(CAUSE, workers=(Place(0, 0),)),)),
            "slow_worker 0/0 for slow_worker 1/0",
        ),
        (otherwise(headline=1.72), "headline +6.9%"),
        (not_run(SCENARIO, "no processes"), "not both told: no processes"),
    ],
)
def test_deviations_of_the_hooks_are_named(by_hooks: Judged, difference: str) -> None:
    assert Pair(TOLD, by_hooks).differences == (difference,)


def test_a_change_within_the_noise_of_both_launches_is_no_difference() -> None:
    apart = otherwise(headline=1.72)
    noisy = [replace(told, noise=0.036) for told in (TOLD, apart)]
    assert Pair(*noisy).differences == ()
    assert Pair(noisy[0], apart).differences == ("headline +6.9%",)


def test_the_table_has_both_of_each_scenario() -> None:
    other = replace(TOLD, scenario=SCENARIOS["tpZ-slow1.8"])
    assert side_by_side(pairs_of([TOLD, other], [TOLD])) == [
        "scenario     recorded by  true   headline  off    cause and worker  apart",
        "tpF-slow1.8  hand         1.600  1.610     +0.6%  slow_worker 1/0",
        "             hooks        1.600  1.610     +0.6%  slow_worker 1/0   +0.0%",
    ]
