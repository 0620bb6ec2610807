"""What ranks compute by themselves, where they record what they wait for inside.

In a ring of context-parallel ranks each waits for its neighbors only, in transfers that do not end
together: which rank holds the others up is not seen in any of them, but in who computes longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    CONTEXT_TYPES,
    FORWARD_COMPUTE,
    RING,
    WGRAD_COMPUTE,
    Trace,
)

_COMPUTATIONS: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE)


def has_rings(trace: Trace) -> bool:
    """Return whether transfers around rings are recorded."""
    code = trace.op_names.index(RING)
    return bool((trace.op == code).any())


def own_computing(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows of all computations, and what each takes without the transfers inside, ns.

    Inside is what the same rank begins, by its own clock, before the computation ends.
    """
    computes = _are(trace, _COMPUTATIONS)
    rows = np.flatnonzero(computes | _are(trace, (*CONTEXT_TYPES, RING)))
    rows = rows[np.lexsort((~computes[rows], trace.start_ns[rows], trace.rank[rows]))]
    rank, start = trace.rank[rows], trace.start_ns[rows]
    end = start + trace.duration_ns[rows]
    computing = computes[rows]
    holder = np.maximum.accumulate(np.where(computing, np.arange(len(rows)), 0))
    inside = ~computing & (rank[holder] == rank) & (start < end[holder]) & computing[holder]
    waited_ns = np.minimum(end, end[holder]) - start
    own_ns = trace.duration_ns[rows] - np.bincount(
        holder[inside], weights=waited_ns[inside], minlength=len(rows)
    )
    return rows[computing], np.maximum(own_ns[computing], 0.0)


def _are(trace: Trace, names: Sequence[str]) -> NDArray[np.bool_]:
    return np.isin(trace.op, [trace.op_names.index(name) for name in names])


def busiest_ranks(trace: Trace) -> NDArray[np.int32]:
    """Return the rank of each cell that computes longest by itself, shape (dp, pp); -1 of none.

    It comes last in its ring. Of ranks that compute equally long it is the lowest.
    """
    sizes = trace.meta.sizes
    rows, own_ns = own_computing(trace)
    ranks, first, member = np.unique(trace.rank[rows], return_index=True, return_inverse=True)
    total_ns = np.bincount(member.ravel(), weights=own_ns)
    busiest = np.full((sizes.dp, sizes.pp), -1, dtype=np.int32)
    # the last one that is written stays
    order = np.lexsort((-ranks.astype(np.int64), total_ns))
    busiest[trace.dp[rows[first[order]]], trace.pp[rows[first[order]]]] = ranks[order]
    return busiest
