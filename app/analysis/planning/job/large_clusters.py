"""Bounds and plans for clusters too large for the exact program over nodes.

Ranges of numbers of pipelines are priced, least bound first, and halved; at the least one
microbatches are counted and a plan is built around it. The plan is improved by dividing free nodes
and those of a few pipelines anew, for a time a little below the plan's.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.planning.job.counted_bounds import Counted, counted_bound
from app.analysis.planning.job.cuts import cover, most_microbatches
from app.analysis.planning.job.heterogeneous import (
    MixedSearch,
    divided,
    is_possible,
    near_divisions,
    unit_of,
    walk,
)
from app.analysis.planning.job.node_losses import units_of_plan
from app.analysis.planning.job.price_bounds import priced_bound
from app.analysis.planning.job.space import NO_BOUND, BestJobs, JobPlan, Space, Unit
from app.analysis.planning.problem import divisors
from app.analysis.planning.search.budget import SearchBudget

# ---- Plans on clusters that are too large for the program over all nodes: built and rebuilt in par
#
# Nodes that are left, and those of a few pipelines that are taken out, are divided anew as well as
# can be for a time a little below the plan's, again and again. Units that are tried are those of
# few nodes and at most two types that prices say are nearly worth their nodes.


IntArray = NDArray[np.int64]

FloatArray = NDArray[np.float64]

# Nodes of a type in a unit that is tried, and units that are tried.
_MOST_NODES: Final = 8
_MOST_UNITS: Final = 400
# Nodes of units of one type that are tried whatever their prices say.
_SMALL: Final = 2
# States of the nodes that are divided anew.
_MOST_STATES: Final = 3000
# The time that is aimed at is below the plan's by these shares, one after another; each is given
# up after this number of rounds without a better plan.
_AIMS: Final = (0.04, 0.015, 0.005, 0.002)
_ROUNDS: Final = 60


class Rebuilding:
    """A division of a cluster's nodes into units, as it is improved.

    Parameters
    ----------
    own : sequence of Unit
        To begin with; there may be none.
    dp : int
        Pipelines that memory and synchronization assume; plans are costed with their own.
    counted : Counted
        What a TP group of each type is worth, and pipelines that are tried.
    seed : int
        Of what is taken out, which is drawn.
    """

    def __init__(
        self, space: Space, own: Sequence[Unit], dp: int, counted: Counted, seed: int = 0
    ) -> None:
        self.space, self.dp = space, dp
        worthwhile = [unit_of(space, nodes, replicas) for nodes, replicas in counted.pipelines]
        first = dict.fromkeys([*own, *worthwhile])
        units = list(dict.fromkeys([*first, *_near_units(space, own), *_small_units(space)]))
        mixed = MixedSearch(space, tuple(units), (dp,))
        kept = _worthwhile(mixed, counted.prices, len(first))
        self.mixed = MixedSearch(space, tuple(units[i] for i in kept), (dp,))
        position = {unit: i for i, unit in enumerate(self.mixed.units)}
        self.current = [position[unit] for unit in own if unit in position]
        self.draw = random.Random(seed)  # noqa: S311 - the same plan each time

    def best(self, time_ps: int, budget: SearchBudget) -> JobPlan | None:
        """Return the best plan that is found; `time_ps` is aimed at first."""
        best, aim = self._plan(), 0
        worth = self._worth(time_ps)
        failed = 0
        while aim < len(_AIMS) and not budget.spent:
            changed = self._divide_anew(worth)
            failed += 1
            if changed and (best is None or worth[self.current].sum() >= self.space.microbatches):
                found = self._plan()
                if found is not None and (best is None or found.time_ps < best.time_ps):
                    best, failed = found, 0
                    worth = self._worth(int(best.time_ps * (1 - _AIMS[aim])))
            if failed >= _ROUNDS:
                aim, failed = aim + 1, 0
                if best is None:
                    worth = self._worth(int(time_ps * 2**aim))
                elif aim < len(_AIMS):
                    worth = self._worth(int(best.time_ps * (1 - _AIMS[aim])))
        return best

    def _plan(self) -> JobPlan | None:
        """Return the plan of the units; None where nodes are left, or they do not fit."""
        idle = self.mixed.shape - self.mixed.sizes[self.current].sum(axis=0)
        dp = int(self.mixed.replicas[self.current].sum())
        fixed = self.space.spec.fixed.dp
        if (
            not self.current
            or (idle.any() and not self.space.spec.allow_idle)
            or dp > self.space.microbatches
            or fixed not in {None, dp}
        ):
            return None
        some = list(dict.fromkeys(self.current))
        exact = MixedSearch(self.space, tuple(self.mixed.units[i] for i in some), (dp,))
        return exact.share([some.index(i) for i in self.current])

    def _worth(self, time_ps: int) -> IntArray:
        """Return the microbatches that each unit does in a time."""
        mixed = self.mixed
        most = most_microbatches(mixed.points, mixed.starts, time_ps, mixed.tails)
        return most * mixed.replicas

    def _divide_anew(self, worth: IntArray) -> bool:
        """Divide nodes that are left, and those of some units, as well as can be."""
        mixed, current, draw = self.mixed, self.current, self.draw
        idle = mixed.shape - mixed.sizes[current].sum(axis=0)
        nodes = np.zeros_like(idle)
        for kind in draw.sample(range(len(idle)), len(idle)):
            fit = _MOST_STATES // int(np.prod(nodes + 1)) - 1
            nodes[kind] = draw.randint(0, max(min(int(idle[kind]), fit), 0))
        left = int(nodes.sum())
        out: list[int] = []
        for place in draw.sample(range(len(current)), len(current)):
            more = nodes + mixed.sizes[current[place]]
            if out and np.prod(more + 1) > _MOST_STATES:
                break
            nodes, out = more, [*out, place]
            if len(out) > 1 and draw.random() < 1 / 3:
                break
        removed = [current[place] for place in out]
        pipelines, before = int(mixed.replicas[removed].sum()), int(worth[removed].sum())
        usable = np.flatnonzero((worth > 0) & (mixed.sizes <= nodes).all(axis=1))
        most = min(2 * pipelines + left * self.space.slots + 2, self.space.microbatches)
        sizes, replicas = mixed.sizes[usable], mixed.replicas[usable]
        table, choice = cover(sizes, replicas, worth[usable], nodes, most)
        final = table if self.space.spec.allow_idle else table[:, -1:]
        d, state = divmod(int(final.argmax()), final.shape[1])
        if final[d, state] < (0 if left else before):
            return False
        state += table.shape[1] - final.shape[1]
        added = walk(choice, sizes, replicas, nodes, d, state)
        kept = [unit for place, unit in enumerate(current) if place not in out]
        self.current = [*kept, *usable[added].tolist()]
        return True


def _small_units(space: Space) -> list[Unit]:
    shape = [device.nodes for device in space.spec.devices]
    found = []
    for count in (1, 2):
        for kinds in itertools.permutations(range(len(shape)), count):
            ranges = [range(1, min(shape[kind], _MOST_NODES) + 1) for kind in kinds]
            for numbers in itertools.product(*ranges):
                here = dict(zip(kinds, numbers, strict=True))
                nodes = tuple(here.get(kind, 0) for kind in range(len(shape)))
                found += [
                    unit
                    for replicas in divisors(space.slots)
                    if space.stages(unit := Unit(nodes, kinds, replicas)) <= space.layers
                    and space.spec.fixed.pp in {None, space.stages(unit)}
                ]
    return found


def _near_units(space: Space, own: Sequence[Unit]) -> list[Unit]:
    """Return units with a node more or less, or one of another type instead of one of theirs."""
    shape = [device.nodes for device in space.spec.devices]
    kinds = range(len(shape))
    changes = [{kind: by} for kind in kinds for by in (1, -1)]
    changes += [{more: 1, less: -1} for more, less in itertools.permutations(kinds, 2)]
    found = []
    for unit in dict.fromkeys(own):
        for change in changes:
            nodes = tuple(number + change.get(kind, 0) for kind, number in enumerate(unit.nodes))
            if all(0 <= number <= most for number, most in zip(nodes, shape, strict=True)):
                near = unit_of(space, nodes, unit.replicas)
                found += [near] if is_possible(space, near) else []
    return found


def _worthwhile(mixed: MixedSearch, prices: FloatArray, first: int) -> list[int]:
    """Return the units that are tried: the first ones, small ones, and those nearest to worth."""
    space = mixed.space
    groups = mixed.shape * space.slots
    constant = (space.microbatches - float(prices @ groups)) / mixed.dp - 1
    times = np.full(len(mixed.units), np.inf)
    for i in range(len(mixed.units)):
        points = mixed.points[mixed.starts[i] : mixed.starts[i + 1]]
        if len(points):
            paid = float(prices @ mixed.sizes[i]) * space.slots / int(mixed.replicas[i])
            times[i] = (points[:, 0] + points[:, 1] * (constant + paid)).min() + mixed.tails[i]
    alone = (mixed.sizes > 0).sum(axis=1) == 1
    times[alone & (mixed.sizes.sum(axis=1) <= _SMALL) & np.isfinite(times)] = 0
    times[:first] = 0
    order = np.argsort(times, kind="stable")[:_MOST_UNITS]
    return sorted(order[np.isfinite(times[order])].tolist())


# ---- Sizes whose program over nodes is too large: bounds from prices, and plans that are built ---
# Ranges of numbers of pipelines are priced, the lowest bound first, and halved; where one is
# lowest, pipelines' microbatches are counted (`counted`) and a plan is built around it. What cannot
# be halved leaves its bound.


# Ranges of dp that get a bound from prices; the ends of one differ by at most this factor at first.
_MOST_PRICED: Final = 400
_NARROW: Final = 1.5
# Plans of the same sizes are built so often.
_MOST_BUILT: Final = 4
# A plan aims at its bound times this, and begins within as much of the best one.
_NEAR: Final = 1.25
# The best plan is rebuilt at first, for a share of the time, and so often at last, until it is this
# close to its bound.
_FIRST_SHARE: Final = 0.2
_AT_LAST: Final = 3
_CLOSE: Final = 1.01


@dataclass(slots=True)
class _Range:
    """Numbers of pipelines of some sizes that are too large for the program."""

    number: int
    some: tuple[int, ...]
    prices: NDArray[np.float64] | None = None  # its parent's, until it has its own
    priced: bool = False
    counted: Counted | None = None


def bound_of_large(
    spaces: list[Space],
    large: list[tuple[int, int, tuple[int, ...]]],
    bounds: dict[int, dict[int, int]],
    best: BestJobs,
    budget: SearchBudget,
) -> int:
    """Halve ranges of dp, the lowest bound first, and build plans there; return what is left."""
    left = _halved(spaces, large, bounds, best, budget)
    for seed in range(1, _AT_LAST + 1):
        if best.time_ps <= left * _CLOSE or budget.spent:
            break
        _improve_best(best, budget, seed)
    return left


def _halved(
    spaces: list[Space],
    large: list[tuple[int, int, tuple[int, ...]]],
    bounds: dict[int, dict[int, int]],
    best: BestJobs,
    budget: SearchBudget,
) -> int:
    serial = itertools.count()
    heap: list[tuple[int, int, _Range]] = []

    def push(bound: int, one: _Range) -> None:
        heapq.heappush(heap, (bound, next(serial), one))

    for one in itertools.chain.from_iterable(_near_numbers(*each[1:]) for each in large):
        push(min(bounds[one.number][dp] for dp in one.some), one)
    if heap:
        _improve_best(best, _share(budget, _FIRST_SHARE))
    built: dict[int, list[int]] = {}
    prices: dict[int, NDArray[np.float64]] = {}
    looked = 0
    while heap and heap[0][0] < best.time_ps:
        bound, _, one = heap[0]
        if best.plans and (budget.spent or looked >= _MOST_PRICED):
            return bound
        before = built.setdefault(one.number, [])
        heapq.heappop(heap)
        if one.counted is None:
            looked += not one.priced
            target_ps = best.time_ps if best.plans else int(bound * _NEAR)
            one.prices = prices.get(one.number) if one.prices is None else one.prices
            push(max(bound, _look(spaces[one.number], one, target_ps, budget)), one)
            prices[one.number] = _prices(one)
        elif len(before) < _MOST_BUILT and _is_far(one.some, before):
            before.append(one.some[len(one.some) // 2])
            _build(spaces[one.number], one, bound, best, budget)
            push(bound, one)
        elif len(one.some) == 1:
            return bound
        else:
            for half in _halves(one.some):
                least = max(bound, min(bounds[one.number][dp] for dp in half))
                push(least, _Range(one.number, half, one.prices))
        budget.tell(max(best.time_ps / max(heap[0][0], 1) - 1, 0.0))
    return NO_BOUND


def _look(space: Space, one: _Range, target_ps: int, budget: SearchBudget) -> int:
    """Price a range, and count its pipelines' microbatches the next time; return its bound."""
    if not one.priced:
        found = priced_bound(space, one.some, target_ps, budget, one.prices)
        one.prices, one.priced = found.prices, True
        return found.bound_ps
    one.counted = counted_bound(space, one.some, target_ps, budget, _prices(one))
    one.prices = one.counted.prices
    return one.counted.bound_ps


def _prices(one: _Range) -> NDArray[np.float64]:
    if one.prices is None:
        raise AssertionError(one)  # it has been priced
    return one.prices


def _is_far(some: tuple[int, ...], before: list[int]) -> bool:
    """Return whether no plan was built near the middle of some numbers of pipelines."""
    dp = some[len(some) // 2]
    return not any(dp < _NARROW * other and other < _NARROW * dp for other in before)


def _near_numbers(number: int, some: tuple[int, ...]) -> Iterator[_Range]:
    """Yield runs of numbers of pipelines whose ends are near to each other."""
    while some:
        count = bisect_right(some, int(_NARROW * some[0]))
        yield _Range(number, some[:count])
        some = some[count:]


def _halves(some: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return some[: len(some) // 2], some[len(some) // 2 :]


def _share(budget: SearchBudget, share: float) -> SearchBudget:
    """Return a part of the time that is left."""
    if budget.deadline_s is None:
        return budget
    now_s = budget.clock()
    return replace(budget, deadline_s=now_s + share * max(budget.deadline_s - now_s, 0.0))


def _improve_best(best: BestJobs, budget: SearchBudget, seed: int = 0) -> None:
    """Rebuild the best plan by prices of its own number of pipelines."""
    first = min(best.plans.values(), key=lambda plan: plan.time_ps, default=None)
    if first is None or first.space.sizes.interleave > 1:
        return
    space, some = first.space, (first.dp,)
    found = priced_bound(space, some, first.time_ps, budget)
    counted = counted_bound(space, some, first.time_ps, budget, found.prices)
    built = Rebuilding(space, units_of_plan(first), first.dp, counted, seed)
    best.offer(built.best(first.time_ps, budget))


def _build(space: Space, range_: _Range, bound: int, best: BestJobs, budget: SearchBudget) -> None:
    """Build a plan around some number of pipelines, from the best one of its sizes if near."""
    if range_.counted is None:
        return
    own = [plan for key, plan in best.plans.items() if key[0] == space.sizes]
    first = min(own, key=lambda plan: plan.time_ps, default=None)
    dp = range_.some[len(range_.some) // 2]
    if first is None or first.time_ps > _NEAR * bound:
        first = divided(space, near_divisions(space), dp)
        best.offer(first)
    # what is far from the best one is no beginning
    units = [] if first is None or first.time_ps > _NEAR * best.time_ps else units_of_plan(first)
    built = Rebuilding(space, units, dp, range_.counted)
    best.offer(built.best(min(best.time_ps, int(_NEAR * bound)), budget))
