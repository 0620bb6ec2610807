"""Provably best template with its lower bound, and near-optimal templates.

If no template is feasible, the module finds the smallest changes of the specification that make a
template feasible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.planning.problem import PlanningProblem, compile_problem
from app.analysis.planning.search.best_first import (
    Certificate,
    ExecutedBound,
    Incumbent,
    Search,
    SearchObjective,
    SearchResult,
    most_stages,
    objective_of,
    smaller_share,
)
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.local_search import near_optimal
from app.analysis.planning.search.passes import (
    AT_LEAST,
    AT_MOST,
    EXACT,
    SearchPasses,
    TooManyCellsError,
    build_states,
    cheapest_within,
)
from app.analysis.planning.template import Template, evaluate, fits, memory_of
from app.errors import Fault, InfeasiblePlanError

# Relative precision of the bisection for the minimum sufficient memory.
_PRECISION: Final = 0.01
# Maximum number of cells of a pass that is repeated for every tried memory.
_MOST_CELLS: Final = 10_000_000
# Maximum number of cells of all passes of a bound of the executed time, which take some seconds; a
# pass has at most half of it.
_CELLS_OF_BOUND: Final = 80_000_000
SIMULATED: Final = "simulated"


def nearest_changes(
    problem: PlanningProblem, budget: SearchBudget
) -> tuple[str, tuple[Fault, ...]]:
    """Return why no template is feasible, and changes each of which makes a template feasible."""
    spec = problem.spec
    unlimited = replace(problem, capacity_bytes=np.full(len(problem.options), np.inf))
    if spec.nodes > problem.layers and not spec.allow_idle and not spec.replicate:
        reason = (
            f"{spec.nodes} nodes each need a stage, and a stage a layer: "
            f"the model has {problem.layers} layers"
        )
    elif _some_template(unlimited) is None:
        reason = "the devices of each node cannot all be used: there are too few layers"
    else:
        return "no template fits the memory", tuple(_memory_changes(problem, budget))
    idle = replace(spec, allow_idle=True)
    changes = []
    if not spec.allow_idle and _some_template(compile_problem(idle)) is not None:
        changes.append(
            Fault("allow_idle", "allow idle devices: then there is a template", column="allow_idle")
        )
    changes.append(
        Fault(
            "fewer_nodes",
            f"plan for at most {problem.layers} nodes with few devices each",
            column="devices",
        )
    )
    return reason, tuple(changes)


def _memory_changes(problem: PlanningProblem, budget: SearchBudget) -> Iterator[Fault]:
    for kind, device in enumerate(problem.spec.devices):
        if device.memory_bytes is None or budget.spent:
            continue
        needed = _least_memory(problem, kind, budget)
        if needed is not None:
            yield Fault(
                "more_memory",
                f"with {_gib(needed)} on each {device.name} ({_gib(device.memory_bytes)} now) "
                "there is a template",
                column=f"devices[{kind}].memory_bytes",
            )
    scale = _least_memory_factor(problem, budget)
    if scale is not None:
        yield Fault(
            "more_memory",
            f"with {scale:.2f} times the memory on every device there is a template",
            column="devices",
        )
    if not problem.spec.allow_idle:
        idle = compile_problem(replace(problem.spec, allow_idle=True))
        if _some_template(idle) is not None:
            yield Fault(
                "allow_idle",
                "allow idle devices: a template with fewer stages fits",
                column="allow_idle",
            )


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def _least_memory(problem: PlanningProblem, kind: int, budget: SearchBudget) -> float | None:
    """Return the minimum device memory of a type for any template, bytes, within `_PRECISION`."""
    mine = np.array(
        [
            option.nodes[kind] > 0 if option.nodes else option.device == kind
            for option in problem.options
        ]
    )
    template = _some_template(_with_capacity(problem, mine, np.inf))
    if template is None:
        return None
    low = float(problem.spec.devices[kind].memory_bytes or 0.0)
    high = _most_memory(problem, template, mine)
    while high > low * (1 + _PRECISION) and not budget.spent:
        middle = (low + high) / 2
        feasible = _some_template(_with_capacity(problem, mine, middle))
        if feasible is None:
            low = middle
        else:
            high = min(_most_memory(problem, feasible, mine), middle)
    return high


def _least_memory_factor(problem: PlanningProblem, budget: SearchBudget) -> float | None:
    low, high = 1.0, 2.0
    while _some_template(_with_memory_factor(problem, high)) is None:
        low, high = high, high * 2
        if budget.spent or high > 2.0**40:
            return None
    while high > low * (1 + _PRECISION) and not budget.spent:
        middle = (low + high) / 2
        if _some_template(_with_memory_factor(problem, middle)) is None:
            low = middle
        else:
            high = middle
    return high


def _most_memory(problem: PlanningProblem, template: Template, mine: np.ndarray) -> float:
    sizes = zip(memory_of(problem, template), template, strict=True)
    return max((size for size, stage in sizes if mine[stage.option]), default=0.0)


def _with_capacity(problem: PlanningProblem, mine: np.ndarray, capacity: float) -> PlanningProblem:
    return replace(problem, capacity_bytes=np.where(mine, capacity, problem.capacity_bytes))


def _with_memory_factor(problem: PlanningProblem, factor: float) -> PlanningProblem:
    return replace(problem, capacity_bytes=problem.capacity_bytes * factor)


def _some_template(problem: PlanningProblem) -> Template | None:
    """Return any template that fits; on large clusters memory is counted at its upper bound."""
    longest = int(problem.cost_ps[:, -1, 0].max()) * 4
    space = build_states(problem)
    most = min(problem.spec.gpus, problem.layers, problem.spec.microbatches)
    exact = space.states * (problem.layers + 1) * (most + 1) <= _MOST_CELLS
    table = SearchPasses(problem, space, EXACT if exact else AT_MOST).run(cheapest_within(longest))
    if table is None or table.best is None:
        return None
    return table.template_to(table.best)


def bounds_of_execution(
    passes: SearchPasses, standard: SearchResult, smallest_ps: int, budget: SearchBudget
) -> tuple[SearchResult, ...]:
    """Return search results whose lowest bound is a bound of every template's executed time.

    Parameters
    ----------
    standard : SearchResult
        Result of the search by t_std. Its template is the incumbent: intervals that cannot beat its
        execution are pruned.
    smallest_ps : int
        Every template has a stage that takes at least this time, without transfers.
    """
    problem, microbatches = passes.problem, passes.problem.spec.microbatches
    kinds = (True, False) if most_stages(problem) >= microbatches else (True,)
    idle = problem.spec.allow_idle or problem.spec.replicate
    lacking, share = idle or problem.spec.nodes < microbatches, smaller_share(problem)
    best, least_ps = standard.template, standard.certificate.lower_bound_ps
    moved_ps = int(problem.input_ps.max() + problem.gradient_ps.max())
    incumbent = Incumbent(best, evaluate(problem, best).simulated, smallest_ps)
    results = []
    for few in kinds:
        relaxed = SearchPasses(problem, passes.space, AT_LEAST, _CELLS_OF_BOUND)
        objective = ExecutedBound(
            microbatches, few, lacking, share, smallest_ps, least_ps, moved_ps
        )
        search = Search(relaxed, objective, budget, incumbent)
        result = search.run()
        if result is None:
            raise AssertionError("there is a template")
        results.append(result)
    return tuple(results)


@dataclass(frozen=True, slots=True)
class OptimalPlan:
    """Best template for the objective with its proof, and near-optimal templates.

    No template costs less than `lower_bound_ps` according to the objective. With ``simulated`` the
    certificate proves the best t_std, from which the search for the fastest execution starts.
    `near` holds near-optimal templates including the best template, sorted by executed time.
    """

    template: Template
    cost_ps: int
    lower_bound_ps: int
    certificate: Certificate
    near: tuple[Template, ...]


def plan_optimal(problem: PlanningProblem, objective: str, budget: SearchBudget) -> OptimalPlan:
    """Return the best template for an objective, with proof and near-optimal templates.

    Parameters
    ----------
    objective : str
        ``t_std``, ``t_oobleck`` or ``simulated``.

    Raises
    ------
    InfeasiblePlanError
        There is no template, or the cluster is too large for this search.
    """
    space = build_states(problem)
    # First search a relaxed problem that counts the minimum of microbatches in flight. If the best
    # template of the relaxed problem fits the memory, it is optimal for the exact problem, too.
    passes = SearchPasses(problem, space, AT_LEAST)
    minimized = objective_of(objective, problem)
    search = Search(passes, minimized, budget)
    try:
        result = search.run()
        if result is not None and not fits(problem, result.template):
            passes, result = _within_memory(problem, passes, result, minimized, budget)
    except TooManyCellsError as error:
        raise InfeasiblePlanError(
            "the cluster is too large for the optimal search", code="plan.too_large"
        ) from error
    if result is None:
        raise InfeasiblePlanError("no template meets the constraints")
    return _rank_near_optimal(passes, result, objective, budget, search.smallest_ps)


def _rank_near_optimal(
    passes: SearchPasses,
    result: SearchResult,
    objective: str,
    budget: SearchBudget,
    smallest_ps: int,
) -> OptimalPlan:
    """Return the best template for the objective; among equals the fastest executed one."""
    problem = passes.problem
    if objective != SIMULATED:
        near = near_optimal(passes, result, objective, budget)
        ties = (item for item in near if evaluate(problem, item).by(objective) == result.cost_ps)
        best = next(ties, result.template)
        return OptimalPlan(
            best, result.cost_ps, result.certificate.lower_bound_ps, result.certificate, near
        )
    bounds = bounds_of_execution(passes, result, smallest_ps, budget)
    seeds = [template for bound in bounds for template in bound.others]
    near = near_optimal(passes, result, objective, budget, seeds)
    least = max(
        problem.spec.microbatches * smallest_ps,
        min(bound.certificate.lower_bound_ps for bound in bounds),
    )
    executed = evaluate(problem, near[0]).simulated
    return OptimalPlan(near[0], executed, least, result.certificate, near)


def _within_memory(
    problem: PlanningProblem,
    relaxed: SearchPasses,
    bound: SearchResult,
    objective: SearchObjective,
    budget: SearchBudget,
) -> tuple[SearchPasses, SearchResult | None]:
    """Search with exact memory: a state also holds the number of stages after the stage.

    If this has too many cells, memory is counted at its upper bound, and the gap is computed from
    the relaxed search's bound.
    """
    exact = SearchPasses(problem, relaxed.space, EXACT)
    try:
        result = Search(exact, objective, budget).run()
    except TooManyCellsError:
        careful = SearchPasses(problem, relaxed.space, AT_MOST)
        result = Search(careful, objective, budget).run()
        if result is None:
            raise
        proven = replace(
            bound.certificate,
            upper_bound_ps=result.cost_ps,
            explored=bound.certificate.explored + result.certificate.explored,
        )
        return careful, replace(result, certificate=proven)
    return exact, result
