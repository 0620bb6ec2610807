# ruff: noqa: PLR0913, PLR0917 - compiled loops: no objects there
"""What is done to every row, in compiled loops: each looks at a row once."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.trace.model import ABSENT

_NS: Final = 1e9


@compiled  # pragma: no cover - coverage does not see compiled code
def to_nanoseconds(seconds: NDArray[np.float32], out: NDArray[np.int64]) -> None:
    """Write seconds as whole nanoseconds, the nearest ones."""
    for row in range(len(seconds)):
        out[row] = np.int64(np.rint(np.float64(seconds[row]) * _NS))


@compiled  # pragma: no cover
def scan_neighbors(
    rank: NDArray[np.int32],
    step: NDArray[np.int64],
    op: NDArray[np.int16],
    dp: NDArray[np.int32],
    pp: NDArray[np.int32],
    mb: NDArray[np.int32],
    order: NDArray[np.int32],
    start: NDArray[np.int64],
    heads: NDArray[np.int64],
    stretches: NDArray[np.int64],
) -> tuple[int, int, bool, bool, bool]:
    """Compare each row with the row before it; see `groups.Neighbors`.

    Parameters
    ----------
    rank, step, op, dp, pp, mb, order, start : arrays, shape (1 + rows,)
        The first one is only compared with; `order` is empty where it was not recorded.
    heads : int64 array, shape (rows,)
        Gets which rows start runs.
    stretches : int64 array, shape (rows,)
        Gets at which of these the rank or the step changes.

    Returns
    -------
    found, long : int
        How many they are.
    moved, falls, microbatch_falls : bool
    """
    rows = len(heads)
    differs = np.empty(rows, np.bool_)
    moved = falls = microbatch_falls = False
    for i in range(rows):
        same_rank = rank[i + 1] == rank[i]
        same = same_rank & (step[i + 1] == step[i]) & (op[i + 1] == op[i])
        differs[i] = not same
        moved |= same_rank & ((dp[i + 1] != dp[i]) | (pp[i + 1] != pp[i]))
        microbatch_falls |= same & (mb[i + 1] <= mb[i]) & (mb[i + 1] != ABSENT)
    if len(order):
        for i in range(rows):
            falls |= (not differs[i]) & (order[i + 1] <= order[i])
    else:
        for i in range(rows):
            falls |= (not differs[i]) & (start[i + 1] <= start[i])
    found = 0
    # what is none is overwritten by the next one
    for i in range(rows):
        heads[found] = i
        found += differs[i]
    long = 0
    for k in range(found):
        i = heads[k]
        stretches[long] = i
        long += (rank[i + 1] != rank[i]) | (step[i + 1] != step[i])
    return found, long, moved, falls, microbatch_falls


@compiled  # pragma: no cover
def look_up(indices: NDArray[np.int32], table: NDArray[np.int16], out: NDArray[np.int16]) -> bool:
    """Write what a table has at each index; return whether all of them are in the table."""
    inside = True
    for row in range(len(indices)):
        inside &= (indices[row] >= 0) & (indices[row] < len(table))
    if not inside:
        return False
    for row in range(len(indices)):
        out[row] = table[np.uint32(indices[row])]
    return True


@compiled  # pragma: no cover
def count_codes(codes: NDArray[np.int16], counts: NDArray[np.int64]) -> None:
    """Add how often each code, from 0, is there; neighbors are mostly alike."""
    first = 0
    for row in range(1, len(codes) + 1):
        if row == len(codes) or codes[row] != codes[first]:
            counts[codes[first]] += row - first
            first = row


def warm_up() -> None:
    """Compile, or load from the disk's cache, what reading a trace runs."""
    two, one = np.zeros(2, np.int32), np.zeros(1, np.int64)
    wide = two.astype(np.int64)
    scan_neighbors(two, wide, two.astype(np.int16), two, two, two, two, wide, one, one)
    seconds = np.zeros(1, np.float32)
    seconds.flags.writeable = False
    to_nanoseconds(seconds, one)
    indices = np.zeros(1, np.int32)
    indices.flags.writeable = False
    codes = np.zeros(1, np.int16)
    look_up(indices, codes, codes)
    count_codes(codes, one)
