"""Plan a specification by a method, and hold it against Ditto and its greedy recovery."""

from __future__ import annotations

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
# The methods that the optimum is held against.
BASELINES: Final = ("ditto", "greedy")
COMPARED_DIVISIONS: Final = 1e9


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """What a method found."""

    problem: PlanningProblem
    method: str
    objective: str
    template: Template
    planning_time_s: float
    # No template costs less by the objective; None where the method proves nothing.
    lower_bound_ps: int | None = None
    certificate: Certificate | None = None
    # tuple of templates: near-optimal ones, the best simulated first
    alternatives: tuple[Template, ...] = ()
    folding: Folding | None = None
    virtual: VirtualTemplate | None = None
    oobleck: tuple[VirtualTemplate, ...] = ()
    comparison: dict[str, FoundPlan] = field(default_factory=dict)
    # mapping of baseline to text: why a baseline has no answer
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def cost_ps(self) -> int | None:
        """Return what an iteration takes by the objective; None where that is not defined."""
        cost: int | None = getattr(evaluate(self.problem, self.template), self.objective)
        return cost

    @property
    def optimal(self) -> bool:
        """Return whether it is proven that nothing is better by the objective."""
        bound, cost = self.lower_bound_ps, self.cost_ps
        return bound is not None and cost is not None and bound >= cost

    @property
    def gap(self) -> float | None:
        """Return how far above its bound the plan may be, a fraction; None without a proof."""
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
    """Plan.

    Parameters
    ----------
    method : str
        One of `METHODS`.
    objective : str
        One of `OBJECTIVES`. By ``simulated``, every method searches by t_std; ``optimal`` then
        looks for the template that executes fastest, and of equally fast ones for the most even.
    budget : SearchBudget, optional
        Its clock measures `planning_time_s`. A time limit ends the optimal search with a gap; the
        other methods end without an answer.
    compare : bool
        Also run Ditto and its greedy recovery; their time is their own.

    Raises
    ------
    InvalidSpecError
        The method and the specification do not go together.
    InfeasiblePlanError
        There is no template, with the nearest changes that would make one; or the method has no
        answer.
    """
    check_request(spec, method, objective)
    budget = budget or SearchBudget()
    problem = compile_problem(spec)
    try:
        found = _METHODS[method](problem, objective, budget)
    except InfeasiblePlanError as error:
        if method == "optimal" and error.stable_code == InfeasiblePlanError.code:
            raise _explained(problem, error, budget) from error
        raise
    if not compare:
        return found
    plans: dict[str, FoundPlan] = {}
    reasons: dict[str, str] = {}
    again = _for_comparison(budget, found.planning_time_s)
    for name in BASELINES:
        if name == method:
            continue
        try:
            plans[name] = _METHODS[name](problem, objective, again)
        except InfeasiblePlanError as error:
            reasons[name] = error.message
    return replace(found, comparison=plans, reasons=reasons)


def check_request(spec: Spec, method: str, objective: str) -> None:
    """Refuse what cannot be planned.

    Raises
    ------
    InvalidSpecError
        With the fault's path.
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


def _for_comparison(budget: SearchBudget, spent_s: float) -> SearchBudget:
    """Return a budget of as much time again, for searches of a few seconds at most."""
    deadline = budget.deadline_s
    if deadline is not None:
        deadline = max(deadline, budget.clock()) + spent_s
    return replace(budget, deadline_s=deadline, report=None, most_divisions=COMPARED_DIVISIONS)


def _explained(
    problem: PlanningProblem, error: InfeasiblePlanError, budget: SearchBudget
) -> InfeasiblePlanError:
    try:
        reason, changes = nearest_changes(problem, budget)
    except TooManyCellsError:
        return error  # the cluster is too large to try changes
    return InfeasiblePlanError(reason, code=error.stable_code, faults=changes)


# ---- methods


def _search_objective(objective: str) -> str:
    return "t_oobleck" if objective == "t_oobleck" else "t_std"


def _optimal(problem: PlanningProblem, objective: str, budget: SearchBudget) -> FoundPlan:
    began = budget.clock()
    found = plan_optimal(problem, objective, budget)
    return FoundPlan(
        problem=problem,
        method="optimal",
        objective=objective,
        template=found.template,
        planning_time_s=budget.clock() - began,
        lower_bound_ps=found.lower_bound_ps,
        certificate=found.certificate,
        alternatives=found.near[:ALTERNATIVES],
    )


def _recovered(
    method: str,
    recover: Callable[[PlanningProblem, SearchBudget], RecoveredPlan],
    problem: PlanningProblem,
    objective: str,
    budget: SearchBudget,
) -> FoundPlan:
    began = budget.clock()
    found = recover(problem, budget)
    return FoundPlan(
        problem=problem,
        method=method,
        objective=objective,
        template=found.template,
        planning_time_s=budget.clock() - began,
        folding=found.folding,
        virtual=found.virtual,
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
        division = Division(problem, _search_objective(objective), budget)
    except TooLargeToDivideError as error:
        raise InfeasiblePlanError(
            f"the cluster is too large for the exhaustive search: {error}", code="plan.too_large"
        ) from error
    costs = {stages: division.cost(stages) for stages in division.stage_counts()}
    known = {stages: cost for stages, cost in costs.items() if cost is not None}
    if not known:
        raise InfeasiblePlanError("there is no template", code="plan.no_answer")
    stages = min(known, key=lambda count: (known[count], count))
    return FoundPlan(
        problem=problem,
        method="exhaustive",
        objective=objective,
        template=_numbered(problem, division, stages),
        planning_time_s=budget.clock() - began,
    )


def _numbered(problem: PlanningProblem, division: Division, stages: int) -> Template:
    """Return a division's template; parts of one node follow each other until it is full."""
    parts: list[tuple[int, int, int, bool]] = []
    used = 0
    for (first, end, index), _ in division.parts(stages):
        option = problem.options[index]
        parts.append((first, end, index, used > 0))
        used = (used + option.gpus) % problem.spec.devices[option.device].gpus_per_node
    return number_nodes(problem, parts)


_METHODS: Final[dict[str, Callable[[PlanningProblem, str, SearchBudget], FoundPlan]]] = {
    "optimal": _optimal,
    "ditto": partial(_recovered, "ditto", plan_ditto),
    "greedy": partial(_recovered, "greedy", plan_greedy),
    "exhaustive": _exhaustive,
}


def with_oobleck_templates(found: FoundPlan, budget: SearchBudget | None = None) -> FoundPlan:
    """Return a plan of Ditto with Oobleck's list of templates of the virtual cluster.

    Where making the list would take more than seconds it stays empty.
    """
    if found.folding is None:
        return found
    budget = replace(budget or SearchBudget(), most_divisions=COMPARED_DIVISIONS)
    try:
        templates = oobleck_templates(found.problem, found.folding, budget)
    except InfeasiblePlanError:
        return found
    return replace(found, oobleck=templates)
