# ruff: noqa: PLR0913, PLR0917, PLR0912, C901 - compiled loops: no objects there
"""Layers moved between stages while a template then executes faster, or as fast and more evenly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.planning.problem import PlanningProblem
from app.analysis.planning.simulation import execute
from app.analysis.planning.template import SLIGHT, Stage, Template, links

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# What `limit_ps` limits.
NOTHING = 0
T_STD = 1
T_OOBLECK = 2


class _Costs(NamedTuple):
    """See `app.analysis.planning.problem.PlanningProblem`."""

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
    """Return the template that moves of single layers lead to, and what of `work` is left.

    Parameters
    ----------
    limited : int
        Which time of a template stays at most `limit_ps`.
    work : int
        Computations that may be executed.
    whole : bool
        Whether each stage keeps a tenth of the mean stage's time.
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
    """Return whether the stages fit the memory, and the template the limit."""
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
    """Return a time that no execution is shorter than.

    See `app.analysis.planning.search.objectives.ExecutedBound`; here for every stage as k.
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
    # pair 0 prices the start; then a layer goes from stage pair // S to stage pair % S
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
