"""A few lanes of a session: enough to show how the job runs, and as cheap in a large one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout

_LANES: Final = 64
_RANKS: Final = 8


def _chosen(layout: Layout) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Return the steps and DP ranks of a sample; None where it is the whole."""
    steps, dp = len(layout.steps), layout.dp
    most = _LANES // min(dp, _RANKS)
    if steps <= most and dp <= _RANKS:
        return None
    return (
        np.linspace(0, steps - 1, min(steps, most)).astype(np.intp),
        np.linspace(0, dp - 1, min(dp, _RANKS)).astype(np.intp),
    )


def sampled_times(layout: Layout, nodes: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Return start and duration of some nodes in a sample, shape (dp, nodes, steps)."""
    steps, ranks = _chosen(layout) or (np.arange(len(layout.steps)), np.arange(layout.dp))
    lanes = np.ix_(ranks, nodes, steps)
    return layout.start_ns.transpose(2, 0, 1)[lanes], layout.duration_ns.transpose(2, 0, 1)[lanes]


def sampled(layout: Layout) -> Layout:
    """Return a layout of a few of its steps and DP ranks, evenly spread; small ones as they are."""
    places = _chosen(layout)
    if places is None:
        return layout
    chosen, ranks = places
    lanes = np.ix_(np.arange(len(layout.nodes)), chosen, ranks)
    padding = layout.padding
    return replace(
        layout,
        steps=layout.steps[chosen],
        start_ns=layout.start_ns[lanes],
        duration_ns=layout.duration_ns[lanes],
        begin_ns=layout.begin_ns[chosen],
        ranks=layout.ranks[ranks],
        missing=None if layout.missing is None else layout.missing[lanes],
        padding=padding and replace(padding, counts=padding.counts[np.ix_(chosen, ranks)]),
        paused_ns={},
        shares={},
    )
