# ruff: noqa: C901, PLR0912, PLR0913, PLR0917 - compiled loops: no objects there
"""What goes through all operations of a layout, in compiled loops.

A row of steps and DP ranks stays in the nearest cache while it is worked on; NumPy writes whole
matrices in between. Matrices are of shape (nodes, lanes), steps and DP ranks in one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.replay.layout.dense import FloatArray, IntArray


@compiled  # pragma: no cover - coverage does not see compiled code
def raise_to_ends(
    start: FloatArray,
    duration: FloatArray,
    nodes: IntArray,
    lanes: tuple[int, int],
    out: FloatArray,
) -> None:
    """Replace values, shape (lanes,), from one lane to another by later ends of some nodes."""
    for k in range(len(nodes)):
        node = nodes[k]
        for i in range(lanes[0], lanes[1]):
            out[i] = max(out[i], start[node, i] + duration[node, i])


@compiled  # pragma: no cover
def take_off_waiting(
    duration: FloatArray,
    start: FloatArray,
    members: IntArray,
    group_first: IntArray,
    across_dp: NDArray[np.bool_],
    dp: int,
    fault: float,
    groups: tuple[int, int],
    out: FloatArray,
) -> int:
    """Let groups take time from their last launch on; return how many are at fault.

    Parameters
    ----------
    duration, start : float64 arrays, shape (nodes, lanes)
    members : int64 array, shape (members,)
        Those of one group after those of another.
    group_first : int64 array, shape (groups + 1,)
        The first member of each group.
    across_dp : bool array, shape (groups,)
        Whether a group spans the DP ranks.
    dp : int
        How many there are.
    fault : float
        What takes less counts as 0, ns.
    groups : tuple of int
        The first group to look at, and the one after the last.
    out : float64 array, shape (nodes, lanes)
        Gets how long the members take; those of a group of one, within one DP rank, as recorded.
    """
    lanes = out.shape[1]
    latest = np.empty(lanes)
    clamped = 0
    for group in range(groups[0], groups[1]):
        first, last = group_first[group], group_first[group + 1]
        if last == first + 1 and not across_dp[group]:
            for i in range(lanes):
                out[members[first], i] = duration[members[first], i]
            continue
        for i in range(lanes):
            latest[i] = start[members[first], i]
        for k in range(first + 1, last):
            for i in range(lanes):
                latest[i] = max(latest[i], start[members[k], i])
        if across_dp[group]:
            for step in range(0, lanes, dp):
                latest[step : step + dp] = latest[step : step + dp].max()
        for k in range(first, last):
            node, faulty = members[k], 0
            for i in range(lanes):
                out[node, i] = duration[node, i] + start[node, i] - latest[i]
                faulty += out[node, i] < fault
            clamped += faulty
            if faulty:
                for i in range(lanes):
                    if out[node, i] < fault:
                        out[node, i] = 0.0
    return clamped


@compiled  # pragma: no cover
def take_ranks(
    values: FloatArray, nodes: IntArray, ranks: IntArray, dp: int, out: FloatArray
) -> None:
    """Write the values of some nodes on some of the DP ranks, one after another."""
    place = 0
    for node in nodes:
        for first in range(0, values.shape[1], dp):
            for rank in ranks:
                out[place] = values[node, first + rank]
                place += 1


def warm_up() -> None:
    """Compile, or load from the disk's cache, all of these."""
    one, zero = np.ones((1, 1)), np.zeros(1, dtype=np.int64)
    raise_to_ends(one, one, zero, (0, 1), one[0])
    across = np.zeros(1, dtype=np.bool_)
    take_off_waiting(one, one, zero, np.arange(2), across, 1, 0.0, (0, 1), one)
    take_ranks(one, zero, zero, 1, one[0])
