"""Receives that are posted before or after what the paper's model lets them follow.

There a receive follows the computation of its direction that comes right before its own. A host
with a longer window posts it earlier, and data comes while that computation still runs. One that
posts a receive for the computation that is next does so later, when the one before it is over,
whatever its direction.
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
from app.analysis.replay.layout.dense import IntArray, Layout
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


def propose_posted_in_turn(draft: Draft) -> Proposal | None:
    """Let receives follow the computation before them, where they do so of either direction."""
    found = [find_posted_in_turn(sampled(layout)) for layout in draft.layouts]
    first = next((item for item in found if item is not None), None)
    if first is None:
        return None
    graphs = tuple(
        graph if item is None else with_edges(graph, layout, item[0], {})
        for layout, graph, item in zip(draft.layouts, draft.graphs, found, strict=True)
    )
    return Proposal(first[1], draft.with_graphs(graphs))


def find_posted_in_turn(layout: Layout) -> tuple[dict[int, tuple[int, ...]], Sign] | None:
    """Return what receives follow that are posted when a computation of the other direction ends.

    None where most of a type on a stage are not.
    """
    after: dict[int, tuple[int, ...]] = {}
    where: list[str] = []
    shares: list[float] = []
    nodes = layout.nodes
    computing = np.flatnonzero(layout.of_types(*COMPUTE))
    in_order = computing[np.argsort(layout.launch[computing], kind="stable")]
    for stage in range(layout.pp):
        computes = in_order[nodes.pp[in_order] == stage]
        if not len(computes):
            continue
        for direction in DIRECTIONS:
            receive, compute = layout.codes(direction.recv, direction.compute)
            receives = np.flatnonzero((nodes.op == receive) & (nodes.pp == stage))
            own = _before(layout, computes, receives, compute)
            others = list(own.values())
            ends = layout.start_ns[others] + layout.duration_ns[others]
            begun = (layout.start_ns[list(own)] >= ends).mean(axis=(1, 2)).tolist()
            regular = [share for share in begun if share >= _REGULARLY]
            if regular and len(regular) > _MOSTLY * len(begun):
                where.append(f"{direction.recv} on stage {stage}")
                shares += regular
                after |= {
                    receive: (other,)
                    for (receive, other), share in zip(own.items(), begun, strict=True)
                    if share >= _REGULARLY
                }
    return (after, Sign(tuple(where), float(np.mean(shares)))) if after else None


def _before(layout: Layout, computes: IntArray, receives: IntArray, compute: int) -> dict[int, int]:
    """Return the computation that is launched right before each receive, where it is another's.

    Parameters
    ----------
    layout : Layout
    computes : int64 array
        Computations of a stage in the order of their launch.
    receives : int64 array
        Receives of a type there.
    compute : int
        Code of what computes with them.
    """
    place = np.searchsorted(layout.launch[computes], layout.launch[receives]) - 1
    others = computes[place]
    another = (place >= 0) & (layout.nodes.op[others] != compute)
    return dict(zip(receives[another].tolist(), others[another].tolist(), strict=True))
