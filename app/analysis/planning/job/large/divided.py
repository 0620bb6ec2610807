"""Plans on several types in which nodes of some types, divided as equally as can be, make units."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.planning.job.cuts import most_microbatches
from app.analysis.planning.job.mixed import MixedSearch
from app.analysis.planning.job.result import JobPlan
from app.analysis.planning.job.space import Space, Unit
from app.analysis.planning.problem import divisors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

# Bisection for a first plan ends within this, a fraction.
_CLOSE: Final = 1e-4
# Numbers of units that are tried where they are not equal: all up to the first, then each this many
# times the one before.
_ALL_NUMBERS: Final = 12
_NEXT_NUMBER: Final = 1.12


@dataclass(frozen=True, slots=True)
class Division:
    """All nodes of some types as units; `types` has a bit for each type."""

    types: int
    units: tuple[Unit, ...]

    @property
    def pipelines(self) -> int:
        """Return the pipelines of all units."""
        return sum(unit.replicas for unit in self.units)


def equal_divisions(space: Space) -> tuple[Division, ...]:
    """Return divisions of all nodes of some types into equal units."""
    shape = [device.nodes for device in space.spec.devices]
    return tuple(
        Division(_bits(kinds), (unit,) * count)
        for kinds in _sets(len(shape))
        for count in divisors(math.gcd(*(shape[kind] for kind in kinds)))
        for replicas in divisors(space.slots)
        if is_possible(space, unit := unit_of(space, _of(kinds, shape, count), replicas))
    )


def near_divisions(space: Space) -> tuple[Division, ...]:
    """Return divisions of all nodes of some types into units that differ by a node of each type.

    Nodes that are left over of a type go where the units are slowest.
    """
    shape = [device.nodes for device in space.spec.devices]
    found = []
    for kinds in _sets(len(shape)):
        for count in _numbers(sum(shape[kind] for kind in kinds)):
            parts = _parts(space, kinds, count)
            for replicas in divisors(space.slots):
                units = tuple(unit_of(space, part, replicas) for part in parts)
                if all(is_possible(space, unit) for unit in set(units)):
                    found.append(Division(_bits(kinds), units))
    return tuple(found)


def divided(space: Space, divisions: Sequence[Division], dp: int) -> JobPlan | None:
    """Return the best plan of divisions of sets of types.

    Parameters
    ----------
    dp : int
        What memory and synchronization assume at first; the plan is costed with its own.
    """
    spec = space.spec
    distinct = {unit: n for n, unit in enumerate({u: 0 for one in divisions for u in one.units})}
    mixed = MixedSearch(space, tuple(distinct), (dp,))
    if not len(mixed.points):
        return None
    counted = [Counter(distinct[unit] for unit in one.units) for one in divisions]
    members = np.array([unit for one in counted for unit in one])
    number = np.array([many for one in counted for many in one.values()])
    starts = np.cumsum([0, *map(len, counted[:-1])])
    sets = np.array([one.types for one in divisions])
    low, high = 0, mixed.longest_ps
    chosen: list[int] = []
    while low < high * (1 - _CLOSE):
        middle = (low + high) // 2
        most = most_microbatches(mixed.points, mixed.starts, middle, mixed.tails)[members]
        worth = np.add.reduceat(most * number * mixed.replicas[members], starts)
        worth[np.minimum.reduceat(most, starts) == 0] = 0
        total, picked = _best_partition(sets, worth, len(spec.devices))
        if total >= space.microbatches:
            chosen, high = picked, middle
        else:
            low = middle + 1
    units = [unit for i in chosen for unit in divisions[i].units]
    pipelines = sum(unit.replicas for unit in units)
    if not chosen or pipelines > space.microbatches or spec.fixed.dp not in {None, pipelines}:
        return None
    some = list(dict.fromkeys(units))
    exact = MixedSearch(space, tuple(some), (pipelines,))
    return exact.share([some.index(unit) for unit in units])


def _sets(types: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, types + 1):
        yield from itertools.combinations(range(types), size)


def _bits(kinds: tuple[int, ...]) -> int:
    return sum(1 << kind for kind in kinds)


def _numbers(most: int) -> Iterator[int]:
    number = 1
    while number <= most:
        yield number
        factor = _NEXT_NUMBER if number > _ALL_NUMBERS else 1.0
        number = max(number + 1, int(number * factor))


def _parts(space: Space, kinds: tuple[int, ...], count: int) -> list[list[int]]:
    """Return the nodes of each type of each of some units that share all nodes."""
    block = space.arrays.block.tolist()
    parts = [[0] * len(block) for _ in range(count)]
    speed = [0.0] * count
    for kind in sorted(kinds, key=lambda kind: block[kind]):
        each, more = divmod(space.spec.devices[kind].nodes, count)
        slowest = set(sorted(range(count), key=lambda i: speed[i])[:more])
        for i, part in enumerate(parts):
            part[kind] = each + (i in slowest)
            speed[i] += part[kind] / block[kind]
    return parts


def _of(kinds: tuple[int, ...], shape: Sequence[int], count: int) -> list[int]:
    return [nodes // count if kind in kinds else 0 for kind, nodes in enumerate(shape)]


def unit_of(space: Space, nodes: Sequence[int], replicas: int) -> Unit:
    """Return a unit: it passes the types with most memory first, where most is in flight."""
    capacity = space.arrays.capacity
    used = [kind for kind, number in enumerate(nodes) if number]
    order = tuple(sorted(used, key=lambda kind: (-capacity[kind], kind)))
    return Unit(tuple(nodes), order, replicas)


def is_possible(space: Space, unit: Unit) -> bool:
    """Return whether a unit has no more stages than blocks, and those that are asked for."""
    stages = space.stages(unit)
    return 0 < stages <= space.layers and space.spec.fixed.pp in {None, stages}


def _best_partition(sets: IntArray, worth: IntArray, types: int) -> tuple[int, list[int]]:
    """Return the most that a partition of the types into sets is worth, and a choice for each set.

    Parameters
    ----------
    sets : int64 array, shape (choices,)
        Types of each choice, a bit for each.
    worth : int64 array, shape (choices,)
        What the nodes of all of them do, divided as it says; nothing: it cannot be used.
    """
    whole = (1 << types) - 1
    single: dict[int, int] = {}
    for choice in np.argsort(worth, kind="stable").tolist():
        if worth[choice] > 0:
            single[int(sets[choice])] = choice
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for covered in range(1, whole + 1):
        for some, choice in single.items():
            rest = best.get(covered ^ some)
            # the set with the lowest type goes first: each partition once
            if some & covered == some and some & -some == covered & -covered and rest is not None:
                total = rest[0] + int(worth[choice])
                if covered not in best or total > best[covered][0]:
                    best[covered] = total, [*rest[1], choice]
    return best.get(whole, (0, []))
