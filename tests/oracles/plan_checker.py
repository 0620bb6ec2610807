"""An independent check of a plan and of its certificate.

No code of the search is used: the dynamic program below starts at the pipeline's begin, uses
dictionaries without bounds or pruning, and tries positions in a node one by one. It is slow, for
tests and for users who want to be certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from app.analysis.planning.problem import BETWEEN, INSIDE, LONGEST_PS, Option, PlanningProblem
from app.analysis.planning.search.best_first import Certificate, Leaf
from app.analysis.planning.template import Template, stage_times, t_oobleck, t_std

# Whole used nodes of each type; the present node, and the number of its devices used so far.
_Place = tuple[tuple[int, ...], int, int]
_CLOSED = -1


def faults_of_template(problem: PlanningProblem, template: Template) -> list[str]:
    """Return the faults of a template in words; empty for a valid one."""
    faults = []
    if [s.first for s in template] != [0, *(s.end for s in template[:-1])]:
        faults.append("the stages do not follow each other")
    if template[-1].end != problem.layers or any(s.end <= s.first for s in template):
        faults.append("the stages do not cover the layers")
    for position, stage in enumerate(template):
        behind = len(template) - position
        needed = problem.memory_bytes(stage.option, stage.first, stage.end, behind)
        if needed > problem.capacity_bytes[stage.option]:
            faults.append(f"stage {position} does not fit the memory")
    return faults + _faults_of_nodes(problem, template)


def _faults_of_nodes(problem: PlanningProblem, template: Template) -> list[str]:
    devices, idle, faults = problem.spec.devices, problem.spec.allow_idle, []
    used: dict[tuple[int, int], list[int]] = {}
    last: tuple[tuple[int, int], ...] = ()
    for stage in template:
        option = problem.options[stage.option]
        for node in stage.nodes:
            if node[1] >= devices[node[0]].nodes:
                faults.append(f"there is no node {node[1]} of {devices[node[0]].name}")
            if node in used and node not in last:
                faults.append(f"the stages of node {node} do not follow each other")
            gpus = devices[node[0]].gpus_per_node if option.nodes else option.gpus
            used.setdefault(node, []).append(gpus)
        last = stage.nodes
    for (kind, _), stages in used.items():
        total = devices[kind].gpus_per_node
        if not _fit_in_order(stages, total, idle=idle):
            faults.append(f"stages on {stages} devices do not fit a node of {total}")
    if not idle and len(used) != problem.spec.nodes:
        faults.append("a node is not used")
    return faults


def _fit_in_order(stages: list[int], total: int, *, idle: bool) -> bool:
    ends = {0}
    for gpus in stages:
        ends = {
            position + gpus
            for end in ends
            for position in (range(end, total) if idle else [end])
            if position % gpus == 0 and position + gpus <= total
        }
    return bool(ends) and (idle or total in ends)


def faults_of_certificate(
    problem: PlanningProblem, template: Template, certificate: Certificate
) -> list[str]:
    """Return the faults of a certificate in words; empty if it proves its bound."""
    faults = []
    microbatches = problem.spec.microbatches
    oobleck = certificate.objective == "t_oobleck"
    times = stage_times(problem, template)
    cost = t_oobleck(times, microbatches) if oobleck else t_std(times, microbatches)
    if cost != certificate.upper_bound_ps:
        faults.append(f"the template costs {cost}, not {certificate.upper_bound_ps}")
    leaves = certificate.leaves
    if any(a.high_ps >= b.low_ps for a, b in pairwise(leaves)):
        faults.append("the leaves overlap")
    missing = [
        time
        for time in _every_time(problem)
        if not any(leaf.low_ps <= time <= leaf.high_ps for leaf in leaves)
    ]
    if missing:
        faults.append(f"stages may take {missing[0]}, which is in no leaf")
    whole = _cheapest(problem, _Rule(LONGEST_PS, 1)) if oobleck else None
    if whole is not None and 4 * whole < certificate.lower_bound_ps:
        faults.append(f"a single stage costs {4 * whole}")
    for leaf in leaves:
        least = _least_in(problem, leaf, oobleck=oobleck)
        if leaf.bound_ps is None and least is not None and least < certificate.lower_bound_ps:
            faults.append(f"{leaf} holds a template that costs {least}")
        if leaf.bound_ps is not None and leaf.bound_ps < certificate.lower_bound_ps:
            faults.append(f"{leaf} is below the bound")
        if leaf.bound_ps is not None and least is not None and least < leaf.bound_ps:
            faults.append(f"{leaf} claims too much: {least} cannot be excluded")
    return faults


def _every_time(problem: PlanningProblem) -> set[int]:
    """Return every time that any stage could take."""
    links = (INSIDE, BETWEEN)
    return {
        problem.stage_ps(option, first, end, left, right)
        for option in range(len(problem.options))
        for end in range(1, problem.layers + 1)
        for first in range(end)
        for left in links
        for right in links
    }


def _least_in(problem: PlanningProblem, leaf: Leaf, *, oobleck: bool) -> int | None:
    """Return a lower bound of the templates whose slowest stage is in a leaf; None without any."""
    microbatches = problem.spec.microbatches
    found = []
    most = min(problem.layers, problem.spec.gpus)
    counts = range(1 + oobleck, most + 1) if problem.limited or oobleck else range(1)
    for stages in counts:
        if oobleck:
            value = _oobleck_with(problem, leaf, stages)
        else:
            value = _cheapest(problem, _Rule(leaf.high_ps, stages))
            value = None if value is None else value + (microbatches - 1) * leaf.low_ps
        if value is not None:
            found.append(value)
    return min(found, default=None)


def _oobleck_with(problem: PlanningProblem, leaf: Leaf, stages: int) -> int | None:
    """Bound T_oobleck with that number of stages: with k the slowest, c·L_k ≥ c·low for each k."""
    values = [
        _cheapest(problem, _Rule(leaf.high_ps, stages, k, leaf.low_ps)) for k in range(stages)
    ]
    return min((value for value in values if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The cost that `_cheapest` counts; `stages` 0 is any number; with `slowest`, by T_oobleck."""

    high_ps: int
    stages: int
    slowest: int | None = None
    low_ps: int = 0

    def price(self, problem: PlanningProblem, count: int, time: int) -> int | None:
        """Return the cost of the stage at a position; None if it may not take that time."""
        if time > self.high_ps:
            return None
        if self.slowest is None or count < self.slowest:
            return time
        if count == self.slowest:
            steady = problem.spec.microbatches - self.stages + count + 1
            return None if time < self.low_ps else (steady + 2) * time
        # Of equally slow stages, the rightmost counts as the slowest.
        return None if time == self.high_ps else 2 * time


def _cheapest(problem: PlanningProblem, rule: _Rule) -> int | None:
    """Return the least cost by a rule; None if no template fits it."""
    devices = problem.spec.devices
    start: _Place = ((0,) * len(devices), _CLOSED, 0)
    table: dict[tuple[int, int, _Place], int] = {(0, 0, start): 0}
    ends: list[int] = []
    while table:
        following: dict[tuple[int, int, _Place], int] = {}
        for (layer, count, place), value in table.items():
            if rule.stages and count == rule.stages:
                continue
            for (end, after), price in _prices(problem, rule, layer, count, place):
                after_count = count + 1 if rule.stages else 0
                if end < problem.layers:
                    key = (end, after_count, after)
                    following[key] = min(following.get(key, value + price), value + price)
                elif _complete(problem, after) and after_count == rule.stages:
                    ends.append(value + price)
        table = following
    return min(ends, default=None)


def _prices(
    problem: PlanningProblem, rule: _Rule, layer: int, count: int, place: _Place
) -> Iterator[tuple[tuple[int, _Place], int]]:
    """Yield the states after the next stage, and its cost."""
    for end, option, left, right, after in _stages_from(problem, layer, place):
        price = rule.price(problem, count, problem.stage_ps(option, layer, end, left, right))
        if price is None:
            continue
        if rule.stages:
            needed = problem.memory_bytes(option, layer, end, rule.stages - count)
            if needed > problem.capacity_bytes[option]:
                continue
        yield (end, after), price


def _complete(problem: PlanningProblem, place: _Place) -> bool:
    used, kind, _ = place
    if problem.spec.allow_idle:
        return True
    nodes = tuple(device.nodes for device in problem.spec.devices)
    return kind == _CLOSED and used == nodes


def _stages_from(
    problem: PlanningProblem, layer: int, place: _Place
) -> Iterator[tuple[int, int, int, int, _Place]]:
    """Yield the possible next stages: end, option, links before and behind, place."""
    for index, option in enumerate(problem.options):
        ways = (
            _replicated(problem, option, place) if option.nodes else _inside(problem, option, place)
        )
        for left, right, after in ways:
            for end in range(layer + 1, problem.layers + 1):
                yield end, index, left, right, after


def _replicated(
    problem: PlanningProblem, option: Option, place: _Place
) -> Iterator[tuple[int, int, _Place]]:
    used, kind, _ = place
    after = tuple(a + b for a, b in zip(used, option.nodes, strict=True))
    enough = all(n <= device.nodes for n, device in zip(after, problem.spec.devices, strict=True))
    if kind == _CLOSED and enough:
        yield BETWEEN, BETWEEN, (after, _CLOSED, 0)


def _inside(
    problem: PlanningProblem, option: Option, place: _Place
) -> Iterator[tuple[int, int, _Place]]:
    """Yield the links and the place behind, for each position in the node in use or a new one."""
    device, idle = problem.spec.devices[option.device], problem.spec.allow_idle
    used, kind, behind = place
    fresh = kind == _CLOSED
    if used[option.device] == device.nodes or kind not in {_CLOSED, option.device}:
        return
    closed = tuple(n + (i == option.device) for i, n in enumerate(used))
    left = BETWEEN if fresh else INSIDE
    for position in range(behind, device.gpus_per_node) if idle else [behind]:
        end = position + option.gpus
        if position % option.gpus or end > device.gpus_per_node:
            continue
        if end == device.gpus_per_node or idle:
            yield left, BETWEEN, (closed, _CLOSED, 0)
        if end < device.gpus_per_node:
            yield left, INSIDE, (used, option.device, end)
