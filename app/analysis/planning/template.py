"""Pipeline templates, their cost formulas, and the event-by-event execution of 1F1B.

With N_b microbatches, S stages of times L_i, and k the last of the slowest stages, counted from 0:
t_std = ΣL + (N_b − 1)·L_k and t_oobleck = ΣL + (N_b − S + k + 1)·L_k + Σ_{i≥k} L_i (4·L for a
single stage), as in the programs of Oobleck and Ditto; some indices in Oobleck's Eq. 1 to 3 are off
by one.

1F1B: stage s first runs min(N_b, S − s − 1) forwards, then alternates forward and backward, then
runs the remaining backwards. Transfers to a neighbor overlap with computation, one microbatch after
another; each direction has a link of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.planning.problem import BETWEEN, INSIDE, PlanningProblem
from app.analysis.quantities import IntArray

FORWARD = 0
BACKWARD = 1


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedTimeline:
    """Start and end of each computation, in ps since the iteration's start.

    `start_ps` and `end_ps` have the shape (2, stages, microbatches): forward, backward.
    """

    start_ps: IntArray
    end_ps: IntArray

    @property
    def iteration_ps(self) -> int:
        """Return the end of the last computation, ps."""
        return int(self.end_ps.max())

    def busy_ps(self) -> IntArray:
        """Return the computing time of each stage in the iteration, ps, shape (stages,)."""
        busy: IntArray = (self.end_ps - self.start_ps).sum(axis=(0, 2))
        return busy


def simulate(
    forward_ps: Sequence[int],
    backward_ps: Sequence[int],
    send_forward_ps: Sequence[int],
    send_backward_ps: Sequence[int],
    microbatches: int,
) -> SimulatedTimeline:
    """Return the timeline of an iteration executed by 1F1B.

    Parameters
    ----------
    forward_ps, backward_ps : sequence of int
        Time of each stage's computations.
    send_forward_ps, send_backward_ps : sequence of int
        Time of a transfer between stage i and i + 1, in each direction.
    """
    start, end = execute(
        np.array(forward_ps, dtype=np.int64),
        np.array(backward_ps, dtype=np.int64),
        np.array(send_forward_ps, dtype=np.int64),
        np.array(send_backward_ps, dtype=np.int64),
        microbatches,
    )
    return SimulatedTimeline(start, end)


@compiled  # pragma: no cover - coverage does not see compiled code
def execute(
    forward: IntArray,
    backward: IntArray,
    send_forward: IntArray,
    send_backward: IntArray,
    microbatches: int,
) -> tuple[IntArray, IntArray]:
    """Return the start and end of each computation, as in `SimulatedTimeline`."""
    stages = forward.shape[0]
    start = np.zeros((2, stages, microbatches), dtype=np.int64)
    end = np.zeros((2, stages, microbatches), dtype=np.int64)
    done = np.zeros((2, stages), dtype=np.int64)
    free = np.zeros(stages, dtype=np.int64)
    # Arrival time of each microbatch at each stage; the first stage has all microbatches from the
    # start.
    arrives = np.full((2, stages, microbatches), -1, dtype=np.int64)
    arrives[0, 0, :] = 0
    link_free = np.zeros((2, stages), dtype=np.int64)
    remaining = 2 * stages * microbatches
    while remaining:
        for s in range(stages):
            warm_up = min(microbatches, stages - s - 1)
            while True:
                f, b = done[0, s], done[1, s]
                if b == microbatches:
                    break
                direction = 0 if f < microbatches and f - b <= warm_up else 1
                m = f if direction == 0 else b
                ready = arrives[direction, s, m]
                if ready < 0:
                    break
                begins = max(ready, free[s])
                ends = begins + (forward[s] if direction == 0 else backward[s])
                start[direction, s, m], end[direction, s, m] = begins, ends
                free[s] = ends
                done[direction, s] += 1
                remaining -= 1
                if direction == 0 and s == stages - 1:
                    arrives[1, s, m] = ends
                elif direction == 0:
                    link_free[0, s] = max(link_free[0, s], ends) + send_forward[s]
                    arrives[0, s + 1, m] = link_free[0, s]
                elif s > 0:
                    link_free[1, s] = max(link_free[1, s], ends) + send_backward[s - 1]
                    arrives[1, s - 1, m] = link_free[1, s]
    return start, end


Node = tuple[int, int]  # type, number of the node

# A stage is slight if it takes less than a tenth of the mean stage's time.
SLIGHT = 10


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers [first, end) on the devices of an option in specific nodes."""

    first: int
    end: int
    option: int
    nodes: tuple[Node, ...]


Template = tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class TemplateTimes:
    """Time of an iteration according to each objective, ps; t_oobleck is None if undefined."""

    t_std: int
    t_oobleck: int | None
    simulated: int

    def by(self, objective: str) -> int:
        """Return the time according to an objective, ps.

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
    """Return the time of each stage for one microbatch including transfers, ps."""
    kinds = links(template)
    return [
        problem.stage_ps(stage.option, stage.first, stage.end, left, right)
        for stage, left, right in zip(template, kinds[:-1], kinds[1:], strict=True)
    ]


def compute_times(problem: PlanningProblem, template: Template) -> list[int]:
    """Return the time of each stage for one microbatch without transfers, ps."""
    return [int(problem.cost_ps[stage.option, stage.end, stage.first]) for stage in template]


def unevenness(problem: PlanningProblem, template: Template) -> float:
    """Return ΣL²; among equally fast templates the most even template has the least."""
    return sum(float(time) ** 2 for time in stage_times(problem, template))


def has_slight_stage(problem: PlanningProblem, template: Template) -> bool:
    """Return whether a stage takes under a tenth of the mean stage's time."""
    times = stage_times(problem, template)
    return min(times) * len(times) * SLIGHT < sum(times)


def divides_nodes_alike(template: Template) -> bool:
    """Return whether all nodes of a type hold the same number of stages.

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
    """Return the links before each stage and after the last one: `INSIDE` or `BETWEEN` nodes."""
    inside = [INSIDE if set(a.nodes) & set(b.nodes) else BETWEEN for a, b in pairwise(template)]
    return [BETWEEN, *inside, BETWEEN]


def t_std(times: Sequence[int], microbatches: int) -> int:
    """Return t_std = ΣL + (N_b − 1)·max L, ps."""
    return sum(times) + (microbatches - 1) * max(times)


def t_oobleck(times: Sequence[int], microbatches: int) -> int | None:
    """Return Oobleck's estimate, ps; None if the steady state has less than one microbatch."""
    if len(times) == 1:
        return 4 * times[0]
    slowest = max(times)
    k = max(i for i, time in enumerate(times) if time == slowest)
    steady = microbatches - len(times) + k + 1
    if steady < 1:
        return None
    return sum(times) + steady * slowest + sum(times[k:])


def evaluate(problem: PlanningProblem, template: Template) -> TemplateTimes:
    """Return the time of an iteration according to each objective."""
    times, microbatches = stage_times(problem, template), problem.spec.microbatches
    return TemplateTimes(
        t_std=t_std(times, microbatches),
        t_oobleck=t_oobleck(times, microbatches),
        simulated=timeline(problem, template).iteration_ps,
    )


def timeline(problem: PlanningProblem, template: Template) -> SimulatedTimeline:
    """Return the timeline of a template executed by 1F1B."""
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
    """Return the memory of one device in each stage, bytes."""
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
    """Return a template whose nodes are numbered in the order of their first stages.

    Parameters
    ----------
    parts : iterable of (first layer, end, option, same node)
        The last entry is whether the stage is in the same node as the stage before it.
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
