"""Templates close to the best one, executed: which of them runs fastest, and most evenly."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from app.analysis.planning.search.arrangement import rearranged
from app.analysis.planning.search.best_first import Found
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.climb import NOTHING, T_OOBLECK, T_STD, climb
from app.analysis.planning.search.kernels import FAR
from app.analysis.planning.search.passes import (
    Cell,
    SearchPasses,
    Table,
    TooManyCellsError,
    Way,
    cheapest_within,
)
from app.analysis.planning.template import (
    SLIGHT,
    Template,
    TemplateTimes,
    divides_nodes_alike,
    evaluate,
    fits,
    has_slight_stage,
    stage_times,
    unevenness,
)

# How much worse than the best a listed template may be.
NEAR: Final = 0.02
# How much longer an execution may take that leaves no device all but idle and divides nodes alike.
SLOWER: Final = 0.01
# Templates looked at for each limit of the slowest stage.
_RIVALS: Final = 24
# Passes for the template whose shortest stage is the longest.
_EVEN_PASSES: Final = 5
# Cells of a pass that is repeated for evenness.
_MOST_CELLS: Final = 10_000_000
# Templates from which layers are moved, each with other devices.
_CLIMBED: Final = 6
# Templates of which the nodes are put in other orders, and orders of each that are tried.
_BEST: Final = 4
_REARRANGED: Final = 32
# Computations that are executed for it, in all; or as many iterations, if these are more.
_WORK: Final = 8_000_000
_EXECUTIONS: Final = 400


def cheapest_templates(table: Table) -> Iterator[Template]:
    """Yield templates of a table in the order of their ΣL, each once."""
    serial = itertools.count()
    heap: list[tuple[int, int, int, Cell, tuple[tuple[Way, Cell], ...]]] = [
        (end.value, next(serial), 0, end, ()) for end in table.ends
    ]
    heapq.heapify(heap)
    layers = table.passes.layers
    while heap:
        _, _, spent, cell, path = heapq.heappop(heap)
        if cell.layer == layers:
            yield table.template_of(list(path))
            continue
        for way in table.ways(cell, FAR):
            cost = spent + way.cost
            entry = (cost + way.behind.value, -next(serial), cost, way.behind, (*path, (way, cell)))
            heapq.heappush(heap, entry)


def near_optimal(
    passes: SearchPasses,
    found: Found,
    objective: str,
    budget: SearchBudget,
    others: Iterable[Template] = (),
) -> tuple[Template, ...]:
    """Return near-optimal templates: the best executed first, of equals the most even.

    Parameters
    ----------
    objective : str
        By ``t_std`` or ``t_oobleck``, templates as good as the best are looked for, and those
        within `NEAR` are returned; by ``simulated``, those that execute fastest, without any that
        leaves devices all but idle, or divides nodes of a type in other ways, unless every other
        one takes longer by more than `SLOWER`.
    others : iterable of Template
        Further templates to begin with.
    """
    candidates = {found.template, *found.others, *others, *_rivals(passes, found, budget)}
    near = _Near(passes, found, objective, budget, candidates)
    tied = T_OOBLECK if objective == "t_oobleck" else T_STD
    near.improve(near.ties(), _CLIMBED, limited=tied)
    if objective != "simulated":
        return near.within(found.cost_ps)
    near.improve(sorted(near.times, key=near.rank), _CLIMBED)
    best = None
    while best != (best := near.best):
        for template in sorted(near.times, key=near.rank)[:_BEST]:
            near.improve(rearranged(passes.problem, template), _REARRANGED)
    near.leave_out_odd(best)
    return near.within(near.cost(near.best))


class _Near:
    """Templates that fit, with what their iterations take."""

    def __init__(
        self,
        passes: SearchPasses,
        found: Found,
        objective: str,
        budget: SearchBudget,
        candidates: Iterable[Template],
    ) -> None:
        self.passes, self.problem, self.budget = passes, passes.problem, budget
        self.objective, self.limit_ps = objective, found.cost_ps
        self.times: dict[Template, TemplateTimes] = {}
        self._ranks: dict[Template, tuple[int, float, int, str]] = {}
        one = 2 * len(found.template) * self.problem.spec.microbatches
        self.work = max(_WORK, _EXECUTIONS * one)
        self.climbed: set[tuple[int, bool, tuple[int, ...]]] = set()
        for template in candidates:
            self._add(template)

    @property
    def best(self) -> Template:
        return min(self.times, key=self.rank)

    def cost(self, template: Template) -> int:
        value: int | None = getattr(self.times[template], self.objective)
        return FAR if value is None else value

    def rank(self, template: Template) -> tuple[int, float, int, str]:
        """Return what templates are ordered by; of the same, their text."""
        return self._ranks[template]

    def within(self, cost_ps: int) -> tuple[Template, ...]:
        """Return the templates that cost at most `NEAR` more, by their rank."""
        limit = int(cost_ps * (1 + NEAR))
        return tuple(sorted((t for t in self.times if self.cost(t) <= limit), key=self.rank))

    def ties(self) -> list[Template]:
        """Return the templates that are as good as the best one of the search, by their rank."""
        sought = "t_oobleck" if self.objective == "t_oobleck" else "t_std"
        tied = (t for t, own in self.times.items() if getattr(own, sought) == self.limit_ps)
        return sorted(tied, key=self.rank)

    def improve(
        self,
        templates: Iterable[Template],
        most: int,
        *,
        limited: int = NOTHING,
        whole: bool = False,
    ) -> None:
        """Move layers in `most` templates, each with other devices."""
        for template in templates:
            devices = limited, whole, tuple(stage.option for stage in template)
            if devices in self.climbed:
                continue
            if not most or self.work <= 0 or self.budget.spent:
                return
            self.climbed.add(devices)
            most -= 1
            moved, self.work = climb(
                self.problem, template, limited, self.limit_ps, self.work, whole=whole
            )
            self._add(moved)

    def leave_out_odd(self, best: Template) -> None:
        """Leave out templates that are not worth it if another one executes about as fast."""
        allowed = int(self.times[best].simulated * (1 + SLOWER))
        if has_slight_stage(self.problem, best) and not self.budget.spent:
            self._look_for_full(best, allowed)
        self._keep([t for t in self.times if not has_slight_stage(self.problem, t)], allowed)
        self._keep([t for t in self.times if divides_nodes_alike(t)], allowed)

    def _keep(self, templates: Sequence[Template], allowed: int) -> None:
        if any(self.times[template].simulated <= allowed for template in templates):
            self.times = {template: self.times[template] for template in templates}

    def _look_for_full(self, best: Template, allowed: int) -> None:
        made = _fuller(self.passes, best, allowed // self.problem.spec.microbatches)
        known = sorted(self.times, key=self.rank)
        self.improve([*made, *known], _CLIMBED + len(made), whole=True)

    def _add(self, template: Template) -> None:
        if template not in self.times and fits(self.problem, template):
            times = evaluate(self.problem, template)
            self.times[template] = times
            uneven = unevenness(self.problem, template)
            self._ranks[template] = times.simulated, uneven, times.t_std, str(template)


def _fuller(passes: SearchPasses, template: Template, longest: int) -> list[Template]:
    """Return templates without slight stages, none of which takes longer than `longest`."""
    times = stage_times(passes.problem, template)
    shortest = -(-sum(times) // (SLIGHT * len(times)))
    try:
        table = passes.run(cheapest_within(longest, shortest_ps=shortest), _MOST_CELLS)
    except TooManyCellsError:
        return []
    return [] if table is None else list(itertools.islice(cheapest_templates(table), _RIVALS))


def _rivals(passes: SearchPasses, found: Found, budget: SearchBudget) -> Iterator[Template]:
    slowest = max(stage_times(passes.problem, found.template))
    for longest in (slowest, int(slowest * (1 + NEAR))):
        if budget.spent:
            return
        try:
            table = passes.run(cheapest_within(longest))
        except TooManyCellsError:
            return
        if table is not None:
            yield from itertools.islice(cheapest_templates(table), _RIVALS)
            if table.values.size <= _MOST_CELLS:
                yield from _even(passes, longest, budget)


def _even(passes: SearchPasses, longest: int, budget: SearchBudget) -> Iterator[Template]:
    """Yield templates whose shortest stage gets longer and longer."""
    low, high = 0, longest
    for _ in range(_EVEN_PASSES):
        if budget.spent:
            return
        middle = (low + high + 1) // 2
        table = passes.run(cheapest_within(longest, shortest_ps=middle))
        if table is None or table.best is None:
            high = middle
        else:
            low = middle
            yield table.template_to(table.best)
