"""Optimal search, best first over intervals of the slowest stage's time, with its certificate.

A pass (`app.analysis.planning.search.passes`) finds the cheapest template whose stages take at most
t. Its cost bounds the cost of every template with a faster slowest stage, so few passes close or
split an interval of times. The search ends when no open interval can hold a template better than
the best template found. The intervals are the proof: each leaf of the certificate bounds the
templates whose slowest stage takes low_ps to high_ps, every possible time is in a leaf, and so the
lowest bound of all leaves is proven. For t_oobleck, which prices a single stage differently, leaves
cover only templates of several stages.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final, NamedTuple, Protocol

import numpy as np

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

# Relative width of the intervals for which the executed time is bounded.
_WIDE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Leaf:
    """Interval of the slowest stage's time, ends included, with a lower bound of the cost, in ps.

    `bound_ps` is None if no template has its slowest stage in the interval.
    """

    low_ps: int
    high_ps: int
    bound_ps: int | None


@dataclass(frozen=True, slots=True)
class Certificate:
    """Leaves in ascending order of time, proven bounds, and number of explored intervals."""

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
        """Return the optimality gap: upper ÷ lower bound − 1."""
        return max(self.upper_bound_ps / self.lower_bound_ps - 1, 0.0)


class SearchObjective(Protocol):
    """Objective of a search: prices of stages, and a lower bound of the cost over an interval."""

    @property
    def name(self) -> str:
        """Return the objective's name."""

    @property
    def with_transfers(self) -> bool:
        """Return whether the times of the intervals include transfers."""

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return a lower bound of the cost, given ΣL ≥ cheapest and a slowest stage ≥ low_ps."""

    def within(self, cheapest: int, low_ps: int, high_ps: int) -> int:
        """Return a lower bound of the cost, given also a slowest stage ≤ high_ps."""

    def is_wide(self, low_ps: int, high_ps: int) -> bool:
        """Return whether an interval is too wide for a pass to be worth its time."""

    def goals(self, low_ps: int, high_ps: int, best: int) -> tuple[SearchGoal, ...]:
        """Return the goals of passes over an interval: each of them bounds the cost."""

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return the cost of a template according to the objective, ps."""


@dataclass(frozen=True, slots=True)
class StandardTime:
    """t_std = ΣL + (N − 1)·max L, the objective of Alpa and Metis."""

    microbatches: int
    name: str = "t_std"
    with_transfers: bool = True

    def is_wide(self, low_ps: int, high_ps: int) -> bool:  # noqa: ARG002 - none is
        """Return False: a pass over a wide interval finds good templates."""
        return False

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return a lower bound of the cost, given ΣL ≥ cheapest and a slowest stage ≥ low_ps."""
        return cheapest + (self.microbatches - 1) * low_ps

    def goals(self, low_ps: int, high_ps: int, best: int) -> tuple[SearchGoal, ...]:
        """Return the goal of a pass over an interval."""
        return (cheapest_within(high_ps, min(best - (self.microbatches - 1) * low_ps, FAR)),)

    def within(self, cheapest: int, low_ps: int, high_ps: int) -> int:  # noqa: ARG002 - no help
        """Return the bound of a slowest stage ≥ low_ps."""
        return self.bound(cheapest, low_ps)

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return t_std of a template, ps."""
        return t_std(stage_times(problem, template), self.microbatches)


@dataclass(frozen=True, slots=True)
class OobleckEstimate:
    """Oobleck's estimate with t = max L: ΣL before stage t, (N_b + 2)·t, Σ(2·L − t) after it."""

    microbatches: int
    most_stages: int
    name: str = "t_oobleck"
    with_transfers: bool = True

    def is_wide(self, low_ps: int, high_ps: int) -> bool:  # noqa: ARG002 - none is
        """Return False: a pass over a wide interval finds good templates."""
        return False

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return a lower bound of the cost, given ΣL ≥ cheapest and a slowest stage ≥ low_ps."""
        steady = max(self.microbatches - self.most_stages + 1, 1)
        return cheapest + (steady + 1) * low_ps

    def goals(self, low_ps: int, high_ps: int, best: int) -> tuple[SearchGoal, ...]:
        """Return the goal of a pass over an interval."""
        variants = (
            Variant(0, 0, 2, -high_ps, 0, high_ps - 1),
            Variant(0, 1, self.microbatches + 2, 0, low_ps, high_ps),
            Variant(1, 1, 1, 0, 0, high_ps),
        )
        return (SearchGoal(high_ps, variants, min(best, FAR)),)

    def within(self, cheapest: int, low_ps: int, high_ps: int) -> int:  # noqa: ARG002 - no help
        """Return the bound of a slowest stage ≥ low_ps."""
        return self.bound(cheapest, low_ps)

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return Oobleck's estimate of a template, ps; `FAR` if the estimate is undefined."""
        value = t_oobleck(stage_times(problem, template), self.microbatches)
        return FAR if value is None else value


class _Prices(NamedTuple):
    """Prices of a bound of the executed time, in units of the slowest stage's time C_k.

    A stage behind k costs `waits` times its own time, minus `behind` units; k costs N of its own
    times, plus `slowest` units; a stage before k costs its own time.
    """

    waits: int
    behind: float
    slowest: float


@dataclass(frozen=True, slots=True)
class ExecutedBound:
    """Lower bound of an iteration executed by 1F1B, from transfers and computation times C.

    A slowest stage k computes for N·C_k. Before its first computation a microbatch passes the
    stages before k, and after its last computation the microbatch's gradient passes these stages.
    Between the first forward and the first backward of k, the stages behind k take X = ΣC plus
    their transfers, while k can fill this time with at most n forwards, n ≤ the number of stages
    behind k and n < N. So k waits at least X − n·F_k. Between its last computations it waits at
    least X − n·B_k.

    One of these waits is at least X − n·`share`·C_k. This bound is good if the stages behind k are
    small. With less than N − 1 stages behind k both waits count, 2·X − n·C_k, which is exact for
    even stages.

    Parameters
    ----------
    few : bool
        The bound holds for templates with at most N − 2 stages behind k; otherwise for templates
        with at least N − 1. What a template has beyond this limit may be charged to it: half a
        unit for each stage that it lacks.
    lacking : bool
        Whether most templates have less than N stages, so that the charge is worth it.
    share : float
        Upper bound of the forward's, or of the backward's, share of every stage's time.
    smallest_ps : int
        Lower bound of every template's slowest stage.
    standard_ps : int
        Lower bound of every template's t_std.
    moved_ps : int
        Upper bound of the transfers that one stage receives for a microbatch.
    """

    microbatches: int
    few: bool
    lacking: bool
    share: float
    smallest_ps: int
    standard_ps: int = 0
    moved_ps: int = 0
    name: str = "executed"
    with_transfers: bool = False

    def is_wide(self, low_ps: int, high_ps: int) -> bool:
        """Return whether the ends differ much, compared with what the lower end costs already.

        The stages behind k are credited the upper end.
        """
        return high_ps > (1 + _WIDE) * low_ps + (low_ps - self.smallest_ps)

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return a lower bound of the cost, ps, if the slowest stage takes at least low_ps.

        The slowest stage fills at most N − 1 forwards into the time of the stages behind it.
        """
        steady = floor((self.microbatches - 1) * (1 - self.share) * low_ps)
        return max(cheapest + steady, self.microbatches * low_ps)

    def within(self, cheapest: int, low_ps: int, high_ps: int) -> int:
        """Return a lower bound of the cost, given also a slowest stage ≤ high_ps.

        The lower bound of t_std bounds ΣL from below, the more the less the slowest stage takes.
        The interval's worst time is where this bound meets the one that grows with the time.
        """
        others = self.microbatches - 1
        spare_ps = self.standard_ps - cheapest - others * self.moved_ps
        worst_ps = min(max(spare_ps // others if others else 0, low_ps), high_ps)
        falling = self.standard_ps - ceil(others * (self.share * (worst_ps + 1) + self.moved_ps))
        return max(self.bound(cheapest, low_ps), falling)

    def goals(self, low_ps: int, high_ps: int, best: int) -> tuple[SearchGoal, ...]:
        """Return the goals of passes over an interval: each of them bounds the cost.

        Two waits bound it well only in a narrow interval: they credit the most to the stages behind
        k.
        """
        narrow = high_ps <= (1 + _WIDE) * low_ps
        chosen = self._prices if narrow else self._prices[-1:]
        return tuple(self._goal(prices, low_ps, high_ps, best) for prices in chosen)

    def _goal(self, prices: _Prices, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        waits, behind = prices.waits, -ceil(prices.behind * high_ps)
        slowest = floor(prices.slowest * high_ps)
        variants = (
            Variant(0, 0, waits, behind, 0, high_ps, counted=0, apart=waits),
            Variant(0, 1, self.microbatches, slowest, low_ps, high_ps, counted=0, apart=1),
            Variant(1, 1, 1, 0, 0, high_ps, counted=0, apart=1),
        )
        return SearchGoal(high_ps, variants, min(best, FAR))

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return the bound of a template computed with the prices of a pass, ps."""
        computing = compute_times(problem, template)
        whole = stage_times(problem, template)
        slowest = max(computing)
        k = max(i for i, time in enumerate(computing) if time == slowest)
        least = sum(whole[: k + 1]) + (self.microbatches - 1) * slowest
        return max(
            self.microbatches * slowest,
            *(
                least
                + floor(prices.slowest * slowest)
                + sum(
                    prices.waits * time - ceil(prices.behind * slowest) for time in whole[k + 1 :]
                )
                for prices in self._prices
            ),
        )

    @property
    def _prices(self) -> tuple[_Prices, ...]:
        if self.few:
            return _Prices(2, 1.0, 0.0), _Prices(1, self.share, 0.0)
        most = self.microbatches - 1
        charge = 0.5 if self.lacking else 0.0
        return (_Prices(1, charge, (charge - self.share) * most),)


def smaller_share(problem: PlanningProblem) -> float:
    """Return the smaller of two bounds: of forwards, and of backwards, as a share of any stage."""
    inside = np.tri(problem.layers + 1, k=-1, dtype=bool)
    cost = problem.cost_ps[:, inside]
    possible = (cost > 0) & (cost < NEVER)
    forward = problem.forward_ps[:, inside][possible] / cost[possible]
    return float(min(forward.max(), 1 - forward.min()))


def objective_of(name: str, problem: PlanningProblem) -> SearchObjective:
    """Return the search objective: Oobleck's estimate for ``t_oobleck``, else t_std."""
    microbatches = problem.spec.microbatches
    if name == "t_oobleck":
        return OobleckEstimate(microbatches, most_stages(problem))
    return StandardTime(microbatches)


def most_stages(problem: PlanningProblem) -> int:
    """Return the maximum number of stages of a template."""
    return min(problem.spec.gpus, problem.layers)


@dataclass(frozen=True, slots=True, order=True)
class _Interval:
    """Positions low to high, both included, of candidate times, with a lower bound of the cost."""

    bound: int
    low: int
    high: int
    cheapest: int  # lower bound of ΣL in the interval (t_std)
    visited: bool  # whether a pass has covered the interval


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Best template found, with its certificate."""

    template: Template
    cost_ps: int
    certificate: Certificate
    others: tuple[Template, ...] = ()  # templates of all passes, the latest first


@dataclass(frozen=True, slots=True)
class Incumbent:
    """Best template known at a search's start; intervals that cannot contain a better are pruned.

    `smallest_ps`: every template has a stage that takes at least this time, without transfers.
    """

    template: Template
    cost_ps: int
    smallest_ps: int


class Search:
    """Optimal search over the intervals of the slowest stage's time.

    Parameters
    ----------
    incumbent : Incumbent, optional
        Result of another search. With an incumbent and a limit of the passes' cells, the search
        ends with the bound that it has proven within the limit.
    """

    def __init__(
        self,
        passes: SearchPasses,
        objective: SearchObjective,
        budget: SearchBudget,
        incumbent: Incumbent | None = None,
    ) -> None:
        problem = passes.problem
        self.passes, self.problem, self.budget = passes, problem, budget
        self.objective = objective
        self.times = candidate_times(problem, with_transfers=self.objective.with_transfers)
        if isinstance(self.objective, OobleckEstimate):
            # Oobleck's formula for a single stage differs, so passes skip the template with a
            # single stage and `_open_first_interval` offers it.
            passes.cost = problem.cost_ps.copy()
            passes.cost[:, problem.layers, 0] = NEVER
        self.best: Template | None = None
        self.best_cost = FAR
        self.incumbent = incumbent
        if incumbent is not None:
            self.best, self.best_cost = incumbent.template, incumbent.cost_ps
        self.offered: list[Template] = []
        self.open: list[_Interval] = []
        self.closed: list[_Interval] = []
        self.explored = 0
        # Every template has a stage that takes at least this time, without transfers.
        self.smallest_ps = 0

    def run(self) -> SearchResult | None:
        """Search until the optimum is proven or the budget spent; return None without a template.

        A first template is found even if the budget is already spent.
        """
        if not self._open_first_interval():
            return None
        while self.open and self.open[0].bound < self.best_cost:
            if self.budget.spent and self.best is not None:
                break
            interval = heapq.heappop(self.open)
            try:
                self._explore(interval)
            except TooManyCellsError:
                if self.passes.most_cells is not None and interval.low == interval.high:
                    self._push(interval)
                    break
                self._halve(interval)
            if self.best is not None and self.open:
                self.budget.report_gap(max(self.best_cost / max(self.open[0].bound, 1) - 1, 0.0))
        if self.best is None:
            return None
        return SearchResult(
            self.best, self.best_cost, self._certificate(), tuple(reversed(self.offered))
        )

    def _open_first_interval(self) -> bool:
        """Find first templates and open the first interval; return False if no template exists."""
        if isinstance(self.objective, OobleckEstimate):
            for template in self.passes.single_stages():
                self._offer(template)
        first = self._smallest_feasible_time()
        if first is None:
            return False
        if isinstance(self.objective, StandardTime):
            first = self._first_template(first)
        if first < len(self.times):
            least = int(self.passes.rest[-1])
            bound = self.objective.within(least, int(self.times[first]), int(self.times[-1]))
            self._push(_Interval(bound, first, len(self.times) - 1, least, visited=False))
        return True

    def _smallest_feasible_time(self) -> int | None:
        """Return the position of the smallest time that is not proven infeasible."""
        low, high = 0, len(self.times) - 1
        if self.incumbent is not None:
            low = high = int(self.times.searchsorted(self.incumbent.smallest_ps))
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
            self.closed.append(_Interval(FAR, 0, low - 1, FAR, visited=True))
        return low

    def _first_template(self, first: int) -> int:
        """Find a template near the smallest time; return the position after the closed interval.

        The feasibility bound is nearly always exact, so the first pass succeeds; otherwise larger
        times are tried in growing steps.
        """
        stride = 1
        at = first
        while True:
            (table,) = self._passes(at, at, FAR)
            if table is not None:
                return first
            self.closed.append(_Interval(FAR, first, at, FAR, visited=True))
            first = at + 1
            if first >= len(self.times):
                return first
            at = min(at + stride, len(self.times) - 1)
            stride *= 2

    def _explore(self, interval: _Interval) -> None:
        """Close the interval, or replace it by smaller intervals with higher bounds."""
        low, high = interval.low, interval.high
        objective = self.objective
        low_ps = int(self.times[low])
        # Times at the interval's end that are too long for a better template are closed without a
        # pass.
        useful = self._last_useful(interval)
        if useful < high:
            tail_bound = objective.bound(interval.cheapest, int(self.times[useful + 1]))
            self._close(_Interval(tail_bound, useful + 1, high, interval.cheapest, visited=True))
            bound = max(interval.bound, self._bound(interval.cheapest, low, useful))
            self._push(replace(interval, bound=bound, high=useful))
            return
        if not isinstance(objective, StandardTime):
            self._explore_phases(interval, high)
            return
        at = (low + high) // 2 if interval.visited else high
        cutoff = min(self.best_cost - (self.problem.spec.microbatches - 1) * low_ps, FAR)
        (table,) = self._passes(low, at, self.best_cost)
        if at < high:
            bound = objective.bound(interval.cheapest, int(self.times[at + 1]))
            self._push(_Interval(bound, at + 1, high, interval.cheapest, visited=True))
        if table is None or table.best is None:
            bound = objective.bound(cutoff, low_ps)
            self._close(_Interval(bound, low, at, cutoff, visited=True))
            return
        # The pass prunes only cells whose cost cannot fall below the cutoff, so the cutoff is a
        # lower bound, too.
        cheapest = min(table.best.value, cutoff)
        slowest = max(stage_times(self.problem, table.template_to(table.best)))
        split = max(int(self.times.searchsorted(slowest)), low)
        bound = objective.bound(cheapest, int(self.times[split]))
        self._close(_Interval(bound, split, at, cheapest, visited=True))
        if split > low:
            bound = objective.bound(cheapest, low_ps)
            self._push(_Interval(bound, low, split - 1, cheapest, visited=True))

    def _explore_phases(self, interval: _Interval, high: int) -> None:
        low = interval.low
        if low < high and self.objective.is_wide(int(self.times[low]), int(self.times[high])):
            self._halve(interval)
            return
        incumbent, bound = self.best_cost, interval.bound
        try:
            for table in self._passes(low, high, incumbent):
                best = None if table is None else table.best
                bound = max(bound, incumbent if best is None else min(best.value, incumbent))
                if bound >= incumbent:
                    break
        except TooManyCellsError:
            if bound == interval.bound:
                raise
        if low == high or bound >= incumbent:
            self._close(_Interval(bound, low, high, interval.cheapest, visited=True))
            return
        middle = (low + high) // 2
        for begin, end in ((low, middle), (middle + 1, high)):
            least = self._bound(interval.cheapest, begin, end)
            part = _Interval(max(bound, least), begin, end, interval.cheapest, visited=True)
            self._push(part)

    def _halve(self, interval: _Interval) -> None:
        """Replace an interval by its halves, because passes over shorter times need fewer cells.

        Raises
        ------
        TooManyCellsError
            The interval is a single time.
        """
        if interval.low == interval.high:
            raise TooManyCellsError
        middle = (interval.low + interval.high) // 2
        for low, high in ((interval.low, middle), (middle + 1, interval.high)):
            bound = max(interval.bound, self._bound(interval.cheapest, low, high))
            self._push(replace(interval, bound=bound, low=low, high=high, visited=False))

    def _bound(self, cheapest: int, low: int, high: int) -> int:
        return self.objective.within(cheapest, int(self.times[low]), int(self.times[high]))

    def _last_useful(self, interval: _Interval) -> int:
        """Return the last position of the interval whose bound is below the best cost."""
        low, high = interval.low, interval.high
        while low < high:
            middle = (low + high + 1) // 2
            bound = self.objective.bound(interval.cheapest, int(self.times[middle]))
            if bound < self.best_cost:
                low = middle
            else:
                high = middle - 1
        return low

    def _passes(self, low: int, high: int, best: int) -> Iterator[Table | None]:
        """Run the passes over an interval, and offer the cheapest template of each."""
        limit = self.passes.most_cells
        for goal in self.objective.goals(int(self.times[low]), int(self.times[high]), best):
            self.budget.check()
            self.explored += 1
            table = self.passes.run(goal, None if limit is None else limit // 2)
            if table is not None and table.best is not None:
                self._offer(table.template_to(table.best))
            yield table

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
