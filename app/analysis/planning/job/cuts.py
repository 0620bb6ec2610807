# ruff: noqa: PLR0913, PLR0917, PLR0912, C901 - compiled loops: no objects there
"""Best cuts of a model's equal blocks into the stages of one pipeline.

A pipeline with stage times C takes t_std = ΣC + (n − 1)·max C for n microbatches. The Pareto front
holds the cuts that are optimal in ΣC and max C; for every n, the best cut is on this front.
"""

from __future__ import annotations

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.quantities import IntArray


@compiled  # pragma: no cover - coverage does not see compiled code
def fill(
    block: IntArray,
    extra: IntArray,
    most: IntArray,
    layers: int,
    cap: int | np.int64,
    blocks: IntArray,
) -> bool:
    """Fill `blocks` with the cut of least ΣC, then least max C, where C ≤ `cap` for each stage.

    C is the time of a stage: its blocks · `block` + `extra`.

    Parameters
    ----------
    block : int64 array, shape (stages,)
        Time of a block on the stage's devices, ps.
    extra : int64 array, shape (stages,)
        Time of the stage beyond its blocks, ps.
    most : int64 array, shape (stages,)
        Blocks that fit the stage's memory.
    blocks : int64 array, shape (stages,)
        Output: blocks of each stage, at least one.

    Returns
    -------
    bool
        Whether there is such a cut.
    """
    stages = block.shape[0]
    limit = np.empty(stages, dtype=np.int64)
    room = 0
    for j in range(stages):
        limit[j] = min(most[j], (cap - extra[j]) // block[j])
        if limit[j] < 1:
            return False
        blocks[j] = 1
        room += limit[j]
    left = layers - stages
    if left < 0 or room < layers:
        return False
    done = np.int64(-1)
    while left > 0:
        # Give blocks to the fastest devices first, to all stages of equal speed up to the same time
        # level.
        fastest = np.int64(2**62)
        for j in range(stages):
            if done < block[j] < fastest:
                fastest = block[j]
        mine = 0
        for j in range(stages):
            if block[j] == fastest:
                mine += limit[j] - 1
        take = min(mine, left)
        left -= take
        # Bisection finds the highest time level up to which all stages can be filled at once.
        low, high = np.int64(0), np.int64(cap)
        while low < high:
            middle = (low + high + 1) // 2
            given = 0
            for j in range(stages):
                if block[j] == fastest:
                    given += max(min(limit[j], (middle - extra[j]) // fastest), 1) - 1
            if given <= take:
                low = middle
            else:
                high = middle - 1
        for j in range(stages):
            if block[j] == fastest:
                blocks[j] = max(min(limit[j], (low - extra[j]) // fastest), 1)
                take -= blocks[j] - 1
        while take > 0:
            best, least = -1, np.int64(2**62)
            for j in range(stages):
                if block[j] == fastest and blocks[j] < limit[j]:
                    time = extra[j] + (blocks[j] + 1) * fastest
                    if time < least:
                        best, least = j, time
            blocks[best] += 1
            take -= 1
        done = fastest
    return True


@compiled  # pragma: no cover - coverage does not see compiled code
def front_of(
    block: IntArray, extra: IntArray, most: IntArray, layers: int, least_microbatches: int
) -> IntArray:
    """Return the Pareto front of (ΣC, max C), ps, shape (points, 2), in descending max C.

    Cuts that are best only for fewer than `least_microbatches` microbatches are left out.
    """
    stages = block.shape[0]
    blocks = np.empty(stages, dtype=np.int64)
    points = np.empty((16 * layers + 16, 2), dtype=np.int64)
    count = 0
    longest = np.int64(0)
    shortest = np.int64(1)
    for j in range(stages):
        longest = max(longest, extra[j] + layers * block[j])
    if not fill(block, extra, most, layers, longest, blocks):
        return points[:0]
    cheapest = np.int64(0)
    for j in range(stages):
        cheapest += extra[j] + blocks[j] * block[j]
    # Bisection finds the least possible max C.
    low, high = shortest, longest
    while low < high:
        middle = (low + high) // 2
        if fill(block, extra, most, layers, middle, blocks):
            high = middle
        else:
            low = middle + 1
    fill(block, extra, most, layers, low, blocks)
    even = np.int64(0)
    for j in range(stages):
        even += extra[j] + blocks[j] * block[j]
    cap = longest
    if least_microbatches > 1:
        cap = min(longest, low + (even - cheapest) // (least_microbatches - 1))
    while cap >= low and fill(block, extra, most, layers, cap, blocks):
        total, slowest = np.int64(0), np.int64(0)
        for j in range(stages):
            time = extra[j] + blocks[j] * block[j]
            total += time
            slowest = max(slowest, time)
        if count == points.shape[0]:
            break
        points[count, 0], points[count, 1] = total, slowest
        count += 1
        cap = slowest - 1
    return points[:count].copy()


def best_cut(
    block: IntArray, extra: IntArray, most: IntArray, layers: int, microbatches: int
) -> tuple[int, tuple[int, ...]] | None:
    """Return the least ΣC + (n − 1)·max C, ps, with the blocks per stage; None if no cut fits.

    Examples
    --------
    >>> one = np.array([3, 3]), np.array([0, 3]), np.array([9, 9])
    >>> best_cut(*one, layers=4, microbatches=2)
    (24, (2, 2))
    """
    front = front_of(block, extra, most, layers, 1)
    if not len(front):
        return None
    times = front[:, 0] + (microbatches - 1) * front[:, 1]
    best = int(times.argmin())
    blocks = np.empty(len(block), dtype=np.int64)
    fill(block, extra, most, layers, int(front[best, 1]), blocks)
    return int(times[best]), tuple(blocks.tolist())


@compiled  # pragma: no cover - coverage does not see compiled code
def most_microbatches(front: IntArray, starts: IntArray, time_ps: int, tail: IntArray) -> IntArray:
    """Return the number of microbatches that each pipeline completes within a time.

    Parameters
    ----------
    front : int64 array, shape (points, 2)
        Concatenated fronts of all pipelines.
    starts : int64 array, shape (pipelines + 1,)
        Start of each pipeline's front.
    tail : int64 array, shape (pipelines,)
        Synchronization and optimizer of each pipeline, ps.
    """
    count = starts.shape[0] - 1
    most = np.zeros(count, dtype=np.int64)
    for i in range(count):
        left = time_ps - tail[i]
        for k in range(starts[i], starts[i + 1]):
            if left >= front[k, 0]:
                most[i] = max(most[i], 1 + (left - front[k, 0]) // front[k, 1])
    return most


@compiled  # pragma: no cover - coverage does not see compiled code
def cover(
    sizes: IntArray, replicas: IntArray, worth: IntArray, shape: IntArray, pipelines: int
) -> tuple[IntArray, IntArray]:
    """Return the most microbatches of at most `pipelines` pipelines on the nodes, and the choices.

    Solves a knapsack problem over the nodes of each type.

    Parameters
    ----------
    sizes : int64 array, shape (units, types)
        Nodes of each type of a unit.
    replicas, worth : int64 array, shape (units,)
        Pipelines of a unit, and microbatches that all of them complete; units that complete none
        are not used.
    shape : int64 array, shape (types,)
        Nodes of each type.

    Returns
    -------
    tuple of int64 arrays, shape (pipelines + 1, states)
        ``[d, state]``: most microbatches of d pipelines on exactly the state's nodes, -1 where
        impossible; and the last unit of that choice. The last type varies fastest.
    """
    types = shape.shape[0]
    strides = np.ones(types, dtype=np.int64)
    for t in range(types - 2, -1, -1):
        strides[t] = strides[t + 1] * (shape[t + 1] + 1)
    states = strides[0] * (shape[0] + 1)
    best = np.full((pipelines + 1, states), -1, dtype=np.int64)
    choice = np.full((pipelines + 1, states), -1, dtype=np.int64)
    best[0, 0] = 0
    count = worth.shape[0]
    step = np.zeros(count, dtype=np.int64)
    for i in range(count):
        for t in range(types):
            step[i] += sizes[i, t] * strides[t]
    for state in range(1, states):
        for i in range(count):
            before = state - step[i]
            if worth[i] <= 0 or before < 0:
                continue
            rest, inside = state, True
            for t in range(types):
                nodes = rest // strides[t]
                rest -= nodes * strides[t]
                if sizes[i, t] > nodes:
                    inside = False
                    break
            if not inside:
                continue
            for d in range(replicas[i], pipelines + 1):
                base = best[d - replicas[i], before]
                if base >= 0 and base + worth[i] > best[d, state]:
                    best[d, state] = base + worth[i]
                    choice[d, state] = i
    return best, choice
