"""The same stages in another order: nodes swapped, and stages of a node made one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from app.analysis.planning.problem import PlanningProblem
from app.analysis.planning.template import Stage, Template, number_nodes


def rearranged(problem: PlanningProblem, template: Template) -> Iterator[Template]:
    """Yield the template with neighboring nodes swapped, and with stages of a node made one.

    A node keeps as many layers as it had; the templates need not fit the memory.
    """
    groups = [list(group) for _, group in itertools.groupby(template, lambda stage: stage.nodes)]
    for at in range(len(groups) - 1):
        order = [*groups[:at], groups[at + 1], groups[at], *groups[at + 2 :]]
        yield _in_order(problem, order)
    yield _in_order(problem, groups[::-1])
    for at, group in enumerate(groups):
        for left, right in itertools.pairwise(range(len(group))):
            one, other = group[left], group[right]
            gpus = problem.options[one.option].gpus
            used = sum(problem.options[stage.option].gpus for stage in group[:left])
            if one.option != other.option or used % (2 * gpus):
                continue
            merged = problem.option_index(problem.options[one.option].device, 2 * gpus)
            stage = Stage(one.first, other.end, merged, one.nodes)
            inside = [*group[:left], stage, *group[right + 1 :]]
            yield _in_order(problem, [*groups[:at], inside, *groups[at + 1 :]])


def _in_order(problem: PlanningProblem, groups: Sequence[Sequence[Stage]]) -> Template:
    parts, layer = [], 0
    for group in groups:
        for position, stage in enumerate(group):
            end = layer + stage.end - stage.first
            parts.append((layer, end, stage.option, position > 0))
            layer = end
    return number_nodes(problem, parts)
