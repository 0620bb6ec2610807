"""Plan of a specification by one of four methods, compared with Ditto and its greedy recovery."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from app.analysis.planning.ditto import (
    Folding,
    RecoveredPlan,
    VirtualTemplate,
    oobleck_templates,
    plan_ditto,
    plan_greedy,
)
from app.analysis.planning.oobleck import Division, TooLargeToDivideError
from app.analysis.planning.problem import PlanningProblem, compile_problem
from app.analysis.planning.search.best_first import Certificate
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.optimal import nearest_changes, plan_optimal
from app.analysis.planning.search.passes import TooManyCellsError
from app.analysis.planning.spec import METHODS, OBJECTIVES, Spec
from app.analysis.planning.template import Template, evaluate, number_nodes
from app.errors import Fault, InfeasiblePlanError, InvalidSpecError

ALTERNATIVES: Final = 10
# Methods that a plan is compared with.
BASELINES: Final = ("ditto", "greedy")
# Maximum number of divisions in the divide and conquer of a comparison, which takes a few seconds.
COMPARED_DIVISIONS: Final = 1e9


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """Result of a planning method: its template with times, proof and comparisons."""

    problem: PlanningProblem
    method: str
    objective: str
    template: Template
    planning_time_s: float
    lower_bound_ps: int | None = None  # by the objective; None for methods without a proof
    certificate: Certificate | None = None
    alternatives: tuple[Template, ...] = ()  # near-optimal ones, the fastest executed first
    folding: Folding | None = None
    virtual: VirtualTemplate | None = None
    oobleck: tuple[VirtualTemplate, ...] = ()
    comparison: dict[str, FoundPlan] = field(default_factory=dict)  # by baseline
    reasons: dict[str, str] = field(default_factory=dict)  # of baselines without an answer

    @property
    def cost_ps(self) -> int | None:
        """Return the iteration's time according to the objective, ps; None if it is undefined."""
        cost: int | None = getattr(evaluate(self.problem, self.template), self.objective)
        return cost

    @property
    def optimal(self) -> bool:
        """Return whether the plan is proven optimal for the objective."""
        bound, cost = self.lower_bound_ps, self.cost_ps
        return bound is not None and cost is not None and bound >= cost

    @property
    def gap(self) -> float | None:
        """Return the optimality gap as a fraction; None if there is no proof."""
        bound, cost = self.lower_bound_ps, self.cost_ps
        return None if bound is None or cost is None else max(cost / bound - 1, 0.0)


def plan(
    spec: Spec,
    *,
    method: str = "optimal",
    objective: str = OBJECTIVES[0],
    budget: SearchBudget | None = None,
    compare: bool = True,
) -> FoundPlan:
    """Return the plan that a method finds for a specification.

    Parameters
    ----------
    method : str
        One of `METHODS`.
    objective : str
        One of `OBJECTIVES`. With ``simulated``, every method minimizes t_std; the method
        ``optimal`` then searches for the fastest executed template, and among equally fast
        templates for the most even.
    budget : SearchBudget, optional
        Its clock measures `planning_time_s`. A time limit ends the optimal search with a gap; the
        other methods end without an answer.
    compare : bool
        Also run Ditto and its greedy recovery, which does not count as planning time.

    Raises
    ------
    InvalidSpecError
        The method does not support the specification.
    InfeasiblePlanError
        There is no template, and the error holds the nearest changes that make a template feasible;
        or the method finds no template.
    """
    check_request(spec, method, objective)
    budget = budget or SearchBudget()
    problem = compile_problem(spec)
    try:
        found_plan = _METHODS[method](problem, objective, budget)
    except InfeasiblePlanError as error:
        if method == "optimal" and error.stable_code == InfeasiblePlanError.code:
            # If the cluster is too large to try changes, the error states none.
            with contextlib.suppress(TooManyCellsError):
                reason, changes = nearest_changes(problem, budget)
                raise InfeasiblePlanError(reason, code=error.stable_code, faults=changes) from error
        raise
    if not compare:
        return found_plan
    plans: dict[str, FoundPlan] = {}
    reasons: dict[str, str] = {}
    # The comparison may take as much time as the plan itself.
    deadline = budget.deadline_s
    if deadline is not None:
        deadline = max(deadline, budget.clock()) + found_plan.planning_time_s
    again = replace(budget, deadline_s=deadline, report=None, most_divisions=COMPARED_DIVISIONS)
    for name in BASELINES:
        if name == method:
            continue
        try:
            plans[name] = _METHODS[name](problem, objective, again)
        except InfeasiblePlanError as error:
            reasons[name] = error.message
    return replace(found_plan, comparison=plans, reasons=reasons)


def check_request(spec: Spec, method: str, objective: str) -> None:
    """Check that the method and the objective exist and are possible for the specification.

    Raises
    ------
    InvalidSpecError
        The error holds each fault with its path.
    """
    faults = []
    if method not in METHODS:
        faults.append(
            _fault("unknown_value", f"method must be one of {', '.join(METHODS)}", "method")
        )
    if objective not in OBJECTIVES:
        message = f"objective must be one of {', '.join(OBJECTIVES)}"
        faults.append(_fault("unknown_value", message, "objective"))
    most = min(spec.gpus, len(spec.layers))
    if objective == "t_oobleck" and spec.microbatches < most:
        faults.append(
            _fault(
                "out_of_range",
                f"t_oobleck needs as many microbatches as there can be stages, {most}",
                "microbatches",
            )
        )
    if faults:
        raise InvalidSpecError("this cannot be planned", faults=tuple(faults))


def _fault(code: str, message: str, path: str) -> Fault:
    return Fault(code, message, column=path)


def _optimal(problem: PlanningProblem, objective: str, budget: SearchBudget) -> FoundPlan:
    began = budget.clock()
    optimal_plan = plan_optimal(problem, objective, budget)
    return FoundPlan(
        problem=problem,
        method="optimal",
        objective=objective,
        template=optimal_plan.template,
        planning_time_s=budget.clock() - began,
        lower_bound_ps=optimal_plan.lower_bound_ps,
        certificate=optimal_plan.certificate,
        alternatives=optimal_plan.near[:ALTERNATIVES],
    )


def _recovered(
    method: str,
    recover: Callable[[PlanningProblem, SearchBudget], RecoveredPlan],
    problem: PlanningProblem,
    objective: str,
    budget: SearchBudget,
) -> FoundPlan:
    began = budget.clock()
    recovered = recover(problem, budget)
    return FoundPlan(
        problem=recovered.problem,
        method=method,
        objective=objective,
        template=recovered.template,
        planning_time_s=budget.clock() - began,
        folding=recovered.folding,
        virtual=recovered.virtual,
    )


def _exhaustive(problem: PlanningProblem, objective: str, budget: SearchBudget) -> FoundPlan:
    began = budget.clock()
    spec = problem.spec
    if spec.allow_idle or spec.replicate:
        raise InfeasiblePlanError(
            "the exhaustive search knows neither idle devices nor replicated stages",
            code="plan.not_supported",
        )
    if spec.nodes > problem.layers:
        raise InfeasiblePlanError(
            f"{spec.nodes} nodes need at least as many layers, the model has {problem.layers}",
            code="plan.no_answer",
        )
    try:
        division = Division(problem, "t_oobleck" if objective == "t_oobleck" else "t_std", budget)
    except TooLargeToDivideError as error:
        raise InfeasiblePlanError(
            f"the cluster is too large for the exhaustive search: {error}", code="plan.too_large"
        ) from error
    costs = {stages: division.cost(stages) for stages in division.stage_counts()}
    feasible = {stages: cost for stages, cost in costs.items() if cost is not None}
    if not feasible:
        raise InfeasiblePlanError("there is no template", code="plan.no_answer")
    stages = min(feasible, key=lambda count: (feasible[count], count))
    # The stages on a node are consecutive, until all its devices are used.
    parts: list[tuple[int, int, int, bool]] = []
    used = 0
    for (first, end, index), _ in division.parts(stages):
        option = problem.options[index]
        parts.append((first, end, index, used > 0))
        used = (used + option.gpus) % problem.spec.devices[option.device].gpus_per_node
    return FoundPlan(
        problem=problem,
        method="exhaustive",
        objective=objective,
        template=number_nodes(problem, parts),
        planning_time_s=budget.clock() - began,
    )


_METHODS: Final[dict[str, Callable[[PlanningProblem, str, SearchBudget], FoundPlan]]] = {
    "optimal": _optimal,
    "ditto": partial(_recovered, "ditto", plan_ditto),
    "greedy": partial(_recovered, "greedy", plan_greedy),
    "exhaustive": _exhaustive,
}


def with_oobleck_templates(found_plan: FoundPlan, budget: SearchBudget | None = None) -> FoundPlan:
    """Return Ditto's plan, extended by Oobleck's templates of the virtual cluster.

    The list of templates stays empty if the divide and conquer would take more than a few seconds.
    """
    if found_plan.folding is None:
        return found_plan
    budget = replace(budget or SearchBudget(), most_divisions=COMPARED_DIVISIONS)
    try:
        templates = oobleck_templates(found_plan.problem, found_plan.folding, budget)
    except InfeasiblePlanError:
        return found_plan
    return replace(found_plan, oobleck=templates)
