"""Plans of pipelines over nodes of several types, for a time limit or a division of all nodes."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.planning.job.cuts import cover, most_microbatches
from app.analysis.planning.job.space import (
    JobPipeline,
    JobPlan,
    Space,
    Unit,
    fronts,
    padded,
    template_of,
)
from app.analysis.planning.problem import divisors
from app.analysis.quantities import IntArray

# Relative precision of the iteration time at which the bisection over divisions ends.
_CLOSE: Final = 1e-4
# Numbers of nearly equal units that are tried: every number up to the first constant, then a
# geometric sequence with the second constant as its ratio.
_ALL_NUMBERS: Final = 12
_NEXT_NUMBER: Final = 1.12


class MixedSearch:
    """Search for plans within a time limit, at given parallel sizes, on nodes of several types.

    A unit is a set of whole nodes for one or several equal pipelines (`Unit`).

    Parameters
    ----------
    dp_counts : tuple of int
        Candidate numbers of pipelines, ascending. Memory is computed for the last number and
        synchronization for the first, which gives lower bounds for all numbers.
    """

    def __init__(self, space: Space, units: tuple[Unit, ...], dp_counts: tuple[int, ...]) -> None:
        self.space, self.units, self.dp_counts = space, units, dp_counts
        self.dp = dp = dp_counts[-1]
        types = len(space.spec.devices)
        self.shape = np.array([device.nodes for device in space.spec.devices], dtype=np.int64)
        self.sizes = np.array([unit.nodes for unit in units], dtype=np.int64).reshape(-1, types)
        self.replicas = np.array([unit.replicas for unit in units], dtype=np.int64)
        orders = np.array([padded(unit.order, types) for unit in units], dtype=np.int64)
        self.points, self.starts = fronts(
            self.sizes,
            orders.reshape(-1, types),
            space.slots // self.replicas,
            space.arrays,
            space.static(dp),
            space.layers,
            space.microbatches,
            1,
        )
        tails = {}
        for unit in units:
            key = unit.order, sum(unit.nodes), unit.replicas
            if key not in tails:
                synchronization, _ = space.tail_parts_ps(unit, dp_counts[0])
                _, step = space.tail_parts_ps(unit, dp)
                tails[key] = synchronization + step
        self.tails = np.array(
            [tails[unit.order, sum(unit.nodes), unit.replicas] for unit in units], dtype=np.int64
        )

        # Group number of each unit: units of one group have the same nodes and replicas, and differ
        # only in the order of types.
        same = np.unique(np.column_stack([self.sizes, self.replicas]), axis=0, return_inverse=True)[
            1
        ]
        self.same: IntArray = same.reshape(-1)

    def _cover(self, most: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return table and choices of `cover`, and the units that the choices refer to.

        Of each group of units only the unit that completes most microbatches takes part.
        """
        by_most = np.lexsort((-most, self.same))
        units = by_most[np.flatnonzero(np.diff(self.same[by_most], prepend=-1))]
        units = units[most[units] > 0]
        worth = most[units] * self.replicas[units]
        table, choice = cover(self.sizes[units], self.replicas[units], worth, self.shape, self.dp)
        return table, choice, units

    def possible(self, time_ps: int) -> tuple[int, ...]:
        """Return the numbers of pipelines that may complete the batch within a time, ps."""
        most = most_microbatches(self.points, self.starts, time_ps, self.tails)
        table, _, _ = self._cover(most)
        final = table.max(axis=1) if self.space.spec.allow_idle else table[:, -1]
        return tuple(dp for dp in self.dp_counts if final[dp] >= self.space.microbatches)

    def plan_within(self, time_ps: int) -> JobPlan | None:
        """Return a plan that takes at most `time_ps`; None if there is no such plan."""
        most = most_microbatches(self.points, self.starts, time_ps, self.tails)
        table, choice, useful = self._cover(most)
        final = table[self.dp] if self.space.spec.allow_idle else table[self.dp, -1:]
        if final.max() < self.space.microbatches:
            return None
        state = int(final.argmax()) + table.shape[1] - len(final)
        walked = walk(choice, self.sizes[useful], self.replicas[useful], self.shape, self.dp, state)
        chosen = useful[walked].tolist()
        return self._plan(chosen, most)

    @property
    def longest_ps(self) -> int:
        """Return a time within which any pipeline can complete all microbatches, ps."""
        return int(self.points[:, 0].max()) * (self.space.microbatches + 1) + int(self.tails.max())

    def share(self, chosen: list[int]) -> JobPlan | None:
        """Return the plan of units with the best shares of the batch; None if a unit has no cut."""
        if any(self.starts[i] == self.starts[i + 1] for i in chosen):
            return None
        count = self.replicas[chosen]
        low, high = 0, self.longest_ps
        while low < high:
            middle = (low + high) // 2
            most = most_microbatches(self.points, self.starts, middle, self.tails)[chosen]
            if most.min() > 0 and (most * count).sum() >= self.space.microbatches:
                high = middle
            else:
                low = middle + 1
        most = most_microbatches(self.points, self.starts, low, self.tails)
        return self._plan(chosen, most)

    def _plan(self, chosen: list[int], most: IntArray) -> JobPlan:
        """Return the plan of chosen units, whose pipelines can complete `most` microbatches."""
        pipelines = [unit for unit in chosen for _ in range(self.replicas[unit])]
        shares = shares_of(
            [self._batch_times(unit, int(most[unit])) for unit in pipelines],
            self.space.microbatches,
        )
        used = [0] * len(self.shape)
        planned = []
        at = 0
        for unit_number in chosen:
            unit = self.units[unit_number]
            nodes = tuple(
                (kind, used[kind] + node) for kind in unit.order for node in range(unit.nodes[kind])
            )
            for kind in unit.order:
                used[kind] += unit.nodes[kind]
            for share in shares[at : at + unit.replicas]:
                template = template_of(self.space, unit, self.dp, share)
                if template is None:
                    raise AssertionError(unit)  # a unit with a front has a cut
                planned.append(JobPipeline(template, share, nodes))
            at += unit.replicas
        return JobPlan(self.space, tuple(planned))

    def _batch_times(self, unit: int, most: int) -> IntArray:
        """Return the times of a unit's pipeline for 1 to `most` microbatches, ps, ``[n - 1]``."""
        points = self.points[self.starts[unit] : self.starts[unit + 1]]
        number = np.arange(most)[:, None]
        times: IntArray = (points[:, 0] + number * points[:, 1]).min(axis=1) + self.tails[unit]
        return times


def shares_of(times: list[IntArray], microbatches: int) -> list[int]:
    """Return the number of microbatches per pipeline that minimizes the slowest pipeline's time.

    Parameters
    ----------
    times : list of int64 arrays
        For each pipeline its times for n microbatches, ``[n - 1]``, up to its largest share.
    """
    shares = [len(row) for row in times]
    heap = [(-int(row[-1]), i) for i, row in enumerate(times) if len(row) > 1]
    heapq.heapify(heap)
    for _ in range(sum(shares) - microbatches):
        _, i = heapq.heappop(heap)
        shares[i] -= 1
        if shares[i] > 1:
            heapq.heappush(heap, (-int(times[i][shares[i] - 1]), i))
    return shares


def walk(  # noqa: PLR0913, PLR0917 - as `cover`
    choice: IntArray, sizes: IntArray, replicas: IntArray, shape: IntArray, d: int, state: int
) -> list[int]:
    """Return the units by which `cover` reached a state with `d` pipelines."""
    strides = np.cumprod([1, *(shape[:0:-1] + 1)])[::-1]
    chosen = []
    while d:
        chosen.append(unit := int(choice[d, state]))
        state -= int((sizes[unit] * strides).sum())
        d -= int(replicas[unit])
    return chosen


@dataclass(frozen=True, slots=True)
class Division:
    """Division of all nodes of some types into units; `types` is the bit mask of these types."""

    types: int
    units: tuple[Unit, ...]

    @property
    def pipelines(self) -> int:
        """Return the number of pipelines of all units."""
        return sum(unit.replicas for unit in self.units)


def equal_divisions(space: Space) -> tuple[Division, ...]:
    """Return the divisions of the nodes of each set of types into equal units."""
    shape = [device.nodes for device in space.spec.devices]
    return tuple(
        Division(_type_mask(kinds), (unit,) * count)
        for kinds in _type_sets(len(shape))
        for count in divisors(math.gcd(*(shape[kind] for kind in kinds)))
        for replicas in divisors(space.slots)
        if is_possible(
            space,
            unit := unit_of(
                space,
                [nodes // count if kind in kinds else 0 for kind, nodes in enumerate(shape)],
                replicas,
            ),
        )
    )


def near_divisions(space: Space) -> tuple[Division, ...]:
    """Return the divisions into units that differ by at most one node per type, by set of types.

    Nodes that remain after an even division go to the slowest units.
    """
    shape = [device.nodes for device in space.spec.devices]
    divisions = []
    for kinds in _type_sets(len(shape)):
        for count in _unit_counts(sum(shape[kind] for kind in kinds)):
            parts = _spread_nodes(space, kinds, count)
            for replicas in divisors(space.slots):
                units = tuple(unit_of(space, part, replicas) for part in parts)
                if all(is_possible(space, unit) for unit in set(units)):
                    divisions.append(Division(_type_mask(kinds), units))
    return tuple(divisions)


def divided(space: Space, divisions: Sequence[Division], dp: int) -> JobPlan | None:
    """Return the best plan that combines divisions of disjoint sets of types; None if none fits.

    Parameters
    ----------
    dp : int
        Assumed number of pipelines for memory and synchronization; the plan is costed with its own
        number.
    """
    spec = space.spec
    distinct = {
        unit: n for n, unit in enumerate({u: 0 for division in divisions for u in division.units})
    }
    mixed = MixedSearch(space, tuple(distinct), (dp,))
    if not len(mixed.points):
        return None
    counted = [Counter(distinct[unit] for unit in division.units) for division in divisions]
    members = np.array([unit for counter in counted for unit in counter])
    number = np.array([many for counter in counted for many in counter.values()])
    starts = np.cumsum([0, *map(len, counted[:-1])])
    sets = np.array([division.types for division in divisions])
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
    distinct_units = list(dict.fromkeys(units))
    exact = MixedSearch(space, tuple(distinct_units), (pipelines,))
    return exact.share([distinct_units.index(unit) for unit in units])


def _type_sets(types: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, types + 1):
        yield from itertools.combinations(range(types), size)


def _type_mask(kinds: tuple[int, ...]) -> int:
    return sum(1 << kind for kind in kinds)


def _unit_counts(most: int) -> Iterator[int]:
    number = 1
    while number <= most:
        yield number
        factor = _NEXT_NUMBER if number > _ALL_NUMBERS else 1.0
        number = max(number + 1, int(number * factor))


def _spread_nodes(space: Space, kinds: tuple[int, ...], count: int) -> list[list[int]]:
    """Return the number of nodes of each type in each of `count` nearly equal units."""
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


def unit_of(space: Space, nodes: Sequence[int], replicas: int) -> Unit:
    """Return a unit whose types are ordered by memory: early stages hold the most microbatches."""
    capacity = space.arrays.capacity
    used = [kind for kind, number in enumerate(nodes) if number]
    order = tuple(sorted(used, key=lambda kind: (-capacity[kind], kind)))
    return Unit(tuple(nodes), order, replicas)


def is_possible(space: Space, unit: Unit) -> bool:
    """Return whether a unit has at most a stage per block, and the specified number if any."""
    stages = space.stages(unit)
    return 0 < stages <= space.layers and space.spec.fixed.pp in {None, stages}


def _best_partition(sets: IntArray, worth: IntArray, types: int) -> tuple[int, list[int]]:
    """Return the best total worth of a partition of the types into sets, and the chosen sets.

    Parameters
    ----------
    sets : int64 array, shape (choices,)
        Bit mask of the types of each choice.
    worth : int64 array, shape (choices,)
        Microbatches of each choice; 0 if it is not feasible.
    """
    whole = (1 << types) - 1
    single: dict[int, int] = {}
    for choice in np.argsort(worth, kind="stable").tolist():
        if worth[choice] > 0:
            single[int(sets[choice])] = choice
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for covered in range(1, whole + 1):
        for kinds, choice in single.items():
            rest = best.get(covered ^ kinds)
            # Sets are added in the order of their lowest type, so each partition occurs only once.
            if (
                kinds & covered == kinds
                and kinds & -kinds == covered & -covered
                and rest is not None
            ):
                total = rest[0] + int(worth[choice])
                if covered not in best or total > best[covered][0]:
                    best[covered] = total, [*rest[1], choice]
    return best.get(whole, (0, []))
