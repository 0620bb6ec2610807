"""Garbage collections inside of computations, as `gc.callbacks` gives them.

They are part of the computation's recorded time already. Replayed after the last computation, as
planned collections are, each would count twice.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.candidate import Draft, Proposal
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import NOWHERE, containing
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.trace.model import GC


def propose_nested_gc(draft: Draft) -> Proposal | None:
    """Leave collections inside of computations to those."""
    found = [without_nested_gc(layout) for layout in draft.arranged]
    return draft.proposal(found)


def without_nested_gc(layout: Layout) -> tuple[Layout, Sign] | None:
    """Return the layout without the collections inside of computations; None without any."""
    collections = np.flatnonzero(layout.nodes.op == layout.codes(GC)[0])
    if not len(collections):
        return None
    missing = np.zeros(layout.start_ns.shape, dtype=bool)
    if layout.missing is not None:
        missing |= layout.missing
    recorded = ~missing[collections] & (layout.duration_ns[collections] > 0)
    hosts = np.stack([containing(layout, node) for node in collections.tolist()])
    nested = recorded & (hosts != NOWHERE)
    share = float(nested.sum() / max(recorded.sum(), 1))
    if not nested.any():
        return None
    missing[collections] |= nested
    free = np.zeros(len(missing), dtype=bool) if layout.free is None else layout.free.copy()
    free[collections] = True
    stages = sorted(set(layout.nodes.pp[collections[nested.any(axis=(1, 2))]].tolist()))
    where = f"{int(nested.sum())} collections on stages {', '.join(map(str, stages))}"
    paused = _paused(layout, collections, np.where(nested, hosts, NOWHERE))
    return replace(layout, missing=missing, free=free, paused_ns=paused), Sign((where,), share)


def _paused(
    layout: Layout, collections: NDArray[np.int64], hosts: NDArray[np.int64]
) -> dict[int, FloatArray]:
    """Return how long each computation was paused, by node, shape (steps, dp)."""
    paused: dict[int, FloatArray] = {}
    for node, inside in zip(collections.tolist(), hosts, strict=True):
        for host in np.unique(inside[inside != NOWHERE]).tolist():
            time = np.where(inside == host, layout.duration_ns[node], 0.0)
            paused[host] = paused.get(host, 0.0) + time
    return paused
