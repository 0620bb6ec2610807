"""A few lanes of a session: enough to show how the job runs, and as cheap in a large one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.replay.layout.dense import Layout

_LANES: Final = 64
_RANKS: Final = 8


def sampled(layout: Layout) -> Layout:
    """Return a layout of a few of its steps and DP ranks, evenly spread; small ones as they are."""
    steps, dp = len(layout.steps), layout.dp
    most = _LANES // min(dp, _RANKS)
    if steps <= most and dp <= _RANKS:
        return layout
    chosen = np.linspace(0, steps - 1, min(steps, most)).astype(np.intp)
    ranks = np.linspace(0, dp - 1, min(dp, _RANKS)).astype(np.intp)
    lanes = np.ix_(np.arange(len(layout.nodes)), chosen, ranks)
    return replace(
        layout,
        steps=layout.steps[chosen],
        start_ns=layout.start_ns[lanes],
        duration_ns=layout.duration_ns[lanes],
        begin_ns=layout.begin_ns[chosen],
        ranks=layout.ranks[ranks],
        missing=None if layout.missing is None else layout.missing[lanes],
        paused_ns={},
    )
