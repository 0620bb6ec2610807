"""Ditto's method: fold the cluster, plan the virtual cluster by Oobleck, recover a template.

Node folding (Ditto's paper, section 5.3) expresses each device as a number of the weakest devices.
Recovery (section 6: Algorithm 1 greedy, Algorithm 2 dynamic programming) does not keep the stages
of a node adjacent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from app.analysis.planning.oobleck import Division, TooLargeToDivideError
from app.analysis.planning.problem import (
    PlanningProblem,
    allreduce_ms,
    compile_problem,
    powers_of_two,
)
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.spec import DeviceType, Spec
from app.analysis.planning.template import Node, Stage, Template, t_oobleck
from app.errors import InfeasiblePlanError

# Threshold of the greedy recovery's ``code`` rule: a device must replace more than this share of
# the virtual devices that it is worth.
CODE_RULE_SHARE = 0.6

Piece = tuple[int, int, int]  # first layer, end, option


@dataclass(frozen=True, slots=True)
class Folding:
    """Virtual cluster: `nodes` nodes with `gpus_per_node` devices of type `weakest` each.

    `factors[i]` is the number of weakest devices that one device of type i is worth.
    """

    weakest: int
    factors: tuple[int, ...]
    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """Return the number of virtual devices."""
        return self.nodes * self.gpus_per_node


def fold(spec: Spec) -> Folding:
    """Return a cluster's folding (section 5.3), with communication if the cluster specifies it."""
    totals = [
        math.fsum(times.forward_ms) + math.fsum(times.backward_ms)
        for times in map(spec.times_of, spec.devices)
    ]
    weakest = max(range(len(totals)), key=lambda i: (totals[i], -i))
    heaviest = totals[weakest]
    factors = [max(math.floor(heaviest / total + 0.5), 1) for total in totals]
    if spec.fold_with_communication:
        factors = [
            _with_communication(spec, weakest, heaviest, total, most)
            for total, most in zip(totals, factors, strict=True)
        ]
    devices = sum(
        device.gpus * factor for device, factor in zip(spec.devices, factors, strict=True)
    )
    # Ditto's virtual nodes are of equal size, so their size must divide the size of every real
    # node.
    per_node = math.gcd(*(device.gpus_per_node for device in spec.devices))
    return Folding(weakest, tuple(factors), devices // per_node, per_node)


def _with_communication(spec: Spec, weakest: int, heaviest: float, total: float, most: int) -> int:
    """Return the number d in 1..most of weakest devices with ``p(d)`` closest to `total`."""
    per_node = spec.devices[weakest].gpus_per_node
    layers = len(spec.layers)
    across = math.fsum(spec.network.allreduce_across_ms) / layers

    def inside(devices: int) -> float:
        rows = spec.network.allreduce_in_node_ms
        return math.fsum(allreduce_ms(row, devices) for row in rows) / layers

    def p(d: int) -> float:
        whole, rest = divmod(d, per_node)
        communication = (rest * inside(rest) + whole * per_node * inside(per_node)) / d
        return heaviest / d + whole * across + layers * communication

    return min(range(1, most + 1), key=lambda d: (abs(p(d) - total), d))


class UnrecoverableError(Exception):
    """The virtual template has no equivalent on the real devices."""


@dataclass(frozen=True, slots=True)
class _Partial:
    """Partial template of the first virtual stages: stages and cost."""

    pieces: tuple[Piece, ...]
    cost: int


def recover(
    problem: PlanningProblem, folding: Folding, virtual: list[tuple[int, int]]
) -> Template | None:
    """Return a template whose stages merge one-device virtual stages, by Algorithm 2.

    x devices of a type merge x times its folding factor, with x from 1 to the devices of a node as
    in the paper; the authors' program takes powers of two only. A partial template is over the
    limit if its stages do not fit into the nodes, while the paper counts devices only. None if
    there are too few devices.

    Parameters
    ----------
    problem : PlanningProblem
        With stages of any width.
    virtual : list of (first layer, end)
    """
    devices = problem.spec.devices
    choices = [
        (factor * x, problem.option_index(i, x))
        for i, (device, factor) in enumerate(zip(devices, folding.factors, strict=True))
        for x in range(1, device.gpus_per_node + 1)
    ]
    best: list[_Partial | None] = [_Partial((), 0)] + [None] * len(virtual)
    for at in range(1, len(virtual) + 1):
        # As in the authors' program, a single stage is tried before longer templates.
        for single in (True, False):
            for covered, option in choices:
                before = best[at - covered] if covered <= at else None
                if before is None or (at == covered) != single:
                    continue
                piece = (virtual[at - covered][0], virtual[at - 1][1], option)
                pieces = (*before.pieces, piece)
                cost, incumbent = _cost(problem, pieces), best[at]
                if cost is None or (incumbent is not None and cost >= incumbent.cost):
                    continue
                if into_nodes(problem, pieces) is not None:
                    best[at] = _Partial(pieces, cost)
    last = best[-1]
    return None if last is None else into_nodes(problem, last.pieces)


def recover_greedily(
    problem: PlanningProblem, folding: Folding, virtual: list[tuple[int, int, int]], rule: str
) -> Template:
    """Return a template that puts the strongest devices where they gain most (Algorithm 1).

    Parameters
    ----------
    virtual : list of (first layer, end, devices)
        A template of the virtual cluster.
    rule : str
        ``paper``, or ``code``, which skips stages that would use too small a share of a device.

    Raises
    ------
    UnrecoverableError
        The cluster's devices cannot replace the template's virtual devices exactly.
    """
    devices = problem.spec.devices
    weakest = folding.weakest
    widths = [gpus for *_, gpus in virtual]
    pieces: list[Piece] = [
        (first, end, problem.option_index(weakest, gpus)) for first, end, gpus in virtual
    ]
    replaced = [False] * len(pieces)
    order = sorted(
        (i for i in range(len(devices)) if i != weakest),
        key=lambda i: (
            -folding.factors[i],
            int(problem.cost_ps[problem.option_index(i, 1), -1, 0]),
        ),
    )
    for kind in order:
        remaining = devices[kind].gpus
        while remaining > 0:
            tries = []
            for j, width in enumerate(widths):
                share = min(width / folding.factors[kind], remaining)
                if replaced[j] or (rule == "code" and share <= CODE_RULE_SHARE):
                    continue
                power = 1
                while power < share:
                    power *= 2
                gpus = min(
                    power,
                    powers_of_two(min(remaining, problem.spec.devices[kind].gpus_per_node))[-1],
                )
                option = problem.option_index(kind, gpus)
                changed = tuple(
                    (first, end, option if i == j else index)
                    for i, (first, end, index) in enumerate(pieces)
                )
                cost = _cost(problem, changed)
                if cost is not None:
                    tries.append((cost, j, gpus, option))
            if not tries:
                raise UnrecoverableError(
                    f"no stage remains for {remaining} of {devices[kind].gpus} {devices[kind].name}"
                )
            _, j, gpus, option = min(tries)
            pieces[j] = (*pieces[j][:2], option)
            replaced[j] = True
            remaining -= gpus
    weak = sum(width for width, done in zip(widths, replaced, strict=True) if not done)
    if weak != devices[weakest].gpus:
        raise UnrecoverableError(
            f"the other stages need {weak} {devices[weakest].name}, "
            f"there are {devices[weakest].gpus}"
        )
    template = into_nodes(problem, tuple(pieces))
    if template is None:
        raise UnrecoverableError("its stages do not fit into the nodes")
    return template


def _cost(problem: PlanningProblem, pieces: tuple[Piece, ...]) -> int | None:
    """Return Oobleck's estimate without transfers, which both recovery algorithms minimize."""
    times = [int(problem.cost_ps[option, end, first]) for first, end, option in pieces]
    return t_oobleck(times, problem.spec.microbatches)


def into_nodes(problem: PlanningProblem, pieces: tuple[Piece, ...]) -> Template | None:
    """Return the stages placed on nodes, widest stage first; None if the stages do not fit."""
    free: dict[Node, int] = {
        (i, n): device.gpus_per_node
        for i, device in enumerate(problem.spec.devices)
        for n in range(device.nodes)
    }
    nodes: dict[int, Node] = {}
    for position in sorted(
        range(len(pieces)), key=lambda j: (-problem.options[pieces[j][2]].gpus, j)
    ):
        option = problem.options[pieces[position][2]]
        fitting = (
            node for node, gpus in free.items() if node[0] == option.device and gpus >= option.gpus
        )
        node = next(fitting, None)
        if node is None:
            return None
        free[node] -= option.gpus
        nodes[position] = node
    return tuple(
        Stage(first, end, option, (nodes[position],))
        for position, (first, end, option) in enumerate(pieces)
    )


@dataclass(frozen=True, slots=True)
class VirtualTemplate:
    """Template of the virtual cluster: (first layer, end, devices) per stage, and t_oobleck."""

    stages: tuple[tuple[int, int, int], ...]
    t_oobleck_ps: int


@dataclass(frozen=True, slots=True)
class RecoveredPlan:
    """Template of the real cluster, and the virtual template from which it was recovered."""

    problem: PlanningProblem  # whose options the template's stages have
    folding: Folding
    virtual: VirtualTemplate
    template: Template


def plan_ditto(problem: PlanningProblem, budget: SearchBudget) -> RecoveredPlan:
    """Return Ditto's plan: node folding, then recovery by dynamic programming.

    Raises
    ------
    InfeasiblePlanError
        There are more virtual devices than layers, or the virtual template is not recoverable.
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
    problem = compile_problem(problem.spec, any_width=True)
    template = recover(problem, folding, [(first, end) for first, end, _ in virtual.stages])
    if template is None:
        raise _no_answer()
    return RecoveredPlan(problem, folding, virtual, template)


def oobleck_templates(
    problem: PlanningProblem, folding: Folding, budget: SearchBudget
) -> tuple[VirtualTemplate, ...]:
    """Return Oobleck's templates of the virtual cluster, one template per number of stages.

    Raises
    ------
    InfeasiblePlanError
        The virtual cluster is too large for the divide and conquer.
    """
    spec = virtual_spec(problem.spec, folding, nodes=folding.nodes, per_node=folding.gpus_per_node)
    if folding.nodes > problem.layers:
        return ()
    division = _divide(problem, spec, budget)
    templates = (_template(division, stages) for stages in division.stage_counts())
    return tuple(template for template in templates if template is not None)


def plan_greedy(problem: PlanningProblem, budget: SearchBudget) -> RecoveredPlan:
    """Return the plan of node folding and greedy recovery of the best recoverable template.

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
        return RecoveredPlan(problem, folding, virtual, template)
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
