"""Control loop of a tensor-parallel group: when to make, replace and withdraw a plan.

A job applies a decision at the end of the next step. If a rank's time changed by far more than its
noise from report to report, a single report is enough, so that a plan acts after two slow steps and
ends two steps after a recovery. Otherwise two consecutive reports must agree, so that work does not
move back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np

from app.analysis.mitigation.tensor.advice import Problem, advise
from app.analysis.mitigation.tensor.document import Alternative, Method, MitigationDocument
from app.analysis.mitigation.tensor.group import (
    STRAGGLES,
    Group,
    Shares,
)
from app.analysis.quantities import BoolArray, FloatArray

# Maximum and minimum number of latest reports from which noise is estimated.
LOOKED_BACK: Final = 32
FEWEST: Final = 9
# A change of a rank's time by more standard deviations of the noise is clear.
FAR: Final = 6.0
# Three quarters of normally distributed changes are within 1.15 standard deviations. The estimate
# of noise ignores the last quarter, which stragglers within the window may have caused.
_QUANTILE: Final = 0.75
_WITHIN: Final = 1.1503
# A group is recovered once its slowest rank takes at most this many times the fastest rank's time.
# Between this ratio and `STRAGGLES` the current plan stays (hysteresis).
RECOVERED: Final = 1.05
# Number of consecutive reports that confirm a change which is not clear from a single report.
IN_A_ROW: Final = 2
# Maximum difference of shares |Δγ| between the current plan and a new plan; above it the new plan
# replaces the current one.
MOST_DRIFT: Final = 0.05
# Another method replaces the current one if the current method's predicted time is this many times
# longer.
WORTH_A_CHANGE: Final = 1.05
# Number of steps with a straggler after which columns are moved permanently, and number of steps
# after which replacing the node is advised.
STICKY_AFTER: Final = 100
REPLACE_AFTER: Final = 1000


@dataclass(frozen=True, slots=True, eq=False)
class ClearChanges:
    """Ranks whose time changed by more than noise from one report to the next.

    Ranks that were slower or faster for a single report within the window are excluded: isolated
    slow steps must not move the job's work repeatedly.
    """

    risen: BoolArray  # (ranks,): slower than in the report before
    fallen: BoolArray  # (ranks,): faster than in the report before

    @classmethod
    def nothing(cls, ranks: int) -> ClearChanges:
        """Return no clear change for any rank."""
        return cls(np.zeros(ranks, dtype=np.bool_), np.zeros(ranks, dtype=np.bool_))


def clear_changes(earlier_s: FloatArray, time_s: FloatArray) -> ClearChanges:
    """Return the ranks whose time changed by more than noise since the previous report.

    Parameters
    ----------
    earlier_s : float64 array, shape (reports, ranks)
        T of the attempt's latest reports without plans, oldest first, seconds.
    time_s : float64 array, shape (ranks,)
        T of the current report, seconds.

    Examples
    --------
    >>> import numpy as np
    >>> steady = [[1.0, 1.0], [1.01, 1.0], [1.0, 0.99]]
    >>> clear_changes(np.array(3 * steady), np.array([1.3, 1.0])).risen.tolist()
    [True, False]
    """
    if len(earlier_s) < FEWEST:
        return ClearChanges.nothing(len(time_s))
    logs = np.log(earlier_s[-LOOKED_BACK:])
    changes = np.diff(logs, axis=0)
    noise = np.quantile(np.abs(changes), _QUANTILE, axis=0) / _WITHIN
    far = np.maximum(FAR * noise, np.log(STRAGGLES))
    now = np.log(time_s) - logs[-1]
    up, down = changes > far, changes < -far
    slow_once = (up[:-1] & down[1:]).any(axis=0)
    fast_once = (down[:-1] & up[1:]).any(axis=0)
    return ClearChanges((now > far) & ~slow_once, (now < -far) & ~fast_once)


class Rung(IntEnum):
    """Escalation level of a method, ordered by the method's cost for the job."""

    RESIZE = 0
    MIGRATE = 1
    STICKY = 2


RUNGS: Final = {
    Method.ZERO: Rung.RESIZE,
    Method.SEMI: Rung.MIGRATE,
    Method.MIGRATE: Rung.MIGRATE,
    Method.WATERFILL: Rung.MIGRATE,
    Method.STICKY: Rung.STICKY,
}


@dataclass(frozen=True, slots=True)
class Streak:
    """Counts of consecutive reports of a group, passed from decision to decision."""

    over: int = 0  # with a straggler and no current plan
    calm: int = 0  # without a straggler, under a current plan
    drifted: int = 0  # that need other shares than the current plan's
    missed: int = 0  # with a step under the plan much longer than predicted
    rung: Rung = Rung.RESIZE  # lowest level still tried against this straggler
    since_step: int | None = None  # first step of the straggling


@dataclass(frozen=True, slots=True, eq=False)
class CurrentPlan:
    """The current plan of a group, offered or in force."""

    method: Method
    shares: Shares
    predicted_time_s: float  # of the slowest rank
    fits: bool = True  # whether the job and the operator's switch still allow it


class Act(StrEnum):
    """Action on the plan of a group."""

    KEEP = "keep"
    PLAN = "plan"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of the control loop on a report."""

    act: Act
    streak: Streak  # input of the next decision
    alternative: Alternative | None = None  # the new plan
    replace_node: bool = False  # whether the straggler has lasted for `REPLACE_AFTER` steps


def decide(  # noqa: PLR0913, PLR0917 - what is known of the group
    problem: Problem,
    step: int,
    streak: Streak,
    standing: CurrentPlan | None,
    under_plan_s: float | None,
    clear: ClearChanges | None = None,
) -> Decision:
    """Return the control loop's decision on a report.

    Parameters
    ----------
    problem : Problem
        The group, with its times converted to times without a plan (`without_plan`).
    step : int
        The last step of the report.
    streak : Streak
        Counts after the previous decision.
    under_plan_s : float or None
        T of the slowest rank, seconds, if the report was measured under the current plan.
    clear : ClearChanges, optional
        Changes that need no second report.
    """
    group = problem.group
    clear = clear or ClearChanges.nothing(group.ranks)
    slowdown = float(group.time_s.max()) / group.fastest_s
    if slowdown <= STRAGGLES and standing is None:
        return Decision(Act.KEEP, Streak())
    since = step if streak.since_step is None else streak.since_step
    streak = replace(streak, since_step=since)
    if slowdown <= RECOVERED:
        streak = replace(
            streak, calm=_reports_in_a_row(streak.calm, clear.fallen), drifted=0, missed=0
        )
        if streak.calm >= IN_A_ROW:
            return Decision(Act.WITHDRAW, Streak())
        return Decision(Act.KEEP, streak)
    lasting = step - since >= REPLACE_AFTER
    if standing is None:
        over = _reports_in_a_row(streak.over, clear.risen[group.stragglers])
        streak = replace(streak, over=over, calm=0)
        return _first_plan(problem, _escalated(streak, problem.methods, step), lasting=lasting)
    if slowdown <= STRAGGLES:
        # Between `RECOVERED` and `STRAGGLES` the current plan stays (hysteresis).
        return Decision(Act.KEEP, replace(streak, calm=0, drifted=0, missed=0))
    missed = under_plan_s is not None and under_plan_s > STRAGGLES * standing.predicted_time_s
    streak = replace(streak, calm=0, missed=streak.missed + 1 if missed else 0)
    # The current plan takes no work off this clear straggler, so this report already replans.
    another = clear.risen[group.stragglers] & (standing.shares.shed[group.stragglers] == 0)
    if another.any():
        streak = replace(streak, drifted=IN_A_ROW - 1)
    return _replan(problem, _escalated(streak, problem.methods, step), standing, lasting=lasting)


def _reports_in_a_row(before: int, clear: BoolArray) -> int:
    """Return the number of consecutive reports; a clear change counts as `IN_A_ROW` reports."""
    return max(before + 1, IN_A_ROW if clear.any() else 0)


def _first_plan(problem: Problem, streak: Streak, *, lasting: bool) -> Decision:
    if streak.over < IN_A_ROW:
        return Decision(Act.KEEP, streak, replace_node=lasting)
    wanted = _wanted(advise(problem), streak.rung)
    if wanted.method is Method.NONE:
        return Decision(Act.KEEP, streak, replace_node=lasting)
    return Decision(Act.PLAN, replace(streak, over=0, drifted=0), wanted, replace_node=lasting)


def _escalated(streak: Streak, methods: frozenset[Method], step: int) -> Streak:
    """Return the streak, with a higher rung if the present rung failed or straggling lasts."""
    rung = streak.rung
    if streak.missed >= IN_A_ROW:
        rung = Rung(min(rung + 1, Rung.STICKY))
    if streak.since_step is not None and step - streak.since_step >= STICKY_AFTER:
        rung = Rung.STICKY
    available = {RUNGS[method] for method in methods if method is not Method.NONE}
    if not any(rung <= other for other in available):
        rung = streak.rung
    # A failed plan is replaced at this report, without waiting for `IN_A_ROW` reports.
    drifted = IN_A_ROW - 1 if rung > streak.rung else streak.drifted
    return replace(streak, rung=rung, missed=streak.missed % IN_A_ROW, drifted=drifted)


def _replan(problem: Problem, streak: Streak, standing: CurrentPlan, *, lasting: bool) -> Decision:
    document = advise(problem)
    wanted = _wanted(document, streak.rung)
    same = _first_of(document, lambda item: item.method is standing.method)
    if (
        same is not None
        and RUNGS[same.method] >= min(streak.rung, RUNGS.get(wanted.method, Rung.RESIZE))
        and same.predicted_time_s <= WORTH_A_CHANGE * wanted.predicted_time_s
    ):
        wanted = same
    if not standing.fits:
        act = Act.WITHDRAW if wanted.method is Method.NONE else Act.PLAN
        kept = replace(streak, drifted=0, missed=0)
        return Decision(act, kept, wanted if act is Act.PLAN else None, replace_node=lasting)
    drift = drift_between(standing.shares, shares_of(wanted, problem.group), problem.group)
    other = wanted.method is not standing.method or drift > MOST_DRIFT
    streak = replace(streak, drifted=streak.drifted + 1 if other else 0)
    if streak.drifted < IN_A_ROW:
        return Decision(Act.KEEP, streak, replace_node=lasting)
    streak = replace(streak, drifted=0, missed=0)
    if wanted.method is Method.NONE:
        return Decision(Act.WITHDRAW, streak, replace_node=lasting)
    return Decision(Act.PLAN, streak, wanted, replace_node=lasting)


def _wanted(document: MitigationDocument, rung: Rung) -> Alternative:
    """Return the cheapest sufficient alternative from a rung upwards, else the best alternative.

    An alternative is sufficient if its predicted time is at most `STRAGGLES` × the fastest rank's
    time.
    """
    near_s = STRAGGLES * document.fastest_time_s
    for at in [other for other in Rung if other >= rung]:
        sufficient = _first_of(
            document,
            lambda item, at=at: (  # type: ignore[misc]
                RUNGS.get(item.method) == at and item.predicted_time_s <= near_s
            ),
        )
        if sufficient is not None:
            return sufficient
    best = _first_of(document, lambda item: RUNGS.get(item.method, Rung.STICKY) >= rung)
    return best or document.best


def _first_of(
    document: MitigationDocument, meets: Callable[[Alternative], bool]
) -> Alternative | None:
    within: Iterable[Alternative] = (item for item in document.alternatives if item.within_budget)
    return next((item for item in within if meets(item)), None)


def shares_of(item: Alternative, group: Group) -> Shares:
    """Return the shares of work of an alternative, in units."""
    shares = Shares.nothing(group.ranks)
    for rank in item.ranks:
        shares.resized[rank.rank] = rank.resized_columns // group.unit
        for to, count in rank.to.items():
            shares.moved[rank.rank, int(to)] = count // group.unit
    return shares


def drift_between(shares: Shares, other: Shares, group: Group) -> float:
    """Return |Δγ|: the largest difference between two plans in a rank's shed or received share."""
    shed = np.abs(shares.shed - other.shed).max()
    received = np.abs(shares.received - other.received).max()
    return float(max(shed, received)) / group.units
