"""Garbage collections inside computations, as `gc.callbacks` records them.

The duration of a computation contains the time of such a collection. The time would count twice if
the collection were replayed after the last computation, as planned collections are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.analysis.replay.adaptations.candidate import Draft, Proposal
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import NOWHERE, containing
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.trace.model import GC


def propose_nested_gc(draft: Draft) -> Proposal | None:
    """Propose to drop garbage collections that lie inside computations."""
    return draft.proposal([without_nested_gc(layout) for layout in draft.arranged])


def without_nested_gc(layout: Layout) -> tuple[Layout, Sign] | None:
    """Return the layout without collections inside computations; None if there are none.

    `paused_ns` of the returned layout has the time of the removed collections in each computation.
    """
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
    paused: dict[int, FloatArray] = {}
    for node, inside in zip(collections.tolist(), np.where(nested, hosts, NOWHERE), strict=True):
        for host in np.unique(inside[inside != NOWHERE]).tolist():
            time_ns = np.where(inside == host, layout.duration_ns[node], 0.0)
            paused[host] = paused.get(host, 0.0) + time_ns
    return replace(layout, missing=missing, free=free, paused_ns=paused), Sign((where,), share)
