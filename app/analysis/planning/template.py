"""Pipeline templates and what they cost.

With N_b microbatches, S stages of times L_i and k the rightmost slowest of them, from 0:

* ``t_std = ΣL + (N_b − 1)·L_k``;
* ``t_oobleck = ΣL + (N_b − S + k + 1)·L_k + Σ_{i≥k} L_i``, and 4·L for a single stage: what
  Oobleck's and Ditto's programs compute (the paper's Eq. 1–3 are off by one in places).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from app.analysis.planning.problem import BETWEEN, INSIDE, PlanningProblem
from app.analysis.planning.simulation import SimulatedTimeline, simulate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Node = tuple[int, int]

# A stage is slight if it takes less than the mean stage's time / this.
SLIGHT = 10


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers [first, end) on an option; `nodes` are (type, number of the node) that it runs on."""

    first: int
    end: int
    option: int
    nodes: tuple[Node, ...]


Template = tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class TemplateTimes:
    """An iteration by each of the three formulas, in ps; t_oobleck only where it is defined."""

    t_std: int
    t_oobleck: int | None
    simulated: int

    def by(self, objective: str) -> int:
        """Return the time that an objective minimizes.

        Raises
        ------
        ValueError
            The objective is not defined for this template.
        """
        value: int | None = getattr(self, objective)
        if value is None:
            raise ValueError(f"{objective} needs more microbatches than this template leaves")
        return value


def stage_times(problem: PlanningProblem, template: Template) -> list[int]:
    """Return what each stage takes for one microbatch, transfers included."""
    kinds = links(template)
    return [
        problem.stage_ps(stage.option, stage.first, stage.end, left, right)
        for stage, left, right in zip(template, kinds[:-1], kinds[1:], strict=True)
    ]


def compute_times(problem: PlanningProblem, template: Template) -> list[int]:
    """Return what each stage computes for one microbatch, without transfers."""
    return [int(problem.cost_ps[stage.option, stage.end, stage.first]) for stage in template]


def unevenness(problem: PlanningProblem, template: Template) -> float:
    """Return ΣL²: of templates that execute as fast, the least is the most even one."""
    return sum(float(time) ** 2 for time in stage_times(problem, template))


def has_slight_stage(problem: PlanningProblem, template: Template) -> bool:
    """Return whether devices all but idle: a stage takes under a tenth of the mean one's time."""
    times = stage_times(problem, template)
    return min(times) * len(times) * SLIGHT < sum(times)


def divides_nodes_alike(template: Template) -> bool:
    """Return whether all nodes of a type hold as many stages: none is cut up where others are not.

    Examples
    --------
    >>> halves = Stage(0, 1, 0, ((0, 0),)), Stage(1, 2, 0, ((0, 0),))
    >>> divides_nodes_alike((*halves, Stage(2, 6, 1, ((0, 1),))))
    False
    """
    stages = Counter(node for stage in template for node in stage.nodes)
    held: dict[int, set[int]] = {}
    for (kind, _), count in stages.items():
        held.setdefault(kind, set()).add(count)
    return all(len(counts) == 1 for counts in held.values())


def links(template: Template) -> list[int]:
    """Return where data comes from before each stage, and goes behind the last."""
    inside = [INSIDE if set(a.nodes) & set(b.nodes) else BETWEEN for a, b in pairwise(template)]
    return [BETWEEN, *inside, BETWEEN]


def t_std(times: Sequence[int], microbatches: int) -> int:
    """Return ΣL + (N_b − 1)·max L."""
    return sum(times) + (microbatches - 1) * max(times)


def t_oobleck(times: Sequence[int], microbatches: int) -> int | None:
    """Return Oobleck's estimate, None where it counts less than one microbatch in steady state."""
    if len(times) == 1:
        return 4 * times[0]
    slowest = max(times)
    k = max(i for i, time in enumerate(times) if time == slowest)
    steady = microbatches - len(times) + k + 1
    if steady < 1:
        return None
    return sum(times) + steady * slowest + sum(times[k:])


def evaluate(problem: PlanningProblem, template: Template) -> TemplateTimes:
    """Return an iteration's time by each formula."""
    times, microbatches = stage_times(problem, template), problem.spec.microbatches
    return TemplateTimes(
        t_std=t_std(times, microbatches),
        t_oobleck=t_oobleck(times, microbatches),
        simulated=timeline(problem, template).iteration_ps,
    )


def timeline(problem: PlanningProblem, template: Template) -> SimulatedTimeline:
    """Execute the template with 1F1B."""
    forward = [int(problem.forward_ps[s.option, s.end, s.first]) for s in template]
    cost = compute_times(problem, template)
    kinds = links(template)[1:-1]
    cuts = [stage.end for stage in template[:-1]]
    return simulate(
        forward,
        [whole - ahead for whole, ahead in zip(cost, forward, strict=True)],
        [int(problem.input_ps[kind, cut]) for kind, cut in zip(kinds, cuts, strict=True)],
        [int(problem.gradient_ps[kind, cut]) for kind, cut in zip(kinds, cuts, strict=True)],
        problem.spec.microbatches,
    )


def memory_of(problem: PlanningProblem, template: Template) -> list[float]:
    """Return the bytes that one device of each stage needs."""
    return [
        problem.memory_bytes(stage.option, stage.first, stage.end, len(template) - position)
        for position, stage in enumerate(template)
    ]


def fits(problem: PlanningProblem, template: Template) -> bool:
    """Return whether every stage fits the memory of its devices."""
    return all(
        needed <= problem.capacity_bytes[stage.option]
        for needed, stage in zip(memory_of(problem, template), template, strict=True)
    )


def number_nodes(problem: PlanningProblem, parts: Iterable[tuple[int, int, int, bool]]) -> Template:
    """Return a template from parts in order: first layer, end, option, in the last part's node.

    Nodes of a type are alike; they are numbered in the order of their first stage.
    """
    opened = [0] * len(problem.spec.devices)
    template: list[Stage] = []
    for first, end, index, same_node in parts:
        option = problem.options[index]
        if same_node:
            nodes = template[-1].nodes
        else:
            wanted = option.nodes or tuple(
                int(i == option.device) for i in range(len(problem.spec.devices))
            )
            nodes = tuple(
                (kind, opened[kind] + n)
                for kind, number in enumerate(wanted)
                for n in range(number)
            )
            for kind, number in enumerate(wanted):
                opened[kind] += number
        template.append(Stage(first, end, index, nodes))
    return tuple(template)
