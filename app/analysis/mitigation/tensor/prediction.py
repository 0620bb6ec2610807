"""What each rank takes for a step under a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.analysis.mitigation.tensor.costs import Affine, Costs
from app.analysis.mitigation.tensor.group import FloatArray, Group, IntArray, Shares
from app.analysis.mitigation.tensor.placing import apportioned


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
