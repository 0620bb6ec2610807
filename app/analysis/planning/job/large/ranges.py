"""Sizes whose program over nodes is too large: bounds from prices, and plans that are built.

Ranges of numbers of pipelines are priced, the lowest bound first, and halved; where one is lowest,
a plan is built around it. What cannot be halved leaves its bound.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

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
_MOST_PRICED: Final = 200
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
    heap = [
        (min(bounds[number][dp] for dp in near), next(serial), _Range(number, near))
        for _, number, some in large
        for near in _near_numbers(some)
    ]
    heapq.heapify(heap)
    if heap:
        _improve_best(best, _share(budget, _FIRST_SHARE))
    built: dict[int, list[int]] = {}
    prices: dict[int, NDArray[np.float64]] = {}
    looked = 0
    while heap and heap[0][0] < best.time_ps:
        bound, _, one = heap[0]
        space, some = spaces[one.number], one.some
        if best.plans and (budget.spent or looked >= _MOST_PRICED):
            return bound
        dp, before = some[len(some) // 2], built.setdefault(one.number, [])
        if not one.priced:
            heapq.heappop(heap)
            looked += 1
            target_ps = best.time_ps if best.plans else int(bound * _NEAR)
            start = prices.get(one.number) if one.prices is None else one.prices
            found = priced_bound(space, some, target_ps, budget, start)
            prices[one.number] = found.prices
            own = _Range(one.number, some, found.prices, priced=True)
            heapq.heappush(heap, (max(bound, found.bound_ps), next(serial), own))
        elif len(before) < _MOST_BUILT and not any(
            dp < _NARROW * other and other < _NARROW * dp for other in before
        ):
            before.append(dp)
            _build(space, one, bound, best, budget)
        elif len(some) == 1:
            return bound
        else:
            heapq.heappop(heap)
            for half in (some[: len(some) // 2], some[len(some) // 2 :]):
                least = max(bound, min(bounds[one.number][dp] for dp in half))
                heapq.heappush(heap, (least, next(serial), _Range(one.number, half, one.prices)))
        budget.tell(max(best.time_ps / max(heap[0][0], 1) - 1, 0.0))
    return NO_BOUND


def _near_numbers(some: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield runs of numbers whose ends are near to each other."""
    while some:
        count = bisect_right(some, int(_NARROW * some[0]))
        yield some[:count]
        some = some[count:]


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
    found = priced_bound(first.space, (first.dp,), first.time_ps, budget)
    built = Rebuilding(first.space, units_of_plan(first), first.dp, found.prices, seed)
    best.offer(built.best(first.time_ps, budget))


def _build(space: Space, range_: _Range, bound: int, best: BestJobs, budget: SearchBudget) -> None:
    """Build a plan around some number of pipelines, from the best one of its sizes if near."""
    if range_.prices is None:
        return
    own = [plan for key, plan in best.plans.items() if key[0] == space.sizes]
    first = min(own, key=lambda plan: plan.time_ps, default=None)
    dp = range_.some[len(range_.some) // 2]
    if first is None or first.time_ps > _NEAR * bound:
        first = divided(space, near_divisions(space), dp)
        best.offer(first)
    if first is not None and first.time_ps > _NEAR * best.time_ps:
        return
    units = [] if first is None else units_of_plan(first)
    built = Rebuilding(space, units, dp, range_.prices)
    best.offer(built.best(min(best.time_ps, int(_NEAR * bound)), budget))
