"""Blocking transfers: a host launches no further operation until the transfer returns.

In the paper's model each kind of communication has a stream of its own, and delays no other
operation. With `batch_isend_irecv` and a wait, or a send that returns when its receiver has the
data, a transfer delays the next launches of its host, so the neighbors of a slow worker wait in
their sends.
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

# A transfer type counts as blocking if no operation on its stage starts within the transfers in at
# least this share of cases…
BLOCKING_SHARE: Final = 0.98
# …and if a step has on average at least this many transfers of the type within which a later
# operation could have started: if no operation could have started, nothing was blocked…
_HELD_UP: Final = 0.5
# …and if both conditions hold on more than this share of the stages, since transfers of the first
# and of the last stage may seem to block by chance.
_STAGES: Final = 0.5


@dataclass(frozen=True, slots=True)
class Posted:
    """Operations of a stage that a host launches together, without dependencies among them."""

    nodes: tuple[int, ...]  # in launch order
    blocking: tuple[int, ...]  # those that later launches on the stage wait for


@dataclass(frozen=True, slots=True)
class Blocking:
    """Launches of each stage, and the transfers that block later launches of the stage."""

    stages: tuple[tuple[Posted, ...], ...]  # for each stage, in launch order
    sign: Sign


def propose_blocking(draft: Draft) -> Proposal | None:
    """Propose that launches wait for the earlier blocking transfers of their stage.

    Receives posted in turn, and short transfers within regular launch delays, also leave a stage
    without launches although they do not block. So the graph gets these two adaptations before
    blocking transfers are searched.
    """
    blocks = []
    for few, graph in zip(map(sampled, draft.layouts), draft.graphs, strict=True):
        turned = in_turn(few, graph)
        lags_ns = lags_after_transfers(few, turned, few.duration_ns.mean(axis=(1, 2)))
        as_launched = replace(turned, lags_ns={**turned.lags_ns, **lags_ns})
        blocks.append(find_blocking(few, as_launched))
    first = next((blocking for blocking in blocks if blocking is not None), None)
    if first is None:
        return None
    graphs = tuple(
        graph if blocking is None else let_block(layout, graph, blocking)
        for layout, graph, blocking in zip(draft.layouts, draft.graphs, blocks, strict=True)
    )
    return Proposal(first.sign, draft.with_graphs(graphs))


def find_blocking(layout: Layout, graph: Graph) -> Blocking | None:
    """Return the blocking transfers of each stage, and their sign; None if no transfer blocks.

    Parameters
    ----------
    graph : Graph
        Graph without dependencies on blocking transfers. It shows which operations could have been
        launched during a transfer.
    """
    # Shape (nodes, steps, dp): earliest launch that the graph allows; infinite for nodes without
    # dependencies
    ends = layout.start_ns + layout.duration_ns
    ready = np.full(ends.shape, np.inf)
    for unit in graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            if after:
                lags_ns = [graph.lags_ns.get((node, other), 0.0) for other in after]
                ready[node] = (ends[list(after)].T + lags_ns).T.max(axis=0)
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


def _of_stage(
    layout: Layout, stage: int, ready: FloatArray
) -> tuple[tuple[Posted, ...], dict[str, float], set[str]]:
    """Return a stage's launches, the share of each blocking transfer type, and the delaying types.

    A type is delaying if later operations could have started within its transfers.
    """
    # Garbage collections are left out, since they have no place in the order of a host's launches.
    collected = layout.nodes.op == layout.codes(GC)[0]
    nodes = np.flatnonzero((layout.nodes.pp == stage) & ~collected)
    nodes = nodes[np.argsort(layout.launch[nodes], kind="stable")]
    count = layout.start_ns.shape[1] * layout.dp
    start = layout.start_ns.reshape(-1, count)[nodes]
    end = start + layout.duration_ns.reshape(-1, count)[nodes]
    names = [layout.op_names[code] for code in layout.nodes.op[nodes].tolist()]
    groups = list(_posted_together(names, start, end))
    could = ready.reshape(-1, count)[nodes]
    # Over all later launches: the earliest recorded start, and the earliest start that the graph
    # allows
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


def _posted_together(
    names: list[str], start: FloatArray, end: FloatArray
) -> Iterator[tuple[int, int]]:
    """Yield the index range (first, last + 1) of operations that the host posts together.

    The host posts fused calls and batches of sends and receives together. They are recognized as
    consecutive transfers of which the later transfer often starts before the earlier transfer has
    ended.
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
    """Return a graph in which each launch follows all earlier blocking operations of its stage.

    Edges that contradict the launch order are removed: `build_graph` lets a receive follow a
    computation, but a host may post the receive before the computation ends.

    Raises
    ------
    UnanalyzableError
        ``trace.dependency_cycle``: a blocking operation would wait for itself.
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
    return with_edges(graph, layout, added, removed)
