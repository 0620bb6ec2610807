"""The control loop: when plans are made, renewed, escalated and withdrawn."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from app.analysis.mitigation.tensor.advice import ALL_METHODS, Problem
from app.analysis.mitigation.tensor.control import (
    REPLACE_AFTER,
    STICKY_AFTER,
    Act,
    CurrentPlan,
    Decision,
    Rung,
    Streak,
    clear_changes,
    decide,
    shares_of,
)
from app.analysis.mitigation.tensor.document import Method
from app.analysis.mitigation.tensor.group import Group

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow


@dataclass
class Loop:
    """A job that applies every plan at once."""

    budget: float = 0.25
    methods: frozenset[Method] = ALL_METHODS
    streak: Streak = field(default_factory=Streak)
    standing: CurrentPlan | None = None
    step: int = 0
    # With earlier reports, one clear report is sufficient.
    looks_back: bool = False
    reported: list[tuple[float, ...]] = field(default_factory=list)

    def report(self, *times: float, under: float | None = None, every: int = 1) -> Decision:
        self.step += every
        time_s = np.array(times)
        problem = Problem(Group(time_s, time_s, 1000), self.budget, methods=self.methods)
        earlier = np.array(self.reported).reshape(len(self.reported), len(times))
        clear = clear_changes(earlier, time_s) if self.looks_back else None
        self.reported.append(times)
        decision = decide(problem, self.step, self.streak, self.standing, under, clear)
        self.streak = decision.streak
        if decision.act is Act.WITHDRAW:
            self.standing = None
        if decision.alternative is not None:
            self.standing = CurrentPlan(
                decision.alternative.method,
                shares_of(decision.alternative, problem.group),
                decision.alternative.predicted_time_s,
            )
        return decision

    def acts(self, *reports: tuple[float, ...]) -> list[str]:
        return [self.report(*times).act.value for times in reports]


SLOW, HEALTHY, NEAR = (8.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.02, 1.0), (1.08, 1.0, 1.0, 1.0)


def noisy(times: tuple[float, ...], rng: np.random.Generator) -> tuple[float, ...]:
    return tuple((np.array(times) * rng.uniform(0.985, 1.015, len(times))).tolist())


@pytest.mark.parametrize("slowness", [1.3, 2.0, 8.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_straggler_has_its_plan_after_two_steps_and_loses_it_after_two(
    seed: int, slowness: float
) -> None:
    rng = np.random.default_rng(seed)
    loop = Loop(looks_back=True)
    in_force, coming = False, False
    planned = []
    for step in range(90):
        # Three spells of slowness: ten of every thirty steps.
        slow = 10 <= step % 30 < 20
        planned.append((slow, in_force))
        loop.report(*noisy((1.0, slowness if slow else 1.0, 1.0, 1.0), rng))
        # The job gets the answer to a report at the end of the next step.
        in_force, coming = coming, loop.standing is not None
    for begin in (10, 40, 70):
        assert [plan for _, plan in planned[begin - 1 : begin + 3]] == [False, False, False, True]
        assert [plan for _, plan in planned[begin + 9 : begin + 13]] == [True, True, True, False]
    assert sum(plan for _, plan in planned) == 30


def test_a_single_slow_step_is_believed_once() -> None:
    loop = Loop(looks_back=True)
    assert set(loop.acts(*[HEALTHY] * 10)) == {"keep"}
    assert loop.acts(SLOW, HEALTHY) == ["plan", "withdraw"]
    assert set(loop.acts(*[HEALTHY] * 5, SLOW, *[HEALTHY] * 5, SLOW, HEALTHY)) == {"keep"}
    # Two slow reports in a row are enough for a plan.
    assert loop.acts(SLOW, SLOW) == ["keep", "plan"]


def test_an_unsteady_rank_needs_two_reports() -> None:
    rng = np.random.default_rng(0)
    loop = Loop(looks_back=True)
    unsteady = [(1.0, float(x), 1.0, 1.0) for x in rng.uniform(0.95, 1.08, 30)]
    assert set(loop.acts(*unsteady)) == {"keep"}
    assert loop.acts((1.0, 1.25, 1.0, 1.0), (1.0, 1.25, 1.0, 1.0)) == ["keep", "plan"]


def test_a_job_that_begins_with_a_straggler_needs_two_reports() -> None:
    assert Loop(looks_back=True).acts(SLOW, SLOW) == ["keep", "plan"]


def test_another_straggler_beyond_doubt_makes_another_plan_at_once() -> None:
    loop = Loop(looks_back=True)
    loop.acts(*[HEALTHY] * 10, SLOW)
    assert loop.acts(SLOW, SLOW, (8.0, 1.0, 4.0, 1.0)) == ["keep", "keep", "plan"]
    assert loop.standing is not None
    assert loop.standing.shares.shed[2] > 0


def test_a_plan_is_there_after_two_reports_and_gone_after_two() -> None:
    loop = Loop()
    assert loop.acts(HEALTHY, SLOW, SLOW, SLOW, HEALTHY, HEALTHY, HEALTHY) == [
        "keep", "keep", "plan", "keep", "keep", "withdraw", "keep",
    ]  # fmt: skip
    assert loop.streak == Streak()


def test_a_single_slow_step_changes_nothing() -> None:
    assert set(Loop().acts(SLOW, HEALTHY, SLOW, HEALTHY, SLOW, HEALTHY)) == {"keep"}


def test_a_single_healthy_step_withdraws_nothing() -> None:
    loop = Loop()
    loop.acts(SLOW, SLOW)
    assert set(loop.acts(HEALTHY, SLOW, HEALTHY, SLOW)) == {"keep"}


def test_between_the_limits_a_plan_stays_and_none_is_made() -> None:
    loop = Loop()
    assert loop.acts(NEAR, NEAR, NEAR) == ["keep"] * 3
    loop.acts(SLOW, SLOW)
    assert loop.acts(NEAR, NEAR, NEAR) == ["keep"] * 3


def test_small_changes_keep_the_plan_and_large_ones_make_another() -> None:
    loop = Loop()
    loop.acts(SLOW, SLOW)
    assert loop.acts((8.2, 1.0, 1.0, 1.0), (7.8, 1.0, 1.0, 1.0)) == ["keep", "keep"]
    assert loop.acts((3.0, 1.0, 1.0, 1.0), (3.0, 1.0, 1.0, 1.0)) == ["keep", "plan"]


def test_another_rank_s_turn_makes_another_plan() -> None:
    loop = Loop()
    loop.acts(SLOW, SLOW)
    assert loop.acts(SLOW[::-1], SLOW[::-1]) == ["keep", "plan"]
    assert loop.standing is not None
    assert np.flatnonzero(loop.standing.shares.shed).tolist() == [3]


def test_the_cheapest_method_that_does_is_taken() -> None:
    loop = Loop()
    loop.acts(*[(1.3, 1.0, 1.0, 1.0)] * 2)
    assert loop.standing is not None
    assert loop.standing.method is Method.ZERO

    heavy = Loop()
    heavy.acts(SLOW, SLOW)
    assert heavy.standing is not None
    assert heavy.standing.method is Method.SEMI


def test_a_plan_that_does_not_keep_its_promise_escalates() -> None:
    loop = Loop()
    slight = (1.3, 1.0, 1.0, 1.0)
    loop.acts(slight, slight)
    found = [loop.report(*slight, under=1.25).act for _ in range(2)]
    assert found == [Act.KEEP, Act.PLAN]
    assert loop.standing is not None
    assert loop.standing.method is not Method.ZERO
    assert loop.streak.rung is Rung.MIGRATE


def test_what_lasts_is_moved_for_good_and_then_the_node_is_to_be_replaced() -> None:
    loop = Loop()
    loop.acts(SLOW, SLOW)
    assert loop.report(*SLOW, every=STICKY_AFTER).act is Act.PLAN
    assert loop.standing is not None
    assert loop.standing.method is Method.STICKY
    assert not loop.report(*SLOW).replace_node
    assert loop.report(*SLOW, every=REPLACE_AFTER).replace_node


def test_a_job_without_sticky_keeps_what_it_knows() -> None:
    loop = Loop(methods=frozenset({Method.NONE, Method.ZERO}))
    loop.acts(SLOW, SLOW)
    assert loop.acts(*[SLOW] * 5) == ["keep"] * 5
    loop.report(*SLOW, every=STICKY_AFTER)
    assert loop.standing is not None
    assert loop.standing.method is Method.ZERO


def test_a_plan_that_is_no_longer_allowed_is_replaced_at_once() -> None:
    loop = Loop()
    loop.acts(SLOW, SLOW)
    assert loop.standing is not None
    loop.standing = CurrentPlan(
        loop.standing.method, loop.standing.shares, loop.standing.predicted_time_s, fits=False
    )
    loop.budget = 0.0
    decision = loop.report(*SLOW)
    assert decision.act is Act.PLAN
    assert decision.alternative is not None
    assert decision.alternative.gamma == 0


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_three_percent_makes_one_plan_and_no_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loop = Loop()
    found = []
    for _ in range(60):
        noisy = np.array([4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) * rng.uniform(0.985, 1.015, 8)
        found.append(loop.report(*noisy.tolist()).act)
    assert found.count(Act.PLAN) == 1
    assert Act.WITHDRAW not in found
