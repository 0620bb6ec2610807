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
from app.analysis.replay.adaptations.trial import LEAST_GAIN, recorded_times
from app.analysis.replay.layout.dense import IntArray, Layout
from app.analysis.replay.layout.graph import COMPUTE, Graph, with_edges
from app.analysis.replay.layout.pipeline import DIRECTIONS
from app.errors import UnanalyzableError

# A receive is posted ahead of a computation, or after it, when it is in so many of the cases.
_REGULARLY: Final = 0.98
# Receives of a type on a stage are posted ahead when so many of them are.
_MOSTLY: Final = 0.5

_COMPUTED: Final = {direction.recv: direction.compute for direction in DIRECTIONS}


@dataclass(frozen=True, slots=True)
class Posted:
    """Receives that are posted elsewhere than in the paper's model."""

    not_after: dict[int, tuple[int, ...]]  # by receive, the computations that it does not follow
    # By receive, the computation that it follows; empty where there is none.
    after: dict[int, tuple[int, ...]]
    sign: Sign


def propose_posted_ahead(draft: Draft) -> Proposal | None:
    """Let receives follow what they are posted after, where that is earlier than usual."""
    found = [
        find_posted_ahead(sampled(layout), graph)
        for layout, graph in zip(draft.layouts, draft.graphs, strict=True)
    ]
    return _proposal(draft, found)


def _proposal(draft: Draft, found: Sequence[Posted | None]) -> Proposal | None:
    """Let the receives of each shape follow what they are posted after."""
    first = next((posted for posted in found if posted is not None), None)
    if first is None:
        return None
    graphs = tuple(
        graph if posted is None else with_edges(graph, layout, posted.after, posted.not_after)
        for layout, graph, posted in zip(draft.layouts, draft.graphs, found, strict=True)
    )
    return Proposal(first.sign, draft.with_graphs(graphs))


def find_posted_ahead(layout: Layout, graph: Graph) -> Posted | None:
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
    return Posted(
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
    computes = nodes.of(code, int(nodes.pp[receive]))
    computes = computes[np.argsort(layout.launch[computes], kind="stable")]
    ends = layout.start_ns[computes] + layout.duration_ns[computes]
    ended = (layout.start_ns[receive] >= ends).mean(axis=(1, 2)) >= _REGULARLY
    return tuple(computes[ended][-1:].tolist())


def propose_posted_in_turn(draft: Draft) -> Proposal | None:
    """Let receives follow the computation before them, where they do so of either direction."""
    found = [find_posted_in_turn(sampled(layout)) for layout in draft.layouts]
    return _proposal(draft, found) if _may_matter(draft, found) else None


def _may_matter(draft: Draft, found: Sequence[Posted | None]) -> bool:
    """Return whether receives posted in turn can take enough off the discrepancy.

    One that is posted late holds the computation that waits for it up by no more than its transfer
    takes, since that computation follows the one before in any case.
    """
    held_up_ns = sum(
        float(own[list(posted.after)].sum(axis=0).max(axis=-1).sum())
        for posted, (own, _) in zip(found, draft.own, strict=True)
        if posted is not None
    )
    if not held_up_ns:
        return False
    recorded_ns = sum(
        float(recorded_times(*pair).sum()) for pair in zip(draft.layouts, draft.graphs, strict=True)
    )
    return held_up_ns >= LEAST_GAIN * recorded_ns


def in_turn(layout: Layout, graph: Graph) -> Graph:
    """Return a graph in which receives posted in turn follow what they are posted after.

    The graph itself where there are none, where all of them do, or where that contradicts it.
    """
    found = find_posted_in_turn(layout)
    if found is None:
        return graph
    follows = {node: after for node, after in _following(graph) if node in found.after}
    if all(set(found.after[node]) <= set(after) for node, after in follows.items()):
        return graph
    try:
        return with_edges(graph, layout, found.after, found.not_after)
    except UnanalyzableError:
        return graph


def find_posted_in_turn(layout: Layout) -> Posted | None:
    """Return what receives follow that are posted when a computation of the other direction ends.

    None where most of a type on a stage are not.
    """
    stage = layout.nodes.pp
    computing = np.flatnonzero(layout.of_types(*COMPUTE))
    in_order = computing[np.lexsort((layout.launch[computing], stage[computing]))]
    kinds = []
    for direction in DIRECTIONS:
        receives, others = _before(
            layout, in_order, *layout.codes(direction.recv, direction.compute)
        )
        ends = layout.start_ns[others] + layout.duration_ns[others]
        begun = (layout.start_ns[receives] >= ends).mean(axis=(1, 2))
        regular = begun >= _REGULARLY
        count = np.bincount(stage[receives])
        most = np.bincount(stage[receives], regular) > _MOSTLY * count
        for number in np.flatnonzero(most).tolist():
            mine = regular & (stage[receives] == number)
            pairs = zip(receives[mine].tolist(), others[mine].tolist(), strict=True)
            kinds.append((number, direction.recv, dict(pairs), begun[mine].tolist()))
    if not kinds:
        return None
    kinds.sort(key=lambda kind: kind[0])
    where = tuple(f"{name} on stage {number}" for number, name, _, _ in kinds)
    shares = [share for _, _, _, of_kind in kinds for share in of_kind]
    after: dict[int, tuple[int, ...]] = {
        node: (other,) for _, _, pairs, _ in kinds for node, other in pairs.items()
    }
    return Posted({}, after, Sign(where, float(np.mean(shares))))


def _before(
    layout: Layout, in_order: IntArray, receive: int, compute: int
) -> tuple[IntArray, IntArray]:
    """Return receives and the computation launched right before each, where it is another's.

    Parameters
    ----------
    in_order : int64 array
        Computations stage by stage in the order of their launch.
    receive, compute : int
        Codes of the receives' type and of what computes with them.
    """
    nodes = layout.nodes
    receives = np.flatnonzero(nodes.op == receive)
    # stages one after another
    turn = nodes.pp * np.int64(len(nodes))
    turn += np.searchsorted(np.sort(layout.launch), layout.launch)
    place = np.searchsorted(turn[in_order], turn[receives])
    others = in_order[np.maximum(place - 1, 0)]
    another = (place > 0) & (nodes.pp[others] == nodes.pp[receives])
    another &= nodes.op[others] != compute
    return receives[another], others[another]
