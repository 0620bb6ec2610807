"""Traces of recorders that lose operations."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import Trace
from tests.factories import select


def without(trace: Trace, lost: NDArray[np.bool_], *, renumbered: bool) -> Trace:
    """Return the trace without some rows; `order` keeps the gaps or is renumbered."""
    kept = select(trace, ~lost)
    if not renumbered:
        return kept
    rows = np.lexsort((kept.order, kept.op, kept.step, kept.rank))
    keys = np.stack([kept.rank[rows], kept.step[rows], kept.op[rows]])
    first = np.flatnonzero(np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0))))
    order = kept.order.copy()
    order[rows] = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
    return dataclasses.replace(kept, order=order)


def losing(trace: Trace, share: float, *, renumbered: bool, seed: int = 0) -> Trace:
    """Return the trace without a random share of its rows."""
    lost = np.random.default_rng(seed).random(len(trace)) < share
    return without(trace, lost, renumbered=renumbered)
