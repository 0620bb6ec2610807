# ruff: noqa: PLR0913, PLR0917, PLR0912, C901 - compiled loops: no objects there
"""Compiled loops of the optimal search's dynamic program.

A cell is a state (`app.analysis.planning.search.passes`), a plane and a layer l: layers [l, end)
run on the state's devices. Planes are phase × number of stages. Phase 0 holds the stages after the
slowest stage, phase 1 the slowest stage and the stages before it
(`app.analysis.planning.search.best_first`).

`low[s]` and `high[s]` bound the layers at which state s can be part of a template within the time
limit of the pass; only cells between them are stored, plane after plane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.quantities import IntArray

FAR = 1 << 61


class Steps(NamedTuple):
    """States of a planning problem, and the steps into each slot (see `app…passes.Step`)."""

    nodes: IntArray  # (types,): nodes of each type
    digits: IntArray  # (combinations, types): whole nodes of each type for each `v`
    slot_type: IntArray  # (slots,): type of the open node, -1 for the closed slot
    # (slots + 1,): steps into slot s are rows ``first[s]:first[s + 1]`` of the arrays below
    first: IntArray
    source: IntArray  # (steps,): slot before the step
    option: IntArray  # (steps,): option of the added stage
    drop: IntArray  # (steps,): increase of `v`
    left: IntArray  # (steps,): link to the stage in front
    right: IntArray  # (steps,): link to the stage behind
    gain: IntArray  # (steps, types): whole nodes that the step adds


class PassCosts(NamedTuple):
    """Prices of stages in a pass, and the layout of the pass's cells."""

    # Arrays of `app.analysis.planning.problem.PlanningProblem`.
    cost: IntArray
    input_ps: IntArray
    gradient_ps: IntArray
    # (options, counts, layers + 1): lowest first layer, by time and memory, of a stage that ends
    # before layer b and is the n-th from the end
    lowest_first: IntArray
    variants: IntArray  # (variants, 8): rows of `app.analysis.planning.search.passes.Variant`
    stage_counts: int  # planes of a phase: one for each number of stages, or 1
    fixed_count: IntArray  # (states,): assumed number of stages where `stage_counts` is 1
    low: IntArray  # (states,)
    high: IntArray  # (states,)
    begin: IntArray  # (states + 1,): first cell of each state


@compiled  # pragma: no cover - coverage does not see compiled code
def step_allowed(v: int, slot: int, step: int, steps: Steps) -> bool:
    """Return whether a step can lead into the state (v, slot)."""
    if slot > 0:
        kind = steps.slot_type[slot]
        return bool(steps.digits[v, kind] < steps.nodes[kind])
    for i in range(steps.nodes.shape[0]):  # noqa: SIM110 - a generator cannot be compiled
        if steps.digits[v, i] < steps.gain[step, i]:
            return False
    return True


@compiled  # pragma: no cover - coverage does not see compiled code
def reach_from_end(steps: Steps, fits_from: IntArray, layers: int) -> IntArray:
    """Return for each state the lowest layer that its devices can reach from the model's end.

    `fits_from[option, b]` is the lowest first layer of a stage that ends before layer b or a later
    layer, `layers + 1` if no stage fits. The result is a bound, since it ignores transfers and the
    number of stages; it is `layers + 1` if the state is unreachable.
    """
    slots = steps.slot_type.shape[0]
    low = np.full(steps.digits.shape[0] * slots, layers + 1, dtype=np.int64)
    low[0] = layers
    for v in range(steps.digits.shape[0]):
        for slot in range(slots):
            best = low[v * slots + slot]
            for step in range(steps.first[slot], steps.first[slot + 1]):
                if not step_allowed(v, slot, step, steps):
                    continue
                before = low[(v - steps.drop[step]) * slots + steps.source[step]]
                if before <= layers:
                    best = min(best, fits_from[steps.option[step], before])
            low[v * slots + slot] = best
    return low


@compiled  # pragma: no cover - coverage does not see compiled code
def reach_from_start(
    steps: Steps,
    fits_to: IntArray,
    low: IntArray,
    idle: bool,  # noqa: FBT001 - compiled code takes arguments by position
) -> IntArray:
    """Return for each state the highest layer that the unused devices can reach from layer 0.

    `fits_to[option, a]` is the highest end of a stage that begins at layer a or an earlier layer,
    -1 if no stage fits. The result is -1 if the state is unreachable.
    """
    slots = steps.slot_type.shape[0]
    combinations = steps.digits.shape[0]
    high = np.full(combinations * slots, -1, dtype=np.int64)
    if idle:
        for v in range(1, combinations):
            high[v * slots] = 0
    high[(combinations - 1) * slots] = 0
    for v in range(combinations - 1, -1, -1):
        for slot in range(slots - 1, -1, -1):
            after = high[v * slots + slot]
            if after < 0 or low[v * slots + slot] > after:
                high[v * slots + slot] = -1
                continue
            for step in range(steps.first[slot], steps.first[slot + 1]):
                if not step_allowed(v, slot, step, steps):
                    continue
                place = (v - steps.drop[step]) * slots + steps.source[step]
                high[place] = max(high[place], fits_to[steps.option[step], after])
    return high


@compiled  # pragma: no cover - coverage does not see compiled code
def lay_out(low: IntArray, high: IntArray, planes: int) -> IntArray:
    """Return the first cell of each state, shape (states + 1,); last entry: number of cells."""
    begin = np.empty(low.shape[0] + 1, dtype=np.int64)
    total = 0
    for s in range(low.shape[0]):
        begin[s] = total
        if low[s] <= high[s]:
            total += (high[s] - low[s] + 1) * planes
    begin[low.shape[0]] = total
    return begin


@compiled  # pragma: no cover - coverage does not see compiled code
def cheapest(steps: Steps, costs: PassCosts, rest: IntArray, cutoff: int) -> IntArray:
    """Return for each cell the lowest cost of its layers; `FAR` if no stages fit.

    Parameters
    ----------
    rest : int64 array, shape (layers + 1,)
        Lower bound of the cost of the layers before l, in the last phase.
    cutoff : int
        Cells that cannot lead to a cost below `cutoff` are pruned.
    """
    cost, variants, stage_counts = costs.cost, costs.variants, costs.stage_counts
    low, high, begin = costs.low, costs.high, costs.begin
    slots = steps.slot_type.shape[0]
    layers = cost.shape[1] - 1
    phases = 0
    for k in range(variants.shape[0]):
        phases = max(phases, variants[k, 1] + 1)
    table = np.full(begin[begin.shape[0] - 1], FAR, dtype=np.int64)
    if low[0] <= layers <= high[0]:
        table[begin[0] + layers - low[0]] = 0
    for v in range(steps.digits.shape[0]):
        for slot in range(slots):
            s = v * slots + slot
            if low[s] > high[s]:
                continue
            width = high[s] - low[s] + 1
            for step in range(steps.first[slot], steps.first[slot + 1]):
                if not step_allowed(v, slot, step, steps):
                    continue
                p = (v - steps.drop[step]) * slots + steps.source[step]
                if low[p] > high[p]:
                    continue
                width_p = high[p] - low[p] + 1
                o = steps.option[step]
                for k in range(variants.shape[0]):
                    factor, summand = variants[k, 2], variants[k, 3]
                    shortest, longest = variants[k, 4], variants[k, 5]
                    counted, apart = variants[k, 6], variants[k, 7]
                    from_phase, to_phase = variants[k, 0], variants[k, 1]
                    for n in range(stage_counts):
                        to_n = min(n + 1, stage_counts - 1)
                        count = costs.fixed_count[s] if stage_counts == 1 else to_n
                        at_p = begin[p] + (from_phase * stage_counts + n) * width_p
                        at_s = begin[s] + (to_phase * stage_counts + to_n) * width
                        for b in range(low[p], high[p] + 1):
                            value = table[at_p + b - low[p]]
                            if value >= FAR:
                                continue
                            if from_phase == phases - 1 and value + rest[b] >= cutoff:
                                continue
                            outside = costs.gradient_ps[steps.right[step], b]
                            begins = max(costs.lowest_first[o, count, b], low[s])
                            for a in range(begins, min(b - 1, high[s]) + 1):
                                moved = outside + costs.input_ps[steps.left[step], a]
                                time = cost[o, b, a] + counted * moved
                                if shortest <= time <= longest:
                                    total = value + factor * time + apart * moved + summand
                                    table[at_s + a - low[s]] = min(table[at_s + a - low[s]], total)
    return table


@compiled  # pragma: no cover - coverage does not see compiled code
def steps_into(
    v: int,
    slot: int,
    phase: int,
    n: int,
    a: int,
    budget: int,
    steps: Steps,
    costs: PassCosts,
    table: IntArray,
    most: int,
) -> IntArray:
    """Return at most `most` transitions into a cell whose total cost is at most `budget`.

    Rows: step and variant; v, slot, phase, number of stages, layer and cost of the cell after the
    stage; cost of the stage.
    """
    cost, variants, stage_counts = costs.cost, costs.variants, costs.stage_counts
    low, high, begin = costs.low, costs.high, costs.begin
    slots = steps.slot_type.shape[0]
    rows = np.empty((most, 9), dtype=np.int64)
    number = 0
    s = v * slots + slot
    for step in range(steps.first[slot], steps.first[slot + 1]):
        if not step_allowed(v, slot, step, steps):
            continue
        before_v = v - steps.drop[step]
        p = before_v * slots + steps.source[step]
        if low[p] > high[p]:
            continue
        width = high[p] - low[p] + 1
        o = steps.option[step]
        for k in range(variants.shape[0]):
            if variants[k, 1] != phase:
                continue
            for before_n in range(stage_counts):
                if min(before_n + 1, stage_counts - 1) != n:
                    continue
                count = costs.fixed_count[s] if stage_counts == 1 else n
                at_p = begin[p] + (variants[k, 0] * stage_counts + before_n) * width
                for b in range(max(a + 1, low[p]), high[p] + 1):
                    value = table[at_p + b - low[p]]
                    if value >= FAR or costs.lowest_first[o, count, b] > a:
                        continue
                    moved = (
                        costs.gradient_ps[steps.right[step], b]
                        + costs.input_ps[steps.left[step], a]
                    )
                    time = cost[o, b, a] + variants[k, 6] * moved
                    if not variants[k, 4] <= time <= variants[k, 5]:
                        continue
                    stage = variants[k, 2] * time + variants[k, 7] * moved + variants[k, 3]
                    if value + stage <= budget and number < most:
                        rows[number, 0], rows[number, 1] = step, k
                        rows[number, 2], rows[number, 3] = before_v, steps.source[step]
                        rows[number, 4], rows[number, 5] = variants[k, 0], before_n
                        rows[number, 6], rows[number, 7] = b, value
                        rows[number, 8] = stage
                        number += 1
    return rows[:number]
