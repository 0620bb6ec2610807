"""Blocking transfers: hosts that launch nothing until a transfer returns.

The paper's model gives each kind of communication a stream of its own. `batch_isend_irecv` with a
wait, or a send that returns when its receiver has the data, delays the next launches, so the
neighbors of a slow worker wait in their sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.candidate import Draft, Proposal
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.posted_in_turn import in_turn
from app.analysis.replay.adaptations.signs import lags_after_transfers, sampled
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import LOCAL, P2P, Graph, with_edges
from app.analysis.trace.model import GC

# A type blocks on a stage when in that share of the cases nothing starts inside its intervals.
BLOCKING_SHARE: Final = 0.98
# It shows that it does where something could have started there: in every other step at least.
_HELD_UP: Final = 0.5
# Hosts run the same program and block on most stages; by chance the first and the last one seem to.
_STAGES: Final = 0.5


@dataclass(frozen=True, slots=True)
class Posted:
    """Operations of one stage that are launched together; without edges among them."""

    nodes: tuple[int, ...]  # in the order of their launch
    blocking: tuple[int, ...]  # those of them that what comes later on the stage waits for


@dataclass(frozen=True, slots=True)
class Blocking:
    """What blocks."""

    stages: tuple[tuple[Posted, ...], ...]  # of each stage in the order of launch
    sign: Sign


def propose_blocking(draft: Draft) -> Proposal | None:
    """Let launches follow the blocking operations of their stage, where transfers block.

    A receive that is posted once the computation before it is over, of either direction, holds up
    no host, though nothing else begins meanwhile; nor does a short transfer within the time that
    launches regularly take: what they explain is no sign of a call.
    """
    found = [
        find_blocking(few, _as_launched(few, graph))
        for few, graph in zip(map(sampled, draft.layouts), draft.graphs, strict=True)
    ]
    first = next((blocking for blocking in found if blocking is not None), None)
    if first is None:
        return None
    graphs = tuple(
        graph if blocking is None else let_block(layout, graph, blocking)
        for layout, graph, blocking in zip(draft.layouts, draft.graphs, found, strict=True)
    )
    return Proposal(first.sign, draft.with_graphs(graphs))


def _as_launched(layout: Layout, graph: Graph) -> Graph:
    """Return what launches follow if none of them blocks, and how long after."""
    turned = in_turn(layout, graph)
    takes_ns = layout.duration_ns.mean(axis=(1, 2))
    return replace(
        turned, lags_ns={**turned.lags_ns, **lags_after_transfers(layout, turned, takes_ns)}
    )


def find_blocking(layout: Layout, graph: Graph) -> Blocking | None:
    """Return what blocks; None where no transfer does.

    Parameters
    ----------
    graph : Graph
        What launches follow without it: where nothing could have been launched inside of a
        transfer, it held up nothing, and that nothing was shows nothing.
    """
    ready = _ready(layout, graph)
    stages: list[tuple[Posted, ...]] = []
    where: list[str] = []
    shares: list[float] = []
    blocked = 0
    for stage in range(layout.pp):
        posted, blocking, held_up = _of_stage(layout, stage, ready)
        stages.append(posted)
        blocked += not P2P.isdisjoint(blocking.keys() & held_up)
        for name in sorted(P2P & set(blocking)):
            where.append(f"{name} on stage {stage}")
            shares.append(blocking[name])
    if not where or blocked <= _STAGES * layout.pp:
        return None
    return Blocking(tuple(stages), Sign(tuple(where), float(np.mean(shares))))


def _ready(layout: Layout, graph: Graph) -> FloatArray:
    """Return when each node could have been launched; never where it follows nothing."""
    ends = layout.start_ns + layout.duration_ns
    ready = np.full(ends.shape, np.inf)
    for unit in graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            if after:
                lags_ns = [graph.lags_ns.get((node, other), 0.0) for other in after]
                ready[node] = (ends[list(after)].T + lags_ns).T.max(axis=0)
    return ready


def _of_stage(
    layout: Layout, stage: int, ready: FloatArray
) -> tuple[tuple[Posted, ...], dict[str, float], set[str]]:
    """Return what a stage posts together, the share of each type that blocks, what held up."""
    # collections come when they please, and not in the order of a host's calls
    collected = layout.nodes.op == layout.codes(GC)[0]
    nodes = np.flatnonzero((layout.nodes.pp == stage) & ~collected)
    nodes = nodes[np.argsort(layout.launch[nodes], kind="stable")]
    count = layout.start_ns.shape[1] * layout.dp
    start = layout.start_ns.reshape(-1, count)[nodes]
    end = start + layout.duration_ns.reshape(-1, count)[nodes]
    names = [layout.op_names[code] for code in layout.nodes.op[nodes].tolist()]
    groups = list(_together(names, start, end))
    could = ready.reshape(-1, count)[nodes]
    # the earliest start of all that is posted later, and the earliest that there could be
    later = np.full(count, np.inf)
    soonest = np.full(count, np.inf)
    clear: dict[str, list[float]] = {}
    inside: dict[str, list[float]] = {}
    for first, last in reversed(groups):
        for i in range(first, last):
            clear.setdefault(names[i], []).append(float((later >= end[i]).mean()))
            inside.setdefault(names[i], []).append(float((soonest < end[i]).mean()))
        later = np.minimum(later, start[first:last].min(axis=0))
        soonest = np.minimum(soonest, could[first:last].min(axis=0))
    shares = {name: float(np.mean(values)) for name, values in clear.items()}
    blocking = {name: share for name, share in shares.items() if share >= BLOCKING_SHARE}
    posted = tuple(
        Posted(
            tuple(nodes[first:last].tolist()),
            tuple(int(nodes[i]) for i in range(first, last) if names[i] in blocking),
        )
        for first, last in groups
    )
    held_up = {name for name, values in inside.items() if sum(values) >= _HELD_UP}
    return posted, blocking, held_up


def _together(names: list[str], start: FloatArray, end: FloatArray) -> Iterator[tuple[int, int]]:
    """Yield the (first, last + 1) of operations that are posted together.

    Transfers with no computing between them, of which the later one regularly starts before the
    earlier one has ended: fused calls, and batches of sends and receives.
    """
    first = 0
    for i in range(1, len(names) + 1):
        if i < len(names) and names[i] in P2P and names[i - 1] in P2P:
            apart = (start[i] >= end[first:i].max(axis=0)).mean()
            if apart < BLOCKING_SHARE:
                continue
        yield first, i
        first = i


def let_block(layout: Layout, graph: Graph, blocking: Blocking) -> Graph:
    """Let launches follow every earlier blocking operation of their stage.

    Edges of the graph that contradict the order of launch go: a receive that is posted before the
    computation ends that the paper's model lets it follow.

    Raises
    ------
    UnanalyzableError
        ``trace.dependency_cycle`` where what blocks would wait for itself.
    """
    added: dict[int, tuple[int, ...]] = {}
    place: dict[int, int] = {}
    for posted in blocking.stages:
        before: tuple[int, ...] = ()
        for number, together in enumerate(posted):
            for node in together.nodes:
                added[node] = before
                place[node] = number
            before = together.blocking or before
    return with_edges(graph, layout, added, _contradicted(layout, graph, place))


def _contradicted(layout: Layout, graph: Graph, place: dict[int, int]) -> dict[int, list[int]]:
    """Return the edges from what a stage launches no earlier than the node that follows it."""
    stage = layout.nodes.pp
    removed: dict[int, list[int]] = {}
    for unit in graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            own = layout.op_names[layout.nodes.op[node]]
            if own in LOCAL:
                continue
            early = [
                other
                for other in after
                if stage[other] == stage[node] and place.get(other, -1) >= place[node]
            ]
            if early:
                removed[node] = early
    return removed
