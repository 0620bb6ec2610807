"""Predicted step time of each rank under a plan, placement of moved columns, traffic in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heapreplace

import numpy as np

from app.analysis.mitigation.tensor.group import Affine, Costs, FloatArray, Group, IntArray, Shares

# ---- Who computes the columns that are handed over, and how work is levelled over ranks --------


def renumbered(rank: int, sender: int, ranks: int) -> int:
    """Return ν, a receiver's number among those of a sender: 1 … ranks − 1, cyclic from the sender.

    Examples
    --------
    Figure 4 of the paper, with three ranks of which the third straggles; both ranks from 0:

    >>> [renumbered(rank, 2, 3) for rank in (0, 1)]
    [1, 2]
    """
    return (rank + ranks - sender) % ranks


def slices(count: int, sender: int, receivers: IntArray, ranks: int) -> IntArray:
    """Return how many of a sender's units each rank computes, shape (ranks,).

    The receiver with the number ν of n computes [(ν − 1)·count/n, ν·count/n), rounded down. Where
    some ranks receive nothing, the others are numbered in the same order.

    Parameters
    ----------
    count : int
        Units that are handed over.
    receivers : int64 array, shape (n,)
        Ranks that take a part, without the sender; at least one.
    ranks : int
        Of the group.
    """
    in_order = sorted(receivers.tolist(), key=lambda rank: renumbered(rank, sender, ranks))
    bounds = np.arange(len(in_order) + 1) * count // len(in_order)
    taken = np.zeros(ranks, dtype=np.int64)
    taken[in_order] = np.diff(bounds)
    return taken


def routed(shed: IntArray, received: IntArray) -> IntArray:
    """Return who hands how many units to whom, from what each rank sheds and receives.

    Senders fill receivers one after the other, so that few pairs of ranks have something to do with
    each other.

    Parameters
    ----------
    shed, received : int64 arrays, shape (ranks,)
        With the same sum; no rank has both.

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
    """Return `total` divided in proportion to parts, by largest remainders, as jobs do.

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
    """Return how many of `total` units each rank computes for the slowest to be soonest done.

    Water-filling: min τ with Σ (τ − fixed)⁺ / unit_s = total, rounded down, and the rest goes
    one by one where it ends soonest. No other division in whole units ends sooner.

    Parameters
    ----------
    fixed_s, unit_s : float64 arrays, shape (ranks,)
        What a rank takes without any unit, and for each.
    total : int
        At least `least` × ranks.
    least : int
        Units that each rank computes at least.

    Returns
    -------
    int64 array, shape (ranks,)
    """
    level_s = _level(fixed_s + least * unit_s, unit_s, total - least * len(fixed_s))
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


def _level(fixed_s: FloatArray, unit_s: FloatArray, total: float) -> float:
    """Return τ, where Σ (τ − fixed)⁺ / unit_s is the total."""
    order = np.argsort(fixed_s, kind="stable")
    fixed, speed = fixed_s[order], 1.0 / unit_s[order]
    # With the first n ranks under water: τ = (total + Σ fixed · speed) / Σ speed.
    levels = (total + np.cumsum(fixed * speed)) / np.cumsum(speed)
    above = np.append(fixed[1:], np.inf)
    return float(levels[np.argmax(levels <= above)])


# ---- What each rank takes for a step under a plan ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Layers in which a rank's columns are whole units: the heads of attention, for one."""

    # Of a rank, in each of these layers. Who leaves out 31 % of eight heads leaves out two.
    units: int
    share: float  # of a rank's multiplications; those of all places add up to 1


@dataclass(frozen=True, slots=True, eq=False)
class _Done:
    """What each rank computes under a plan: shares of its own columns, shape (places, ranks)."""

    own: FloatArray
    received: FloatArray
    weights: FloatArray

    @property
    def all_own(self) -> FloatArray:
        """Return the ranks' own over all places, shape (ranks,)."""
        total: FloatArray = self.weights @ self.own
        return total

    @property
    def all_received(self) -> FloatArray:
        """Return what ranks do for others over all places, shape (ranks,)."""
        total: FloatArray = self.weights @ self.received
        return total


def _done(group: Group, shares: Shares, places: Sequence[Place]) -> _Done:
    if not places:
        remaining = (group.units - shares.shed)[None] / group.units
        return _Done(remaining, shares.received[None] / group.units, np.ones(1))
    own = np.ones((len(places), group.ranks))
    received = np.zeros_like(own)
    for number, place in enumerate(places):
        for sender in np.flatnonzero(shares.shed).tolist():
            targets = np.flatnonzero(shares.moved[sender])
            parts = [int(shares.resized[sender]), *shares.moved[sender, targets].tolist()]
            found = apportioned([*parts, group.units - sum(parts)], place.units)
            own[number, sender] = found[-1] / place.units
            received[number, targets] += np.array(found[1:-1]) / place.units
    weights = np.array([place.share for place in places])
    return _Done(own, received, weights / weights.sum())


def predicted_s(
    group: Group,
    shares: Shares,
    costs: Costs,
    *,
    each_step: bool = True,
    places: Sequence[Place] = (),
) -> FloatArray:
    """Return T of each rank under a plan, without waiting; the step waits for the slowest.

    A rank that resizes also pays Ω1 + Ω2, and one that hands columns over what that takes of it.
    Every rank takes part in sending columns and bringing their results back, Φ1 of all that is
    migrated: the collectives of a migration are the group's.

    Parameters
    ----------
    group : Group
        Without a plan.
    each_step : bool
        Whether what migrates is sent in each step; if not, columns have moved once, and are
        computed with the receiver's own.
    places : sequence of Place
        Where columns go in fewer units than the plan's; without any, in the plan's.

    Returns
    -------
    float64 array, shape (ranks,)
        Seconds.
    """
    done = _done(group, shares, places)
    return _taken_s(
        group,
        (group.matmul_s * done.all_own, done.all_received * group.units),
        (shares.resized, shares.migrated),
        costs,
        each_step=each_step,
    )


def uneven_s(group: Group, shares: Shares, places: Sequence[Place]) -> float:
    """Return what a step waits because ranks are level over all layers, but not in each of them.

    A collective ends every layer: who has a head more there is waited for, whatever it does less in
    the next one.
    """
    done = _done(group, shares, places)
    each_s = done.weights[:, None] * (group.fixed_s + group.matmul_s * (done.own + done.received))
    return float(each_s.max(axis=1).sum() - each_s.sum(axis=0).max())


def busy_s(
    group: Group, resized: IntArray, given: IntArray, received: IntArray, costs: Costs
) -> FloatArray:
    """Return the same from how many units each rank leaves out, hands over and takes over.

    Parameters
    ----------
    resized, given, received : int64 arrays, shape (ranks,)

    Returns
    -------
    float64 array, shape (ranks,)
        Seconds, where what migrates is sent in each step.
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
    """Return what ranks take.

    Parameters
    ----------
    computed : (float64 array, float64 array)
        Seconds of a rank's own columns, and the units that it takes over.
    shed : (int64 array, int64 array)
        Units that each rank leaves out, and hands over.
    """
    (own_s, received), (resized, given) = computed, shed
    unit = group.unit
    time_s: FloatArray = group.fixed_s + own_s
    if each_step and costs.compute is not None:
        # The pre-test ran where nothing was slow.
        slower = group.unit_s / group.unit_s.min()
        time_s += slower * _each(costs.compute, received * unit)
    else:
        time_s += group.unit_s * received
    if each_step:
        time_s += costs.communicate(int(given.sum()) * unit) + _each(costs.lend, given * unit)
    time_s += _each(costs.extract, resized * unit) + costs.allocate_s * (resized > 0)
    return time_s


def _each(cost: Affine, columns: IntArray | FloatArray) -> FloatArray:
    return np.where(columns > 0, cost.fixed_s + cost.column_s * columns, 0.0)


# ---- What the sizes of a job's layers say: bytes that a migration moves, and how finely it divides


class Kind(StrEnum):
    """What a column is, and with it what has to travel."""

    HIDDEN_UNIT = "hidden_unit"  # a row of W1, its bias and a column of W2 together
    COLUMN = "column"  # of W in a column-parallel layer
    ROW = "row"  # of W in a row-parallel layer


class Plans(StrEnum):
    """Which plans shed a layer's columns so."""

    STEP = "step"  # all that shed work in each step
    ONCE = "once"  # sticky: moved once


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a rank's layers of one kind."""

    kind: Kind
    width: int  # of a hidden unit the width of the model; else O, the rows of the local W
    tokens: int  # rows of X of a step: sequences × their length
    layers: int  # layers in which columns are shed
    value_bytes: int  # of a number that travels
    state_bytes: int  # of a parameter with its optimizer state
    # Units that a rank's columns go in there; None: as many as the plan's columns.
    units: int | None = None
    share: float = 1.0  # of a rank's multiplications; weighs layers against each other
    plans: Plans | None = None  # None: all of them

    @property
    def moves_for_good(self) -> bool:
        """Return whether columns that have moved need no traffic in a step: hidden units."""
        return self.kind is Kind.HIDDEN_UNIT

    @property
    def _parameters(self) -> int:
        """Return the parameters of a column in one layer."""
        return 2 * self.width + 1 if self.kind is Kind.HIDDEN_UNIT else self.width

    def step_bytes(self, columns: float) -> int:
        """Return what a step sends for migrated columns, and brings back.

        A hidden unit sends parameters and brings their gradients back; what it computes rides the
        all-reduce. Columns of a column-parallel layer also need dY and bring back their part of Y,
        which do not grow with the columns; those of a row-parallel one X[:, m], and dX[:, m] back.
        All is counted once, however many ranks a broadcast reaches.
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
        """Return what moving columns for good sends: parameters and optimizer state."""
        return round(self.layers * self.state_bytes * self._parameters * columns)


def shed_by(sizes: Sequence[Sizes], *, once: bool) -> list[Sizes]:
    """Return the layers of which sticky plans, or all others, shed columns."""
    plans = Plans.ONCE if once else Plans.STEP
    return [item for item in sizes if item.plans in (None, plans)]


def can_move(sizes: Sequence[Sizes]) -> bool:
    """Return whether columns can be moved once; where nothing is known, they can."""
    found = shed_by(sizes, once=True)
    return all(item.moves_for_good for item in found) and bool(found or not sizes)


def layers_of(sizes: Sequence[Sizes]) -> list[tuple[object, ...]]:
    """Return what stays while a model does; tokens and optimizer states come and go."""
    return [(item.kind, item.width, item.layers, item.units, item.plans) for item in sizes]


def extra_bytes(sizes: Sequence[Sizes], columns: int, of: int, *, once: bool) -> int:
    """Return what migrating some of a rank's columns sends, in a step or once.

    Parameters
    ----------
    columns, of : int
        Columns that migrate, and K.
    """
    total = 0
    for item in shed_by(sizes, once=once):
        here = columns if item.units is None else columns * item.units / of
        total += item.once_bytes(here) if once else item.step_bytes(here)
    return total


def places(sizes: Sequence[Sizes], *, once: bool) -> tuple[Place, ...]:
    """Return where columns go in units of their own; none where the sizes do not say for all."""
    found = shed_by(sizes, once=once)
    known = [Place(item.units, item.share) for item in found if item.units is not None]
    return tuple(known) if len(known) == len(found) else ()
