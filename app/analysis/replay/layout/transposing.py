# ruff: noqa: PLR0913, PLR0917 - compiled loops: no objects there
"""From rows to dense matrices in compiled loops: as `app.analysis.replay.layout.blocks` does it.

NumPy widens, subtracts, stacks and scatters one after another, each time through memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.replay.layout.dense import FloatArray, IntArray

# What is read in stretches of rows and written in stretches of DP ranks: half of the nearest cache.
_TILE_ROWS: Final = 64
_TILE_RANKS: Final = 32


@compiled  # pragma: no cover - coverage does not see compiled code
def are_alike(
    op: NDArray[np.int16],
    order: NDArray[np.int32],
    template: int,
    size: int,
    firsts: IntArray,
    strides: IntArray,
    steps: int,
) -> bool:
    """Return whether the rows of all blocks, in each step, are the operations of a template.

    Parameters
    ----------
    op, order : int16 and int32 arrays, shape (operations,)
    template, size : int
        First row of the template and number of its rows, which is that of the blocks' steps.
    firsts, strides : int64 arrays, shape (blocks,)
        First row of each block, and how far its steps are from one another.
    steps : int
    """
    for block in range(len(firsts)):
        for step in range(steps):
            first = firsts[block] + step * strides[block]
            others = 0
            for i in range(size):
                row, like = np.uint64(first + i), np.uint64(template + i)
                others += (op[row] != op[like]) | (order[row] != order[like])
            if others:
                return False
    return True


@compiled  # pragma: no cover
def transpose_rows(
    values: IntArray,
    less: IntArray,
    firsts: IntArray,
    strides: IntArray,
    nodes: IntArray,
    out: FloatArray,
) -> None:
    """Write the values of a stage's blocks to their places.

    Parameters
    ----------
    values : int64 array, shape (operations,)
    less : int64 array, shape (steps,)
        Is taken off the values of each step.
    firsts, strides : int64 arrays, shape (dp,)
        First row of each DP rank's block, and how far its steps are from one another.
    nodes : int64 array, shape (size,)
        The node of each row of a block's step.
    out : float64 array, shape (all nodes, steps, dp)
    """
    ranks, size = len(firsts), len(nodes)
    tile = np.empty((_TILE_RANKS, _TILE_ROWS))
    for step in range(len(less)):
        for dp in range(0, ranks, _TILE_RANKS):
            wide = min(_TILE_RANKS, ranks - dp)
            for first in range(0, size, _TILE_ROWS):
                high = min(_TILE_ROWS, size - first)
                for rank in range(wide):
                    row = firsts[dp + rank] + step * strides[dp + rank] + first
                    for i in range(high):
                        tile[rank, i] = values[np.uint64(row) + np.uint64(i)] - less[step]
                for i in range(high):
                    for rank in range(wide):
                        out[nodes[first + i], step, np.uint64(dp) + np.uint64(rank)] = tile[rank, i]


def warm_up() -> None:
    """Compile, or load from the disk's cache, all of these."""
    zero = np.zeros(1, dtype=np.int64)
    are_alike(zero.astype(np.int16), zero.astype(np.int32), 0, 1, zero, zero, 1)
    transpose_rows(zero, zero, zero, zero, zero, np.zeros((1, 1, 1)))
