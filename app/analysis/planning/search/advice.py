"""Why there is no template, and the smallest changes that would make one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.planning.problem import PlanningProblem, compile_problem
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.passes import AT_MOST, EXACT, SearchPasses, cheapest_within
from app.analysis.planning.search.states import build_states
from app.analysis.planning.template import Template, memory_of
from app.errors import Fault

# How close to the smallest memory that would do a search for it comes.
_PRECISION: Final = 0.01
# Cells of a pass that is repeated for every size of memory that is tried.
_MOST_CELLS: Final = 10_000_000


def nearest_changes(
    problem: PlanningProblem, budget: SearchBudget
) -> tuple[str, tuple[Fault, ...]]:
    """Return the reason in a sentence, and changes that would help, each enough by itself."""
    spec = problem.spec
    unlimited = _unlimited(problem)
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
    scale = _least_scale(problem, budget)
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
    """Return about the least memory of one type's devices with which there is a template."""
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
    high = _largest(problem, template, mine)
    while high > low * (1 + _PRECISION) and not budget.spent:
        middle = (low + high) / 2
        found = _some_template(_with_capacity(problem, mine, middle))
        if found is None:
            low = middle
        else:
            high = min(_largest(problem, found, mine), middle)
    return high


def _least_scale(problem: PlanningProblem, budget: SearchBudget) -> float | None:
    low, high = 1.0, 2.0
    while _some_template(_scaled(problem, high)) is None:
        low, high = high, high * 2
        if budget.spent or high > 2.0**40:
            return None
    while high > low * (1 + _PRECISION) and not budget.spent:
        middle = (low + high) / 2
        if _some_template(_scaled(problem, middle)) is None:
            low = middle
        else:
            high = middle
    return high


def _largest(problem: PlanningProblem, template: Template, mine: np.ndarray) -> float:
    sizes = zip(memory_of(problem, template), template, strict=True)
    return max((size for size, stage in sizes if mine[stage.option]), default=0.0)


def _with_capacity(problem: PlanningProblem, mine: np.ndarray, capacity: float) -> PlanningProblem:
    return replace(problem, capacity_bytes=np.where(mine, capacity, problem.capacity_bytes))


def _scaled(problem: PlanningProblem, factor: float) -> PlanningProblem:
    return replace(problem, capacity_bytes=problem.capacity_bytes * factor)


def _unlimited(problem: PlanningProblem) -> PlanningProblem:
    return replace(problem, capacity_bytes=np.full(len(problem.options), np.inf))


def _some_template(problem: PlanningProblem) -> Template | None:
    """Return any template that fits; on large clusters only one that certainly does."""
    longest = int(problem.cost_ps[:, -1, 0].max()) * 4
    space = build_states(problem)
    most = min(problem.spec.gpus, problem.layers, problem.spec.microbatches)
    exact = space.states * (problem.layers + 1) * (most + 1) <= _MOST_CELLS
    table = SearchPasses(problem, space, EXACT if exact else AT_MOST).run(cheapest_within(longest))
    if table is None or table.best is None:
        return None
    return table.template_to(table.best)
