"""Which computation of its rank an operation lies inside of."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import COMPUTE

# Starts and ends that are taken one after the other by the same clock.
SAME_NS: Final = 1e3
NOWHERE: Final = -1


def computes_of(layout: Layout, stage: int) -> NDArray[np.int64]:
    """Return the computations of a stage."""
    return np.flatnonzero(layout.of_types(*COMPUTE) & (layout.nodes.pp == stage))


def containing(layout: Layout, node: int) -> NDArray[np.int64]:
    """Return the computation that a node lies inside of, shape (steps, dp); `NOWHERE` else."""
    computes = computes_of(layout, int(layout.nodes.pp[node]))
    if not len(computes):
        return np.full(layout.start_ns.shape[1:], NOWHERE)
    start, end = layout.start_ns[node], layout.start_ns[node] + layout.duration_ns[node]
    begins = layout.start_ns[computes]
    inside = (begins <= start + SAME_NS) & (end <= begins + layout.duration_ns[computes] + SAME_NS)
    # a step's share of a computation that takes no time lies inside of nothing
    inside &= layout.duration_ns[computes] > layout.duration_ns[node]
    if layout.missing is not None:
        inside &= ~layout.missing[computes] & ~layout.missing[node]
    return np.where(inside.any(axis=0), computes[inside.argmax(axis=0)], NOWHERE)
