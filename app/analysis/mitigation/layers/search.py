"""Exact search for the best division of the layers, with lower bounds from critical paths.

The step is as long as its longest chain of operations, so the known chains bound every division
from below. The division with the least bound is executed, which proves it best or yields another
chain. Hill climbing over single layers finds a good division first; branch and bound follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.mitigation.layers.costs import LayerCosts, StageCapacity
from app.analysis.mitigation.layers.execution import Chain, TypicalStep
from app.analysis.quantities import FloatArray, IntArray

# Layer prices that differ by a smaller share are equal: the difference is rounding.
_ALIKE: Final = 1e-9
# Number of iterations that improve the weights of the mean chain.
_LIFTS: Final = 60
# Rate of the multiplicative weights: the logarithm of a chain's weight falls by this rate times the
# chain's shortfall behind the longest chain, as a share of the step time.
_LEARNING_RATE: Final = 2.0
# Maximum number of executed divisions. At the limit the best one is returned without a proof that
# it is optimal.
_MOST_RUNS: Final = 250
# Maximum number of nodes of all branch-and-bound trees of a search, which bounds the search's time.
_MOST_NODES: Final = 40_000
# Divisions whose step times differ by a smaller share are equal: the difference cannot be measured.
EQUAL: Final = 5e-4
# Maximum number of layers that hill climbing moves at once, and the maximum number of chunks of a
# model for which it moves more than one layer.
_MOVES: Final = 2
_MOST_PLACES: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class ChainPrices:
    """Prices of layers by chain and place; a chain's length is the sum of its layers' prices."""

    fixed_ns: FloatArray  # (chains,)
    before_ns: FloatArray  # (places, layers + 1, chains): cost of the first layers at a place
    added_ns: FloatArray  # (places, chains): cost of each place beyond its layers

    @property
    def places(self) -> int:
        """Return the number of chunks."""
        return len(self.before_ns)

    @property
    def total(self) -> int:
        """Return the number of layers."""
        return int(self.before_ns.shape[1] - 1)

    def cost_ns(self, place: int, first: int, sizes: IntArray) -> FloatArray:
        """Return the costs of chunks by first layer and size, ns, shape (sizes, chains)."""
        before = self.before_ns[place]
        return np.asarray(before[first + sizes] - before[first] + self.added_ns[place])

    def lengths_ns(self, counts: IntArray) -> FloatArray:
        """Return the length of each chain under each division, shape (divisions, chains)."""
        ends = np.cumsum(counts, axis=1)
        number = np.arange(self.places)
        cost = self.before_ns[number, ends] - self.before_ns[number, ends - counts]
        return np.asarray((cost + self.added_ns).sum(axis=1) + self.fixed_ns)

    def mean(self, weights: FloatArray) -> ChainPrices:
        """Return the weighted mean of the chains as a single chain."""
        return ChainPrices(
            np.array([self.fixed_ns @ weights]),
            (self.before_ns @ weights)[:, :, None],
            (self.added_ns @ weights)[:, None],
        )

    def with_row(self, other: ChainPrices) -> ChainPrices:
        """Return these chains with further chains appended."""
        return ChainPrices(
            np.concatenate([self.fixed_ns, other.fixed_ns]),
            np.concatenate([self.before_ns, other.before_ns], axis=2),
            np.concatenate([self.added_ns, other.added_ns], axis=1),
        )


def chain_prices(costs: LayerCosts, chains: Sequence[Chain]) -> ChainPrices:
    """Return the price of each layer at each place in each chain."""
    weights = np.stack([chain.passes for chain in chains], axis=2) * costs.deviation()[:, :, None]
    by_layer = np.stack([chain.by_layer_ns for chain in chains], axis=1)
    price = np.einsum("pkc,pl->klc", weights, costs.layer_ns) + by_layer[:, None, :]
    before = np.zeros((price.shape[0], price.shape[1] + 1, price.shape[2]))
    before[:, 1:] = np.cumsum(price, axis=1)
    added = np.einsum("pkc,pk->kc", weights, costs.extra_ns)
    return ChainPrices(np.array([chain.fixed_ns for chain in chains]), before, added)


def suffix_bounds_ns(rows: ChainPrices, room: StageCapacity) -> FloatArray:
    """Return by chain the minimum cost of the remaining layers on the remaining places, ns.

    The shape is (places + 1, layers + 1, chains), indexed by first place and first layer.
    """
    places, total = rows.places, rows.total
    rest = np.full((places + 1, total + 1, len(rows.fixed_ns)), np.inf)
    rest[places, total] = 0.0
    for place in range(places - 1, -1, -1):
        before = rows.before_ns[place]
        best = _best_ends(before + rest[place + 1], room.most(place))
        rest[place, :total] = rows.added_ns[place] - before[:total] + best
    return rest


def _best_ends(costs: FloatArray, most: int) -> FloatArray:
    """Return by first layer the minimum cost over ends at most `most` layers later."""
    if most >= len(costs):
        return np.asarray(np.minimum.accumulate(costs[::-1], axis=0)[::-1][1:])
    return np.array(
        [costs[first + 1 : first + 1 + most].min(axis=0) for first in range(len(costs) - 1)]
    )


def largest_chunks(
    rows: ChainPrices, room: StageCapacity, rest: FloatArray, below_ns: float
) -> IntArray:
    """Return by place the maximum number of layers whose bound is below a step time."""
    places, total = rows.places, rows.total
    ahead = np.full((places + 1, total + 1, len(rows.fixed_ns)), np.inf)
    ahead[0, 0] = rows.fixed_ns
    for place in range(places):
        before = rows.before_ns[place]
        open_ = ahead[place] - before
        starts = np.minimum.accumulate(open_, axis=0)
        ahead[place + 1, 1:] = before[1:] + rows.added_ns[place] + starts[:-1]
    most = np.ones(places, dtype=np.int64)
    for place in range(places):
        before = rows.before_ns[place]
        first = np.arange(place, total)
        low, high = 1, min(total - places + 1, room.most(place))
        # Bisection is valid since a larger chunk always costs more.
        while low < high:
            size = (low + high + 1) // 2
            start = first[first + size <= total]
            bound = (
                ahead[place, start]
                + before[start + size]
                - before[start]
                + rows.added_ns[place]
                + rest[place + 1, start + size]
            )
            fits = bool((bound.max(axis=1) < below_ns).any())
            low, high = (size, high) if fits else (low, size - 1)
        most[place] = low
    return most


def largest_stages(
    rows: ChainPrices, room: StageCapacity, most: IntArray, below_ns: float
) -> IntArray:
    """Return by stage the maximum number of layers in its chunks with a bound below a step time.

    If layers have unequal prices, a stage's limit is the sum of the limits `most` of its chunks.
    """
    price = np.diff(rows.before_ns, axis=1)
    stages = range(len(room.layers))
    largest = np.array([most[room.stage == stage].sum() for stage in stages])
    if np.ptp(price, axis=1).max() > _ALIKE * price.max():
        return largest
    price = price[:, 0]
    fixed = rows.fixed_ns + rows.added_ns.sum(axis=0)
    for stage in stages:
        mine = room.stage == stage
        if mine.all():
            continue
        sizes = np.arange(int(mine.sum()), int(largest[stage]) + 1)[:, None]
        others = (rows.total - sizes) * price[~mine].min(axis=0)
        fits = (fixed + sizes * price[mine].min(axis=0) + others).max(axis=1) < below_ns
        largest[stage] = int(sizes[fits].max()) if fits.any() else 0
    return largest


def best_mean_chain(rows: ChainPrices, room: StageCapacity) -> ChainPrices:
    """Return the weighted mean of the chains that bounds the step time best.

    A step is at least as long as its longest chain, and therefore as any weighted mean of its
    chains.
    """
    count = len(rows.fixed_ns)
    weights = np.full(count, 1 / count)
    best, best_weights = -np.inf, weights
    total = np.zeros(count)
    for turn in range(1, _LIFTS + 1):
        bound, layers = _cheapest_division(rows.mean(weights), room)
        if bound > best:
            best, best_weights = bound, weights
        if layers is None:
            break
        # Multiplicative weights: chains that were longer over the iterations gain weight.
        total += rows.lengths_ns(layers[None])[0]
        lead = (total - total.max()) / turn / max(abs(bound), 1.0)
        weights = np.exp(_LEARNING_RATE * lead * np.sqrt(turn))
        weights = weights / weights.sum()
    return rows.mean(best_weights)


def _cheapest_division(row: ChainPrices, room: StageCapacity) -> tuple[float, IntArray | None]:
    """Return the minimum length of a chain over all divisions, and the division that attains it."""
    rest = suffix_bounds_ns(row, room)[:, :, 0]
    if not np.isfinite(rest[0, 0]):
        return np.inf, None
    layers, first = np.zeros(row.places, dtype=np.int64), 0
    for place in range(row.places):
        behind = row.places - place - 1
        sizes = np.arange(1, min(row.total - behind - first, room.most(place)) + 1)
        cost = row.cost_ns(place, first, sizes)[:, 0] + rest[place + 1, first + sizes]
        layers[place] = sizes[int(np.argmin(cost))]
        first += int(layers[place])
    return float(row.fixed_ns[0] + rest[0, 0]), layers


@dataclass(frozen=True, slots=True, eq=False)
class RankedDivisions:
    """Executed divisions with their typical step times, fastest first."""

    best: tuple[tuple[float, IntArray], ...]  # step time in ns, and layers of each chunk
    proven: bool  # whether no division is better than the first by more than `EQUAL`


def search(lane: TypicalStep, room: StageCapacity) -> RankedDivisions:
    """Return the executed divisions of a model's layers, including today's division."""
    return _Search(lane, room).result()


class _Search:
    """State of a search: the executed divisions and their chains."""

    def __init__(self, lane: TypicalStep, room: StageCapacity) -> None:
        self._lane, self._room = lane, room
        self._tried: dict[bytes, tuple[float, IntArray]] = {}
        self._chains: dict[bytes, Chain] = {}
        self._nodes = _MOST_NODES

    def result(self) -> RankedDivisions:
        costs = self._lane.costs
        for layers in (costs.layers, self._balanced_start(costs)):
            self._run(layers)
            for chain in self._lane.through_stages(layers):
                self._add(chain)
        proven = False
        while len(self._tried) < _MOST_RUNS:
            self._hill_climb()
            below = (1 - EQUAL) * self._best()[0]
            promising = self._most_promising(below)
            if promising is None:
                proven = self._nodes > 0
                break
            if promising.tobytes() in self._tried:
                break
            self._run(promising)
        order = sorted(self._tried.values(), key=lambda item: (item[0], *item[1].tolist()))
        return RankedDivisions(tuple(order), proven)

    def _best(self) -> tuple[float, IntArray]:
        return min(self._tried.values(), key=lambda item: item[0])

    def _run(self, layers: IntArray) -> None:
        if layers.tobytes() not in self._tried:
            time_ns, chain = self._lane.longest(layers)
            self._tried[layers.tobytes()] = (time_ns, layers)
            self._add(chain)

    def _add(self, chain: Chain) -> None:
        key = chain.passes.tobytes() + np.round(chain.by_layer_ns).tobytes()
        previous = self._chains.get(key)
        if previous is None or previous.fixed_ns < chain.fixed_ns:
            self._chains[key] = chain

    def _rows(self) -> ChainPrices:
        return chain_prices(self._lane.costs, list(self._chains.values()))

    def _balanced_start(self, costs: LayerCosts) -> IntArray:
        """Return today's division after greedy moves from the heaviest to the lightest stage.

        Each move takes a layer of the heaviest stage, as long as the maximum load falls.
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

    def _hill_climb(self) -> None:
        """Improve the best division by moving one layer, then two, if bounds permit a gain."""
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
        """Return the divisions that differ by `moves` moved layers and are not yet executed."""
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

    def _most_promising(self, below_ns: float) -> IntArray | None:
        """Return the division with the lowest bound; None if no bound is below a step time."""
        rows = self._rows()
        rows = rows.with_row(best_mean_chain(rows, self._room))
        rest = suffix_bounds_ns(rows, self._room)
        if float((rows.fixed_ns + rest[0, 0]).max()) >= below_ns:
            return None
        most = largest_chunks(rows, self._room, rest, below_ns)
        branch = _BranchAndBound(rows, rest, most, self._room, below_ns, self._nodes)
        layers = branch.best()
        self._nodes = branch.nodes
        return layers


class _BranchAndBound:
    """Branch and bound over the sizes of the chunks, in the model's order of chunks."""

    def __init__(  # noqa: PLR0913, PLR0917 - what bounds a division
        self,
        rows: ChainPrices,
        rest: FloatArray,
        most: IntArray,
        room: StageCapacity,
        below_ns: float,
        nodes: int,
    ) -> None:
        self._rows, self._rest, self._most, self._room = rows, rest, most, room
        self._below_ns, self.nodes = below_ns, nodes
        self._found: IntArray | None = None
        self._chosen = np.zeros(rows.places, dtype=np.int64)
        # total maximum number of layers on each place and all later places
        self._behind = np.append(np.cumsum(most[::-1])[::-1], 0)
        # remaining capacity of each stage
        self._free = np.minimum(room.layers, largest_stages(rows, room, most, below_ns))
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
        cost = prefix + self._rows.cost_ns(place, first, sizes)
        bound = (cost + self._rest[place + 1, first + sizes]).max(axis=1)
        for index in np.argsort(bound, kind="stable").tolist():
            if bound[index] >= self._below_ns:
                break
            self._chosen[place] = sizes[index]
            if behind:
                self._free[stage] -= sizes[index]
                self._descend(place + 1, first + int(sizes[index]), cost[index])
                self._free[stage] += sizes[index]
            else:
                self._below_ns = float(bound[index])
                self._found = self._chosen.copy()
