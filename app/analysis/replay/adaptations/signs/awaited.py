"""What hosts take to launch after they have waited for a transfer.

A host that waits for its input launches nothing meanwhile: its device then waits for the launch as
well. Behind a straggler few devices wait for transfers, or others than without it, so that a replay
without the straggler has to know what follows those waits (`regular_delays` adapts sessions whose
recording calls for it; here the recording may be as near without).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.signs.regular import regular_share, typical_ns
from app.analysis.replay.adaptations.signs.sampling import sampled
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.graph import COMPUTE, P2P, Graph
from app.analysis.replay.medians import median

Lags = Mapping[tuple[int, int], float]

# Launches are regularly late when that share is about as late as the median: of delays without
# memory, which are chance, 71 % are.
_REGULARLY: Final = 0.8
# Fewer than that many tell nothing.
_FEWEST: Final = 20
# Less than this share of what is launched changes no step.
_LEAST_SHARE: Final = 0.002


def lags_after_transfers(
    layout: Layout,
    graph: Graph,
    ideal_ns: FloatArray,
    *,
    also: Collection[tuple[int, int]] = (),
) -> Lags:
    """Return what regularly passes before computations after the transfers that they need, ns.

    A few lanes tell. Of a type of computations all stages have the same: where none waits for
    transfers, as behind a straggler, others tell.

    Parameters
    ----------
    ideal_ns : float64 array, shape (nodes,)
    also : collection of (dp, pp)
        Workers that do not count, as their hosts are slow; then all other lanes tell.

    Returns
    -------
    mapping of (computation, transfer) to float
        Nothing where launches are not regularly late. What the replay has already stays as it is.
    """
    transfers = layout.of_types(*P2P)
    few = layout if also else sampled(layout)
    slow = np.zeros((layout.pp, few.dp), dtype=bool)
    for dp, pp in also:
        slow[pp, dp] = True
    after = {
        node: before
        for unit in graph.units
        for node, before in zip(unit.members, unit.after, strict=True)
    }
    lags: dict[tuple[int, int], float] = {}
    for name in sorted(COMPUTE):
        edges = {
            node: received
            for node in np.flatnonzero(layout.of_types(name)).tolist()
            if (received := tuple(end for end in after[node] if transfers[end]))
        }
        if edges:
            late_ns = _late(few, edges, after, slow)
            takes_ns = float(median(ideal_ns[list(edges)]))
            lag_ns = _regular(late_ns, _LEAST_SHARE * takes_ns)
            lags |= {(node, end): lag_ns for node, ends in edges.items() for end in ends if lag_ns}
    return {edge: lag_ns for edge, lag_ns in lags.items() if edge not in graph.lags_ns}


def _late(
    layout: Layout,
    edges: Mapping[int, tuple[int, ...]],
    after: Mapping[int, tuple[int, ...]],
    slow: NDArray[np.bool_],
) -> FloatArray:
    """Return how late computations begin after their transfers, shape (…, dp), ns.

    NaN where one waited for something else, and of workers that are slow, shape (pp, dp).
    """
    # those that follow as many of both are looked at together
    alike: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    for node, received in edges.items():
        others = tuple(end for end in after[node] if end not in received)
        alike[len(received), len(others)].append((node, *received, *others))
    late_ns = []
    for (inputs, others_too), listed in alike.items():
        rows = np.array(listed)
        start = layout.start_ns[rows[:, 0]]
        ends = layout.start_ns[rows[:, 1:]] + layout.duration_ns[rows[:, 1:]]
        waited = ~np.broadcast_to(slow[layout.nodes.pp[rows[:, 0]], None], start.shape)
        if others_too:
            waited &= ends[:, :inputs].max(axis=1) > ends[:, inputs:].max(axis=1)
        own_ns = np.where(waited, start - ends.max(axis=1), np.nan)
        late_ns.append(own_ns.reshape(-1, layout.dp))
    return np.concatenate(late_ns)


def _regular(late_ns: FloatArray, least_ns: float) -> float:
    """Return what launches are regularly late by, 0 where they are not; `late_ns` is (…, dp)."""
    waited = late_ns[~np.isnan(late_ns)]
    if len(waited) < _FEWEST or float(median(waited)) < least_ns:
        return 0.0
    return typical_ns(late_ns) if regular_share(late_ns) >= _REGULARLY else 0.0
