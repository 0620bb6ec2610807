"""The provably best template, its near rivals, and what to change where there is none."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from app.analysis.planning.problem import PlanningProblem
from app.analysis.planning.search.best_first import Found, Search
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.certificate import Certificate
from app.analysis.planning.search.kernels import FAR
from app.analysis.planning.search.passes import (
    AT_LEAST,
    AT_MOST,
    EXACT,
    Cell,
    SearchGoal,
    SearchPasses,
    Table,
    TooManyCellsError,
    Way,
)
from app.analysis.planning.search.states import build_states
from app.analysis.planning.template import Template, evaluate, fits, stage_times
from app.errors import InfeasiblePlanError

# How much worse than the optimum a template may be to be simulated.
NEAR: Final = 0.02
# Templates looked at for each limit of the slowest stage.
_RIVALS: Final = 24


@dataclass(frozen=True, slots=True)
class OptimalPlan:
    """The best template by the objective, its proof, and near-optimal ones.

    `near` holds templates within `NEAR`, the best simulated first; the best one is among them.
    """

    template: Template
    cost_ps: int
    certificate: Certificate
    smallest_bottleneck_ps: int
    near: tuple[Template, ...]


def plan_optimal(problem: PlanningProblem, objective: str, budget: SearchBudget) -> OptimalPlan:
    """Search for the best template.

    Parameters
    ----------
    objective : str
        ``t_std`` or ``t_oobleck``.

    Raises
    ------
    InfeasiblePlanError
        There is no template, or the cluster is too large for this search.
    """
    space = build_states(problem)
    # Memory in flight is first counted at its least: if the best template fits, it is the best.
    passes = SearchPasses(problem, space, AT_LEAST)
    search = Search(passes, objective, budget)
    try:
        found = search.run()
        if found is not None and not fits(problem, found.template):
            passes, found = _within_memory(problem, passes, found, objective, budget)
    except TooManyCellsError as error:
        raise InfeasiblePlanError(
            "the cluster is too large for the optimal search", code="plan.too_large"
        ) from error
    if found is None:
        raise InfeasiblePlanError("no template meets the constraints")
    near = _near_optimal(passes, found, objective, budget)
    return OptimalPlan(found.template, found.cost_ps, found.certificate, search.smallest_ps, near)


def _within_memory(
    problem: PlanningProblem,
    relaxed: SearchPasses,
    bound: Found,
    objective: str,
    budget: SearchBudget,
) -> tuple[SearchPasses, Found | None]:
    """Search with the number of stages behind each as part of the state.

    Where that is too much, templates are found that fit in any case; the relaxed search's bound
    then says how far they can be from the optimum.
    """
    exact = SearchPasses(problem, relaxed.space, EXACT)
    try:
        found = Search(exact, objective, budget).run()
    except TooManyCellsError:
        careful = SearchPasses(problem, relaxed.space, AT_MOST)
        found = Search(careful, objective, budget).run()
        if found is None:
            raise
        proven = replace(
            bound.certificate,
            upper_bound_ps=found.cost_ps,
            explored=bound.certificate.explored + found.certificate.explored,
        )
        return careful, replace(found, certificate=proven)
    return exact, found


def _near_optimal(
    passes: SearchPasses, found: Found, objective: str, budget: SearchBudget
) -> tuple[Template, ...]:
    problem = passes.problem
    limit = int(found.cost_ps * (1 + NEAR))
    slowest = max(stage_times(problem, found.template))
    candidates = {found.template}
    for longest in (slowest, int(slowest * (1 + NEAR))):
        if budget.spent:
            break
        goal = SearchGoal(longest, ((0, 0, 1, 0, 0, longest),), FAR)
        try:
            table = passes.run(goal)
        except TooManyCellsError:
            break
        if table is not None:
            candidates.update(itertools.islice(cheapest_templates(table), _RIVALS))
    times = {template: evaluate(problem, template) for template in candidates}
    near = [
        template
        for template in candidates
        if getattr(times[template], objective) is not None
        and times[template].by(objective) <= limit
        and fits(problem, template)
    ]
    return tuple(sorted(near, key=lambda one: (times[one].simulated, times[one].t_std, str(one))))


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
