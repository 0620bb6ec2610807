"""Control loop of a tensor-parallel group: when to plan, replan and withdraw a plan.

A job applies a decision at the end of the next step. To react within two slow steps, one report is
enough where a rank's time is far outside of its own noise between reports; otherwise two reports
in a row must agree, so that work does not move back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.mitigation.tensor.advice import Problem, advise
from app.analysis.mitigation.tensor.document import Alternative, Method, MitigationDocument
from app.analysis.mitigation.tensor.group import STRAGGLES, FloatArray, Group, Shares

# ---- Which changes of a rank's time one report is enough for, and which may be its noise -------
# A rank's noise is how far its time moves from one report to the next. A change that is far outside
# of it needs no second report; where too few reports came, or the rank is unsteady, it does.


BoolArray = NDArray[np.bool_]

# Reports that noise is taken from, and how many it takes at least.
LOOKED_BACK: Final = 32
FEWEST: Final = 9
# That many standard deviations of a change are outside of the noise.
FAR: Final = 6.0
# Three quarters of normal changes are within 1.15 standard deviations. That quarter which is not
# counted leaves room for stragglers that came and went meanwhile.
_QUANTILE: Final = 0.75
_WITHIN: Final = 1.1503


@dataclass(frozen=True, slots=True, eq=False)
class Clarity:
    """Changes from one report to the next that no noise explains.

    A rank that changed so for a single report not long ago is none of them: steps out of line must
    not change the job's work again and again.
    """

    # risen, fallen: (ranks,): ranks that became slower, and faster
    risen: BoolArray
    fallen: BoolArray

    @classmethod
    def nothing(cls, ranks: int) -> Clarity:
        """Return that nothing is clear."""
        return cls(np.zeros(ranks, dtype=np.bool_), np.zeros(ranks, dtype=np.bool_))


def clarity(earlier_s: FloatArray, time_s: FloatArray) -> Clarity:
    """Return what has changed clearly since the report before.

    Parameters
    ----------
    earlier_s : float64 array, shape (reports, ranks)
        T of the latest reports of the attempt without plans, oldest first, seconds.
    time_s : float64 array, shape (ranks,)
        T now.

    Examples
    --------
    >>> import numpy as np
    >>> steady = [[1.0, 1.0], [1.01, 1.0], [1.0, 0.99]]
    >>> clarity(np.array(3 * steady), np.array([1.3, 1.0])).risen.tolist()
    [True, False]
    """
    if len(earlier_s) < FEWEST:
        return Clarity.nothing(len(time_s))
    logs = np.log(earlier_s[-LOOKED_BACK:])
    changes = np.diff(logs, axis=0)
    noise = np.quantile(np.abs(changes), _QUANTILE, axis=0) / _WITHIN
    far = np.maximum(FAR * noise, np.log(STRAGGLES))
    now = np.log(time_s) - logs[-1]
    up, down = changes > far, changes < -far
    slow_once = (up[:-1] & down[1:]).any(axis=0)
    fast_once = (down[:-1] & up[1:]).any(axis=0)
    return Clarity((now > far) & ~slow_once, (now < -far) & ~fast_once)


# ---- When to plan, to plan anew and to withdraw: the loop between a job's reports and its plans --
# A job applies what a report led to at the end of the next step. For a plan to be in force after
# two slow steps, and gone two steps after a recovery, one report has to do where a rank's time is
# far outside of its own noise. What may be noise is done when two reports in a row ask for it: it
# would change the job's work back and forth.


# A group whose slowest rank is this near to its fastest has recovered; between the two limits a
# plan that stands stays.
RECOVERED: Final = 1.05
# That many reports in a row decide what one of them leaves unclear.
IN_A_ROW: Final = 2
# A plan whose shares differ by more than this from what is needed now is made anew.
MOST_DRIFT: Final = 0.05
# Another method takes over where it is this much faster.
WORTH_A_CHANGE: Final = 1.05
# Steps of straggling after which work is moved for good, and the node is to be replaced.
STICKY_AFTER: Final = 100
REPLACE_AFTER: Final = 1000


class Rung(IntEnum):
    """How much a method costs the job; escalation goes upwards."""

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
    """What the latest reports of a group have in common."""

    # over, calm: reports in a row with a straggler while no plan stands, and without one while
    # one does
    over: int = 0
    calm: int = 0
    # Reports in a row that ask for other shares than those of the plan that stands.
    drifted: int = 0
    missed: int = 0  # reports in a row in which the plan in force took much longer than predicted
    rung: Rung = Rung.RESIZE  # the lowest one that is still tried against this straggler
    since_step: int | None = None  # when the straggling began


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """The plan that stands, offered or in force."""

    method: Method
    shares: Shares
    predicted_time_s: float  # of the slowest rank
    fits: bool = True  # whether the job and the switch still allow it


class Act(StrEnum):
    """What is to be done with the plan of a group."""

    KEEP = "keep"
    PLAN = "plan"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a report leads to."""

    act: Act
    streak: Streak  # to be handed to the next decision
    alternative: Alternative | None = None  # the new plan
    # Whether the straggler has lasted so long that its node is to be replaced.
    replace_node: bool = False


def decide(  # noqa: PLR0913, PLR0917 - what is known of the group
    problem: Problem,
    step: int,
    streak: Streak,
    standing: Standing | None,
    under_plan_s: float | None,
    clear: Clarity | None = None,
) -> Decision:
    """Return what a report leads to.

    Parameters
    ----------
    problem : Problem
        The group as it is without the plan that it was measured under.
    step : int
        The last step of the report.
    streak : Streak
        Of the report before.
    under_plan_s : float or None
        T of the slowest rank where the report was measured under the plan that stands.
    clear : Clarity, optional
        What one report is enough for.
    """
    group = problem.group
    clear = clear or Clarity.nothing(group.ranks)
    slowdown = float(group.time_s.max()) / group.fastest_s
    if slowdown <= STRAGGLES and standing is None:
        return Decision(Act.KEEP, Streak())
    since = step if streak.since_step is None else streak.since_step
    streak = replace(streak, since_step=since)
    if slowdown <= RECOVERED:
        streak = replace(streak, calm=_counted(streak.calm, clear.fallen), drifted=0, missed=0)
        if streak.calm >= IN_A_ROW:
            return Decision(Act.WITHDRAW, Streak())
        return Decision(Act.KEEP, streak)
    lasting = step - since >= REPLACE_AFTER
    if standing is None:
        over = _counted(streak.over, clear.risen[group.stragglers])
        streak = replace(streak, over=over, calm=0)
        return _first(problem, _escalated(streak, problem.methods, step), lasting=lasting)
    if slowdown <= STRAGGLES:
        # Between the limits: neither recovered nor worth another plan.
        return Decision(Act.KEEP, replace(streak, calm=0, drifted=0, missed=0))
    missed = under_plan_s is not None and under_plan_s > STRAGGLES * standing.predicted_time_s
    streak = replace(streak, calm=0, missed=streak.missed + 1 if missed else 0)
    # Another straggler than those whose work is shed, and no doubt of it.
    another = clear.risen[group.stragglers] & (standing.shares.shed[group.stragglers] == 0)
    if another.any():
        streak = replace(streak, drifted=IN_A_ROW - 1)
    return _again(problem, _escalated(streak, problem.methods, step), standing, lasting=lasting)


def _counted(before: int, clear: BoolArray) -> int:
    """Return how many reports in a row ask for the same; a clear one counts as all it takes."""
    return max(before + 1, IN_A_ROW if clear.any() else 0)


def _first(problem: Problem, streak: Streak, *, lasting: bool) -> Decision:
    if streak.over < IN_A_ROW:
        return Decision(Act.KEEP, streak, replace_node=lasting)
    wanted = _wanted(advise(problem), streak.rung)
    if wanted.method is Method.NONE:
        return Decision(Act.KEEP, streak, replace_node=lasting)
    return Decision(Act.PLAN, replace(streak, over=0, drifted=0), wanted, replace_node=lasting)


def _escalated(streak: Streak, methods: frozenset[Method], step: int) -> Streak:
    """Return a streak with the next rung, where the present one did not do or has lasted long."""
    rung = streak.rung
    if streak.missed >= IN_A_ROW:
        rung = Rung(min(rung + 1, Rung.STICKY))
    if streak.since_step is not None and step - streak.since_step >= STICKY_AFTER:
        rung = Rung.STICKY
    known = {RUNGS[method] for method in methods if method is not Method.NONE}
    if not any(rung <= other for other in known):
        rung = streak.rung
    # What was tried in vain is not tried for two more reports.
    drifted = IN_A_ROW - 1 if rung > streak.rung else streak.drifted
    return replace(streak, rung=rung, missed=streak.missed % IN_A_ROW, drifted=drifted)


def _again(problem: Problem, streak: Streak, standing: Standing, *, lasting: bool) -> Decision:
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
    """Return the cheapest method, from a rung on, that is near to the fastest rank; or the best."""
    near_s = STRAGGLES * document.fastest_time_s
    for at in [other for other in Rung if other >= rung]:
        found = _first_of(
            document,
            lambda item, at=at: (  # type: ignore[misc]
                RUNGS.get(item.method) == at and item.predicted_time_s <= near_s
            ),
        )
        if found is not None:
            return found
    best = _first_of(document, lambda item: RUNGS.get(item.method, Rung.STICKY) >= rung)
    return best or document.best


def _first_of(
    document: MitigationDocument, meets: Callable[[Alternative], bool]
) -> Alternative | None:
    within: Iterable[Alternative] = (item for item in document.alternatives if item.within_budget)
    return next((item for item in within if meets(item)), None)


def shares_of(item: Alternative, group: Group) -> Shares:
    """Return the shares of an alternative, in units."""
    shares = Shares.nothing(group.ranks)
    for rank in item.ranks:
        shares.resized[rank.rank] = rank.resized_columns // group.unit
        for to, count in rank.to.items():
            shares.moved[rank.rank, int(to)] = count // group.unit
    return shares


def drift_between(one: Shares, other: Shares, group: Group) -> float:
    """Return |Δγ|: by how much two plans differ in what a rank sheds or takes over, at most."""
    shed = np.abs(one.shed - other.shed).max()
    received = np.abs(one.received - other.received).max()
    return float(max(shed, received)) / group.units
