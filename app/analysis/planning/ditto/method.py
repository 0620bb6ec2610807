"""Ditto: fold the cluster, plan the virtual one with Oobleck, recover a template from that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.analysis.planning.ditto.division import Division, TooLargeToDivideError
from app.analysis.planning.ditto.folding import Folding, fold
from app.analysis.planning.ditto.recovery import UnrecoverableError, recover, recover_greedily
from app.analysis.planning.problem import PlanningProblem, compile_problem
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.spec.model import DeviceType, Spec
from app.analysis.planning.template import Template
from app.errors import InfeasiblePlanError


@dataclass(frozen=True, slots=True)
class VirtualTemplate:
    """A template of the virtual cluster: (first layer, end, devices) of each stage, T_oobleck."""

    stages: tuple[tuple[int, int, int], ...]
    t_oobleck_ps: int


@dataclass(frozen=True, slots=True)
class DittoPlan:
    """A recovered template with all that led to it."""

    folding: Folding
    virtual: VirtualTemplate
    template: Template


@dataclass(frozen=True, slots=True)
class GreedyPlan:
    """A greedily recovered template, and the virtual one that it came from."""

    folding: Folding
    virtual: VirtualTemplate
    template: Template


def plan_ditto(problem: PlanningProblem, budget: SearchBudget) -> DittoPlan:
    """Plan with node folding and the dynamic program.

    Raises
    ------
    InfeasiblePlanError
        There are more virtual devices than layers, or the recovery ends nowhere.
    """
    folding = fold(problem.spec)
    if folding.gpus > problem.layers:
        raise InfeasiblePlanError(
            f"Ditto needs a layer for each of its {folding.gpus} virtual devices, "
            f"the model has {problem.layers}",
            code="plan.ditto_too_few_layers",
        )
    division = _divide(
        problem, virtual_spec(problem.spec, folding, nodes=folding.gpus, per_node=1), budget,
        stages=folding.gpus,
    )  # fmt: skip
    virtual = _template(division, folding.gpus)
    if virtual is None:
        raise _no_answer()
    template = recover(problem, folding, [(first, end) for first, end, _ in virtual.stages])
    if template is None:
        raise _no_answer()
    return DittoPlan(folding, virtual, template)


def oobleck_templates(
    problem: PlanningProblem, folding: Folding, budget: SearchBudget
) -> tuple[VirtualTemplate, ...]:
    """Return Oobleck's templates of the virtual cluster, one for each number of stages.

    Raises
    ------
    InfeasiblePlanError
        The virtual cluster is too large for the divide and conquer.
    """
    spec = virtual_spec(problem.spec, folding, nodes=folding.nodes, per_node=folding.gpus_per_node)
    if folding.nodes > problem.layers:
        return ()
    division = _divide(problem, spec, budget)
    found = (_template(division, stages) for stages in division.stage_counts())
    return tuple(template for template in found if template is not None)


def plan_greedy(problem: PlanningProblem, budget: SearchBudget) -> GreedyPlan:
    """Plan with node folding and the greedy recovery.

    The virtual templates are tried from the best on, until the devices come out even.

    Raises
    ------
    InfeasiblePlanError
        No virtual template can be recovered.
    """
    folding = fold(problem.spec)
    templates = oobleck_templates(problem, folding, budget)
    reasons = []
    for virtual in sorted(templates, key=lambda template: template.t_oobleck_ps):
        try:
            template = recover_greedily(
                problem, folding, list(virtual.stages), problem.spec.greedy_rule
            )
        except UnrecoverableError as error:
            reasons.append(str(error))
            continue
        return GreedyPlan(folding, virtual, template)
    detail = f": on the best one {reasons[0]}" if reasons else ""
    raise InfeasiblePlanError(
        f"the greedy recovery ends on none of {len(reasons)} virtual templates{detail}",
        code="plan.no_answer",
    )


def virtual_spec(spec: Spec, folding: Folding, *, nodes: int, per_node: int) -> Spec:
    """Return the specification of the virtual cluster."""
    weakest = spec.devices[folding.weakest]
    device = DeviceType(weakest.name, nodes, per_node, weakest.speed, times=weakest.times)
    return replace(spec, devices=(device,), allow_idle=False, replicate=False)


def _divide(
    problem: PlanningProblem, spec: Spec, budget: SearchBudget, *, stages: int | None = None
) -> Division:
    try:
        return Division(compile_problem(spec), "t_oobleck", budget, stages=stages)
    except TooLargeToDivideError as error:
        raise InfeasiblePlanError(
            f"the virtual cluster of {spec.gpus} devices is too large for Oobleck's divide and "
            f"conquer over {problem.layers} layers: {error}",
            code="plan.too_large",
        ) from error


def _template(division: Division, stages: int) -> VirtualTemplate | None:
    cost = division.cost(stages)
    if cost is None:
        return None
    options = division.problem.options
    parts = tuple(
        (first, end, options[option].gpus) for (first, end, option), _ in division.parts(stages)
    )
    return VirtualTemplate(parts, cost)


def _no_answer() -> InfeasiblePlanError:
    return InfeasiblePlanError(
        "Ditto's recovery ends nowhere: its choices do not add up to the virtual stages",
        code="plan.no_answer",
    )
