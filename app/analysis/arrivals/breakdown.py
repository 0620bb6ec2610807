"""What steps of ranks pass with: computing, communicating unhidden, loading data, nothing."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.arrivals.document import Breakdown, RankBreakdown
from app.analysis.arrivals.intervals import Cover, cover
from app.analysis.arrivals.lanes import Lanes
from app.analysis.arrivals.measure import COMPUTATIONS, of_types
from app.analysis.arrivals.meetings import IntArray
from app.analysis.trace.model import BETWEEN_STEPS, DATA_LOADING, GC, KNOWN_OP_TYPES

# What is no communication; types that nothing is known of are none either.
_LOCAL: Final = (*COMPUTATIONS, GC, *BETWEEN_STEPS)
_NS: Final = 1e-9


def breakdown_of(lanes: Lanes, computing: Cover) -> Breakdown:
    """Split the steps of each rank.

    A step ends with the last end of any rank; where the next one was recorded, with its begin.

    Parameters
    ----------
    computing : Cover
        When ranks compute; see `own_computing`.
    """
    trace, span_ns = lanes.trace, lanes.span_ns
    busy = _exchanges(trace.op_names) | of_types(trace, COMPUTATIONS)
    occupied_ns = cover(lanes.of(busy), lanes.count, span_ns, in_order=True).by_lane()
    loads = of_types(trace, (DATA_LOADING,))
    with_data_ns = occupied_ns
    if loads[lanes.op].any():
        with_data = lanes.of(busy | loads)
        with_data_ns = cover(with_data, lanes.count, span_ns, in_order=True).by_lane()
    computing_ns = computing.by_lane()
    shape = (len(lanes.steps), len(lanes.ranks))
    ends_ns = lanes.ends_ns()
    recorded = ends_ns >= 0
    step_ns = _lengths(lanes, ends_ns)
    whole_ns = np.zeros(shape)
    whole_ns[lanes.weighed] = step_ns[:, None]
    parts = (
        computing_ns,
        occupied_ns - computing_ns,
        with_data_ns - occupied_ns,
        np.maximum(whole_ns.ravel() - with_data_ns, 0.0),
    )
    means = [_mean(part.reshape(shape), recorded) for part in parts]
    return Breakdown(
        steps=tuple(lanes.steps[lanes.weighed].tolist()),
        step_s=float(step_ns.mean()) * _NS,
        ranks=tuple(
            RankBreakdown(rank, *values)
            for rank, values in zip(
                lanes.ranks.tolist(), np.stack(means, axis=1).round(9).tolist(), strict=True
            )
        ),
    )


def _exchanges(names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return which types are known and move data."""
    exchanges = set(KNOWN_OP_TYPES) - set(_LOCAL)
    return np.array([name in exchanges for name in names])


def _lengths(lanes: Lanes, of_lanes_ns: IntArray) -> NDArray[np.float64]:
    """Return how long each step takes of which all operations are looked at, ns."""
    looked = np.flatnonzero(lanes.weighed)
    ends_ns = of_lanes_ns[looked].max(axis=1).astype(np.float64)
    if lanes.trace.step_relative:
        return np.asarray(ends_ns)
    turn_ns = np.diff(lanes.begin_ns, append=lanes.begin_ns[-1])
    follows = (np.diff(lanes.steps, append=lanes.steps[-1]) == 1) & (turn_ns > 0)
    # where steps overlap the rest of one is the next one's
    return np.where(follows[looked], turn_ns[looked].astype(np.float64), ends_ns)


def _mean(values: NDArray[np.float64], recorded: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.asarray((values * recorded).sum(axis=0) * _NS / recorded.sum(axis=0))
