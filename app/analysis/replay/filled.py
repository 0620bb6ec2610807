"""Steps as if all DP ranks ran as many microbatches as the one with most."""

from __future__ import annotations

import numpy as np

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.pipeline import COMPUTE


def filled(layout: Layout, recorded_ns: FloatArray) -> FloatArray:
    """Return durations, also of microbatches that a DP rank does not run.

    Each takes what those take that the rank runs: a computation their mean in the step, since
    what microbatches have in common is looked for by their number; a transfer their median.

    Parameters
    ----------
    recorded_ns : float64 array, shape (nodes, steps, dp)

    Returns
    -------
    float64 array, shape (nodes, steps, dp)
        The same object where all ranks run as many.
    """
    if layout.padding is None:
        return recorded_ns
    empty = layout.padding.where()
    durations = recorded_ns.copy()
    for alike in _alike(layout):
        here = empty[alike]
        if not here.any():
            continue
        known = np.where(here, np.nan, recorded_ns[alike])
        common = float(np.nanmedian(known))
        computes = layout.op_names[layout.nodes.op[alike[0]]] in COMPUTE
        if computes:
            count = np.maximum((~here).sum(axis=0), 1)
            typical = np.where(here, 0.0, known).sum(axis=0) / count
            typical[here.all(axis=0)] = common
        else:
            lanes = np.moveaxis(known, -1, 0).reshape(layout.dp, -1)
            of_rank = [np.nanmedian(own) if (own == own).any() else common for own in lanes]  # noqa: PLR0124 - NaN
            typical = np.broadcast_to(np.array(of_rank), here.shape[1:])
        durations[alike] = np.where(here, typical, recorded_ns[alike])
    return durations


def _alike(layout: Layout) -> list[np.ndarray[tuple[int], np.dtype[np.intp]]]:
    """Return the nodes of each type on each stage and of each model chunk."""
    nodes = layout.nodes
    key = np.stack([nodes.op, nodes.pp, nodes.mc])
    kinds, kind = np.unique(key, axis=1, return_inverse=True)
    return [np.flatnonzero(kind.ravel() == number) for number in range(kinds.shape[1])]
