"""The provably best template, its near rivals, and what to change where there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from app.analysis.planning.problem import PlanningProblem
from app.analysis.planning.search.best_first import Found, Search
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.certificate import Certificate
from app.analysis.planning.search.execution import bounds_of_execution
from app.analysis.planning.search.near import near_optimal
from app.analysis.planning.search.objectives import SearchObjective, objective_of
from app.analysis.planning.search.passes import (
    AT_LEAST,
    AT_MOST,
    EXACT,
    SearchPasses,
    TooManyCellsError,
)
from app.analysis.planning.search.states import build_states
from app.analysis.planning.template import Template, evaluate, fits
from app.errors import InfeasiblePlanError

SIMULATED: Final = "simulated"


@dataclass(frozen=True, slots=True)
class OptimalPlan:
    """The best template by the objective, its proof, and near-optimal ones.

    No template costs less than `lower_bound_ps` by the objective. By ``simulated`` the certificate
    is of the best t_std, near which the search for the fastest execution began. `near` holds
    near-optimal templates, the best simulated first; the best one is among them.
    """

    template: Template
    cost_ps: int
    lower_bound_ps: int
    certificate: Certificate
    near: tuple[Template, ...]


def plan_optimal(problem: PlanningProblem, objective: str, budget: SearchBudget) -> OptimalPlan:
    """Search for the best template.

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
    # Memory in flight is first counted at its least: if the best template fits, it is the best.
    passes = SearchPasses(problem, space, AT_LEAST)
    sought = objective_of(objective, problem)
    search = Search(passes, sought, budget)
    try:
        found = search.run()
        if found is not None and not fits(problem, found.template):
            passes, found = _within_memory(problem, passes, found, sought, budget)
    except TooManyCellsError as error:
        raise InfeasiblePlanError(
            "the cluster is too large for the optimal search", code="plan.too_large"
        ) from error
    if found is None:
        raise InfeasiblePlanError("no template meets the constraints")
    return _ranked(passes, found, objective, budget, search.smallest_ps)


def _ranked(
    passes: SearchPasses, found: Found, objective: str, budget: SearchBudget, smallest_ps: int
) -> OptimalPlan:
    """Execute near-optimal templates and take the best by the objective, of equals the fastest."""
    problem = passes.problem
    if objective != SIMULATED:
        near = near_optimal(passes, found, objective, budget)
        ties = (one for one in near if evaluate(problem, one).by(objective) == found.cost_ps)
        best = next(ties, found.template)
        return OptimalPlan(
            best, found.cost_ps, found.certificate.lower_bound_ps, found.certificate, near
        )
    bounds = bounds_of_execution(passes, found.template, smallest_ps, budget)
    seeds = [template for bound in bounds for template in bound.others]
    near = near_optimal(passes, found, objective, budget, seeds)
    least = max(
        problem.spec.microbatches * smallest_ps,
        min(bound.certificate.lower_bound_ps for bound in bounds),
    )
    executed = evaluate(problem, near[0]).simulated
    return OptimalPlan(near[0], executed, least, found.certificate, near)


def _within_memory(
    problem: PlanningProblem,
    relaxed: SearchPasses,
    bound: Found,
    objective: SearchObjective,
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
