"""The optimal search: best first over intervals of the slowest stage's time.

A pass (`app.analysis.planning.search.passes`) finds the cheapest template whose stages take at
most t. What it finds also bounds every template with a slowest stage below t, so an interval of
times is closed, or split, by looking at few of its times. It ends when no open interval can hold
anything better than the best template found: that one is optimal, and the intervals are the proof.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

from app.analysis.planning.problem import NEVER
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.certificate import Certificate, Leaf
from app.analysis.planning.search.kernels import FAR
from app.analysis.planning.search.objectives import (
    OobleckEstimate,
    SearchObjective,
    StandardTime,
)
from app.analysis.planning.search.passes import (
    SearchPasses,
    Table,
    TooManyCellsError,
    candidate_times,
)
from app.analysis.planning.template import Template, stage_times


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
