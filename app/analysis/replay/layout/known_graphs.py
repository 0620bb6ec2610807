"""Graphs of structures that were met before.

The sessions of a job have one structure, and a worker meets it again with each of them: deriving
the graph anew takes up to a tenth of an analysis.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependencies import build_graph
from app.analysis.replay.layout.graph import DP_COLLECTIVES, Graph
from app.analysis.replay.layout.pipeline import COMPUTE

# What is kept takes about half a kilobyte a node: 16 MiB at most.
MOST_GRAPHS: Final = 16
MOST_NODES: Final = 1 << 11


class _Structure(NamedTuple):
    """All that a graph is derived from."""

    op_names: tuple[str, ...]
    nodes: tuple[bytes, ...]
    # of computations, and of collectives over DP ranks, on each stage
    launch_order: bytes
    ranks: tuple[int, int]
    routes: tuple[tuple[tuple[int, int], ...], ...]


_known: OrderedDict[_Structure, Graph] = OrderedDict()
_lock: Final = Lock()


def graph_of(layout: Layout) -> Graph:
    """Return the dependency graph of a layout's steps.

    Raises
    ------
    UnanalyzableError
        As `build_graph`.
    """
    if len(layout.nodes) > MOST_NODES:
        return build_graph(layout)
    structure = _structure_of(layout)
    with _lock:
        known = _known.get(structure)
        if known is not None:
            _known.move_to_end(structure)
            return known
    graph = build_graph(layout)
    with _lock:
        _known[structure] = graph
        if len(_known) > MOST_GRAPHS:
            _known.popitem(last=False)
    return graph


def _structure_of(layout: Layout) -> _Structure:
    nodes = layout.nodes
    ordered = np.array(
        [(name in COMPUTE) + 2 * (name in DP_COLLECTIVES) for name in layout.op_names], np.int8
    )[nodes.op]
    chosen = ordered.nonzero()[0]
    order = chosen[np.lexsort((layout.launch[chosen], nodes.pp[chosen], ordered[chosen]))]
    columns = (nodes.op, nodes.pp, nodes.mb, nodes.mc)
    return _Structure(
        layout.op_names,
        tuple(column.tobytes() for column in columns),
        order.tobytes(),
        (layout.dp, layout.pp),
        layout.routes,
    )
