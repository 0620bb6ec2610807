"""Ranks without a pipeline whose loader is slower than that of their peers in every step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.replay.adaptations.kind import Name
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from tests.oracles.loops import Compute, Loop, Meet, plain, sharded_layers

ALONE = (2.0, 80.0)


def loading(
    program: tuple[Compute | Meet, ...],
    loading_ms: tuple[float, ...] = ALONE,
    *,
    loads_ahead: bool = False,
    steps: int = 24,
) -> Loop:
    ranks = len(loading_ms)
    return Loop(
        program,
        ranks=ranks,
        steps=steps,
        factors=(1.0,) * ranks,
        noise=0.05,
        turn_ms=1,
        turn_noise=0.3,
        loading_ms=loading_ms,
        loads_ahead=loads_ahead,
    )


def named(report: Report) -> list[tuple[str, int | None]]:
    return [(cause.cause, cause.where.dp) for cause in report.causes]


@pytest.mark.parametrize("loads_ahead", [False, True], ids=["own-step", "step-before"])
@pytest.mark.parametrize("program", [plain(40.0), sharded_layers()], ids=["plain", "sharded"])
def test_it_is_named_with_its_rank_and_the_job_without_what_peers_do_not_take(
    program: tuple[Compute | Meet, ...], *, loads_ahead: bool
) -> None:
    loop = loading(program, loads_ahead=loads_ahead)
    late, healthy = loop.run(), loop.healthy().run()
    report, without = analyze(late.trace).report, analyze(healthy.trace).report

    assert named(report) == [("data_loading", 1)]
    assert report.headline.kind is HeadlineKind.LAUNCHES
    assert report.headline.slowdown == pytest.approx(late.step_s / healthy.step_s, rel=0.03)
    assert not named(without)
    assert without.fidelity.verdict
    assert without.headline.slowdown < 1.03


@pytest.mark.parametrize(
    ("loading_ms", "dp"),
    [((2.0, 2.0, 80.0, 2.0), 2), ((2.0, 80.0, 80.0, 2.0), None), ((80.0, 80.0, 2.0, 80.0), None)],
)
def test_however_many_ranks_are_late_the_fastest_one_tells_what_is_usual(
    loading_ms: tuple[float, ...], dp: int | None
) -> None:
    loop = loading(plain(40.0), loading_ms)
    late, healthy = loop.run(), loop.healthy().run()
    report = analyze(late.trace).report

    assert named(report) == [("data_loading", dp)]
    assert report.headline.slowdown == pytest.approx(late.step_s / healthy.step_s, rel=0.03)


def test_in_few_steps_the_first_one_is_late_as_well() -> None:
    loop = loading(plain(40.0), steps=4)
    late, healthy = loop.run(), loop.healthy().run()
    report = analyze(late.trace).report

    assert named(report) == [("data_loading", 1)]
    assert report.headline.slowdown == pytest.approx(late.step_s / healthy.step_s, rel=0.03)


def test_the_budget_counts_it_as_lost() -> None:
    late = loading(plain(40.0)).run()
    budget = analyze(late.trace).report.budget
    assert budget is not None
    shares = budget.shares

    # One of two ranks is idle while the other one loads.
    share = (ALONE[1] - ALONE[0]) / 1e3 / late.step_s / 2
    assert shares.between_steps_above == pytest.approx(share, rel=0.05)
    assert shares.waiting == pytest.approx(share, rel=0.1)
    assert shares.between_steps < 0.03


@pytest.mark.parametrize("loads_ahead", [False, True], ids=["own-step", "step-before"])
@pytest.mark.parametrize("load_ms", [3.0, 20.0])
def test_all_ranks_that_load_before_each_short_step_lose_that_though_none_is_late(
    load_ms: float, *, loads_ahead: bool
) -> None:
    loop = loading(plain(), (load_ms, load_ms), loads_ahead=loads_ahead, steps=50)
    ran = loop.run()
    report = analyze(ran.trace).report
    (cause,) = report.causes

    made = {item.adaptation for item in report.fidelity.adaptations}
    assert Name.UNEVEN_BEGINS in made
    assert named(report) == [("data_loading", None)]
    assert cause.between_s == pytest.approx(load_ms / 1e3, rel=0.05)
    assert report.headline.slowdown < 1.03
    assert "lost between steps: steps wait for their data" in report.verdict.sentence
    (fix,) = report.recommendations
    assert fix.action == "load_ahead"
    without = replace(loop, loading_ms=(0.0, 0.0)).run()
    assert fix.predicted_gain == pytest.approx(1 - without.step_s / ran.step_s, rel=0.05)


def test_of_short_steps_what_all_load_and_what_one_loads_longer_are_one_cause() -> None:
    ran = loading(plain(), (5.0, 13.0), steps=50).run()
    report = analyze(ran.trace).report
    (cause,) = report.causes

    assert named(report) == [("data_loading", 1)]
    assert cause.between_s == pytest.approx(5e-3, rel=0.05)
    assert cause.cost_s == pytest.approx(13e-3, rel=0.1)


def test_short_steps_between_which_little_passes_lose_nothing_there() -> None:
    report = analyze(loading(plain(), (0.2, 0.2), steps=50).run().trace).report
    assert not named(report)
    assert "between steps" not in report.verdict.sentence
