"""Noise-free execution of one step under a division of the layers, and its critical path.

Every operation takes its typical time. The critical path under one division is a chain of
dependent operations, whose length bounds the step from below under every other division.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.mitigation.layers.costs import LayerCosts
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median_of_rows
from app.analysis.replay.session import ShapeGroup, filled_ns
from app.analysis.trace import model as ops

# Types of operations whose time is proportional to the number of parameters of a chunk or stage.
BY_LAYERS: Final = (ops.PARAMS_ALL_GATHER, ops.GRADS_REDUCE_SCATTER, ops.OPTIMIZER)
_NOWHERE: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Path of dependent operations; its length is linear in the chunks' times and layers."""

    fixed_ns: float  # part that does not depend on the division
    passes: FloatArray  # (passes, places): number of passes of each chunk on the path
    by_layer_ns: FloatArray  # (places,): time of collectives and optimizer for each layer


@dataclass(frozen=True, slots=True, eq=False)
class Owners:
    """Chunk of each node whose duration depends on the division of the layers."""

    kind: IntArray  # (nodes,): index of the type of computation; -1 for other nodes
    # (nodes,): chunk of a computation or of a collective of the chunk's parameters; -1 for other
    # nodes
    place: IntArray
    shared: dict[int, IntArray]  # chunks of a stage, by node that serves all of them

    @property
    def scaled(self) -> IntArray:
        """Return the single chunks' collectives and optimizer steps, which scale with layers.

        The collectives and optimizer steps of a whole stage are in `shared`.
        """
        return np.flatnonzero((self.kind == _NOWHERE) & (self.place != _NOWHERE))


def find_owners(group: ShapeGroup, costs: LayerCosts) -> Owners:
    """Return the chunk of each node whose duration depends on the division."""
    layout, nodes = group.layout, group.layout.nodes
    number = {place: index for index, place in enumerate(costs.places)}
    kind = np.full(len(nodes), _NOWHERE, dtype=np.int64)
    place = np.full(len(nodes), _NOWHERE, dtype=np.int64)
    for index, name in enumerate(costs.passes):
        kind[nodes.op == layout.codes(name)[0]] = index
    by_layers = layout.of_types(*(name for name in BY_LAYERS if name in layout.op_names))
    shared: dict[int, IntArray] = {}
    for stage in range(layout.pp):
        mine = nodes.pp == stage
        chunks = np.unique(nodes.mc[mine & (kind != _NOWHERE)])
        every = np.array([at for at, (own, _) in enumerate(costs.places) if own == stage])
        owned = mine & ((kind != _NOWHERE) | by_layers)
        for index, chunk in enumerate(chunks.tolist()):
            of_chunk = owned & (nodes.mc == chunk)
            if of_chunk.any():
                place[of_chunk] = number[stage, index]
            owned &= ~of_chunk
        if len(every) == 1:
            place[owned] = every[0]
        else:
            shared.update(dict.fromkeys(np.flatnonzero(owned).tolist(), every))
    return Owners(kind, place, shared)


class TypicalStep:
    """Typical step of a session's most frequent step shape, executable under any division."""

    def __init__(self, group: ShapeGroup, costs: LayerCosts) -> None:
        self.costs = costs
        self._owners = find_owners(group, costs)
        lasting = filled_ns(group)
        typical = median_of_rows(lasting.reshape(len(lasting), -1))
        padding = group.layout.padding
        if padding is not None:
            typical *= padding.weights(float(padding.counts.mean()))
        self._typical_ns = np.maximum(typical, 0.0)
        self._units = [(unit.members, unit.after) for unit in group.graph.units]
        self._lags = group.graph.lags_ns

    def longest(self, layers: IntArray) -> tuple[float, Chain]:
        """Return the step time, ns, and the critical path with the given layers of each chunk."""
        ends, before = self._run(self.durations_ns(layers).tolist())
        last = max(ends, key=ends.__getitem__)
        return ends[last], self._chain(_walk(before, last)[::-1], ends[last], layers)

    def durations_ns(self, layers: IntArray) -> FloatArray:
        """Return the duration of each node under a division, ns."""
        owners, today = self._owners, self.costs.layers
        durations = self._typical_ns.copy()
        times = self.costs.times_ns(layers)
        computing = owners.kind != _NOWHERE
        durations[computing] = times[owners.kind[computing], owners.place[computing]]
        scaled = owners.scaled
        durations[scaled] *= (layers / today)[owners.place[scaled]]
        for node, places in owners.shared.items():
            durations[node] *= layers[places].sum() / today[places].sum()
        return durations

    def through_stages(self, layers: IntArray) -> list[Chain]:
        """Return by stage the longest chain that contains all passes of the stage."""
        durations = self.durations_ns(layers).tolist()
        ends, before = self._run(durations)
        after = self._successors(durations)
        chains = []
        for stage in sorted({stage for stage, _ in self.costs.places}):
            mine = [
                node
                for node in np.flatnonzero(self._owners.kind != _NOWHERE).tolist()
                if self.costs.places[self._owners.place[node]][0] == stage
            ]
            mine.sort(key=ends.__getitem__)
            ahead = _walk(before, before[mine[0]])
            chains.append(self._chain([*ahead[::-1], *mine, *_walk(after, after[mine[-1]])]))
        return chains

    def _run(self, durations: list[float]) -> tuple[dict[int, float], dict[int, int]]:
        """Return the end of each node, ns, and its predecessor on the critical path."""
        ends: dict[int, float] = {}
        before: dict[int, int] = {}
        for members, afters in self._units:
            begin, last = 0.0, _NOWHERE
            for node, after in zip(members, afters, strict=True):
                for other in after:
                    ready = ends[other] + self._lags.get((node, other), 0.0)
                    if ready > begin or last == _NOWHERE:
                        begin, last = max(begin, ready), other
            for node in members:
                before[node] = last
                ends[node] = begin + durations[node]
        return ends, before

    def _successors(self, durations: list[float]) -> dict[int, int]:
        """Return the successor of each node on its longest path to the end."""
        remaining: dict[int, float] = {}
        then: dict[int, int] = {}
        for members, afters in reversed(self._units):
            longest = max(members, key=lambda node: durations[node] + remaining.get(node, 0.0))
            takes = durations[longest] + remaining.get(longest, 0.0)
            for node in members:
                then.setdefault(node, _NOWHERE)
            for node, after in zip(members, afters, strict=True):
                for other in after:
                    rest = takes + self._lags.get((node, other), 0.0)
                    if rest > remaining.get(other, 0.0):
                        remaining[other], then[other] = rest, longest
        return then

    def _chain(
        self, nodes: list[int], total_ns: float | None = None, layers: IntArray | None = None
    ) -> Chain:
        """Return the chain that consists of the given dependent nodes.

        If `total_ns`, the whole length of the chain under `layers`, is given, the lags between the
        nodes count as fixed time.
        """
        owners, today = self._owners, self.costs.layers
        passes = np.zeros((len(self.costs.passes), len(today)))
        by_layer = np.zeros(len(today))
        fixed = 0.0
        for node in nodes:
            typical, place = float(self._typical_ns[node]), owners.place[node]
            if owners.kind[node] != _NOWHERE:
                passes[owners.kind[node], place] += 1
            elif node in owners.shared:
                by_layer[owners.shared[node]] += typical / today[owners.shared[node]].sum()
            elif place != _NOWHERE:
                by_layer[place] += typical / today[place]
            else:
                fixed += typical
        if total_ns is not None and layers is not None:
            variable = (passes * self.costs.times_ns(layers)).sum() + by_layer @ layers
            fixed = total_ns - float(variable)
        return Chain(fixed, passes, by_layer)


def _walk(links: dict[int, int], node: int) -> list[int]:
    """Return the nodes of a linked list that begins at `node`."""
    nodes = []
    while node != _NOWHERE:
        nodes.append(node)
        node = links[node]
    return nodes
