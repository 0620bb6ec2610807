"""What chains of operations say of divisions of the layers: each bounds the step from below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.mitigation.layers.costs import LayerCosts, Room
from app.analysis.mitigation.layers.lane import Chain
from app.analysis.replay.layout.dense import FloatArray, IntArray

# Layers whose prices differ by a smaller share are alike.
_ALIKE: Final = 1e-9
# Turns of making the mean of the chains a better bound.
_LIFTS: Final = 60
# How much more a chain counts that is longer by the length of a step.
_EAGER: Final = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Chains as prices."""

    fixed_ns: FloatArray  # (chains,)
    # (places, layers + 1, chains): what all layers before one cost at a place
    before_ns: FloatArray
    added_ns: FloatArray  # (places, chains): what each place costs beyond layers

    @property
    def places(self) -> int:
        """Return the number of chunks."""
        return len(self.before_ns)

    @property
    def total(self) -> int:
        """Return the number of layers."""
        return int(self.before_ns.shape[1] - 1)

    def cost_ns(self, place: int, first: int, sizes: IntArray) -> FloatArray:
        """Return what chunks of these sizes cost from a layer on, shape (sizes, chains)."""
        before = self.before_ns[place]
        return np.asarray(before[first + sizes] - before[first] + self.added_ns[place])

    def lengths_ns(self, counts: IntArray) -> FloatArray:
        """Return how long each chain is with each division, shape (divisions, chains)."""
        ends = np.cumsum(counts, axis=1)
        number = np.arange(self.places)
        cost = self.before_ns[number, ends] - self.before_ns[number, ends - counts]
        return np.asarray((cost + self.added_ns).sum(axis=1) + self.fixed_ns)

    def mean(self, weights: FloatArray) -> Rows:
        """Return a mean of the chains, as the only one."""
        return Rows(
            np.array([self.fixed_ns @ weights]),
            (self.before_ns @ weights)[:, :, None],
            (self.added_ns @ weights)[:, None],
        )

    def with_row(self, other: Rows) -> Rows:
        """Return these chains and others."""
        return Rows(
            np.concatenate([self.fixed_ns, other.fixed_ns]),
            np.concatenate([self.before_ns, other.before_ns], axis=2),
            np.concatenate([self.added_ns, other.added_ns], axis=1),
        )


def rows_of(costs: LayerCosts, chains: Sequence[Chain]) -> Rows:
    """Return each chain's price of every layer at every place, and of what is fixed there."""
    weights = np.stack([chain.passes for chain in chains], axis=2) * costs.own()[:, :, None]
    by_layer = np.stack([chain.by_layer_ns for chain in chains], axis=1)
    price = np.einsum("pkc,pl->klc", weights, costs.layer_ns) + by_layer[:, None, :]
    before = np.zeros((price.shape[0], price.shape[1] + 1, price.shape[2]))
    before[:, 1:] = np.cumsum(price, axis=1)
    added = np.einsum("pkc,pk->kc", weights, costs.extra_ns)
    return Rows(np.array([chain.fixed_ns for chain in chains]), before, added)


def rest_ns(rows: Rows, room: Room) -> FloatArray:
    """Return for each chain alone the least that places from one on cost with remaining layers.

    Shape (places + 1, layers + 1, chains), by place and the first of the layers.
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
    """Return the least cost of an end after each first layer, at most `most` layers later."""
    if most >= len(costs):
        return np.asarray(np.minimum.accumulate(costs[::-1], axis=0)[::-1][1:])
    return np.array(
        [costs[first + 1 : first + 1 + most].min(axis=0) for first in range(len(costs) - 1)]
    )


def largest(rows: Rows, room: Room, rest: FloatArray, below_ns: float) -> IntArray:
    """Return for each place the most layers with which a step may be shorter than a time."""
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
        # A larger chunk costs more: where one size is too long, so are all larger ones.
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


def largest_of_stages(rows: Rows, room: Room, most: IntArray, below_ns: float) -> IntArray:
    """Return the same of each stage, all of its chunks together.

    Where layers take the same wherever they come in the model; else what its chunks can take.
    """
    price = np.diff(rows.before_ns, axis=1)
    stages = range(len(room.layers))
    found = np.array([most[room.stage == stage].sum() for stage in stages])
    if np.ptp(price, axis=1).max() > _ALIKE * price.max():
        return found
    price = price[:, 0]
    fixed = rows.fixed_ns + rows.added_ns.sum(axis=0)
    for stage in stages:
        mine = room.stage == stage
        if mine.all():
            continue
        sizes = np.arange(int(mine.sum()), int(found[stage]) + 1)[:, None]
        others = (rows.total - sizes) * price[~mine].min(axis=0)
        fits = (fixed + sizes * price[mine].min(axis=0) + others).max(axis=1) < below_ns
        found[stage] = int(sizes[fits].max()) if fits.any() else 0
    return found


def mean_of_chains(rows: Rows, room: Room) -> Rows:
    """Return the mean of the chains, with weights that bound all divisions well.

    No division is shorter than its longest chain, and so than any mean of them.
    """
    count = len(rows.fixed_ns)
    weights = np.full(count, 1 / count)
    best, best_weights = -np.inf, weights
    total = np.zeros(count)
    for turn in range(1, _LIFTS + 1):
        bound, layers = _alone(rows.mean(weights), room)
        if bound > best:
            best, best_weights = bound, weights
        if layers is None:
            break
        # Chains that were longer than the others, turn after turn, count more.
        total += rows.lengths_ns(layers[None])[0]
        lead = (total - total.max()) / turn / max(abs(bound), 1.0)
        weights = np.exp(_EAGER * lead * np.sqrt(turn))
        weights = weights / weights.sum()
    return rows.mean(best_weights)


def _alone(row: Rows, room: Room) -> tuple[float, IntArray | None]:
    """Return the least that one chain can cost, and the division that does."""
    rest = rest_ns(row, room)[:, :, 0]
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
