"""The bound of `priced` where pipelines have few microbatches: a pipeline does whole ones.

Let dp pipelines do N on G groups in T; π are prices, c = (N − π·G)/dp. A pipeline u that does less
than c + π·k_u does at most ⌈c + π·k_u⌉ − 1, as its microbatches are whole; if all did, there would
be fewer than N. So one does n = ⌈c + π·k_u⌉ or more (at least 1), and

    T ≥ min over all pipelines u of A_u + m_u·(max(⌈c + π·k_u⌉, 1) − 1).

The prices with which a T is reached are a convex set: each pipeline that does n in T asks for
c + π·k_u > n, and the prices that keep most from all that are known are tried next. Pipelines are
all vectors of whole nodes with each order of their types; where they are too many there is no such
bound. What is left out: pipelines may be used in part, and where a node holds several stages of a
pipeline, each receives from inside the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from app.analysis.planning.job.large.bundle import Bundle
from app.analysis.planning.job.large.vectors import (
    EPSILON,
    least_of,
    model_of,
    vectors,
    way_of,
)
from app.analysis.planning.problem import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from app.analysis.planning.job.space import Space
    from app.analysis.planning.search.budget import SearchBudget

    IntArray = NDArray[np.int64]
    FloatArray = NDArray[np.float64]

# Vectors of nodes that are gone through each time that prices change.
_MOST_VECTORS: Final = 1_500_000
# Times that prices change, and how close the bound comes to what is possible.
_STEPS: Final = 60
_CLOSE: Final = 1e-3
# How far prices may go at a time: the next one where what is near does not do.
_REACHES: Final = (0.1, 1.0, 10.0)
# Pipelines that are told.
_MOST_WORTHWHILE: Final = 200


class _Known(NamedTuple):
    """Pipelines, one a row: A, m, TP groups of each type, stages that a node holds."""

    sums: IntArray
    slowest: IntArray
    groups: FloatArray
    here: IntArray

    @classmethod
    def of(cls, some: list[_Known]) -> _Known:
        return cls(*(np.concatenate(parts) for parts in zip(*some, strict=True)))

    def done(self, time_ps: int) -> IntArray:
        """Return the microbatches that each does in a time."""
        return np.where(self.sums <= time_ps, 1 + (time_ps - self.sums) // self.slowest, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """A bound, its prices, and pipelines that are worth them: nodes of each type, replicas."""

    bound_ps: int
    prices: FloatArray
    pipelines: tuple[tuple[tuple[int, ...], int], ...] = ()


def counted_bound(
    space: Space,
    some: tuple[int, ...],
    target_ps: int,
    budget: SearchBudget,
    prices: FloatArray,
) -> Counted:
    """Return what no plan of some numbers of pipelines takes less than; 0 where it is not known.

    Parameters
    ----------
    some : tuple of int
        Numbers of pipelines, ascending: memory is that of the last one, synchronization that of
        the first one.
    target_ps : int
        A plan's time: a bound that reaches it is not raised further.
    prices : float64 array, shape (types,)
        To begin with: microbatches for a TP group of each type.
    """
    heres = [space.slots // replicas for replicas in divisors(space.slots)]
    if sum(vectors(space, here) for here in heres) > _MOST_VECTORS:
        return Counted(0, prices)
    ways, model = [way_of(space, here, some) for here in heres], model_of(space)
    groups = model.nodes * float(space.slots)
    scale = space.layers * model.block.astype(np.float64)
    bundle = Bundle(scale, target_ps, positive=space.spec.allow_idle)
    known: list[_Known] = []
    best, best_at, goal, high = 0, prices, target_ps, target_ps
    for _ in range(_STEPS):
        rest = space.microbatches - float(prices @ groups)
        number = some[-1] if rest >= 0 else some[0]
        found = [least_of(way, model, prices, rest / number, goal) for way in ways]
        reached = min([goal, *(int(times.min()) for times, *_ in found if len(times))])
        if reached > best:
            best, best_at = reached, prices
        if best >= target_ps or budget.spent:
            break
        new = [
            _Known(sums, slowest, used, np.full(len(sums), way.here))
            for way, (_, sums, slowest, used) in zip(ways, found, strict=True)
        ]
        known = [_Known.of([*known, *new])]
        while best < high * (1 - _CLOSE):
            goal = (best + high) // 2 if goal <= best else goal
            done = space.microbatches / number - known[0].done(goal)
            bundle.offsets = (goal + known[0].slowest * done).tolist()
            slopes = known[0].slowest[:, None] * (known[0].groups - groups / number)
            bundle.slopes = list(slopes / bundle.scale)
            prices, promised = _next(bundle, goal, prices)
            if promised > goal:
                break
            high, goal = goal, (best + goal) // 2
        else:
            break
    rest = space.microbatches - float(best_at @ groups)
    constant = rest / (some[-1] if rest >= 0 else some[0])
    return Counted(best, best_at, _worthwhile(space, known, best_at, constant, target_ps))


def _worthwhile(
    space: Space, known: list[_Known], prices: FloatArray, constant: float, time_ps: int
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return the pipelines that do most in a time for their prices, each once."""
    if not known:
        return ()
    [one] = known
    short = one.groups @ prices + constant - one.done(time_ps)
    found: dict[tuple[tuple[int, ...], int], None] = {}
    for i in np.argsort(short, kind="stable").tolist():
        nodes = (one.groups[i] / one.here[i]).astype(np.int64).tolist()
        found[tuple(nodes), space.slots // int(one.here[i])] = None
        if len(found) == _MOST_WORTHWHILE:
            break
    return tuple(found)


def _next(bundle: Bundle, goal: int, prices: FloatArray) -> tuple[FloatArray, float]:
    """Return prices that keep a time from pipelines that are known, and the time that they keep."""
    reach = max(float(np.abs(prices * bundle.scale).max()), EPSILON)
    steep = max(float(np.abs(slope).max()) for slope in bundle.slopes)
    at, promised = prices, 0.0
    for far in _REACHES:
        bundle.weight = steep / (far * reach)
        at, promised = bundle.next(prices, 0.0)
        if promised > goal * (1 + EPSILON):
            break
    return at, promised
