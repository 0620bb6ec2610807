"""The quick way to a dense layout, for traces that are in some regular order.

Recorders and the server's own storage write a rank's operations of a step together, alike in every
step and at equal distances. Then the rows of a rank are a matrix (step, operation) as they lie, and
the dense layout is made by transposing one such block a rank instead of by looking up the place of
every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.threads import in_threads, threads_for
from app.analysis.trace.model import REPLAYED_OP_TYPES, Trace

Number = TypeVar("Number", np.int16, np.int32, np.int64)

# DP ranks that are written at a time: neighbors share the lines of a cache.
_TOGETHER: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class BlockRuns:
    """Stretches of rows of one rank and step; arrays of shape (runs,)."""

    first: NDArray[np.int64]
    end: NDArray[np.int64]
    rank: NDArray[np.int32]
    step: NDArray[np.int64]
    dp: NDArray[np.int32]
    pp: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A trace whose every row has its place, shape (nodes, steps, dp).

    Starts are relative to the first one of their step, which is `begin_ns`, shape (steps,).
    """

    steps: NDArray[np.int64]
    shape: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    start_ns: NDArray[np.float64]
    duration_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Rows of one rank as a matrix (step, operation): where it begins and how far steps are."""

    first: int
    stride: int
    size: int
    dp: int
    pp: int


def find_runs(trace: Trace) -> BlockRuns:
    """Return where rank or step change from row to row."""
    first = trace.stretches().first
    end = np.append(first[1:], len(trace))
    return BlockRuns(
        first, end, trace.rank[first], trace.step[first], trace.dp[first], trace.pp[first]
    )


def transpose_blocks(trace: Trace, runs: BlockRuns) -> Dense | None:
    """Return the dense layout of a regular trace; None where the trace is not so."""
    workers = trace.meta.sizes.workers
    step_count, odd = divmod(len(runs.first), workers)
    if odd or int(trace.op.max()) >= len(REPLAYED_OP_TYPES):
        return None
    in_order = np.lexsort((runs.step, runs.rank)).reshape(workers, step_count)
    steps = runs.step[in_order[0]]
    if (np.diff(steps) <= 0).any() or (runs.step[in_order] != steps).any():
        return None
    if (runs.rank[in_order] != runs.rank[in_order[:, :1]]).any():
        return None
    begin_ns = trace.stretches().earliest_ns[in_order].min(axis=0)
    return _transpose(trace, steps, begin_ns, list(_blocks(runs, in_order)))


def _blocks(runs: BlockRuns, in_order: NDArray[np.int64]) -> Iterator[_Block]:
    """Yield the block of each rank whose runs are equally long and equally far from one another."""
    first, length = runs.first[in_order], (runs.end - runs.first)[in_order]
    stride = np.diff(first, axis=1)
    regular = (length == length[:, :1]).all(axis=1)
    if stride.size:
        regular &= (stride == stride[:, :1]).all(axis=1) & (stride[:, 0] > 0)
    for rank in np.flatnonzero(regular):
        run = in_order[rank, 0]
        yield _Block(
            int(first[rank, 0]),
            int(stride[rank, 0]) if stride.size else 0,
            int(length[rank, 0]),
            int(runs.dp[run]),
            int(runs.pp[run]),
        )


def _transpose(
    trace: Trace,
    steps: NDArray[np.int64],
    begin_ns: NDArray[np.int64],
    blocks: list[_Block],
) -> Dense | None:
    """Fill the dense layout block by block; None where a block differs from its stage's first."""
    sizes = trace.meta.sizes
    if len(blocks) != sizes.workers or len({(b.dp, b.pp) for b in blocks}) != sizes.workers:
        return None
    templates = {block.pp: slice(block.first, block.first + block.size) for block in blocks}
    shape = np.zeros((len(trace.op_names), sizes.pp), dtype=np.int64)
    for stage, lane in templates.items():
        shape[:, stage] = np.bincount(trace.op[lane], minlength=len(shape))
    first_node = np.concatenate(([0], np.cumsum(shape.ravel())))
    start_ns = np.empty((int(first_node[-1]), len(steps), sizes.dp))
    duration_ns = np.empty(start_ns.shape)
    threads = threads_for(len(trace))
    compares: list[Callable[[], bool]] = []
    moves: list[Callable[[], None]] = []
    for stage, lane in templates.items():
        op, order = trace.op[lane], trace.order[lane]
        kind = op.astype(np.int64) * sizes.pp + stage
        if (order >= shape.ravel()[kind]).any():
            return None
        nodes = first_node[kind] + order.astype(np.int64)
        # DP ranks 0, 1, 2…: there is one block for each worker
        mine = sorted((block for block in blocks if block.pp == stage), key=lambda b: b.dp)
        if any(block.size != len(op) for block in mine):
            return None
        compares.append(partial(_are_alike, trace, lane, mine, len(steps)))
        moves += [
            partial(_transpose_rows, trace.start_ns, begin_ns, mine, nodes, start_ns),
            partial(
                _transpose_rows,
                trace.duration_ns,
                np.zeros_like(begin_ns),
                mine,
                nodes,
                duration_ns,
            ),
        ]
    if not all(in_threads(threads, lambda compare: compare(), compares)):
        return None
    in_threads(threads, lambda move: move(), moves)
    return Dense(steps, shape.ravel(), begin_ns, start_ns, duration_ns)


def _are_alike(trace: Trace, template: slice, blocks: Sequence[_Block], steps: int) -> bool:
    """Return whether the rows of all blocks are, in each step, the operations of a template."""
    ops, orders = trace.op[template], trace.order[template]
    return all(
        (_matrix(trace.op, block, steps) == ops).all()
        and (_matrix(trace.order, block, steps) == orders).all()
        for block in blocks
    )


def _transpose_rows(
    values: IntArray, less: IntArray, blocks: Sequence[_Block], nodes: IntArray, out: FloatArray
) -> None:
    """Write the values of a stage's blocks, one a DP rank, to their places.

    Parameters
    ----------
    values : int64 array, shape (operations,)
    less : int64 array, shape (steps,)
        Is taken off the values of each step.
    blocks : sequence of _Block
    nodes : int64 array, shape (size,)
        The node of each row of a block's step.
    out : float64 array, shape (all nodes, steps, dp)
    """
    for dp in range(0, len(blocks), _TOGETHER):
        some = slice(dp, dp + _TOGETHER)
        own = np.stack([_matrix(values, block, len(less)) for block in blocks[some]])
        own -= less[:, None]
        out[nodes, :, some] = own.transpose(2, 1, 0)


def _matrix(column: NDArray[Number], block: _Block, steps: int) -> NDArray[Number]:
    """View a block of a column as (step, operation)."""
    item, data = column.itemsize, np.ascontiguousarray(column).data
    strides = (block.stride * item, item)
    return np.ndarray((steps, block.size), column.dtype, data, block.first * item, strides)
