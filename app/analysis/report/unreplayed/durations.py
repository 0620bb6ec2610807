"""Durations that cannot be, of a trace of which no operation can be replayed.

What `app.analysis.replay.repairs.impossible` tells by the peers of an operation and by what waits
for it, this tells by the rank alone: the duration is far above that of the same type on the rank,
and the rank computes again in the first half of it, the same type or in a later step. It then takes
what it usually takes, and no longer than until the rank goes on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.repairs.impossible import (
    BEYOND_SESSION,
    FAR_ABOVE,
    GOES_ON,
    NS_A_SECOND,
    ImpossibleDuration,
)
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, OPTIMIZER, Trace

IntArray = NDArray[np.int64]

_COMPUTING = (FORWARD_COMPUTE, BACKWARD_COMPUTE, OPTIMIZER)
_NEVER = np.iinfo(np.int64).max


def with_believed_durations(trace: Trace) -> tuple[Trace, tuple[ImpossibleDuration, ...]]:
    """Return the trace with what impossible durations count with, and which these are.

    The same object where all can be.
    """
    usual_ns = _usual_ns(trace)
    far = trace.duration_ns > FAR_ABOVE * usual_ns
    if not far.any():
        return trace, ()
    goes_on_ns = _goes_on(trace) - trace.start_ns
    followed = far & (goes_on_ns < GOES_ON * trace.duration_ns)
    ends_ns = trace.start_ns + np.where(far, 0, trace.duration_ns)
    session_ns = int(ends_ns.max() - trace.start_ns.min())
    alone = far & (trace.duration_ns > BEYOND_SESSION * max(session_ns, 1))
    rows = np.flatnonzero(followed | alone)
    if not len(rows):
        return trace, ()
    duration_ns = trace.duration_ns.copy()
    taken = np.minimum(usual_ns[rows], np.maximum(goes_on_ns[rows], 1))
    duration_ns[rows] = taken.astype(np.int64)
    found = [
        ImpossibleDuration(
            int(trace.step[row]),
            int(trace.rank[row]),
            trace.op_names[trace.op[row]],
            float(trace.duration_ns[row] / NS_A_SECOND),
            float(duration_ns[row] / NS_A_SECOND),
        )
        for row in rows.tolist()
    ]
    found.sort(key=lambda one: (one.step, one.rank))
    return replace(trace, duration_ns=duration_ns), tuple(found)


def _usual_ns(trace: Trace) -> NDArray[np.float64]:
    """Return the median duration of each operation's type on its rank, shape (operations,)."""
    of = trace.rank.astype(np.int64) * len(trace.op_names) + trace.op
    order = np.lexsort((trace.duration_ns, of))
    _, first, inverse, count = np.unique(
        of[order], return_index=True, return_inverse=True, return_counts=True
    )
    ordered = trace.duration_ns[order]
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    median = low / 2 + high / 2
    usual = np.empty(len(trace))
    usual[order] = median[inverse.ravel()]
    return usual


def _goes_on(trace: Trace) -> IntArray:
    """Return when the rank of each operation computes again, after it, ns; the largest if never."""
    names = [trace.op_names.index(name) for name in _COMPUTING if name in trace.op_names]
    computing = np.flatnonzero(np.isin(trace.op, names))
    next_ns = np.full(len(trace), _NEVER, dtype=np.int64)
    # The next one of its type.
    order = computing[
        np.lexsort((trace.start_ns[computing], trace.op[computing], trace.rank[computing]))
    ]
    alike = (np.diff(trace.rank[order]) == 0) & (np.diff(trace.op[order]) == 0)
    next_ns[order[:-1][alike]] = trace.start_ns[order[1:][alike]]
    # The first of a later step of its rank.
    rank, step = trace.rank.astype(np.int64), trace.step.astype(np.int64)
    turns, of = np.unique(np.stack([rank, step]), axis=1, return_inverse=True)
    of = of.ravel()
    first_ns = np.full(turns.shape[1], _NEVER, dtype=np.int64)
    np.minimum.at(first_ns, of[computing], trace.start_ns[computing])
    later_ns = np.full_like(first_ns, _NEVER)
    for turn in range(turns.shape[1] - 2, -1, -1):
        if turns[0, turn] == turns[0, turn + 1]:
            later_ns[turn] = min(first_ns[turn + 1], later_ns[turn + 1])
    return np.minimum(next_ns, later_ns[of])
