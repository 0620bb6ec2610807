"""What each operation takes by itself: recorded, and as it would be without stragglers.

Source: section 3.2 of "Understanding Stragglers in Large Model Training Using What-if Analysis".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.analysis.trace import model as ops
from app.analysis.whatif.graph import Graph
from app.analysis.whatif.layout import FloatArray, Layout

# A communication that ends this long before its last member was launched cannot be right: its
# clock or its record is at fault, and it counts as instantaneous. Above it, clock noise is kept.
FAULT_NS = -10e6

# Computing differs because work is divided unevenly: dividing it evenly gives everyone the mean.
IDEAL_IS_MEAN = frozenset(
    {ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE, ops.OPTIMIZER, ops.GC}
)


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Durations without waiting.

    Parameters
    ----------
    recorded_ns : float64 array, shape (nodes, steps, dp)
        Computation as recorded; communication from the moment when the last member of its group
        was launched (transfer duration).
    ideal_ns : float64 array, shape (nodes,)
        The value that every operation of the node's type would have without stragglers.
    clamped : int
        Transfer durations at fault that count as 0.
    """

    recorded_ns: FloatArray
    ideal_ns: FloatArray
    clamped: int


def own_durations(layout: Layout, graph: Graph) -> Durations:
    """Separate transferring from waiting, and idealize each op type.

    The ideal duration of a type is the mean over all steps, microbatches, stages and DP ranks for
    computation and the median for communication, whose rare outliers are long.
    """
    recorded = layout.duration_ns.copy()
    clamped = 0
    for unit in graph.units:
        if not unit.communication or (len(unit.members) == 1 and not unit.across_dp):
            continue
        latest = layout.start_ns[unit.members[0]]
        for node in unit.members[1:]:
            latest = np.maximum(latest, layout.start_ns[node])
        if unit.across_dp:
            latest = latest.max(axis=-1, keepdims=True)
        for node in unit.members:
            transfer = recorded[node]
            transfer += layout.start_ns[node]
            transfer -= latest
            if transfer.min() < FAULT_NS:
                faulty = transfer < FAULT_NS
                clamped += int(faulty.sum())
                transfer[faulty] = 0.0
    return Durations(recorded, _ideal(layout, recorded), clamped)


def _ideal(layout: Layout, recorded: FloatArray) -> FloatArray:
    """Return each node's ideal duration; nodes of a type are neighbors."""
    ideal = np.empty(len(layout.nodes))
    codes, firsts = np.unique(layout.nodes.op, return_index=True)
    for code, first, end in zip(codes, firsts, [*firsts[1:], len(ideal)], strict=True):
        values = recorded[first:end]
        is_mean = layout.op_names[code] in IDEAL_IS_MEAN
        ideal[first:end] = values.mean() if is_mean else np.median(values)
    return ideal
