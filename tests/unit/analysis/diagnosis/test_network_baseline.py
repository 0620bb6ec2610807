"""Networks that are slow for all ranks alike, found by comparison with the job's past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.earlier_sessions import EarlierSession
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from tests.oracles.loops import Compute, Loop, Meet, plain, sharded_layers

Program = tuple[Compute | Meet, ...]


def loop(program: Program, times: float = 1.0, seed: int = 0) -> Loop:
    """Return a job of four ranks with a factor on the times of its network."""

    def slower(item: Compute | Meet) -> Compute | Meet:
        if isinstance(item, Meet):
            return replace(item, ms=item.ms * times)
        return replace(item, meets=tuple(replace(meet, ms=meet.ms * times) for meet in item.meets))

    own = tuple(map(slower, program))
    return Loop(own, ranks=4, factors=(1.0,) * 4, noise=0.03, turn_ms=1, seed=seed)


def session(number: int, program: Program, times: float = 1.0) -> EarlierSession:
    computing = analyze(loop(program, times, seed=number).run().trace).report.computing
    assert computing is not None
    return EarlierSession(number, computing)


def held(program: Program, times: float, earlier: list[EarlierSession]) -> Report:
    return analyze(loop(program, times, seed=50).run().trace, earlier=earlier).report


@pytest.mark.parametrize(("program", "times"), [(sharded_layers(), 3.0), (plain(), 20.0)])
def test_a_network_slower_than_in_the_past_is_a_cause_with_what_it_costs(
    program: Program, times: float
) -> None:
    earlier = [session(number, program) for number in range(1, 4)]
    report = held(program, times, earlier)
    slow, usual = (loop(program, by, seed=50).run().step_s for by in (times, 1.0))
    (cause,) = report.causes

    assert cause.cause == "network"
    assert cause.where.workers == ()
    assert "as long as in session 3 and 2 more like it" in cause.evidence[0]
    assert report.verdict.level == "slow"
    assert "the network of all ranks is slower than before" in report.verdict.sentence
    assert report.headline.slowdown == pytest.approx(slow / usual, rel=0.03)
    (fix,) = report.recommendations
    assert fix.title == "Find what slows the network of all ranks"
    assert fix.predicted_gain == pytest.approx(1 - usual / slow, rel=0.05)


def test_sessions_since_it_became_slow_do_not_hide_it() -> None:
    program = sharded_layers()
    earlier = [session(number, program) for number in range(1, 4)]
    earlier += [session(number, program, 3.0) for number in range(4, 9)]

    (cause,) = held(program, 3.0, earlier).causes

    assert cause.cause == "network"
    assert "as long as in session 3 and 2 more like it" in cause.evidence[0]


@pytest.mark.parametrize("times", [1.0, 1.3])
def test_a_network_as_fast_as_before_is_none(times: float) -> None:
    program = sharded_layers()
    earlier = [session(number, program) for number in range(1, 4)]
    report = held(program, times, earlier)

    assert report.causes == ()
    assert report.verdict.level == "ok"


def test_one_earlier_session_leaves_it_in_doubt() -> None:
    (cause,) = held(sharded_layers(), 3.0, [session(1, sharded_layers())]).causes

    assert cause.cause == "network"
    assert cause.confidence is not None
    assert cause.confidence <= 0.8


def test_sessions_of_versions_that_kept_no_transfers_tell_nothing_of_the_network() -> None:
    program = sharded_layers()
    old = [
        EarlierSession(one.number, replace(one.computing, transfers_s={}))
        for one in (session(number, program) for number in range(1, 4))
    ]

    assert held(program, 3.0, old).causes == ()
