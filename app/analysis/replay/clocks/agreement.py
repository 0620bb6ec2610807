"""Whether clocks disagree, or only some ends are taken at other moments.

A clock that is off moves all that its rank records. Ends of one type that are taken when a job
hands a transfer over, or comes to wait for it, are apart as well, but those of other types are not,
or the other way around.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.graph import DP_COLLECTIVES, Graph
from app.analysis.replay.medians import median_of_known


def clocks_apart_ns(layout: Layout, graph: Graph, offsets_ns: FloatArray | None = None) -> float:
    """Return how far clocks are usually apart: as far as all types of ends agree upon.

    Parameters
    ----------
    offsets_ns : float64 array, shape (dp, pp), optional
        What has been taken out of the layout's times, and is to be counted.
    """
    offsets_ns = np.zeros((layout.dp, layout.pp)) if offsets_ns is None else offsets_ns
    # (the stage of both, or of the lower one and the other) → type of the end → pairs of nodes
    together: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    op, stage = layout.nodes.op.tolist(), layout.nodes.pp.tolist()
    spanning = layout.of_types(*DP_COLLECTIVES).tolist()
    for unit in graph.units:
        match unit.members:
            case (one, other) if not unit.across_dp and stage[one] != stage[other]:
                pair = (one, other) if stage[one] < stage[other] else (other, one)
                # a send and the receive of what comes back are of different types
                of_link = together[stage[pair[0]], stage[pair[1]]]
                of_link.setdefault(op[pair[0]], []).append(pair)
            case (node,) if spanning[node] and layout.dp > 1:
                together[stage[node], stage[node]].setdefault(op[node], []).append((node, node))
            case _:
                pass
    apart = []
    for (low, high), of_link in together.items():
        ahead = offsets_ns[:, low] - (
            np.median(offsets_ns[:, low]) if low == high else offsets_ns[:, high]
        )
        apart.append(_agreed([_apart(layout, pairs) + ahead for pairs in of_link.values()]))
    return max((float(median_of_known(np.abs(values)).max()) for values in apart), default=0.0)


def _apart(layout: Layout, pairs: Sequence[tuple[int, int]]) -> FloatArray:
    """Return how far ends that belong together are apart in each step, shape (steps, dp)."""
    one, other = (list(side) for side in zip(*pairs, strict=True))
    ends = layout.start_ns[one] + layout.duration_ns[one]
    if one == other:
        return np.asarray(median_of_known(ends - np.median(ends, axis=2, keepdims=True)))
    return median_of_known(ends - layout.start_ns[other] - layout.duration_ns[other])


def _agreed(apart: Sequence[FloatArray]) -> FloatArray:
    """Return the least of what types say where all say it is ahead, or all that it is behind."""
    low, high = np.min(apart, axis=0), np.max(apart, axis=0)
    return np.asarray(np.maximum(low, 0.0) + np.minimum(high, 0.0))
