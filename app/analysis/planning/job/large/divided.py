"""First plans on several types: nodes of some types, each divided equally, as equal pipelines."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.planning.job.cuts import most_microbatches
from app.analysis.planning.job.mixed import MixedSearch
from app.analysis.planning.job.result import JobPlan
from app.analysis.planning.job.space import Space, Unit, divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

# Bisection for a first plan ends within this, a fraction.
_CLOSE: Final = 1e-4


def equal_units(space: Space) -> tuple[Unit, ...]:
    """Return the units that equal divisions of all nodes of some types make.

    A pipeline passes the types with most memory first: there most is in flight.
    """
    spec = space.spec
    shape = [device.nodes for device in spec.devices]
    capacity = space.arrays.capacity
    found = []
    for size in range(1, len(shape) + 1):
        for kinds in itertools.combinations(range(len(shape)), size):
            order = tuple(sorted(kinds, key=lambda kind: (-capacity[kind], kind)))
            for count in divisors(math.gcd(*(shape[kind] for kind in kinds))):
                nodes = tuple(
                    number // count if kind in kinds else 0 for kind, number in enumerate(shape)
                )
                found += [
                    unit
                    for replicas in divisors(space.slots)
                    if space.stages(unit := Unit(nodes, order, replicas)) <= space.layers
                    and spec.fixed.pp in {None, space.stages(unit)}
                ]
    return tuple(found)


def divided(space: Space, units: tuple[Unit, ...], dp: int) -> JobPlan | None:
    """Return the best plan of equal divisions of sets of types.

    Parameters
    ----------
    dp : int
        What memory and synchronization assume at first; the plan is costed with its own.
    """
    if not units:
        return None
    spec = space.spec
    mixed = MixedSearch(space, units, (dp,))
    if not len(mixed.points):
        return None
    sets = np.array([sum(1 << kind for kind in unit.order) for unit in units])
    firsts = [unit.order[0] for unit in units]
    counts = mixed.shape[firsts] // mixed.sizes[np.arange(len(units)), firsts]
    low, high = 0, mixed.longest_ps
    chosen: list[int] = []
    while low < high * (1 - _CLOSE):
        middle = (low + high) // 2
        most = most_microbatches(mixed.points, mixed.starts, middle, mixed.tails)
        worth, picked = _best_partition(sets, most * counts * mixed.replicas, len(spec.devices))
        if worth >= space.microbatches:
            chosen, high = picked, middle
        else:
            low = middle + 1
    pipelines = int((counts * mixed.replicas)[chosen].sum())
    if not chosen or pipelines > space.microbatches or spec.fixed.dp not in {None, pipelines}:
        return None
    mixed = MixedSearch(space, tuple(units[i] for i in chosen), (pipelines,))
    return mixed.share(
        [position for position, i in enumerate(chosen) for _ in range(int(counts[i]))]
    )


def _best_partition(sets: IntArray, worth: IntArray, types: int) -> tuple[int, list[int]]:
    """Return the most that a partition of the types into sets is worth, and a unit for each set.

    Parameters
    ----------
    sets : int64 array, shape (units,)
        Types of each unit, a bit for each.
    worth : int64 array, shape (units,)
        What the nodes of all of them do, divided as the unit says; nothing: it cannot be used.
    """
    whole = (1 << types) - 1
    single: dict[int, int] = {}
    for unit in np.argsort(worth, kind="stable").tolist():
        if worth[unit] > 0:
            single[int(sets[unit])] = unit
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for covered in range(1, whole + 1):
        for some, unit in single.items():
            rest = best.get(covered ^ some)
            # the set with the lowest type goes first: each partition once
            if some & covered == some and some & -some == covered & -covered and rest is not None:
                total = rest[0] + int(worth[unit])
                if covered not in best or total > best[covered][0]:
                    best[covered] = total, [*rest[1], unit]
    return best.get(whole, (0, []))
