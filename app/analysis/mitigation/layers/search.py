"""The best division of the layers: exact, by chains that bound the step from below.

The step is as long as its longest chain of operations. The chains that are known bound every
division from below; the division with the least bound is executed, which either proves that nothing
is better or brings another chain. First among the divisions that move one layer, which finds a good
one soon; then among all, by branch and bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.mitigation.layers.bounds import (
    Rows,
    largest,
    largest_of_stages,
    mean_of_chains,
    rest_ns,
    rows_of,
)
from app.analysis.mitigation.layers.costs import LayerCosts, Room
from app.analysis.mitigation.layers.lane import Chain, Lane
from app.analysis.replay.layout.dense import FloatArray, IntArray

# Divisions that are executed, at most, before the best one so far is taken, unproven.
_MOST_RUNS: Final = 250
# Parts of divisions that are looked at, altogether.
_MOST_NODES: Final = 40_000
# Divisions that differ by a smaller share of a step are as good: that cannot be measured.
EQUAL: Final = 5e-4
# Layers that are moved at once, and chunks among which more than one is.
_MOVES: Final = 2
_MOST_PLACES: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Divisions by how long the lasting step takes, the best first."""

    # tuple of (float, int64 array): time of a step in ns, and layers of each chunk
    best: tuple[tuple[float, IntArray], ...]
    proven: bool  # whether no division is better than the first by more than `EQUAL`


def search(lane: Lane, room: Room) -> Found:
    """Return divisions of a model's layers; today's is among them."""
    return _Search(lane, room).result()


class _Search:
    """A search under way: what was executed, and the chains that it showed."""

    def __init__(self, lane: Lane, room: Room) -> None:
        self._lane, self._room = lane, room
        self._tried: dict[bytes, tuple[float, IntArray]] = {}
        self._chains: dict[bytes, Chain] = {}
        self._nodes = _MOST_NODES

    def result(self) -> Found:
        costs = self._lane.costs
        for layers in (costs.layers, self._even(costs)):
            self._run(layers)
            for chain in self._lane.through_stages(layers):
                self._add(chain)
        proven = False
        while len(self._tried) < _MOST_RUNS:
            self._move_layers()
            below = (1 - EQUAL) * self._best()[0]
            found = self._least_bound(below)
            if found is None:
                proven = self._nodes > 0
                break
            if found.tobytes() in self._tried:
                break
            self._run(found)
        order = sorted(self._tried.values(), key=lambda item: (item[0], *item[1].tolist()))
        return Found(tuple(order), proven)

    def _best(self) -> tuple[float, IntArray]:
        return min(self._tried.values(), key=lambda item: item[0])

    def _run(self, layers: IntArray) -> None:
        if layers.tobytes() not in self._tried:
            time_ns, chain = self._lane.longest(layers)
            self._tried[layers.tobytes()] = (time_ns, layers)
            self._add(chain)

    def _add(self, chain: Chain) -> None:
        key = chain.passes.tobytes() + np.round(chain.by_layer_ns).tobytes()
        known = self._chains.get(key)
        if known is None or known.fixed_ns < chain.fixed_ns:
            self._chains[key] = chain

    def _rows(self) -> Rows:
        return rows_of(self._lane.costs, list(self._chains.values()))

    def _even(self, costs: LayerCosts) -> IntArray:
        """Return today's division with layers moved from the heaviest chunk of the heaviest stage.

        To the lightest stage, as long as that makes the heaviest one lighter.
        """
        layers = costs.layers.copy()
        stage = self._room.stage
        for _ in range(int(layers.sum())):
            times = costs.times_ns(layers).sum(axis=0)
            load = np.bincount(stage, weights=times)
            full = np.bincount(stage, weights=layers) >= self._room.layers
            giving = np.flatnonzero((stage == np.argmax(load)) & (layers > 1))
            free = np.where(full, np.inf, load)
            taking = np.flatnonzero(stage == np.argmin(free))
            if not len(giving) or not np.isfinite(free.min()):
                break
            moved = layers.copy()
            moved[giving[np.argmax(layers[giving])]] -= 1
            moved[taking[np.argmin(layers[taking])]] += 1
            after = np.bincount(stage, weights=costs.times_ns(moved).sum(axis=0))
            if after.max() >= load.max():
                break
            layers = moved
        return layers

    def _move_layers(self) -> None:
        """Move a layer at a time from the best division, then two, as long as that may help."""
        moves = 1
        while len(self._tried) < _MOST_RUNS and moves <= _MOVES:
            best_ns, layers = self._best()
            near = self._neighbors(layers, moves)
            bound = self._rows().lengths_ns(near).max(axis=1) if len(near) else np.array([np.inf])
            least = int(np.argmin(bound))
            if bound[least] >= (1 - EQUAL / 5) * best_ns:
                moves += 1
                continue
            self._run(near[least])
            if self._best()[0] < best_ns:
                moves = 1

    def _neighbors(self, layers: IntArray, moves: int) -> IntArray:
        """Return the divisions not executed yet that have this number of layers elsewhere."""
        places = len(layers)
        unit = np.eye(places, dtype=np.int64)
        step = (unit[None, :, :] - unit[:, None, :]).reshape(-1, places)
        if moves > 1 and places > _MOST_PLACES:
            return np.empty((0, places), dtype=np.int64)
        near = layers + step
        for _ in range(moves - 1):
            near = np.unique((near[:, None, :] + step[None]).reshape(-1, places), axis=0)
        near = near[(near >= 1).all(axis=1)]
        stages = np.eye(len(self._room.layers), dtype=np.int64)[self._room.stage]
        near = near[(near @ stages <= self._room.layers).all(axis=1)]
        new = [item.tobytes() not in self._tried for item in near]
        return np.asarray(near[new])

    def _least_bound(self, below_ns: float) -> IntArray | None:
        """Return the division whose longest known chain is shortest; None if all are too long."""
        rows = self._rows()
        rows = rows.with_row(mean_of_chains(rows, self._room))
        rest = rest_ns(rows, self._room)
        if float((rows.fixed_ns + rest[0, 0]).max()) >= below_ns:
            return None
        most = largest(rows, self._room, rest, below_ns)
        branch = _Branch(rows, rest, most, self._room, below_ns, self._nodes)
        found = branch.best()
        self._nodes = branch.nodes
        return found


class _Branch:
    """Branch and bound over the chunks, in the order of the model."""

    def __init__(  # noqa: PLR0913, PLR0917 - what bounds a division
        self,
        rows: Rows,
        rest: FloatArray,
        most: IntArray,
        room: Room,
        below_ns: float,
        nodes: int,
    ) -> None:
        self._rows, self._rest, self._most, self._room = rows, rest, most, room
        self._below_ns, self.nodes = below_ns, nodes
        self._found: IntArray | None = None
        self._chosen = np.zeros(rows.places, dtype=np.int64)
        # the most layers that the places from one on can take
        self._behind = np.append(np.cumsum(most[::-1])[::-1], 0)
        # the most that each stage can still take
        self._free = np.minimum(room.layers, largest_of_stages(rows, room, most, below_ns))
        self._later = [
            int((room.stage[place + 1 :] == room.stage[place]).sum()) for place in range(len(most))
        ]

    def best(self) -> IntArray | None:
        if min(int(self._behind[0]), int(self._free.sum())) >= self._rows.total:
            self._descend(0, 0, self._rows.fixed_ns)
        return self._found

    def _descend(self, place: int, first: int, prefix: FloatArray) -> None:
        self.nodes -= 1
        if self.nodes <= 0:
            return
        remaining, behind = self._rows.total - first, self._rows.places - place - 1
        if int(self._free.sum()) < remaining:
            return
        stage = self._room.stage[place]
        least = max(1, remaining - int(self._behind[place + 1]))
        free = int(self._free[stage]) - self._later[place]
        sizes = np.arange(least, min(int(self._most[place]), free, remaining - behind) + 1)
        if not len(sizes):
            return
        here = prefix + self._rows.cost_ns(place, first, sizes)
        bound = (here + self._rest[place + 1, first + sizes]).max(axis=1)
        for index in np.argsort(bound, kind="stable").tolist():
            if bound[index] >= self._below_ns:
                break
            self._chosen[place] = sizes[index]
            if behind:
                self._free[stage] -= sizes[index]
                self._descend(place + 1, first + int(sizes[index]), here[index])
                self._free[stage] += sizes[index]
            else:
                self._below_ns = float(bound[index])
                self._found = self._chosen.copy()
