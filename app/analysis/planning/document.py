"""A plan as JSON types, schema ``paceline.plan/1``."""

from __future__ import annotations

from typing import Any, Final

from app.analysis.planning.ditto.folding import Folding
from app.analysis.planning.ditto.method import VirtualTemplate
from app.analysis.planning.plan import BASELINES, Plan
from app.analysis.planning.problem import PS_PER_MS, Problem
from app.analysis.planning.template import (
    Stage,
    Template,
    evaluate,
    fits,
    memory_of,
    stage_times,
    timeline,
)

SCHEMA: Final = "paceline.plan/1"

Document = dict[str, Any]


def plan_document(found: Plan) -> Document:
    """Return the plan as JSON types, schema ``paceline.plan/1``."""
    document: Document = {"schema": SCHEMA, **_body(found)}
    document["optimal"] = found.optimal
    bound = found.lower_bound_ps
    document["lower_bound_ms"] = None if bound is None else bound / PS_PER_MS
    document["alternatives"] = [
        {
            "iteration_time_ms": _times(found.problem, template),
            "stages": _stages(found.problem, template),
        }
        for template in found.alternatives
    ]
    document["certificate"] = None if found.certificate is None else found.certificate.as_document()
    own = getattr(evaluate(found.problem, found.template), found.objective)
    document["comparison"] = {
        name: _against(found.comparison[name], own)
        if name in found.comparison
        else {"reason": found.reasons.get(name)}
        for name in BASELINES
        if name in found.comparison or name in found.reasons
    }
    return document


def _body(found: Plan) -> Document:
    problem = found.problem
    body: Document = {
        "method": found.method,
        "objective": found.objective,
        "iteration_time_ms": _times(problem, found.template),
        "planning_time_s": found.planning_time_s,
        "microbatches": problem.spec.microbatches,
        "layers": problem.layers,
        "stages": _stages(problem, found.template),
        "fits_memory": fits(problem, found.template),
        "contiguous_nodes": _contiguous(found.template),
        "idle": _idle(problem, found.template),
    }
    if found.folding is not None:
        body["folding"] = _folding(problem, found.folding)
    if found.virtual is not None:
        body["virtual_template"] = _virtual(found.virtual)
    if found.oobleck:
        body["oobleck_templates"] = [_virtual(template) for template in found.oobleck]
    return body


def _against(found: Plan, best: int | None) -> Document:
    own = getattr(evaluate(found.problem, found.template), found.objective)
    ratio = None if own is None or best is None else own / best
    return {**_body(found), "relative": ratio}


def _times(problem: Problem, template: Template) -> Document:
    times = evaluate(problem, template)
    return {
        "t_std": times.t_std / PS_PER_MS,
        "t_oobleck": None if times.t_oobleck is None else times.t_oobleck / PS_PER_MS,
        "simulated": times.simulated / PS_PER_MS,
    }


def _stages(problem: Problem, template: Template) -> list[Document]:
    rows = zip(template, memory_of(problem, template), stage_times(problem, template), strict=True)
    return [_stage(problem, stage, memory, time) for stage, memory, time in rows]


def _stage(problem: Problem, stage: Stage, memory: float, time_ps: int) -> Document:
    devices, option = problem.spec.devices, problem.options[stage.option]
    forward = int(problem.forward_ps[stage.option, stage.end, stage.first])
    cost = int(problem.cost_ps[stage.option, stage.end, stage.first])
    capacity = float(problem.capacity_bytes[stage.option])
    document: Document = {
        "layers": [stage.first, stage.end - 1],
        "device": devices[stage.nodes[0][0]].name,
        "gpus": option.gpus,
        "node": stage.nodes[0][1],
        "forward_ms": forward / PS_PER_MS,
        "backward_ms": (cost - forward) / PS_PER_MS,
        "transfer_ms": (time_ps - cost) / PS_PER_MS,
        "memory_bytes": memory,
        "memory_limit_bytes": capacity if capacity < float("inf") else None,
    }
    if option.nodes:
        document["replicas"] = _replicas(problem, stage)
    return document


def _replicas(problem: Problem, stage: Stage) -> list[Document]:
    """Return the nodes of a replicated stage with the share of the batch that each takes."""
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
    return [
        {
            "device": devices[kind].name,
            "gpus": devices[kind].gpus_per_node,
            "node": number,
            "share": 1 / costs[kind] / rate,
        }
        for kind, number in stage.nodes
    ]


def _contiguous(template: Template) -> bool:
    """Return whether the stages of each node follow each other."""
    seen: set[tuple[int, int]] = set()
    last: tuple[tuple[int, int], ...] = ()
    for stage in template:
        if any(node in seen and node not in last for node in stage.nodes):
            return False
        seen.update(stage.nodes)
        last = stage.nodes
    return True


def _idle(problem: Problem, template: Template) -> Document:
    """Return how many devices of each type are in no stage."""
    used = dict.fromkeys(range(len(problem.spec.devices)), 0)
    for stage in template:
        option = problem.options[stage.option]
        if option.nodes:
            for kind, number in enumerate(option.nodes):
                used[kind] += number * problem.spec.devices[kind].gpus_per_node
        else:
            used[option.device] += option.gpus
    return {
        device.name: device.gpus - used[kind] for kind, device in enumerate(problem.spec.devices)
    }


def _folding(problem: Problem, folding: Folding) -> Document:
    devices = problem.spec.devices
    return {
        "weakest": devices[folding.weakest].name,
        "factors": {
            device.name: factor for device, factor in zip(devices, folding.factors, strict=True)
        },
        "virtual_nodes": folding.nodes,
        "virtual_gpus_per_node": folding.gpus_per_node,
    }


def _virtual(template: VirtualTemplate) -> Document:
    return {
        "t_oobleck_ms": template.t_oobleck_ps / PS_PER_MS,
        "stages": [
            {"layers": [first, end - 1], "gpus": gpus} for first, end, gpus in template.stages
        ],
    }


def timeline_document(problem: Problem, template: Template) -> Document:
    """Return the simulated iteration: for each stage [start, end] of its computations in ms."""
    line = timeline(problem, template)
    times = {
        name: [
            [[int(a) / PS_PER_MS, int(b) / PS_PER_MS] for a, b in zip(starts, ends, strict=True)]
            for starts, ends in zip(line.start_ps[row], line.end_ps[row], strict=True)
        ]
        for row, name in enumerate(("forward", "backward"))
    }
    busy = [int(ps) / line.iteration_ps for ps in line.busy_ps()]
    return {
        "iteration_time_ms": line.iteration_ps / PS_PER_MS,
        "bubble": [1 - share for share in busy],
        **times,
    }
