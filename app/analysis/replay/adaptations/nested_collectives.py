"""Collectives inside computations: FSDP2 and ZeRO-3 gather parameters while a layer runs.

The duration of such a computation contains waiting for the collective, so if one DP rank is slow,
the computations of all others look slow too. The collective's interval is subtracted from the
computation, and the collective is replayed before or after it, on the side on which less of the
computation lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.candidate import Draft, Proposal
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import NOWHERE, SAME_NS, computes_of, containing, sampled
from app.analysis.replay.engine.executors import shares_of
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, Graph, with_edges
from app.analysis.trace.model import ABSENT

# Smallest share of cases in which a collective lies inside a computation, or follows another
# operation, for this order to be a property of the job.
REGULARLY: Final = 0.98
# A set of waited-for collectives is preferred over the default set if it reduces the relative
# deviation between passes (see `_deviation`) by more than this.
_CLEARLY: Final = 0.25
# A computation overlaps with a collective whose transfer takes more than this many times the
# shortest transfer of its type, instead of waiting for it.
_FAR_LONGER: Final = 3.0
# Largest number of collectives inside a computation for which all subsets are tried: the number of
# subsets grows as a power of two.
_MOST_CLASSES: Final = 4

# (stage, op type of the computation, number of earlier collectives in the same computation)
_Class = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class Nested:
    """A collective that runs inside a computation."""

    collective: int  # node
    computation: int  # node
    waited: bool  # whether the computation waits for it, rather than overlapping with it
    first: bool  # whether a waited-for collective is replayed before the computation


def propose_nested_collectives(draft: Draft) -> Proposal | None:
    """Propose that computations wait for the collectives inside them."""
    by_layout = [
        find_nested(sampled(layout), only_waits=draft.recording.only_waits)
        for layout in draft.arranged
    ]
    signs = [item[1] for item in by_layout if item is not None]
    if not signs:
        return None
    arranged, graphs = [], []
    for layout, graph, item in zip(draft.arranged, draft.graphs, by_layout, strict=True):
        nested = () if item is None else item[0]
        arranged.append(take_out(layout, nested) if nested else layout)
        graphs.append(set_apart(layout, graph, nested) if nested else graph)
    return Proposal(signs[0], draft.recorded_otherwise(arranged, graphs))


def find_nested(
    layout: Layout, *, only_waits: bool = False
) -> tuple[tuple[Nested, ...], Sign] | None:
    """Return the collectives inside computations, and the sign; None if no computation waits.

    Parameters
    ----------
    only_waits : bool
        Whether the recorder shows a collective inside a computation only while the computation
        waits for it.
    """
    if layout.dp == 1:
        return None
    names = [layout.op_names[code] for code in layout.nodes.op.tolist()]
    hosts: dict[int, int] = {}
    shares: list[float] = []
    for node in _collectives(layout):
        inside = containing(layout, node)
        share = float((inside != NOWHERE).mean())
        if share < REGULARLY:
            continue
        values, counts = np.unique(inside[inside != NOWHERE], return_counts=True)
        host = int(values[counts.argmax()])
        # A computation does not wait for a collective of another chunk: they overlap, as in the
        # paper's model.
        if layout.nodes.mc[node] in {ABSENT, layout.nodes.mc[host]}:
            hosts[node] = host
            shares.append(share)
    if not hosts:
        return None
    classes = classes_of(layout, hosts)
    waited = set(classes.values()) if only_waits else waited_for(layout, hosts, classes)
    if not waited:
        return None
    nested = [
        Nested(node, host, classes[node] in waited, _is_first(layout, node, host, classes, hosts))
        for node, host in hosts.items()
    ]
    kinds = {(names[item.collective], classes[item.collective]) for item in nested if item.waited}
    where = sorted({f"{name} in {host} on stage {stage}" for name, (stage, host, _) in kinds})
    return tuple(nested), Sign(tuple(where), float(np.mean(shares)))


def _collectives(layout: Layout) -> list[int]:
    names = (name for name in DP_COLLECTIVES if name in layout.op_names)
    nodes: list[int] = np.flatnonzero(layout.of_types(*names)).tolist()
    return nodes


def classes_of(layout: Layout, hosts: Mapping[int, int]) -> dict[int, _Class]:
    """Return the class of each nested collective: its position within its computation."""
    count: Counter[int] = Counter()
    classes: dict[int, _Class] = {}
    for node in sorted(hosts, key=lambda node: float(layout.launch[node])):
        host = hosts[node]
        name = layout.op_names[layout.nodes.op[host]]
        classes[node] = (int(layout.nodes.pp[host]), name, count[host])
        count[host] += 1
    return classes


def waited_for(
    layout: Layout, hosts: Mapping[int, int], classes: Mapping[int, _Class]
) -> set[_Class]:
    """Return the classes of collectives that computations wait for; other collectives overlap.

    By default a computation waits for the collectives whose transfer is not far longer than the
    shortest transfer of their type: a longer transfer was recorded until the job waited for it
    later. If a worker also runs forwards or backwards (passes) without collectives, all subsets of
    the classes are compared. The subset that makes passes with collectives as long as passes
    without is preferred over the default if it is clearly better.
    """
    waited: set[_Class] = set()
    short = _short(layout, classes)
    for stage, name in sorted({(stage, name) for stage, name, _ in classes.values()}):
        mine = sorted(c for c in set(classes.values()) if c[:2] == (stage, name))
        typical = tuple(c for c in mine if c in short)
        judged = mine[:_MOST_CLASSES]
        options = [c for n in range(len(judged) + 1) for c in combinations(judged, n)]
        off = {
            chosen: _deviation(layout, hosts, classes, (stage, name), chosen)
            for chosen in {*options, typical}
        }
        best = min(options, key=lambda chosen: off[chosen])
        waited.update(best if off[typical] - off[best] > _CLEARLY else typical)
    return waited


def _deviation(
    layout: Layout,
    hosts: Mapping[int, int],
    classes: Mapping[int, _Class],
    kind: tuple[int, str],
    waited: Collection[_Class],
) -> float:
    """Return how far passes with and without collectives differ, if `waited` are subtracted.

    A pass is a forward or backward of a microbatch. The result is the largest relative difference
    over DP ranks and chunks; 0 if all passes have collectives.
    """
    stage, name = kind
    nodes = layout.nodes
    chosen = layout.of(name, stage)
    holding = set(hosts.values())
    own = {node: layout.duration_ns[node].copy() for node in chosen.tolist()}
    for node, host in hosts.items():
        if classes[node] in waited and host in own:
            own[host] -= layout.duration_ns[node]
    off = [0.0]
    for chunk in np.unique(nodes.mc[chosen]).tolist():
        of_chunk = [node for node in chosen.tolist() if nodes.mc[node] == chunk]
        bare = [own[node] for node in of_chunk if node not in holding]
        held = [own[node] for node in of_chunk if node in holding]
        if bare and held:
            typical = np.maximum(np.median(bare, axis=(0, 1)), 1.0)
            off += (np.abs(np.median(held, axis=(0, 1)) - typical) / typical).tolist()
    return max(off)


def _short(layout: Layout, classes: Mapping[int, _Class]) -> set[_Class]:
    """Return the classes of collectives that take about as long as the shortest of their type."""
    by_type: dict[int, dict[_Class, list[float]]] = {}
    for node, alike in classes.items():
        start = layout.start_ns[node]
        transfer = start + layout.duration_ns[node] - start.max(axis=-1, keepdims=True)
        of_type = by_type.setdefault(int(layout.nodes.op[node]), {})
        of_type.setdefault(alike, []).append(float(np.median(transfer)))
    short: set[_Class] = set()
    for of_type in by_type.values():
        typical = {alike: float(np.median(values)) for alike, values in of_type.items()}
        limit = _FAR_LONGER * max(min(typical.values()), 0.0)
        short.update(alike for alike, ns in typical.items() if ns <= limit)
    return short


def _is_first(
    layout: Layout,
    node: int,
    host: int,
    classes: Mapping[int, _Class],
    hosts: Mapping[int, int],
) -> bool:
    """Return whether a collective lies in the first half of its computation's own time."""
    earlier = [n for n, h in hosts.items() if h == host and classes[n][2] < classes[node][2]]
    every = [n for n, h in hosts.items() if h == host]
    before = layout.start_ns[node] - layout.start_ns[host]
    own = layout.duration_ns[host]
    before = before - sum(layout.duration_ns[n] for n in earlier)
    own = own - sum(layout.duration_ns[n] for n in every)
    return bool(np.median(before) <= np.median(own) / 2)


def take_out(layout: Layout, nested: Iterable[Nested]) -> Layout:
    """Return the layout with waited-for collectives moved before or after their computations.

    A collective keeps its transfer duration. The time for which each rank waits is computed for the
    collective's new place, since the computing that made a rank late may now lie after it.
    """
    start, duration = layout.start_ns.copy(), layout.duration_ns.copy()
    waited = sorted(
        (item for item in nested if item.waited), key=lambda item: layout.launch[item.collective]
    )
    transfer = {
        item.collective: start[item.collective]
        + duration[item.collective]
        - start[item.collective].max(axis=-1, keepdims=True)
        for item in waited
    }
    for item in waited:
        length: FloatArray = np.minimum(duration[item.collective], duration[item.computation])
        duration[item.computation] -= length

    def put(node: int, begin: FloatArray) -> FloatArray:
        """Place a collective at its begin on each rank, shape (steps, dp); return its ends, ns."""
        start[node] = begin
        end: FloatArray = begin.max(axis=-1, keepdims=True) + transfer[node]
        duration[node] = np.maximum(end - begin, 0.0)
        return np.maximum(end, begin)

    for item in waited:
        if item.first:
            start[item.computation] = put(item.collective, start[item.computation])
    ends = {
        item.computation: start[item.computation] + duration[item.computation] for item in waited
    }
    for item in waited:
        if not item.first:
            # The collective begins after the computation and the collectives already placed after
            # it.
            ends[item.computation] = put(item.collective, ends[item.computation])
    shares = {
        computation: shares_of(layout.start_ns, layout.duration_ns, computation, tuple(collectives))
        for computation, collectives in _by_computation(waited).items()
    }
    return replace(layout, start_ns=start, duration_ns=duration, shares=shares)


def _by_computation(waited: Iterable[Nested]) -> dict[int, tuple[int, ...]]:
    """Return the collectives that each computation waits for, in launch order."""
    inside: dict[int, tuple[int, ...]] = {}
    for item in waited:
        inside[item.computation] = (*inside.get(item.computation, ()), item.collective)
    return inside


def set_apart(layout: Layout, graph: Graph, nested: Iterable[Nested]) -> Graph:
    """Return the graph in which nested collectives precede or follow their computation.

    An overlapped collective begins with its computation and nothing depends on it. In the paper's
    model all collectives begin or end a step. A collective for which the recording contradicts this
    follows the previous computation and precedes the next computation.
    """
    items = sorted(nested, key=lambda item: layout.launch[item.collective])
    inside = {item.collective for item in items}
    recorded = {
        node: set(befores)
        for unit in graph.units
        for node, befores in zip(unit.members, unit.after, strict=True)
    }
    after = {node: befores - inside for node, befores in recorded.items()}
    for node in inside:
        after[node] = set()
    _place_between(layout, after, inside)
    # Operations that depend on a computation depend on the last collective after it.
    last: dict[int, int] = {}
    for item in items:
        if item.waited and not item.first:
            after[item.collective] = {last.get(item.computation, item.computation)}
            last[item.computation] = item.collective
    for node, befores in after.items():
        if node not in inside:
            after[node] = {last.get(before, before) for before in befores}
    for item in items:
        if not item.waited:
            after[item.collective] = set(after[item.computation])
    for item in items:
        if item.waited and item.first:
            after[item.collective] = after[item.computation]
            after[item.computation] = {item.collective}
    removed = {node: befores - after[node] for node, befores in recorded.items()}
    changed = with_edges(graph, layout, after, removed)
    return replace(changed, inside=_by_computation(item for item in items if item.waited))


def _place_between(layout: Layout, after: dict[int, set[int]], inside: Collection[int]) -> None:
    """Replace, in place, dependencies of collectives that contradict the recorded order.

    A collective that begins before the end of a dependency depends instead on the last computation
    that ends before the collective begins. Operations that depend on a collective are changed in
    the same way.
    """
    layout = sampled(layout)
    between = [node for node in _collectives(layout) if node not in inside]
    ends = layout.start_ns + layout.duration_ns

    def follows(node: int, before: int) -> bool:
        return bool((layout.start_ns[node] >= ends[before] - SAME_NS).mean() >= REGULARLY)

    for node in between:
        stage = int(layout.nodes.pp[node])
        computes = computes_of(layout, stage)
        computes = computes[np.argsort(layout.launch[computes], kind="stable")]
        if any(not follows(node, before) for before in after[node]):
            after[node] = {before for before in after[node] if follows(node, before)}
            ended = [other for other in computes.tolist() if follows(node, other)]
            after[node] |= set(ended[-1:])
        waiting = [other for other, befores in after.items() if node in befores]
        if any(not follows(other, node) for other in waiting):
            for other in waiting:
                if not follows(other, node):
                    after[other].discard(node)
            held = [other for other in computes.tolist() if follows(other, node)]
            if held:
                after[held[0]].add(node)
