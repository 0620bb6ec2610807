"""Ranks that run one operation at a time, in the order of their program.

In the paper's model collectives come before the first forward and after the last backward. A
training loop that reduces gradients after each microbatch, averages its loss over the ranks, or
gathers parameters after the optimizer runs its collectives elsewhere. If a job has no pipeline, and
each operation of a rank begins after the end of the rank's previous operation, each operation is
made to depend on the previous operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.candidate import Draft, Proposal
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import SAME_NS, sampled
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import Graph, with_edges
from app.analysis.trace.model import GC

# An operation follows another operation if it begins after the other's end in at least this share
# of cases.
_REGULARLY: Final = 0.98


def propose_program_order(draft: Draft) -> Proposal | None:
    """Propose that each operation waits for the previous operation of its rank."""
    by_layout = [
        find_program_order(sampled(layout), graph)
        for layout, graph in zip(draft.layouts, draft.graphs, strict=True)
    ]
    signs = [item[1] for item in by_layout if item is not None]
    if not signs:
        return None
    graphs = [
        graph if item is None else _in_program_order(layout, graph, item[0])
        for layout, graph, item in zip(draft.layouts, draft.graphs, by_layout, strict=True)
    ]
    return Proposal(signs[0], draft.with_graphs(graphs))


def find_program_order(layout: Layout, graph: Graph) -> tuple[list[_Item], Sign] | None:
    """Return the operations of a rank in program order, and the sign that they run in this order.

    Return None if operations overlap, or if the graph already has this order.
    """
    if layout.pp > 1:
        return None
    items = sorted(_items(layout, graph), key=lambda item: item.begin_ns)
    begins = [(item, layout.start_ns[[*item.nodes]].min(axis=0)) for item in items]
    # The earliest possible end of an item is its begin plus the duration of its main node.
    shares = [
        float((begin_ns >= before_ns + layout.duration_ns[before.main] - SAME_NS).mean())
        for (before, before_ns), (_, begin_ns) in pairwise(begins)
    ]
    if not shares or min(shares) < _REGULARLY:
        return None
    names = [layout.op_names[code] for code in layout.nodes.op.tolist()]
    reached: dict[int, set[int]] = {}
    for unit in graph.units:
        for node, befores in zip(unit.members, unit.after, strict=True):
            reached[node] = set(befores).union(*(reached[before] for before in befores))
    where = sorted(
        {
            f"{names[item.main]} after {names[before.main]}"
            for before, item in pairwise(items)
            if before.last not in reached[item.first]
        }
    )
    return (items, Sign(tuple(where), float(np.mean(shares)))) if where else None


@dataclass(frozen=True, slots=True)
class _Item:
    """An operation, or a computation with the collectives that it waits for."""

    nodes: tuple[int, ...]
    main: int
    first: int  # the node that follows none of the others
    last: int  # the node that none of the others follows
    begin_ns: float


def _items(layout: Layout, graph: Graph) -> Iterator[_Item]:
    """Yield the operations of a rank without garbage collections, which differ between ranks."""
    after = _after(graph)
    held = {node for collectives in graph.inside.values() for node in collectives}
    collections = set(layout.of(GC, 0).tolist())
    for node in after.keys() - held - collections:
        nodes = (node, *graph.inside.get(node, ()))
        inside = set(nodes)
        followed = {before for member in nodes for before in after[member]}
        begin = layout.start_ns[[*nodes]].min(axis=0)
        yield _Item(
            nodes,
            node,
            first=next(member for member in nodes if inside.isdisjoint(after[member])),
            last=next(member for member in nodes if member not in followed),
            begin_ns=float(np.median(begin)),
        )


def _after(graph: Graph) -> dict[int, set[int]]:
    return {
        node: set(befores)
        for unit in graph.units
        for node, befores in zip(unit.members, unit.after, strict=True)
    }


def _in_program_order(layout: Layout, graph: Graph, items: list[_Item]) -> Graph:
    """Return the graph in which each item waits for the previous item."""
    after = _after(graph)
    changed = {node: set(befores) for node, befores in after.items()}
    for item in items:
        for node in item.nodes:
            changed[node] &= set(item.nodes)
    for before, item in pairwise(items):
        changed[item.first].add(before.last)
    # Garbage collections are not items: they keep their dependencies and precede the next item.
    place = {node: number for number, item in enumerate(items) for node in item.nodes}
    for node in after.keys() - place.keys():
        last = max((place[other] for other in after[node] if other in place), default=-1)
        if last + 1 < len(items):
            changed[items[last + 1].first].add(node)
    added = {node: changed[node] - after[node] for node in after}
    removed = {node: after[node] - changed[node] for node in after}
    return with_edges(graph, layout, added, removed)
