"""In which order a stage launches its operations, and which steps do so in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout, Nodes, Padding
from app.analysis.replay.layout.pipeline import COMPUTE

# That many lanes together tell the order of any two operations, though each lacks some.
LANES_ASKED: Final = 17
# Each group of steps costs a graph and its replays.
MAX_GROUPS: Final = 16


def agreed_order(starts: FloatArray) -> FloatArray:
    """Return a score for each operation, lower for what is launched earlier.

    Parameters
    ----------
    starts : float64 array, shape (operations, lanes)
        NaN where a lane lacks the operation.

    Returns
    -------
    float64 array, shape (operations,)
        Where all lanes agree, how many operations are launched before.
    """
    lanes = _spread(starts.shape[1])
    with np.errstate(invalid="ignore"):
        chosen = starts[:, lanes]
        score = np.empty(len(chosen))
        for operation, row in enumerate(chosen):
            earlier = np.count_nonzero(chosen < row, axis=1)
            later = np.count_nonzero(chosen > row, axis=1)
            seen = earlier + later
            score[operation] = (earlier[seen > 0] / seen[seen > 0]).sum()
    return score


def _spread(count: int) -> NDArray[np.int64]:
    """Choose lanes over the whole session."""
    return np.unique(np.linspace(0, count - 1, min(count, LANES_ASKED)).astype(np.int64))


def follows(starts: FloatArray) -> NDArray[np.bool_]:
    """Return which lanes launch in the order of the rows, shape (lanes,).

    Parameters
    ----------
    starts : float64 array, shape (operations, lanes)
        The operations in the order in question; NaN where a lane lacks one.
    """
    latest = np.fmax.accumulate(starts, axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(~(starts[1:] < latest[:-1]).any(axis=0))


def launch_scores(nodes: Nodes, starts: FloatArray, padding: Padding | None = None) -> FloatArray:
    """Sort nodes where no lane has all of them: by what the lanes agree on, stage by stage.

    Parameters
    ----------
    starts : float64 array, shape (nodes, steps, dp)
        NaN where an operation is missing.
    padding : Padding, optional
        Those are asked that run most microbatches.
    """
    scores = np.zeros(len(nodes))
    by_lane = starts.reshape(len(nodes), -1)
    if padding is not None:
        by_lane = by_lane[:, padding.counts.ravel() == padding.counts.max()]
    for stage in np.unique(nodes.pp):
        on_stage = np.flatnonzero(nodes.pp == stage)
        scores[on_stage] = agreed_order(by_lane[on_stage])
    return scores


def split_by_order(layout: Layout) -> list[Layout]:
    """Split a layout's steps by the order in which DP rank 0 launches computations."""
    alike = _in_order(layout, layout.launch)
    if alike.all():
        return [layout]
    parts: list[Layout] = []
    while len(parts) < MAX_GROUPS:
        # the first remaining step is the next template, and in its own order
        first = _starts(layout)[:, 0, 0]
        alike = _in_order(layout, first)
        parts.append(_with_own_order(layout.of_steps(np.flatnonzero(alike))))
        if alike.all():
            return parts
        layout = layout.of_steps(np.flatnonzero(~alike))
    return [*parts, layout]


def _with_own_order(layout: Layout) -> Layout:
    starts = _starts(layout)
    if layout.missing is None:
        return replace(layout, launch=starts[:, 0, 0])
    return replace(layout, launch=launch_scores(layout.nodes, starts, layout.padding))


def _starts(layout: Layout) -> FloatArray:
    """Return recorded starts, NaN where operations are missing."""
    if layout.missing is None:
        return layout.start_ns
    return np.where(layout.missing, np.nan, layout.start_ns)


def _in_order(layout: Layout, launch: FloatArray) -> NDArray[np.bool_]:
    """Return the steps in which DP rank 0 computes in a given order; NaN leaves a node out."""
    alike = np.ones(len(layout.steps), dtype=bool)
    computes = layout.of_types(*COMPUTE) & ~np.isnan(launch)
    for stage in range(layout.pp):
        nodes = np.flatnonzero(computes & (layout.nodes.pp == stage))
        nodes = nodes[np.argsort(launch[nodes], kind="stable")]
        starts = layout.start_ns[nodes, :, 0]
        if layout.missing is not None:
            starts = np.where(layout.missing[nodes, :, 0], np.nan, starts)
        alike &= follows(starts)
    return alike
