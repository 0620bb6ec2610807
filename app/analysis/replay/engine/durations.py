"""What each operation takes by itself: recorded, and as it would be without stragglers.

Source: section 3.2 of "Understanding Stragglers in Large Model Training Using What-if Analysis".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.graph import Graph
from app.analysis.replay.medians import mean, median
from app.analysis.threads import in_threads, threads_for
from app.analysis.trace import model as ops

# A communication that ends this long before its last member was launched cannot be right: its
# clock or its record is at fault, and it counts as instantaneous. Above it, clock noise is kept.
FAULT_NS = -10e6
# Transfers that are looked at at once; where a node has as many, its rows need no copies.
_AT_A_TIME: Final = 1 << 12

# Computing differs because work is divided unevenly: dividing it evenly gives everyone the mean.
IDEAL_IS_MEAN = frozenset(
    {ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE, ops.OPTIMIZER, ops.GC}
)


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Durations without waiting."""

    # (nodes, steps, dp): computation as recorded; communication from the moment when the last
    # member of its group was launched (transfer duration)
    recorded_ns: FloatArray
    # (nodes,): the value that every operation of the node's type would have without stragglers
    ideal_ns: FloatArray


# As `Durations.recorded_ns`, and how many transfer durations at fault count as 0.
OwnDurations: TypeAlias = tuple[FloatArray, int]


def own_durations(layout: Layout, graph: Graph) -> OwnDurations:
    """Separate transferring from waiting.

    Returns
    -------
    durations : float64 array, shape (nodes, steps, dp)
        As `Durations.recorded_ns`.
    clamped : int
        Transfer durations at fault that count as 0.
    """
    recorded = layout.duration_ns.copy(order="C")
    padded = None if layout.padding is None else layout.padding.where()
    if padded is not None:
        # no transfer, so none at fault
        recorded[padded] = np.inf
    clamped = 0
    alike: dict[tuple[int, bool], list[tuple[int, ...]]] = {}
    for unit in graph.units:
        if unit.communication and (len(unit.members) > 1 or unit.across_dp):
            alike.setdefault((len(unit.members), unit.across_dp), []).append(unit.members)
    at_a_time = max(1, _AT_A_TIME // recorded[0].size)
    for (_, across_dp), groups in alike.items():
        # Groups of one size at once: in short steps calling costs more than computing.
        for first in range(0, len(groups), at_a_time):
            together = groups[first : first + at_a_time]
            members: list[NDArray[np.intp] | slice]
            if at_a_time == 1:
                members = [slice(node, node + 1) for node in together[0]]
            else:
                members = list(np.array(together).T)
            clamped += _take_off_waiting(recorded, layout.start_ns, members, across_dp=across_dp)
    if padded is not None:
        recorded[padded] = 0.0
    return recorded, clamped


def _take_off_waiting(
    recorded: FloatArray,
    start_ns: FloatArray,
    members: Sequence[NDArray[np.intp] | slice],
    *,
    across_dp: bool,
) -> int:
    """Let groups take time from their last launch on; return how many are at fault.

    Parameters
    ----------
    recorded, start_ns : float64 arrays, shape (nodes, steps, dp)
        The former is changed in place.
    members : sequence of slices or int64 arrays, shape (groups,)
        The first members of all groups, the second ones…
    across_dp : bool
        Whether the groups span the DP ranks.
    """
    clamped = 0
    starts = [start_ns[nodes] for nodes in members]
    latest = starts[0]
    for start in starts[1:]:
        latest = np.maximum(latest, start)
    if across_dp:
        latest = latest.max(axis=-1, keepdims=True)
    for nodes, start in zip(members, starts, strict=True):
        transfer = recorded[nodes]
        transfer += start
        transfer -= latest
        if transfer.min() < FAULT_NS:
            faulty = transfer < FAULT_NS
            clamped += int(faulty.sum())
            transfer[faulty] = 0.0
        # A slice has been changed in place.
        if not isinstance(nodes, slice):
            recorded[nodes] = transfer
    return clamped


def ideal_durations(layouts: Sequence[Layout], recorded: Sequence[FloatArray]) -> list[FloatArray]:
    """Return the ideal duration of each layout's nodes, shape (nodes,).

    The ideal duration of an op type is taken over all steps, microbatches, stages and DP ranks of
    the session: the mean for computation, the median for communication, whose rare outliers are
    long. Where DP ranks run different numbers of microbatches, each runs as many as the mean.
    """
    by_type: dict[int, list[FloatArray]] = {}
    for layout, values in zip(layouts, recorded, strict=True):
        padded = None if layout.padding is None else layout.padding.where()
        for code, nodes in _nodes_by_type(layout):
            own = values[nodes].ravel() if padded is None else values[nodes][~padded[nodes]]
            by_type.setdefault(code, []).append(own)
    names = layouts[0].op_names

    def typical(code: int) -> float:
        parts = by_type[code]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return float((mean if names[code] in IDEAL_IS_MEAN else median)(values))

    threads = threads_for(sum(values.size for values in recorded))
    ideal = dict(zip(by_type, in_threads(threads, typical, list(by_type)), strict=True))
    of_nodes = [np.array([ideal[code] for code in layout.nodes.op.tolist()]) for layout in layouts]
    counts = [layout.padding.counts.ravel() for layout in layouts if layout.padding is not None]
    microbatches = float(np.mean(np.concatenate(counts))) if counts else 0.0
    return [
        durations if layout.padding is None else durations * layout.padding.weights(microbatches)
        for layout, durations in zip(layouts, of_nodes, strict=True)
    ]


def _nodes_by_type(layout: Layout) -> Iterator[tuple[int, slice]]:
    """Yield each op type's code and its nodes, which are neighbors."""
    codes, firsts = np.unique(layout.nodes.op, return_index=True)
    ends = [*firsts[1:].tolist(), len(layout.nodes)]
    for code, first, end in zip(codes.tolist(), firsts.tolist(), ends, strict=True):
        yield code, slice(first, end)
