"""Sizes whose program over nodes is too large: bounds from prices, and plans that are built.

Ranges of numbers of pipelines are priced, the lowest bound first, and halved; where one is lowest,
a plan is built around it. What cannot be halved leaves its bound.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.analysis.planning.job.large.priced import priced_bound
from app.analysis.planning.job.large.rebuilt import Rebuilding
from app.analysis.planning.job.losses import units_of_plan
from app.analysis.planning.job.result import NO_BOUND, BestJobs, JobPlan

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
# A plan aims at its bound times this.
_NEAR: Final = 1.25


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
    serial = itertools.count()
    heap = [
        (min(bounds[number][dp] for dp in near), next(serial), _Range(number, near))
        for _, number, some in large
        for near in _near_numbers(some)
    ]
    heapq.heapify(heap)
    built: dict[int, list[int]] = {}
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
            found = priced_bound(space, some, target_ps, budget, one.prices)
            own = _Range(one.number, some, found.prices, priced=True)
            heapq.heappush(heap, (max(bound, found.bound_ps), next(serial), own))
        elif len(before) < _MOST_BUILT and not any(
            dp < _NARROW * other and other < _NARROW * dp for other in before
        ):
            before.append(dp)
            best.offer(_rebuilt(space, one, bound, best, budget))
        elif len(some) == 1:
            best.offer(_rebuilt(space, one, bound, best, budget))
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


def _rebuilt(
    space: Space, range_: _Range, bound: int, best: BestJobs, budget: SearchBudget
) -> JobPlan | None:
    """Return a plan that is built around some number of pipelines, from the best one if near."""
    if range_.prices is None:
        return None
    own = [plan for key, plan in best.plans.items() if key[0] == space.sizes]
    first = min(own, key=lambda plan: plan.time_ps, default=None)
    near = first is not None and first.time_ps <= _NEAR * bound
    units = units_of_plan(first) if first is not None and near else []
    dp = range_.some[len(range_.some) // 2]
    built = Rebuilding(space, units, dp, range_.prices)
    return built.best(min(best.time_ps, int(_NEAR * bound)), budget)
