"""Bounds and plans for clusters too large for the exact dynamic program over nodes.

The numbers of pipelines (dp) are searched in ranges, the range with the lowest bound first. A range
gets a bound from prices (`price_bounds`), then a sharper bound from whole microbatches
(`counted_bounds`); then a plan is built whose dp is in the range, and the range is halved. The
bound of a range with a single dp is final. Plans are improved by large neighborhood search: idle
nodes and the nodes of a few pipelines are divided again, optimally for a time slightly below the
plan's time. Candidate units have few nodes of at most two types, and complete nearly as many
microbatches as their price.
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

from app.analysis.planning.job.counted_bounds import CountedBound, counted_bound
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
from app.analysis.quantities import FloatArray, IntArray

# Maximum number of nodes of each type in a small candidate unit, and maximum number of candidate
# units.
_MOST_NODES: Final = 8
_MOST_UNITS: Final = 400
# Units of one type with at most this number of nodes are candidates regardless of their price.
_SMALL: Final = 2
# Maximum number of states of the dynamic program that redivides nodes; it bounds a round's time.
_MOST_STATES: Final = 3000
# Target times, tried in turn, as shares by which they are below the best plan's time; a target is
# abandoned after `_ROUNDS` rounds without a better plan.
_AIMS: Final = (0.04, 0.015, 0.005, 0.002)
_ROUNDS: Final = 60


class LargeNeighborhoodSearch:
    """Local search that redivides a cluster's nodes by destroy and repair (Shaw 1998).

    Parameters
    ----------
    own : sequence of Unit
        Initial units; may be empty.
    dp : int
        Assumed number of pipelines for memory and synchronization; plans are costed with their own
        number.
    counted : CountedBound
        Prices of TP groups, and pipelines that are worth their price.
    seed : int
        Seed of the draws of destroyed units.
    """

    def __init__(
        self, space: Space, own: Sequence[Unit], dp: int, counted: CountedBound, seed: int = 0
    ) -> None:
        self.space, self.dp = space, dp
        worthwhile = [unit_of(space, nodes, replicas) for nodes, replicas in counted.pipelines]
        first = dict.fromkeys([*own, *worthwhile])
        units = list(dict.fromkeys([*first, *_near_units(space, own), *_small_units(space)]))
        mixed = MixedSearch(space, tuple(units), (dp,))
        kept = _best_paying(mixed, counted.prices, len(first))
        self.mixed = MixedSearch(space, tuple(units[i] for i in kept), (dp,))
        position = {unit: i for i, unit in enumerate(self.mixed.units)}
        self.current = [position[unit] for unit in own if unit in position]
        self.draw = random.Random(seed)  # noqa: S311 - the same plan each time

    def best(self, time_ps: int, budget: SearchBudget) -> JobPlan | None:
        """Return the best plan found, starting from the target `time_ps`; None without a plan."""
        best, aim = self._plan(), 0
        worth = self._worth(time_ps)
        failed = 0
        while aim < len(_AIMS) and not budget.spent:
            changed = self._destroy_and_repair(worth)
            failed += 1
            if changed and (best is None or worth[self.current].sum() >= self.space.microbatches):
                plan = self._plan()
                if plan is not None and (best is None or plan.time_ps < best.time_ps):
                    best, failed = plan, 0
                    worth = self._worth(int(best.time_ps * (1 - _AIMS[aim])))
            if failed >= _ROUNDS:
                aim, failed = aim + 1, 0
                if best is None:
                    worth = self._worth(int(time_ps * 2**aim))
                elif aim < len(_AIMS):
                    worth = self._worth(int(best.time_ps * (1 - _AIMS[aim])))
        return best

    def _plan(self) -> JobPlan | None:
        """Return the plan of the current units; None if the units form no plan."""
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
        distinct = list(dict.fromkeys(self.current))
        exact = MixedSearch(self.space, tuple(self.mixed.units[i] for i in distinct), (dp,))
        return exact.share([distinct.index(i) for i in self.current])

    def _worth(self, time_ps: int) -> IntArray:
        """Return the number of microbatches that each unit completes within a time, (units,)."""
        mixed = self.mixed
        most = most_microbatches(mixed.points, mixed.starts, time_ps, mixed.tails)
        return most * mixed.replicas

    def _destroy_and_repair(self, worth: IntArray) -> bool:
        """Divide the nodes of drawn units and idle nodes again; return whether units changed."""
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
    units = []
    for count in (1, 2):
        for kinds in itertools.permutations(range(len(shape)), count):
            ranges = [range(1, min(shape[kind], _MOST_NODES) + 1) for kind in kinds]
            for numbers in itertools.product(*ranges):
                counts = dict(zip(kinds, numbers, strict=True))
                nodes = tuple(counts.get(kind, 0) for kind in range(len(shape)))
                units += [
                    unit
                    for replicas in divisors(space.slots)
                    if space.stages(unit := Unit(nodes, kinds, replicas)) <= space.layers
                    and space.spec.fixed.pp in {None, space.stages(unit)}
                ]
    return units


def _near_units(space: Space, own: Sequence[Unit]) -> list[Unit]:
    """Return possible variants of units with one node more, one less, or one of another type."""
    shape = [device.nodes for device in space.spec.devices]
    kinds = range(len(shape))
    changes = [{kind: by} for kind in kinds for by in (1, -1)]
    changes += [{more: 1, less: -1} for more, less in itertools.permutations(kinds, 2)]
    units = []
    for unit in dict.fromkeys(own):
        for change in changes:
            nodes = tuple(number + change.get(kind, 0) for kind, number in enumerate(unit.nodes))
            if all(0 <= number <= most for number, most in zip(nodes, shape, strict=True)):
                near = unit_of(space, nodes, unit.replicas)
                units += [near] if is_possible(space, near) else []
    return units


def _best_paying(mixed: MixedSearch, prices: FloatArray, first: int) -> list[int]:
    """Return the indices of candidate units: the `first`, small ones, and the best by price."""
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


# Maximum number of ranges that get a price bound, and maximum ratio of the largest to the smallest
# dp of an initial range.
_MOST_PRICED: Final = 400
_NARROW: Final = 1.5
# Maximum number of plans that are built for the same parallel sizes.
_MOST_BUILT: Final = 4
# Factor from a range's bound to the target time of its plan. A plan that exceeds the bound by more
# than this factor is replaced as the local search's start, and a plan that exceeds the best plan by
# more is no start.
_NEAR: Final = 1.25
# The best plan is improved first for this share of the remaining time. At the end it is improved at
# most `_AT_LAST` times, until its time is within the factor `_CLOSE` of its bound.
_FIRST_SHARE: Final = 0.2
_AT_LAST: Final = 3
_CLOSE: Final = 1.01


@dataclass(slots=True)
class _Range:
    """Range of numbers of pipelines at given parallel sizes, with the bounds computed so far."""

    number: int
    dp_counts: tuple[int, ...]
    prices: FloatArray | None = None  # of the parent range until `priced`
    priced: bool = False
    counted: CountedBound | None = None


def search_ranges(
    spaces: list[Space],
    large: list[tuple[int, int, tuple[int, ...]]],
    bounds: dict[int, dict[int, int]],
    best: BestJobs,
    budget: SearchBudget,
) -> int:
    """Bound ranges of dp and build plans, lowest bound first, then improve the best plan.

    Returns
    -------
    int
        Lower bound of the plans in ranges that were not searched to the end, ps.
    """
    left = _bisect_ranges(spaces, large, bounds, best, budget)
    for seed in range(1, _AT_LAST + 1):
        if best.time_ps <= left * _CLOSE or budget.spent:
            break
        _improve_best(best, budget, seed)
    return left


def _bisect_ranges(
    spaces: list[Space],
    large: list[tuple[int, int, tuple[int, ...]]],
    bounds: dict[int, dict[int, int]],
    best: BestJobs,
    budget: SearchBudget,
) -> int:
    serial = itertools.count()
    heap: list[tuple[int, int, _Range]] = []

    def push(bound: int, range_: _Range) -> None:
        heapq.heappush(heap, (bound, next(serial), range_))

    for range_ in itertools.chain.from_iterable(_narrow_ranges(*each[1:]) for each in large):
        push(min(bounds[range_.number][dp] for dp in range_.dp_counts), range_)
    if heap:
        _improve_best(best, _fraction_of(budget, _FIRST_SHARE))
    built: dict[int, list[int]] = {}
    prices: dict[int, FloatArray] = {}
    looked = 0
    while heap and heap[0][0] < best.time_ps:
        bound, _, range_ = heap[0]
        if best.plans and (budget.spent or looked >= _MOST_PRICED):
            return bound
        before = built.setdefault(range_.number, [])
        heapq.heappop(heap)
        if range_.counted is None:
            looked += not range_.priced
            target_ps = best.time_ps if best.plans else int(bound * _NEAR)
            range_.prices = prices.get(range_.number) if range_.prices is None else range_.prices
            push(
                max(bound, _tighten_bound(spaces[range_.number], range_, target_ps, budget)), range_
            )
            prices[range_.number] = _prices(range_)
        elif len(before) < _MOST_BUILT and _is_unexplored(range_.dp_counts, before):
            before.append(range_.dp_counts[len(range_.dp_counts) // 2])
            _build_plan(spaces[range_.number], range_, bound, best, budget)
            push(bound, range_)
        elif len(range_.dp_counts) == 1:
            return bound
        else:
            for half in (
                range_.dp_counts[: len(range_.dp_counts) // 2],
                range_.dp_counts[len(range_.dp_counts) // 2 :],
            ):
                least = max(bound, min(bounds[range_.number][dp] for dp in half))
                push(least, _Range(range_.number, half, range_.prices))
        budget.report_gap(max(best.time_ps / max(heap[0][0], 1) - 1, 0.0))
    return NO_BOUND


def _tighten_bound(space: Space, range_: _Range, target_ps: int, budget: SearchBudget) -> int:
    """Return the next bound of a range, ps: first from prices, then from whole microbatches."""
    if not range_.priced:
        priced = priced_bound(space, range_.dp_counts, target_ps, budget, range_.prices)
        range_.prices, range_.priced = priced.prices, True
        return priced.bound_ps
    range_.counted = counted_bound(space, range_.dp_counts, target_ps, budget, _prices(range_))
    range_.prices = range_.counted.prices
    return range_.counted.bound_ps


def _prices(range_: _Range) -> FloatArray:
    if range_.prices is None:
        raise AssertionError(range_)  # called for priced ranges only
    return range_.prices


def _is_unexplored(dp_counts: tuple[int, ...], before: list[int]) -> bool:
    """Return whether no plan has been built near the middle of a range."""
    dp = dp_counts[len(dp_counts) // 2]
    return not any(dp < _NARROW * other and other < _NARROW * dp for other in before)


def _narrow_ranges(number: int, dp_counts: tuple[int, ...]) -> Iterator[_Range]:
    """Yield consecutive ranges of dp whose ends have at most the ratio `_NARROW`."""
    while dp_counts:
        count = bisect_right(dp_counts, int(_NARROW * dp_counts[0]))
        yield _Range(number, dp_counts[:count])
        dp_counts = dp_counts[count:]


def _fraction_of(budget: SearchBudget, share: float) -> SearchBudget:
    """Return a search budget that ends after a share of the remaining time."""
    if budget.deadline_s is None:
        return budget
    now_s = budget.clock()
    return replace(budget, deadline_s=now_s + share * max(budget.deadline_s - now_s, 0.0))


def _improve_best(best: BestJobs, budget: SearchBudget, seed: int = 0) -> None:
    """Improve the best plan by local search, with prices computed for its number of pipelines."""
    first = min(best.plans.values(), key=lambda plan: plan.time_ps, default=None)
    if first is None or first.space.sizes.interleave > 1:
        return
    space, dp_counts = first.space, (first.dp,)
    priced = priced_bound(space, dp_counts, first.time_ps, budget)
    counted = counted_bound(space, dp_counts, first.time_ps, budget, priced.prices)
    built = LargeNeighborhoodSearch(space, units_of_plan(first), first.dp, counted, seed)
    best.offer(built.best(first.time_ps, budget))


def _build_plan(
    space: Space, range_: _Range, bound: int, best: BestJobs, budget: SearchBudget
) -> None:
    """Build a plan whose number of pipelines is about a range's middle; offer it to `best`.

    The local search starts from the best plan of the same sizes if this plan is near the bound.
    """
    if range_.counted is None:
        return
    own = [plan for key, plan in best.plans.items() if key[0] == space.sizes]
    first = min(own, key=lambda plan: plan.time_ps, default=None)
    dp = range_.dp_counts[len(range_.dp_counts) // 2]
    if first is None or first.time_ps > _NEAR * bound:
        first = divided(space, near_divisions(space), dp)
        best.offer(first)
    # A plan much slower than the best plan is not a useful start.
    units = [] if first is None or first.time_ps > _NEAR * best.time_ps else units_of_plan(first)
    built = LargeNeighborhoodSearch(space, units, dp, range_.counted)
    best.offer(built.best(min(best.time_ps, int(_NEAR * bound)), budget))
