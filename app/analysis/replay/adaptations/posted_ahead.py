"""Receives that are posted ahead of what the paper's model lets them follow.

There a receive follows the computation of its direction that comes right before its own. A host
with a longer window posts it earlier, and data comes while that computation still runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.draft import Draft, Proposal
from app.analysis.replay.adaptations.evidence import Sign
from app.analysis.replay.adaptations.signs.sampling import sampled
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import COMPUTE, Graph, with_edges
from app.analysis.replay.layout.pipeline import DIRECTIONS

# A receive is posted ahead of a computation, or after it, when it is in so many of the cases.
_REGULARLY: Final = 0.98
# Receives of a type on a stage are posted ahead when so many of them are.
_MOSTLY: Final = 0.5

_COMPUTED: Final = {direction.recv: direction.compute for direction in DIRECTIONS}


@dataclass(frozen=True, slots=True)
class PostedAhead:
    """Receives that are posted ahead.

    Parameters
    ----------
    not_after : mapping of int to tuple of int
        By receive, the computations that it does not follow.
    after : mapping of int to tuple of int
        By receive, the computation of its direction that it follows; empty where there is none.
    sign : Sign
    """

    not_after: dict[int, tuple[int, ...]]
    after: dict[int, tuple[int, ...]]
    sign: Sign


def propose_posted_ahead(draft: Draft) -> Proposal | None:
    """Let receives follow what they are posted after, where that is earlier than usual."""
    found = [
        find_posted_ahead(sampled(layout), graph)
        for layout, graph in zip(draft.layouts, draft.graphs, strict=True)
    ]
    first = next((posted for posted in found if posted is not None), None)
    if first is None:
        return None
    graphs = tuple(
        graph if posted is None else with_edges(graph, layout, posted.after, posted.not_after)
        for layout, graph, posted in zip(draft.layouts, draft.graphs, found, strict=True)
    )
    return Proposal(first.sign, draft.with_graphs(graphs))


def find_posted_ahead(layout: Layout, graph: Graph) -> PostedAhead | None:
    """Return the receives that are posted ahead; None where there are none."""
    names = [layout.op_names[code] for code in layout.nodes.op.tolist()]
    stage = layout.nodes.pp.tolist()
    ends = layout.start_ns + layout.duration_ns
    early: dict[tuple[str, int], dict[int, tuple[int, ...]]] = defaultdict(dict)
    count: dict[tuple[str, int], int] = defaultdict(int)
    shares: list[float] = []
    for node, after in _following(graph):
        if names[node] not in _COMPUTED:
            continue
        own = [other for other in after if names[other] in COMPUTE and stage[other] == stage[node]]
        count[names[node], stage[node]] += bool(own)
        ahead = [float((layout.start_ns[node] < ends[other]).mean()) for other in own]
        if own and min(ahead) >= _REGULARLY:
            early[names[node], stage[node]][node] = tuple(own)
            shares += ahead
    kinds = sorted(kind for kind, nodes in early.items() if len(nodes) >= _MOSTLY * count[kind])
    if not kinds:
        return None
    not_after = {node: own for kind in kinds for node, own in early[kind].items()}
    where = tuple(f"{name} on stage {number}" for name, number in kinds)
    return PostedAhead(
        not_after,
        {node: _last_ended(layout, node, names) for node in not_after},
        Sign(where, float(np.mean(shares))),
    )


def _following(graph: Graph) -> Sequence[tuple[int, tuple[int, ...]]]:
    return [pair for unit in graph.units for pair in zip(unit.members, unit.after, strict=True)]


def _last_ended(layout: Layout, receive: int, names: Sequence[str]) -> tuple[int, ...]:
    """Return the last computation of its direction that has ended when a receive is posted."""
    nodes = layout.nodes
    code = layout.codes(_COMPUTED[names[receive]])[0]
    computes = np.flatnonzero((nodes.op == code) & (nodes.pp == nodes.pp[receive]))
    computes = computes[np.argsort(layout.launch[computes], kind="stable")]
    ends = layout.start_ns[computes] + layout.duration_ns[computes]
    ended = (layout.start_ns[receive] >= ends).mean(axis=(1, 2)) >= _REGULARLY
    return tuple(computes[ended][-1:].tolist())
