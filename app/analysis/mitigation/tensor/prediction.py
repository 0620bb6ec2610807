"""Predicted step time of each rank under a plan, placement of moved columns, and traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heapreplace

import numpy as np

from app.analysis.mitigation.tensor.group import (
    Affine,
    Costs,
    Group,
    Shares,
)
from app.analysis.quantities import FloatArray, IntArray


def renumbered(rank: int, sender: int, ranks: int) -> int:
    """Return ν, a receiver's number for a sender: 1 … ranks − 1, cyclically from the sender.

    Examples
    --------
    Figure 4 of the paper: three ranks, of which the third straggles; ranks count from 0:

    >>> [renumbered(rank, 2, 3) for rank in (0, 1)]
    [1, 2]
    """
    return (rank + ranks - sender) % ranks


def slices(count: int, sender: int, receivers: IntArray, ranks: int) -> IntArray:
    """Return the number of a sender's units that each rank computes, shape (ranks,).

    The receiver with the number ν of n computes the units [(ν − 1)·count/n, ν·count/n), rounded
    down. If some ranks receive nothing, the other ranks are numbered in the same order.

    Parameters
    ----------
    count : int
        Units that the sender hands over.
    receivers : int64 array, shape (n,)
        Receiving ranks, at least one, without the sender.
    ranks : int
        Ranks of the group.
    """
    in_order = sorted(receivers.tolist(), key=lambda rank: renumbered(rank, sender, ranks))
    bounds = np.arange(len(in_order) + 1) * count // len(in_order)
    taken = np.zeros(ranks, dtype=np.int64)
    taken[in_order] = np.diff(bounds)
    return taken


def routed(shed: IntArray, received: IntArray) -> IntArray:
    """Return the units from each rank to each other rank, given totals shed and received.

    Senders fill receivers one after the other, so that few pairs of ranks communicate.

    Parameters
    ----------
    shed, received : int64 arrays, shape (ranks,)
        Units that each rank sheds and receives, with equal sums; no rank does both.

    Returns
    -------
    int64 array, shape (ranks, ranks)
        ``[sender, receiver]``.
    """
    ranks = len(shed)
    moved = np.zeros((ranks, ranks), dtype=np.int64)
    senders, receivers = np.flatnonzero(shed).tolist(), np.flatnonzero(received).tolist()
    remaining, room = shed.tolist(), received.tolist()
    at = 0
    for sender in senders:
        while remaining[sender]:
            receiver = receivers[at]
            part = min(remaining[sender], room[receiver])
            moved[sender, receiver] = part
            remaining[sender] -= part
            room[receiver] -= part
            if room[receiver] == 0:
                at += 1
    return moved


def apportioned(parts: Sequence[int], total: int) -> list[int]:
    """Return `total` divided in proportion to `parts` by largest remainders, as the client does.

    Examples
    --------
    >>> apportioned([5, 11], 8)
    [3, 5]
    """
    whole = sum(parts)
    counts = [part * total // whole for part in parts]
    remainders = sorted(range(len(parts)), key=lambda n: (-(parts[n] * total % whole), n))
    for number in remainders[: total - sum(counts)]:
        counts[number] += 1
    return counts


def levelled(fixed_s: FloatArray, unit_s: FloatArray, total: int, least: int = 1) -> IntArray:
    """Return the division of `total` units over ranks that minimizes the slowest rank's time.

    Water-filling: each rank gets (τ − fixed)⁺ / unit_s units, rounded down, with the τ at which
    these numbers add up to `total` before rounding. The remaining units go one by one to the rank
    where they end soonest. The result is optimal among divisions in whole units.

    Parameters
    ----------
    fixed_s, unit_s : float64 arrays, shape (ranks,)
        Time of each rank without units, and of each unit, seconds.
    total : int
        Number of units, at least `least` × ranks.
    least : int
        Fewest units of each rank.

    Returns
    -------
    int64 array, shape (ranks,)
    """
    level_s = _water_level(fixed_s + least * unit_s, unit_s, total - least * len(fixed_s))
    units = np.maximum(np.floor((level_s - fixed_s) / unit_s), least).astype(np.int64)
    while units.sum() > total:  # a floor that floating point has rounded up
        units[np.argmax(np.where(units > least, fixed_s + unit_s * units, -np.inf))] -= 1
    ends = [(end_s, rank) for rank, end_s in enumerate((fixed_s + unit_s * (units + 1)).tolist())]
    heapify(ends)
    for _ in range(total - int(units.sum())):
        end_s, rank = ends[0]
        units[rank] += 1
        heapreplace(ends, (end_s + float(unit_s[rank]), rank))
    return units


def _water_level(fixed_s: FloatArray, unit_s: FloatArray, total: float) -> float:
    """Return the water level τ with Σ (τ − fixed)⁺ / unit_s = total, seconds."""
    order = np.argsort(fixed_s, kind="stable")
    fixed, speed = fixed_s[order], 1.0 / unit_s[order]
    # If the first n ranks are under water: τ = (total + Σ fixed · speed) / Σ speed.
    levels = (total + np.cumsum(fixed * speed)) / np.cumsum(speed)
    above = np.append(fixed[1:], np.inf)
    return float(levels[np.argmax(levels <= above)])


@dataclass(frozen=True, slots=True)
class Place:
    """Layers whose columns move in units that are coarser than the plan's, such as heads."""

    # Number of units of a rank in each of these layers: leaving out 31 % of eight heads leaves out
    # two heads.
    units: int
    share: float  # share of a rank's multiplications; shares of all places add up to 1


@dataclass(frozen=True, slots=True, eq=False)
class _Computed:
    """Columns that each rank computes under a plan, as shares of the rank's own columns."""

    own: FloatArray  # (places, ranks)
    received: FloatArray  # (places, ranks): for other ranks
    weights: FloatArray  # (places,): share of multiplications

    @property
    def all_own(self) -> FloatArray:
        """Return the share of own columns that each rank computes, over all layers, (ranks,)."""
        total: FloatArray = self.weights @ self.own
        return total

    @property
    def all_received(self) -> FloatArray:
        """Return the columns that each rank computes for others over all layers, shape (ranks,)."""
        total: FloatArray = self.weights @ self.received
        return total


def _computed(group: Group, shares: Shares, places: Sequence[Place]) -> _Computed:
    if not places:
        remaining = (group.units - shares.shed)[None] / group.units
        return _Computed(remaining, shares.received[None] / group.units, np.ones(1))
    own = np.ones((len(places), group.ranks))
    received = np.zeros_like(own)
    for number, place in enumerate(places):
        for sender in np.flatnonzero(shares.shed).tolist():
            targets = np.flatnonzero(shares.moved[sender])
            parts = [int(shares.resized[sender]), *shares.moved[sender, targets].tolist()]
            counts = apportioned([*parts, group.units - sum(parts)], place.units)
            own[number, sender] = counts[-1] / place.units
            received[number, targets] += np.array(counts[1:-1]) / place.units
    weights = np.array([place.share for place in places])
    return _Computed(own, received, weights / weights.sum())


def predicted_s(
    group: Group,
    shares: Shares,
    costs: Costs,
    *,
    each_step: bool = True,
    places: Sequence[Place] = (),
) -> FloatArray:
    """Return T of each rank under a plan, without waiting, seconds, shape (ranks,).

    A rank that resizes also takes Ω1 + Ω2, a rank that hands columns over also takes `Costs.lend`.
    Every rank takes Φ1 of all migrated columns and their senders, since all ranks of the group take
    part in the collectives of a migration.

    Parameters
    ----------
    group : Group
        The group without a plan.
    each_step : bool
        Whether columns are sent in each step; otherwise they have moved once and are computed
        together with the receiver's own columns.
    places : sequence of Place
        Layers with coarser units than the plan's.

    Returns
    -------
    float64 array, shape (ranks,)
        Seconds.
    """
    done = _computed(group, shares, places)
    return _taken_s(
        group,
        (group.matmul_s * done.all_own, done.all_received * group.units),
        (shares.resized, shares.migrated),
        costs,
        each_step=each_step,
    )


def uneven_s(group: Group, shares: Shares, places: Sequence[Place]) -> float:
    """Return the waiting time of a step whose ranks are balanced in total but not per layer, s.

    A collective ends every layer, so the group waits for a rank with one more head in a layer even
    if this rank has less work in the next layer.
    """
    done = _computed(group, shares, places)
    each_s = done.weights[:, None] * (group.fixed_s + group.matmul_s * (done.own + done.received))
    return float(each_s.max(axis=1).sum() - each_s.sum(axis=0).max())


def busy_s(
    group: Group, resized: IntArray, given: IntArray, received: IntArray, costs: Costs
) -> FloatArray:
    """Return T of each rank under a plan without routes, shape (ranks,), seconds.

    Parameters
    ----------
    resized, given, received : int64 arrays, shape (ranks,)
        Units that each rank leaves out, hands over and takes over in each step.
    """
    own_s = group.unit_s * (group.units - resized - given)
    return _taken_s(group, (own_s, received.astype(float)), (resized, given), costs, each_step=True)


def _taken_s(
    group: Group,
    computed: tuple[FloatArray, FloatArray],
    shed: tuple[IntArray, IntArray],
    costs: Costs,
    *,
    each_step: bool,
) -> FloatArray:
    """Return T of each rank, shape (ranks,), seconds.

    Parameters
    ----------
    computed : (float64 array, float64 array)
        Time of each rank's own columns, seconds, and the units that it takes over.
    shed : (int64 array, int64 array)
        Units that each rank leaves out, and hands over.
    """
    (own_s, received), (resized, given) = computed, shed
    unit = group.unit
    time_s: FloatArray = group.fixed_s + own_s
    if each_step and costs.compute is not None:
        # Φ2 was measured on ranks without delay, so slower ranks take proportionally longer.
        slower = group.unit_s / group.unit_s.min()
        time_s += slower * _cost_of_each(costs.compute, received * unit)
    else:
        time_s += group.unit_s * received
    if each_step:
        time_s += costs.communicate(int(given.sum()) * unit, int(np.count_nonzero(given)))
        time_s += _cost_of_each(costs.lend, given * unit)
    time_s += _cost_of_each(costs.extract, resized * unit) + costs.allocate_s * (resized > 0)
    return time_s


def _cost_of_each(cost: Affine, columns: IntArray | FloatArray) -> FloatArray:
    return np.where(columns > 0, cost.fixed_s + cost.column_s * columns, 0.0)


class Kind(StrEnum):
    """Kind of column, which determines the traffic of a migration."""

    HIDDEN_UNIT = "hidden_unit"  # a row of W1, its bias and a column of W2 together
    COLUMN = "column"  # of W in a column-parallel layer
    ROW = "row"  # of W in a row-parallel layer


class Plans(StrEnum):
    """Kind of plans that shed columns of a layer: plans of each step, or plans that move once."""

    STEP = "step"  # methods that shed work in each step
    ONCE = "once"  # sticky, which moves columns once


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a rank's layers with columns of one kind."""

    kind: Kind
    width: int  # model width for hidden units; else O, the rows of the local W
    tokens: int  # rows of X of a step: sequences × their length
    layers: int  # number of these layers
    value_bytes: int  # bytes of a transferred number
    state_bytes: int  # bytes of a parameter with its optimizer state
    units: int | None = None  # units of a rank's columns; None: as fine as the plan's columns
    share: float = 1.0  # weight of these layers: share of a rank's multiplications
    plans: Plans | None = None  # None: all plans

    @property
    def moves_for_good(self) -> bool:
        """Return whether moved columns cause no later traffic, as is true of hidden units."""
        return self.kind is Kind.HIDDEN_UNIT

    @property
    def _parameters(self) -> int:
        """Return the number of parameters of a column in one layer."""
        return 2 * self.width + 1 if self.kind is Kind.HIDDEN_UNIT else self.width

    def step_bytes(self, columns: float) -> int:
        """Return the traffic of migrated columns in a step, in both directions, bytes.

        For a hidden unit, parameters are sent and their gradients returned; its output is part of
        the all-reduce. For columns of a column-parallel layer, dY is also sent and their part of Y
        returned, whose sizes do not depend on the number of columns; for columns of a row-parallel
        layer, X[:, m] is sent and dX[:, m] returned. A broadcast counts once, regardless of the
        number of ranks that it reaches.
        """
        if columns == 0:
            return 0
        each, fixed = 2 * self._parameters, 0
        if self.kind is Kind.COLUMN:
            fixed = 2 * self.tokens * self.width
        elif self.kind is Kind.ROW:
            each += 2 * self.tokens
        return round(self.layers * self.value_bytes * (fixed + each * columns))

    def once_bytes(self, columns: float) -> int:
        """Return the traffic of moving columns once, bytes: parameters and optimizer state."""
        return round(self.layers * self.state_bytes * self._parameters * columns)


def shed_by(sizes: Sequence[Sizes], *, once: bool) -> list[Sizes]:
    """Return the layers whose columns are shed by sticky plans (`once`) or by per-step plans."""
    plans = Plans.ONCE if once else Plans.STEP
    return [item for item in sizes if item.plans in (None, plans)]


def can_move(sizes: Sequence[Sizes]) -> bool:
    """Return whether columns can be moved once; True if no sizes are known."""
    movable = shed_by(sizes, once=True)
    return all(item.moves_for_good for item in movable) and bool(movable or not sizes)


def layers_of(sizes: Sequence[Sizes]) -> list[tuple[object, ...]]:
    """Return a key of the model's layers, without tokens and optimizer state, which may change."""
    return [(item.kind, item.width, item.layers, item.units, item.plans) for item in sizes]


def extra_bytes(sizes: Sequence[Sizes], columns: int, of: int, *, once: bool) -> int:
    """Return the traffic of migrating a rank's columns, bytes, in each step or once.

    Parameters
    ----------
    columns, of : int
        Migrating columns, and K.
    """
    total = 0
    for item in shed_by(sizes, once=once):
        moved = columns if item.units is None else columns * item.units / of
        total += item.once_bytes(moved) if once else item.step_bytes(moved)
    return total


def places(sizes: Sequence[Sizes], *, once: bool) -> tuple[Place, ...]:
    """Return the layers that have their own units; empty unless all layers have their own units."""
    layers = shed_by(sizes, once=once)
    with_units = [Place(item.units, item.share) for item in layers if item.units is not None]
    return tuple(with_units) if len(with_units) == len(layers) else ()
