"""Sizes whose program over nodes is too large: bounds from prices, and plans that are built.

Ranges of numbers of pipelines are priced, the lowest bound first, and halved; where one is lowest,
pipelines' microbatches are counted (`counted`) and a plan is built around it. What cannot be halved
leaves its bound.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from app.analysis.planning.job.large.counted import Counted, counted_bound
from app.analysis.planning.job.large.divided import divided, near_divisions
from app.analysis.planning.job.large.priced import priced_bound
from app.analysis.planning.job.large.rebuilt import Rebuilding
from app.analysis.planning.job.losses import units_of_plan
from app.analysis.planning.job.result import NO_BOUND, BestJobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from app.analysis.planning.job.space import Space
    from app.analysis.planning.search.budget import SearchBudget

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
