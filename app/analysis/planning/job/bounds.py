"""What no plan of some sizes and number of pipelines can be below.

Embedding and head count each as the blocks that take as long on the type where these are fewest: L
blocks in all. A pipeline of stage times C_j does n microbatches in ΣC + (n − 1)·m + tail,
m = max C. Let θ_j = C_j / m ≤ 1, x_j what a block takes on stage j: Σ θ_j/x_j ≥ L/m, so within T

    n ≤ 1 + Σ_j θ_j·((T − tail)/(L·x_j) − 1) ≤ 1 + Σ_j max((T − tail)/(L·x_j) − 1, 0).

Summed over dp pipelines, N ≤ dp + Σ_t G_t·max((T − tail)/(L·x_t) − 1, 0), where a type has G_t
groups: the T at which both sides are equal is the bound (`_by_type`). A second one (`_by_rate`)
counts what the tails cost: of rate R_d = Σ 1/x_j and ΣC ≥ A, what one pass takes on the fastest
type, n_d ≤ 1 + (T − A − tail_d)·R_d/L; with Σ R_d ≤ R, tail_d ≥ τ/S_d and R_d ≥ S_d/x_max:
T ≥ A + (N − dp)·L/R + dp·τ/(x_max·R). And each pipeline has a device on which a pass takes no
longer than T, so there are dp of them (`_some_pass`). With v chunks a bubble is 1/v as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from app.analysis.planning.job.costs import synchronization_ps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from app.analysis.planning.job.space import Space

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


def lower_bounds_ps(space: Space, dp: IntArray) -> IntArray:
    """Return the bound for each number of pipelines: at most that of groups and microbatches."""
    spec, chunks = space.spec, space.sizes.interleave
    arrays, total = space.arrays, space.microbatches
    block = arrays.block.astype(np.float64)
    number = np.array([device.nodes for device in spec.devices]) * space.slots
    rate = float((number / block).sum())
    ends = float((arrays.embedding / block).min() + (arrays.head / block).min())
    layers = space.layers + ends
    once = layers * block.min()
    whole = space.layers * arrays.block_parameters + 2 * arrays.table_parameters
    steps = 1 << np.arange(int(dp.max()).bit_length())
    # a tail grows with dp; the optimizer's step, which shrinks, is left out
    tail = np.array([_least_tail(space, whole, int(d)) for d in steps])[
        np.searchsorted(steps, dp, side="right") - 1
    ]
    by_rate = (
        once / chunks + (total - dp / chunks) * layers / rate + dp * tail / (block.max() * rate)
    )
    longest = np.minimum(space.groups - dp + 1, space.layers)
    by_type = _by_type(total - dp / chunks, layers * block, number, chunks) + tail / longest
    by_pass = _some_pass(dp, layers * block, number) / chunks
    bounds: IntArray = np.floor(
        np.maximum(np.maximum(by_rate, by_type), by_pass) * (1 - 1e-12)
    ).astype(np.int64)
    bounds[~_may_fit(space, dp)] = np.iinfo(np.int64).max
    return bounds


def _by_type(
    microbatches: FloatArray, passes: FloatArray, groups: IntArray, chunks: int
) -> FloatArray:
    """Return the least T with Σ G_t·max(T/P_t − 1/v, 0) of some microbatches; P_t is a pass."""
    order = np.argsort(passes)
    passes, groups = passes[order], groups[order]
    times = np.full(len(microbatches), np.inf)
    for used in range(1, len(passes) + 1):
        rate = float((groups[:used] / passes[:used]).sum())
        times = np.minimum(times, (microbatches + groups[:used].sum() / chunks) / rate)
    return times


def _least_tail(space: Space, parameters: float, dp: int) -> float:
    """Return the least synchronization of a whole model's gradients, whatever shares a node."""
    return float(
        min(
            synchronization_ps(space.spec, device, parameters, dp, in_node)[0]
            for device in space.spec.devices
            for in_node in (1, space.slots)
        )
    )


def _some_pass(dp: IntArray, passes: FloatArray, groups: IntArray) -> FloatArray:
    """Return what a pass takes on the slowest type that is some pipeline's fastest."""
    order = np.argsort(passes)
    reached = np.cumsum(groups[order])
    last = np.minimum(np.searchsorted(reached, dp), len(order) - 1)
    slowest: FloatArray = passes[order][last]
    return slowest


def _may_fit(space: Space, dp: IntArray) -> NDArray[np.bool_]:
    """Return whether dp models fit all devices, and one the shortest of the pipelines."""
    arrays, layers = space.arrays, space.layers
    if not np.isfinite(arrays.capacity).all():
        return np.ones(len(dp), dtype=np.bool_)
    groups = np.array([device.nodes for device in space.spec.devices]) * space.slots
    static = np.array([space.static(int(d)) for d in dp])
    room = np.maximum(arrays.capacity - arrays.working, 0)
    longest = np.minimum(space.groups // dp, layers)
    fits = np.empty(len(dp), dtype=np.bool_)
    for i, pipelines in enumerate(dp.tolist()):
        # of each type as many stages last, last but one, … as there are pipelines
        deepest = max(int(longest[i]), -(-int(groups.max()) // pipelines))
        levels = np.arange(1, deepest + 1)
        flight = np.minimum(levels, space.microbatches)
        if space.sizes.interleave > 1:
            flight = flight * 0 + 1 / space.sizes.interleave
        held = static[i] * arrays.block_parameters + flight * arrays.stored
        blocks = np.minimum(np.floor(room[:, None] / held), layers)
        there = np.clip(groups[:, None] - (levels - 1) * pipelines, 0, pipelines)
        shortest = blocks.max(axis=0)[: longest[i]].sum()
        fits[i] = (blocks * there).sum() >= pipelines * layers and shortest >= layers
    return fits
