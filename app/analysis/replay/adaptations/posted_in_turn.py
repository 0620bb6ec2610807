"""Receives posted in turn: the host posts a receive when the previous computation has ended.

In the published analyzer's model a receive follows the previous computation of its own direction. A
host that posts the receive of the next computation after the previous computation does so after
computations of either direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.candidate import LEAST_GAIN, Draft, Proposal, recorded_times
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import sampled
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import Graph, with_edges
from app.analysis.replay.layout.pipeline import COMPUTE, DIRECTIONS
from app.analysis.replay.robust_statistics import median_of_rows
from app.errors import UnanalyzableError

# A receive is posted after a computation if it starts after the computation's end in at least this
# share of cases.
_REGULARLY: Final = 0.98
# Receives of a type on a stage are posted in turn if more than this share of them is posted after a
# computation of the other direction.
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Posted:
    """Receives posted in turn, with the computations that they follow."""

    after: dict[int, tuple[int, ...]]  # receive → the computation of the other direction before it
    sign: Sign


def propose_posted_in_turn(draft: Draft) -> Proposal | None:
    """Propose that receives posted in turn wait for the computation launched before them."""
    by_layout = [find_posted_in_turn(sampled(layout)) for layout in draft.layouts]
    first = next((posted for posted in by_layout if posted is not None), None)
    if first is None or not _may_matter(draft, by_layout):
        return None
    graphs = tuple(
        graph if posted is None else with_edges(graph, layout, posted.after, {})
        for layout, graph, posted in zip(draft.layouts, draft.graphs, by_layout, strict=True)
    )
    return Proposal(first.sign, draft.with_graphs(graphs))


def _may_matter(draft: Draft, by_layout: Sequence[Posted | None]) -> bool:
    """Return whether receives posted in turn can reduce the discrepancy by `LEAST_GAIN`.

    A receive posted in turn delays its computation by at most the time for posting the receive plus
    its transfer, since this computation follows the previous computation in any case.
    """
    held_up_ns = 0.0
    for posted, (own, _), layout in zip(by_layout, draft.own, draft.layouts, strict=True):
        if posted is None:
            continue
        receives = list(posted.after)
        before = [after[0] for after in posted.after.values()]
        late = layout.start_ns[receives] - layout.start_ns[before] - layout.duration_ns[before]
        posting = np.maximum(median_of_rows(late.reshape(len(late), -1)), 0.0)[:, None, None]
        held_up_ns += float((own[receives] + posting).sum(axis=0).max(axis=-1).sum())
    if not held_up_ns:
        return False
    recorded_ns = sum(
        float(recorded_times(*pair).sum()) for pair in zip(draft.layouts, draft.graphs, strict=True)
    )
    return held_up_ns >= LEAST_GAIN * recorded_ns


def in_turn(layout: Layout, graph: Graph) -> Graph:
    """Return a graph in which receives posted in turn wait for the computation before them.

    Return the given graph if there are no such receives, if they already wait for this computation,
    or if the new dependencies would form a cycle.
    """
    posted = find_posted_in_turn(layout)
    if posted is None:
        return graph
    follows = {
        node: after
        for unit in graph.units
        for node, after in zip(unit.members, unit.after, strict=True)
        if node in posted.after
    }
    if all(set(posted.after[node]) <= set(after) for node, after in follows.items()):
        return graph
    try:
        return with_edges(graph, layout, posted.after, {})
    except UnanalyzableError:
        return graph


def find_posted_in_turn(layout: Layout) -> Posted | None:
    """Return the receives that are posted when a computation of the other direction has ended.

    Return None if on no stage most receives of a type are posted so.
    """
    stage = layout.nodes.pp
    computing = np.flatnonzero(layout.of_types(*COMPUTE))
    in_order = computing[np.lexsort((layout.launch[computing], stage[computing]))]
    # Sort key of nodes: by stage, then by launch
    turn = stage * np.int64(len(stage))
    turn += np.searchsorted(np.sort(layout.launch), layout.launch)
    kinds = []
    for direction in DIRECTIONS:
        # Receives right after a computation of the other direction, and this computation
        receive, compute = layout.codes(direction.recv, direction.compute)
        receives = np.flatnonzero(layout.nodes.op == receive)
        place = np.searchsorted(turn[in_order], turn[receives])
        others = in_order[np.maximum(place - 1, 0)]
        another = (place > 0) & (stage[others] == stage[receives])
        another &= layout.nodes.op[others] != compute
        receives, others = receives[another], others[another]
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
    return Posted(after, Sign(where, float(np.mean(shares))))
