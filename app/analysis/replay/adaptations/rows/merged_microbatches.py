"""DP ranks that run different numbers of microbatches in a step, as dynamic batches make them do.

All DP ranks of a layout run the same operations. Without a pipeline nothing lies between the
microbatches of a step that another rank takes part in, so those of a rank are replayed as one: one
forward and one backward, which take what all of them took.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.evidence import Sign
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    FORWARD_COMPUTE,
    GC,
    REPLAYED_OP_TYPES,
    WGRAD_COMPUTE,
    Trace,
)

# At least this many steps differ: in fewer a recording may have ended within a step.
_FEWEST: Final = 2
_FORWARD: Final = REPLAYED_OP_TYPES.index(FORWARD_COMPUTE)
_BACKWARD: Final = REPLAYED_OP_TYPES.index(BACKWARD_COMPUTE)
_WGRAD: Final = REPLAYED_OP_TYPES.index(WGRAD_COMPUTE)
_GC: Final = REPLAYED_OP_TYPES.index(GC)
_COMPUTATIONS: Final = (_FORWARD, _BACKWARD, _WGRAD)

IntArray = NDArray[np.int64]


def with_merged_microbatches(trace: Trace) -> tuple[Trace, Sign] | None:
    """Return the trace with the microbatches of each rank and step in one.

    None where all DP ranks run as many, or where a rank lacks other operations too, or not the
    backward of each forward: then they are lost.
    """
    sizes = trace.meta.sizes
    if sizes.pp > 1 or sizes.vpp > 1 or sizes.dp == 1:
        return None
    first = trace.stretches().first
    if (np.diff(np.diff(first, append=len(trace))) == 0).all():
        # all ranks record as many operations of all steps
        return None
    counted = _count(trace)
    if counted is None:
        return None
    counts, forwards = counted
    low, high = int(forwards.min()), int(forwards.max())
    uneven = (forwards != forwards[:, :1]).any(axis=1)
    merged = _merged(trace, _analyzed(trace))
    if merged is None:
        return None
    where = (f"{low} to {high} microbatches in a step", f"{len(counts)} steps")
    return merged, Sign(where, float(uneven.mean()))


def microbatches_of(trace: Trace, ranks: NDArray[np.int32], steps: IntArray) -> IntArray:
    """Return how many forwards ranks record of some steps, shape (steps, ranks)."""
    mine = np.flatnonzero((trace.op == _FORWARD) & np.isin(trace.rank, ranks))
    mine = mine[np.isin(trace.step[mine], steps)]
    counts = np.zeros((len(steps), len(ranks)), dtype=np.int64)
    order = np.argsort(ranks)
    at = order[np.searchsorted(ranks, trace.rank[mine], sorter=order)]
    np.add.at(counts, (np.searchsorted(steps, trace.step[mine]), at), 1)
    return counts


def _analyzed(trace: Trace) -> NDArray[np.bool_]:
    """Return which rows are of the lowest rank of each DP rank, whose operations are replayed."""
    lowest = np.full(trace.meta.sizes.dp, np.iinfo(np.int32).max, dtype=np.int32)
    np.minimum.at(lowest, trace.dp, trace.rank)
    return np.asarray(lowest[trace.dp] == trace.rank)


def _count(trace: Trace) -> tuple[IntArray, IntArray] | None:
    """Return the operations by step, DP rank and type, and the forwards; None where some are lost.

    Only steps that all DP ranks recorded.
    """
    mine = np.flatnonzero(_analyzed(trace) & (trace.op < len(REPLAYED_OP_TYPES)))
    steps, step = np.unique(trace.step[mine], return_inverse=True)
    shape = (len(steps), trace.meta.sizes.dp, len(REPLAYED_OP_TYPES))
    place = (step.ravel() * shape[1] + trace.dp[mine]) * shape[2] + trace.op[mine]
    counts = np.bincount(place, minlength=int(np.prod(shape))).reshape(shape).astype(np.int64)
    counts = counts[(counts.sum(axis=2) > 0).all(axis=1)]
    forwards = counts[..., _FORWARD]
    if not len(counts) or not forwards.any():
        return None
    differ = (forwards != forwards[:, :1]).any(axis=1)
    backwards, weights = counts[..., _BACKWARD], counts[..., _WGRAD]
    whole = (backwards == forwards).all() and ((weights == forwards) | (weights == 0)).all()
    others = np.delete(counts, [*_COMPUTATIONS, _GC], axis=2)
    if differ.sum() < _FEWEST or not whole or (others != others[:, :1]).any():
        return None
    if (forwards == 0).any():
        # a rank without any takes part in a step all the same, and there is nothing to merge
        return None
    return counts, forwards


def _merged(trace: Trace, analyzed: NDArray[np.bool_]) -> Trace | None:
    """Merge the computations of each rank and step; None where anything else lies between them."""
    computes = analyzed & np.isin(trace.op, _COMPUTATIONS)
    rows = np.flatnonzero(computes)
    key = trace.step[rows] * np.int64(trace.meta.sizes.dp) + trace.dp[rows]
    lanes, lane = np.unique(key, return_inverse=True)
    lane = lane.ravel()
    begin = np.full(len(lanes), np.iinfo(np.int64).max)
    end = np.full(len(lanes), np.iinfo(np.int64).min)
    np.minimum.at(begin, lane, trace.start_ns[rows])
    np.maximum.at(end, lane, trace.start_ns[rows] + trace.duration_ns[rows])
    others = np.flatnonzero(
        analyzed & ~computes & (trace.op < len(REPLAYED_OP_TYPES)) & (trace.op != _GC)
    )
    theirs = trace.step[others] * np.int64(trace.meta.sizes.dp) + trace.dp[others]
    at = np.minimum(np.searchsorted(lanes, theirs), len(lanes) - 1)
    begins = trace.start_ns[others]
    between = (lanes[at] == theirs) & (begins > begin[at]) & (begins < end[at])
    if between.any():
        return None
    forwards = trace.op[rows] == _FORWARD
    forward_ns = np.zeros(len(lanes), dtype=np.int64)
    np.add.at(forward_ns, lane[forwards], trace.duration_ns[rows[forwards]])
    start, duration = trace.start_ns.copy(), trace.duration_ns.copy()
    mb, mc = trace.mb.copy(), trace.mc.copy()
    kept = ~computes
    for op in (_FORWARD, _BACKWARD):
        mine = np.flatnonzero((trace.op[rows] == op) & (trace.order[rows] == 0))
        at = lane[mine]
        here = rows[mine]
        kept[here] = True
        # what lies between the microbatches passes in the backward
        start[here] = begin[at] + (forward_ns[at] if op == _BACKWARD else 0)
        duration[here] = forward_ns[at] if op == _FORWARD else end[at] - start[here]
        mb[here] = mc[here] = ABSENT
    if kept[rows].sum() != 2 * len(lanes):
        return None
    changed = replace(trace, start_ns=start, duration_ns=duration, mb=mb, mc=mc)
    return changed.of_rows(np.flatnonzero(kept))
