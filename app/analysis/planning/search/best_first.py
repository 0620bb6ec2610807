"""Optimal search, best first over intervals of the slowest stage's time, with its certificate.

A pass (`app.analysis.planning.search.passes`) also bounds every template with a faster slowest
stage, so few times of an interval are tried. The search ends when no open interval can hold a
better template. Leaves of the certificate bound all templates whose slowest stage is in
[low_ps, high_ps]; the smallest bound is proven.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Protocol

from app.analysis.planning.problem import NEVER, PlanningProblem
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.kernels import FAR
from app.analysis.planning.search.passes import (
    SearchGoal,
    SearchPasses,
    Table,
    TooManyCellsError,
    Variant,
    candidate_times,
    cheapest_within,
)
from app.analysis.planning.template import Template, compute_times, stage_times, t_oobleck, t_std

# ---- What proves a lower bound: every possible time of the slowest stage, in intervals ---------
# A leaf says of the templates whose slowest stage takes low_ps to high_ps that none costs less than
# `bound_ps`. Every time that any stage can take is in a leaf; the smallest bound is the
# certificate's. By t_oobleck, which prices a single stage by a rule of its own, the leaves are
# about templates of several stages.


@dataclass(frozen=True, slots=True)
class Leaf:
    """An interval of the slowest stage's time, both ends included, in ps.

    `bound_ps` is None where no template has its slowest stage there.
    """

    low_ps: int
    high_ps: int
    bound_ps: int | None


@dataclass(frozen=True, slots=True)
class Certificate:
    """The leaves in order, what they prove, and how many intervals were looked into."""

    objective: str
    leaves: tuple[Leaf, ...]
    lower_bound_ps: int
    upper_bound_ps: int
    explored: int

    @property
    def closed(self) -> bool:
        """Return whether the upper bound is proven to be the optimum."""
        return self.lower_bound_ps >= self.upper_bound_ps

    @property
    def gap(self) -> float:
        """Return how far above the lower bound the upper one is, as a fraction."""
        return max(self.upper_bound_ps / self.lower_bound_ps - 1, 0.0)


# ---- What the optimal search minimizes: how its passes price stages, and what bounds an interval -


class SearchObjective(Protocol):
    """What differs between objectives."""

    @property
    def name(self) -> str:
        """Return the objective's name."""

    @property
    def with_transfers(self) -> bool:
        """Return whether the intervals are of stages' times with their transfers."""

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return what no template costs less than, with its slowest stage at least low_ps."""

    def goal(self, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        """Return what to look for in an interval."""

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return the true cost."""


@dataclass(frozen=True, slots=True)
class StandardTime:
    """ΣL + (N − 1)·max L."""

    microbatches: int
    name: str = "t_std"
    with_transfers: bool = True

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return what no template costs less than, with its slowest stage at least low_ps."""
        return cheapest + (self.microbatches - 1) * low_ps

    def goal(self, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        """Return what to look for in an interval."""
        return cheapest_within(high_ps, min(best - (self.microbatches - 1) * low_ps, FAR))

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return the true cost."""
        return t_std(stage_times(problem, template), self.microbatches)


@dataclass(frozen=True, slots=True)
class OobleckEstimate:
    """With the slowest stage's time t: ΣL before it, (N_b + 2)·t, Σ(2·L − t) behind it."""

    microbatches: int
    most_stages: int
    name: str = "t_oobleck"
    with_transfers: bool = True

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return what no template costs less than, with its slowest stage at least low_ps."""
        steady = max(self.microbatches - self.most_stages + 1, 1)
        return cheapest + (steady + 1) * low_ps

    def goal(self, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        """Return what to look for in an interval."""
        variants = (
            Variant(0, 0, 2, -high_ps, 0, high_ps - 1),
            Variant(0, 1, self.microbatches + 2, 0, low_ps, high_ps),
            Variant(1, 1, 1, 0, 0, high_ps),
        )
        return SearchGoal(high_ps, variants, min(best, FAR))

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return the true cost."""
        value = t_oobleck(stage_times(problem, template), self.microbatches)
        return FAR if value is None else value


@dataclass(frozen=True, slots=True)
class ExecutedBound:
    """What no execution is shorter than, from the stages' computations C and transfers.

    A slowest stage k takes N·C_k for its computations. Before the first of them a microbatch
    passes the stages before k, and after the last one its gradient does. Between its first forward
    and its first backward the stages behind k work for X = ΣC and their transfers, while k has
    computations of n microbatches to fill the time with, n ≤ the number of these stages: it waits
    X − n·F or longer, and between its last ones X − n·B. Of fewer stages than microbatches both
    waits count, Σ(2·C − C_k); else the two can be one, of at least half.

    `fewer` says of which templates this is a bound: those with fewer stages than microbatches, or
    the others. Of the others each stage is granted a quarter of the slowest one, which is charged
    N times: there are at least N stages, so this takes nothing from the bound.
    """

    microbatches: int
    fewer: bool
    name: str = "executed"
    with_transfers: bool = False

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return what no template costs less than, with its slowest stage at least low_ps."""
        return max(cheapest, self.microbatches * low_ps)

    def goal(self, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        """Return what to look for in an interval."""
        waits, granted = self._waits, self._granted(high_ps)
        short = -((waits * high_ps + 1) // 2) - granted
        charged = (self.microbatches - 1) * granted
        variants = (
            Variant(0, 0, waits, short, 0, high_ps, counted=0, apart=waits),
            Variant(0, 1, self.microbatches, charged, low_ps, high_ps, counted=0, apart=1),
            Variant(1, 1, 1, -granted, 0, high_ps, counted=0, apart=1),
        )
        # What stages are granted is not in the bound of what is left to do.
        return SearchGoal(high_ps, variants, min(best, FAR) if self.fewer else FAR)

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return what a pass finds for the template."""
        computing = compute_times(problem, template)
        whole = stage_times(problem, template)
        slowest = max(computing)
        k = max(i for i, time in enumerate(computing) if time == slowest)
        least = sum(whole[: k + 1]) + (self.microbatches - 1) * slowest
        short = (self._waits * slowest + 1) // 2
        waits = sum(self._waits * time - short for time in whole[k + 1 :])
        spare = (self.microbatches - len(template)) * self._granted(slowest)
        return max(least + waits + spare, self.microbatches * slowest)

    @property
    def _waits(self) -> int:
        return 2 if self.fewer else 1

    def _granted(self, slowest_ps: int) -> int:
        return 0 if self.fewer else slowest_ps // 4


def objective_of(name: str, problem: PlanningProblem) -> SearchObjective:
    """Return ``t_std`` or ``t_oobleck``."""
    microbatches = problem.spec.microbatches
    if name == "t_oobleck":
        return OobleckEstimate(microbatches, most_stages(problem))
    return StandardTime(microbatches)


def most_stages(problem: PlanningProblem) -> int:
    """Return how many stages a template has at most."""
    return min(problem.spec.gpus, problem.layers)


# ---- The optimal search: best first over intervals of the slowest stage's time -----------------
# A pass (`app.analysis.planning.search.passes`) finds the cheapest template whose stages take at
# most t. What it finds also bounds every template with a slowest stage below t, so an interval of
# times is closed, or split, by looking at few of its times. It ends when no open interval can hold
# anything better than the best template found: that one is optimal, and the intervals are the
# proof.


@dataclass(frozen=True, slots=True, order=True)
class _Interval:
    """Candidate times low..high (positions, both included) and what nothing there can beat."""

    bound: int
    low: int
    high: int
    # least ΣL known for the interval (t_std)
    cheapest: int
    looked_into: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The best template and the proof of how good it is."""

    template: Template
    cost_ps: int
    certificate: Certificate
    # what the passes found on the way, from the last one on
    others: tuple[Template, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """A template and its cost: what cannot cost less is not looked into.

    Every template has a stage that takes at least `smallest_ps`, without transfers.
    """

    template: Template
    cost_ps: int
    smallest_ps: int


class Search:
    """One optimal search.

    Parameters
    ----------
    standing : Standing, optional
        What another search has found. With it and a limit of the passes' cells, the search ends
        with the bound that it has proven within the limit.
    """

    def __init__(
        self,
        passes: SearchPasses,
        objective: SearchObjective,
        budget: SearchBudget,
        standing: Standing | None = None,
    ) -> None:
        problem = passes.problem
        self.passes, self.problem, self.budget = passes, problem, budget
        self.objective = objective
        self.times = candidate_times(problem, with_transfers=self.objective.with_transfers)
        if isinstance(self.objective, OobleckEstimate):
            # A single stage is priced by a formula of its own: it is looked at apart.
            passes.cost = problem.cost_ps.copy()
            passes.cost[:, problem.layers, 0] = NEVER
        self.best: Template | None = None
        self.best_cost = FAR
        self.standing = standing
        if standing is not None:
            self.best, self.best_cost = standing.template, standing.cost_ps
        self.offered: list[Template] = []
        self.open: list[_Interval] = []
        self.closed: list[_Interval] = []
        self.explored = 0
        # every template has a stage that takes at least this, without transfers
        self.smallest_ps = 0

    def run(self) -> Found | None:
        """Search until the optimum is proven or the budget is spent; None: no template at all.

        At least a first template is looked for, whatever the budget.
        """
        if not self._begin():
            return None
        while self.open and self.open[0].bound < self.best_cost:
            if self.budget.spent and self.best is not None:
                break
            interval = heapq.heappop(self.open)
            try:
                self._look_into(interval)
            except TooManyCellsError:
                if self.passes.most_cells is not None and interval.low == interval.high:
                    self._push(interval)
                    break
                self._halve(interval)
            if self.best is not None and self.open:
                self.budget.tell(max(self.best_cost / max(self.open[0].bound, 1) - 1, 0.0))
        if self.best is None:
            return None
        return Found(self.best, self.best_cost, self._certificate(), tuple(reversed(self.offered)))

    def _begin(self) -> bool:
        """Find first templates and open the interval to search; False: there is no template."""
        if isinstance(self.objective, OobleckEstimate):
            for template in self.passes.single_stages():
                self._offer(template)
        first = self._smallest_feasible()
        if first is None:
            return False
        if isinstance(self.objective, StandardTime):
            first = self._first_template(first)
        if first < len(self.times):
            least = int(self.passes.rest[-1])
            bound = self.objective.bound(least, int(self.times[first]))
            self._push(_Interval(bound, first, len(self.times) - 1, least, looked_into=False))
        return True

    def _smallest_feasible(self) -> int | None:
        """Return the position of the smallest time that is not certainly infeasible."""
        low, high = 0, len(self.times) - 1
        if self.standing is not None:
            low = high = int(self.times.searchsorted(self.standing.smallest_ps))
        elif not self.passes.feasible(int(self.times[high])):
            return None
        while low < high:
            self.budget.check()
            middle = (low + high) // 2
            if self.passes.feasible(int(self.times[middle])):
                high = middle
            else:
                low = middle + 1
        if low:
            self.smallest_ps = int(self.times[low - 1]) + 1
            self.closed.append(_Interval(FAR, 0, low - 1, FAR, looked_into=True))
        return low

    def _first_template(self, first: int) -> int:
        """Find some template close to the smallest times; return the position after what is closed.

        The bound is all but always exact, so the first pass finds one; else larger times are
        tried in growing steps.
        """
        stride = 1
        at = first
        while True:
            table = self._pass(at, at, FAR)
            if table is not None:
                return first
            self.closed.append(_Interval(FAR, first, at, FAR, looked_into=True))
            first = at + 1
            if first >= len(self.times):
                return first
            at = min(at + stride, len(self.times) - 1)
            stride *= 2

    def _look_into(self, interval: _Interval) -> None:
        """Close the interval, or replace it by smaller ones with better bounds."""
        low, high = interval.low, interval.high
        objective = self.objective
        low_ps = int(self.times[low])
        # Times at the end that are too long for anything better are closed at once.
        useful = self._last_useful(interval)
        if useful < high:
            tail_bound = objective.bound(interval.cheapest, int(self.times[useful + 1]))
            self._close(
                _Interval(tail_bound, useful + 1, high, interval.cheapest, looked_into=True)
            )
            self._push(replace(interval, high=useful))
            return
        if not isinstance(objective, StandardTime):
            self._look_into_phases(interval, high)
            return
        at = (low + high) // 2 if interval.looked_into else high
        cutoff = min(self.best_cost - (self.problem.spec.microbatches - 1) * low_ps, FAR)
        table = self._pass(low, at, self.best_cost)
        if at < high:
            bound = objective.bound(interval.cheapest, int(self.times[at + 1]))
            self._push(_Interval(bound, at + 1, high, interval.cheapest, looked_into=True))
        if table is None or table.best is None:
            bound = objective.bound(cutoff, low_ps)
            self._close(_Interval(bound, low, at, cutoff, looked_into=True))
            return
        # what cannot lead below the cutoff was left out
        cheapest = min(table.best.value, cutoff)
        slowest = max(stage_times(self.problem, table.template_to(table.best)))
        split = max(int(self.times.searchsorted(slowest)), low)
        bound = objective.bound(cheapest, int(self.times[split]))
        self._close(_Interval(bound, split, at, cheapest, looked_into=True))
        if split > low:
            bound = objective.bound(cheapest, low_ps)
            self._push(_Interval(bound, low, split - 1, cheapest, looked_into=True))

    def _look_into_phases(self, interval: _Interval, high: int) -> None:
        low = interval.low
        standing = self.best_cost
        table = self._pass(low, high, standing)
        if table is None or table.best is None:
            self._close(_Interval(standing, low, high, interval.cheapest, looked_into=True))
            return
        bound = max(min(table.best.value, standing), interval.bound)
        if low == high:
            self._close(_Interval(bound, low, high, interval.cheapest, looked_into=True))
            return
        middle = (low + high) // 2
        for begin, end in ((low, middle), (middle + 1, high)):
            least = self.objective.bound(interval.cheapest, int(self.times[begin]))
            part = _Interval(max(bound, least), begin, end, interval.cheapest, looked_into=True)
            self._push(part)

    def _halve(self, interval: _Interval) -> None:
        """Look into halves where the whole is too much; the shorter times need fewer cells.

        Raises
        ------
        TooManyCellsError
            It is a single time already.
        """
        if interval.low == interval.high:
            raise TooManyCellsError
        middle = (interval.low + interval.high) // 2
        for low, high in ((interval.low, middle), (middle + 1, interval.high)):
            least = self.objective.bound(interval.cheapest, int(self.times[low]))
            bound = max(interval.bound, least)
            self._push(replace(interval, bound=bound, low=low, high=high, looked_into=False))

    def _last_useful(self, interval: _Interval) -> int:
        """Return the last position of the interval where something better may be."""
        low, high = interval.low, interval.high
        while low < high:
            middle = (low + high + 1) // 2
            bound = self.objective.bound(interval.cheapest, int(self.times[middle]))
            if bound < self.best_cost:
                low = middle
            else:
                high = middle - 1
        return low

    def _pass(self, low: int, high: int, best: int) -> Table | None:
        """Make a pass over an interval and offer what it finds."""
        self.budget.check()
        self.explored += 1
        goal = self.objective.goal(int(self.times[low]), int(self.times[high]), best)
        table = self.passes.run(goal)
        if table is not None and table.best is not None:
            self._offer(table.template_to(table.best))
        return table

    def _offer(self, template: Template) -> None:
        self.offered.append(template)
        cost = self.objective.value(self.problem, template)
        if cost < self.best_cost:
            self.best, self.best_cost = template, cost

    def _push(self, interval: _Interval) -> None:
        heapq.heappush(self.open, interval)

    def _close(self, interval: _Interval) -> None:
        self.closed.append(interval)

    def _certificate(self) -> Certificate:
        parts = sorted([*self.open, *self.closed], key=lambda part: part.low)
        leaves = [
            Leaf(
                int(self.times[part.low]),
                int(self.times[part.high]),
                None if part.bound >= FAR else part.bound,
            )
            for part in parts
        ]
        bounds = [leaf.bound_ps for leaf in leaves if leaf.bound_ps is not None]
        return Certificate(
            objective=self.objective.name,
            leaves=tuple(leaves),
            lower_bound_ps=min([*bounds, self.best_cost]),
            upper_bound_ps=self.best_cost,
            explored=self.explored,
        )
