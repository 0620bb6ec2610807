"""Conversion of a plan to its document, and of the plan's execution to a drawable timeline."""

from __future__ import annotations

from typing import Any, Final

from app.analysis.planning.ditto import VirtualTemplate
from app.analysis.planning.document import (
    SCHEMA,
    BoundProof,
    ComparedTemplate,
    FoldedCluster,
    IterationTimes,
    NoAnswer,
    PlanAlternative,
    PlanDocument,
    PlannedStage,
    SimulatedIteration,
    StageReplica,
    Starts,
    VirtualPlan,
    VirtualStage,
)
from app.analysis.planning.plan import BASELINES, FoundPlan
from app.analysis.planning.problem import PS_PER_MS, PlanningProblem
from app.analysis.planning.template import (
    Stage,
    Template,
    evaluate,
    fits,
    memory_of,
    stage_times,
    timeline,
)

# Maximum number of computations (stages × microbatches) that a page can draw; of larger plans only
# the bubbles are kept.
MOST_DRAWN: Final = 50_000
# Number of decimal digits of start times in ms: finer than a page can draw.
DIGITS: Final = 3


def plan_document(found_plan: FoundPlan) -> PlanDocument:
    """Return the document of a plan."""
    bound = found_plan.lower_bound_ps
    own = found_plan.cost_ps
    return PlanDocument(
        schema=SCHEMA,
        **_template_fields(found_plan),
        optimal=found_plan.optimal,
        lower_bound_ms=None if bound is None else bound / PS_PER_MS,
        alternatives=tuple(
            PlanAlternative(
                _times(found_plan.problem, template), _stages(found_plan.problem, template)
            )
            for template in found_plan.alternatives
        ),
        certificate=None
        if found_plan.certificate is None
        else BoundProof(
            objective=found_plan.certificate.objective,
            lower_bound_ps=found_plan.certificate.lower_bound_ps,
            upper_bound_ps=found_plan.certificate.upper_bound_ps,
            closed=found_plan.certificate.closed,
            intervals_explored=found_plan.certificate.explored,
            leaves=tuple(
                (leaf.low_ps, leaf.high_ps, leaf.bound_ps) for leaf in found_plan.certificate.leaves
            ),
        ),
        comparison={
            name: _compared(found_plan.comparison[name], own)
            if name in found_plan.comparison
            else NoAnswer(found_plan.reasons[name])
            for name in BASELINES
            if name in found_plan.comparison or name in found_plan.reasons
        },
    )


def simulated_iteration(problem: PlanningProblem, template: Template) -> SimulatedIteration:
    """Return the execution of one iteration of a template."""
    line = timeline(problem, template)
    starts = None
    if line.start_ps[0].size <= MOST_DRAWN:
        forward, backward = (
            tuple(tuple(round(int(ps) / PS_PER_MS, DIGITS) for ps in stage) for stage in direction)
            for direction in line.start_ps
        )
        starts = Starts(forward, backward)
    return SimulatedIteration(
        iteration_time_ms=line.iteration_ps / PS_PER_MS,
        bubble=tuple(1 - int(ps) / line.iteration_ps for ps in line.busy_ps()),
        starts=starts,
    )


def _template_fields(found_plan: FoundPlan) -> dict[str, Any]:
    """Return the fields of `FoundTemplate`."""
    problem, template, folding = found_plan.problem, found_plan.template, found_plan.folding
    devices = problem.spec.devices
    used = dict.fromkeys(range(len(devices)), 0)
    for stage in template:
        option = problem.options[stage.option]
        if option.nodes:
            for kind, number in enumerate(option.nodes):
                used[kind] += number * devices[kind].gpus_per_node
        else:
            used[option.device] += option.gpus
    return {
        "method": found_plan.method,
        "objective": found_plan.objective,
        "iteration_time_ms": _times(problem, template),
        "planning_time_s": found_plan.planning_time_s,
        "microbatches": problem.spec.microbatches,
        "layers": problem.layers,
        "stages": _stages(problem, template),
        "fits_memory": fits(problem, template),
        "contiguous_nodes": _nodes_contiguous(template),
        "idle": {device.name: device.gpus - used[kind] for kind, device in enumerate(devices)},
        "folding": None
        if folding is None
        else FoldedCluster(
            weakest=devices[folding.weakest].name,
            factors={
                device.name: factor for device, factor in zip(devices, folding.factors, strict=True)
            },
            virtual_nodes=folding.nodes,
            virtual_gpus_per_node=folding.gpus_per_node,
        ),
        "virtual_template": None if found_plan.virtual is None else _virtual(found_plan.virtual),
        "oobleck_templates": tuple(map(_virtual, found_plan.oobleck)),
    }


def _compared(found_plan: FoundPlan, best: int | None) -> ComparedTemplate:
    own = found_plan.cost_ps
    ratio = None if own is None or best is None else own / best
    return ComparedTemplate(**_template_fields(found_plan), relative=ratio)


def _times(problem: PlanningProblem, template: Template) -> IterationTimes:
    times = evaluate(problem, template)
    return IterationTimes(
        t_std=times.t_std / PS_PER_MS,
        t_oobleck=None if times.t_oobleck is None else times.t_oobleck / PS_PER_MS,
        simulated=times.simulated / PS_PER_MS,
    )


def _stages(problem: PlanningProblem, template: Template) -> tuple[PlannedStage, ...]:
    rows = zip(template, memory_of(problem, template), stage_times(problem, template), strict=True)
    return tuple(_stage(problem, stage, memory, time) for stage, memory, time in rows)


def _stage(problem: PlanningProblem, stage: Stage, memory: float, time_ps: int) -> PlannedStage:
    devices, option = problem.spec.devices, problem.options[stage.option]
    forward = int(problem.forward_ps[stage.option, stage.end, stage.first])
    cost = int(problem.cost_ps[stage.option, stage.end, stage.first])
    capacity = float(problem.capacity_bytes[stage.option])
    return PlannedStage(
        layers=(stage.first, stage.end - 1),
        device=devices[stage.nodes[0][0]].name,
        gpus=option.gpus,
        node=stage.nodes[0][1],
        forward_ms=forward / PS_PER_MS,
        backward_ms=(cost - forward) / PS_PER_MS,
        transfer_ms=(time_ps - cost) / PS_PER_MS,
        memory_bytes=memory,
        memory_limit_bytes=capacity if capacity < float("inf") else None,
        replicas=_replicas(problem, stage) if option.nodes else (),
    )


def _replicas(problem: PlanningProblem, stage: Stage) -> tuple[StageReplica, ...]:
    """Return the nodes of a replicated stage with their shares of each batch."""
    devices = problem.spec.devices
    costs = {
        kind: int(
            problem.cost_ps[
                problem.option_index(kind, devices[kind].gpus_per_node), stage.end, stage.first
            ]
        )
        for kind, _ in stage.nodes
    }
    rate = sum(1 / costs[kind] for kind, _ in stage.nodes)
    return tuple(
        StageReplica(
            device=devices[kind].name,
            gpus=devices[kind].gpus_per_node,
            node=number,
            share=1 / costs[kind] / rate,
        )
        for kind, number in stage.nodes
    )


def _nodes_contiguous(template: Template) -> bool:
    """Return whether the stages on each node are consecutive."""
    seen: set[tuple[int, int]] = set()
    last: tuple[tuple[int, int], ...] = ()
    for stage in template:
        if any(node in seen and node not in last for node in stage.nodes):
            return False
        seen.update(stage.nodes)
        last = stage.nodes
    return True


def _virtual(template: VirtualTemplate) -> VirtualPlan:
    return VirtualPlan(
        t_oobleck_ms=template.t_oobleck_ps / PS_PER_MS,
        stages=tuple(VirtualStage((first, end - 1), gpus) for first, end, gpus in template.stages),
    )
