"""Values of some nodes on some DP ranks."""

from __future__ import annotations

import numpy as np

from app.analysis.loops import compiled_pays, in_rows
from app.analysis.replay.layout.dense import FloatArray, IntArray


def values_of(values: FloatArray, nodes: IntArray, ranks: IntArray) -> FloatArray:
    """Return values, shape (nodes, steps, dp), of some nodes on some DP ranks, as one row."""
    if not compiled_pays(values.size):
        return values[nodes][:, :, ranks].ravel()
    from app.analysis.replay.engine.sweeps import take_ranks  # noqa: PLC0415 - loads the compiler

    count, steps, dp = values.shape
    taken = np.empty(len(nodes) * steps * len(ranks))
    take_ranks(in_rows(values).reshape(count, steps * dp), nodes, ranks, dp, taken)
    return taken
