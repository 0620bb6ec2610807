# ruff: noqa: PLR0913, PLR0917, PLR0912, C901 - compiled loops: no objects there
"""Local search around the best template: near-optimal templates, hill climbing, rearrangement.

Templates are ranked by their executed time, then by evenness. The neighbors of a template differ
from it in one of these changes: a layer moved to another stage, adjacent nodes swapped, the order
of nodes reversed, two stages of a node merged.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.planning.problem import PlanningProblem
from app.analysis.planning.search.best_first import SearchResult
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.kernels import FAR
from app.analysis.planning.search.passes import (
    Cell,
    SearchPasses,
    Table,
    TooManyCellsError,
    Transition,
    cheapest_within,
)
from app.analysis.planning.template import (
    SLIGHT,
    Stage,
    Template,
    TemplateTimes,
    divides_nodes_alike,
    evaluate,
    execute,
    fits,
    has_slight_stage,
    links,
    number_nodes,
    stage_times,
    unevenness,
)
from app.analysis.quantities import FloatArray, IntArray


def rearranged(problem: PlanningProblem, template: Template) -> Iterator[Template]:
    """Yield the template with two adjacent nodes swapped, reversed, or with stages merged.

    A node keeps its number of layers; the templates need not fit the memory.
    """
    groups = [list(group) for _, group in itertools.groupby(template, lambda stage: stage.nodes)]
    for at in range(len(groups) - 1):
        order = [*groups[:at], groups[at + 1], groups[at], *groups[at + 2 :]]
        yield _in_order(problem, order)
    yield _in_order(problem, groups[::-1])
    for at, group in enumerate(groups):
        for left, right in itertools.pairwise(range(len(group))):
            first, other = group[left], group[right]
            gpus = problem.options[first.option].gpus
            used = sum(problem.options[stage.option].gpus for stage in group[:left])
            if first.option != other.option or used % (2 * gpus):
                continue
            merged = problem.option_index(problem.options[first.option].device, 2 * gpus)
            stage = Stage(first.first, other.end, merged, first.nodes)
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


# Times of a pipeline template, one of which `climb` keeps at or below `limit_ps`.
NOTHING = 0
T_STD = 1
T_OOBLECK = 2


class _Costs(NamedTuple):
    """Arrays of `app.analysis.planning.problem.PlanningProblem`."""

    forward: IntArray
    cost: IntArray
    inputs: IntArray
    gradients: IntArray
    static: FloatArray
    activation: FloatArray
    capacity: FloatArray


def climb(
    problem: PlanningProblem,
    template: Template,
    limited: int,
    limit_ps: int,
    work: int,
    *,
    whole: bool = False,
) -> tuple[Template, int]:
    """Return the local optimum under moves of single layers, and the `work` that is left.

    Parameters
    ----------
    limited : int
        ``NOTHING``, ``T_STD`` or ``T_OOBLECK``: the time that must not exceed `limit_ps`.
    work : int
        Maximum number of executed computations.
    whole : bool
        Whether each stage must take at least a tenth of the mean stage's time.
    """
    costs = _Costs(
        problem.forward_ps,
        problem.cost_ps,
        problem.input_ps,
        problem.gradient_ps,
        problem.static_bytes,
        problem.activation_bytes,
        problem.capacity_bytes,
    )
    cuts, left = _climb(
        costs,
        np.array([stage.option for stage in template], dtype=np.int64),
        np.array(links(template), dtype=np.int64),
        np.array([0, *(stage.end for stage in template)], dtype=np.int64),
        problem.spec.microbatches,
        limited,
        limit_ps,
        work,
        whole,
    )
    moved = tuple(
        Stage(int(cuts[at]), int(cuts[at + 1]), stage.option, stage.nodes)
        for at, stage in enumerate(template)
    )
    return moved, int(left)


@compiled  # pragma: no cover - coverage does not see compiled code
def _allowed(
    costs: _Costs,
    option: IntArray,
    cuts: IntArray,
    times: IntArray,
    microbatches: int,
    limited: int,
    limit: int,
    whole: bool,  # noqa: FBT001 - compiled code takes arguments by position
) -> bool:
    """Return whether the stages fit the memory and the template's time is within the limit."""
    stages = option.shape[0]
    slowest, k, total = np.int64(0), 0, np.int64(0)
    for s in range(stages):
        o, a, b = option[s], cuts[s], cuts[s + 1]
        flying = min(microbatches, stages - s)
        if costs.static[o, b, a] + flying * costs.activation[o, b, a] > costs.capacity[o]:
            return False
        total += times[s]
        if times[s] >= slowest:
            slowest, k = times[s], s
    if whole and times.min() * stages * SLIGHT < total:
        return False
    if limited == T_STD:
        return bool(total + (microbatches - 1) * slowest <= limit)
    if limited == T_OOBLECK:
        steady = microbatches - stages + k + 1
        if stages == 1:
            return bool(4 * total <= limit)
        behind = np.int64(0)
        for s in range(k, stages):
            behind += times[s]
        return bool(steady >= 1 and total + steady * slowest + behind <= limit)
    return True


@compiled  # pragma: no cover - coverage does not see compiled code
def _at_least(
    forward: IntArray, cost: IntArray, send: IntArray, back: IntArray, microbatches: int
) -> int:
    """Return a lower bound of the executed time, ps.

    The bound is the maximum over all stages k of the bound in
    `app.analysis.planning.search.best_first.ExecutedBound`.
    """
    stages = cost.shape[0]
    behind = np.int64(0)
    for s in range(1, stages):
        behind += cost[s] + send[s - 1] + back[s - 1]
    before, least = np.int64(0), np.int64(0)
    for k in range(stages):
        n = min(microbatches, stages - k - 1)
        first = max(behind - n * forward[k], 0)
        last = max(behind - n * (cost[k] - forward[k]), 0)
        waits = first + last if n < microbatches - 1 else max(first, last)
        least = max(least, before + microbatches * cost[k] + waits)
        if k + 1 < stages:
            both = send[k] + back[k]
            before += cost[k] + both
            behind -= cost[k + 1] + both
    return int(least)


@compiled  # pragma: no cover - coverage does not see compiled code
def _climb(
    costs: _Costs,
    option: IntArray,
    link: IntArray,
    start: IntArray,
    microbatches: int,
    limited: int,
    limit: int,
    work: int,
    whole: bool,  # noqa: FBT001 - compiled code takes arguments by position
) -> tuple[IntArray, int]:
    stages = option.shape[0]
    forward, cost = np.zeros(stages, dtype=np.int64), np.zeros(stages, dtype=np.int64)
    times = np.zeros(stages, dtype=np.int64)
    send = np.zeros(max(stages - 1, 0), dtype=np.int64)
    back = np.zeros(max(stages - 1, 0), dtype=np.int64)
    best = start.copy()
    best_ps, best_squares = np.int64(1) << 62, 0.0
    cuts = start.copy()
    # Pair -1 evaluates the start; each later pair moves a layer from stage pair // S to stage pair
    # % S.
    pair, since = -1, 0
    while since <= stages * stages:
        taken, given = 0, 0
        if pair >= 0:
            taken, given = pair // stages, pair % stages
        pair = (pair + 1) % (stages * stages)
        since += 1
        cuts[:] = best
        if taken != given:
            if best[taken + 1] - best[taken] < 2:  # noqa: PLR2004 - it keeps one
                continue
            if taken < given:
                cuts[taken + 1 : given + 1] -= 1
            else:
                cuts[given + 1 : taken + 1] += 1
        elif best_ps < np.int64(1) << 62:
            continue
        squares = 0.0
        for s in range(stages):
            o, a, b = option[s], cuts[s], cuts[s + 1]
            forward[s], cost[s] = costs.forward[o, b, a], costs.cost[o, b, a]
            times[s] = cost[s] + costs.inputs[link[s], a] + costs.gradients[link[s + 1], b]
            squares += float(times[s]) * float(times[s])
            if s + 1 < stages:
                send[s], back[s] = costs.inputs[link[s + 1], b], costs.gradients[link[s + 1], b]
        if not _allowed(costs, option, cuts, times, microbatches, limited, limit, whole):
            continue
        least = _at_least(forward, cost, send, back, microbatches)
        if least > best_ps or (least == best_ps and squares >= best_squares):
            continue
        work -= 2 * stages * microbatches
        if work < 0:
            break
        _, end = execute(forward, cost - forward, send, back, microbatches)
        executed = end.max()
        if executed < best_ps or (executed == best_ps and squares < best_squares):
            best_ps, best_squares = executed, squares
            best[:] = cuts
            since = 0
    return best, work


# Maximum excess of a listed template's cost over the best cost, as a share.
NEAR: Final = 0.02
# Maximum excess of the executed time, as a share, at which a template without slight stages, or
# with the same number of stages on all nodes of a type, is preferred to the fastest template.
SLOWER: Final = 0.01
# Number of cheapest templates taken from each pass.
_CANDIDATES: Final = 24
# Number of bisection passes that maximize the time of the shortest stage.
_EVEN_PASSES: Final = 5
# Maximum number of cells of a pass that is repeated to find evener templates.
_MOST_CELLS: Final = 10_000_000
# Number of starting points of hill climbing, each with a different sequence of devices.
_CLIMBED: Final = 6
# Number of templates that are rearranged in each round, and number of rearrangements of each.
_BEST: Final = 4
_REARRANGED: Final = 32
# Limit of the work of hill climbing: `_WORK` executed computations or `_EXECUTIONS` executed
# iterations, whichever is more.
_WORK: Final = 8_000_000
_EXECUTIONS: Final = 400


def cheapest_templates(table: Table) -> Iterator[Template]:
    """Yield a table's templates in ascending order of ΣL (best first over its transitions)."""
    serial = itertools.count()
    heap: list[tuple[int, int, int, Cell, tuple[tuple[Transition, Cell], ...]]] = [
        (end.value, next(serial), 0, end, ()) for end in table.ends
    ]
    heapq.heapify(heap)
    layers = table.passes.layers
    while heap:
        _, _, spent, cell, path = heapq.heappop(heap)
        if cell.layer == layers:
            yield table.template_of(list(path))
            continue
        for transition in table.transitions(cell, FAR):
            cost = spent + transition.cost
            entry = (
                cost + transition.behind.value,
                -next(serial),
                cost,
                transition.behind,
                (*path, (transition, cell)),
            )
            heapq.heappush(heap, entry)


def near_optimal(
    passes: SearchPasses,
    result: SearchResult,
    objective: str,
    budget: SearchBudget,
    others: Iterable[Template] = (),
) -> tuple[Template, ...]:
    """Return near-optimal templates sorted by executed time, then by evenness.

    Parameters
    ----------
    objective : str
        With ``t_std`` or ``t_oobleck``, the search looks for templates as good as the best template
        and returns the templates within `NEAR` of it. With ``simulated``, it looks for the fastest
        executed template; templates with slight stages, or with nodes of a type divided unequally,
        are dropped unless every other template takes longer by more than `SLOWER`.
    others : iterable of Template
        Further starting points of the search.
    """
    candidates = {result.template, *result.others, *others, *_candidates(passes, result, budget)}
    near = _Neighborhood(passes, result, objective, budget, candidates)
    tied = T_OOBLECK if objective == "t_oobleck" else T_STD
    near.improve(near.ties(), _CLIMBED, limited=tied)
    if objective != "simulated":
        return near.within(result.cost_ps)
    near.improve(sorted(near.times, key=near.rank), _CLIMBED)
    best = None
    while best != (best := near.best):
        for template in sorted(near.times, key=near.rank)[:_BEST]:
            near.improve(rearranged(passes.problem, template), _REARRANGED)
    near.drop_impractical(best)
    return near.within(near.cost(near.best))


class _Neighborhood:
    """Evaluated templates around the best template; all of them fit the memory."""

    def __init__(
        self,
        passes: SearchPasses,
        result: SearchResult,
        objective: str,
        budget: SearchBudget,
        candidates: Iterable[Template],
    ) -> None:
        self.passes, self.problem, self.budget = passes, passes.problem, budget
        self.objective, self.limit_ps = objective, result.cost_ps
        self.times: dict[Template, TemplateTimes] = {}
        self._ranks: dict[Template, tuple[int, float, int, str]] = {}
        iteration = 2 * len(result.template) * self.problem.spec.microbatches
        self.work = max(_WORK, _EXECUTIONS * iteration)
        self.climbed: set[tuple[int, bool, tuple[int, ...]]] = set()
        for template in candidates:
            self._add(template)

    @property
    def best(self) -> Template:
        return min(self.times, key=self.rank)

    def cost(self, template: Template) -> int:
        value: int | None = getattr(self.times[template], self.objective)
        return FAR if value is None else value

    def rank(self, template: Template) -> tuple[int, float, int, str]:
        """Return the sort key of a template: executed time, unevenness, t_std, text."""
        return self._ranks[template]

    def within(self, cost_ps: int) -> tuple[Template, ...]:
        """Return the templates whose cost exceeds `cost_ps` by at most `NEAR`, sorted by rank."""
        limit = int(cost_ps * (1 + NEAR))
        return tuple(sorted((t for t in self.times if self.cost(t) <= limit), key=self.rank))

    def ties(self) -> list[Template]:
        """Return the templates that cost as much as the optimal search's best, sorted by rank."""
        minimized = "t_oobleck" if self.objective == "t_oobleck" else "t_std"
        tied = (t for t, own in self.times.items() if getattr(own, minimized) == self.limit_ps)
        return sorted(tied, key=self.rank)

    def improve(
        self,
        templates: Iterable[Template],
        most: int,
        *,
        limited: int = NOTHING,
        whole: bool = False,
    ) -> None:
        """Climb from at most `most` templates, each with a different sequence of devices."""
        for template in templates:
            devices = limited, whole, tuple(stage.option for stage in template)
            if devices in self.climbed:
                continue
            if not most or self.work <= 0 or self.budget.spent:
                return
            self.climbed.add(devices)
            most -= 1
            moved, self.work = climb(
                self.problem, template, limited, self.limit_ps, self.work, whole=whole
            )
            self._add(moved)

    def drop_impractical(self, best: Template) -> None:
        """Drop templates with slight stages or unequal nodes if others are about as fast."""
        allowed = int(self.times[best].simulated * (1 + SLOWER))
        if has_slight_stage(self.problem, best) and not self.budget.spent:
            made = _without_slight_stages(
                self.passes, best, allowed // self.problem.spec.microbatches
            )
            ranked = sorted(self.times, key=self.rank)
            self.improve([*made, *ranked], _CLIMBED + len(made), whole=True)
        self._keep([t for t in self.times if not has_slight_stage(self.problem, t)], allowed)
        self._keep([t for t in self.times if divides_nodes_alike(t)], allowed)

    def _keep(self, templates: Sequence[Template], allowed: int) -> None:
        if any(self.times[template].simulated <= allowed for template in templates):
            self.times = {template: self.times[template] for template in templates}

    def _add(self, template: Template) -> None:
        if template not in self.times and fits(self.problem, template):
            times = evaluate(self.problem, template)
            self.times[template] = times
            uneven = unevenness(self.problem, template)
            self._ranks[template] = times.simulated, uneven, times.t_std, str(template)


def _without_slight_stages(
    passes: SearchPasses, template: Template, longest: int
) -> list[Template]:
    """Return templates without slight stages in which no stage takes longer than `longest`, ps."""
    times = stage_times(passes.problem, template)
    shortest = -(-sum(times) // (SLIGHT * len(times)))
    try:
        table = passes.run(cheapest_within(longest, shortest_ps=shortest), _MOST_CELLS)
    except TooManyCellsError:
        return []
    return [] if table is None else list(itertools.islice(cheapest_templates(table), _CANDIDATES))


def _candidates(
    passes: SearchPasses, result: SearchResult, budget: SearchBudget
) -> Iterator[Template]:
    """Yield the cheapest and the evenest templates with about the best template's slowest stage."""
    slowest = max(stage_times(passes.problem, result.template))
    for longest in (slowest, int(slowest * (1 + NEAR))):
        if budget.spent:
            return
        try:
            table = passes.run(cheapest_within(longest))
        except TooManyCellsError:
            return
        if table is not None:
            yield from itertools.islice(cheapest_templates(table), _CANDIDATES)
            if table.values.size <= _MOST_CELLS:
                yield from _evener_templates(passes, longest, budget)


def _evener_templates(
    passes: SearchPasses, longest: int, budget: SearchBudget
) -> Iterator[Template]:
    """Yield templates with increasing time of the shortest stage, found by bisection."""
    low, high = 0, longest
    for _ in range(_EVEN_PASSES):
        if budget.spent:
            return
        middle = (low + high + 1) // 2
        table = passes.run(cheapest_within(longest, shortest_ps=middle))
        if table is None or table.best is None:
            high = middle
        else:
            low = middle
            yield table.template_to(table.best)
