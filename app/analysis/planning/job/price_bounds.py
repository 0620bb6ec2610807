# ruff: noqa: PLR0913, PLR0915, PLR0917, PLR0912, C901 - compiled loops: no objects there
"""Lower bound of a job's time from prices of TP groups of each device type.

For any prices π ≥ 0: T ≥ min over pipelines u of A_u + m_u·(c + π·k_u), c = (N − π·G)/dp − 1, with
m the slowest stage and A all stages and what follows. The bound is concave in π and raised by a
proximal bundle method; a dynamic program over stages finds the minimum.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.planning.job.costs import synchronization_ps
from app.analysis.planning.job.space import KernelCosts, Space
from app.analysis.planning.problem import divisors
from app.analysis.planning.search.budget import SearchBudget

# ---- Prices that keep most from all pipelines that are known: a proximal bundle method ---------


FloatArray = NDArray[np.float64]

# How far the first step may go, in prices, and steps to each one's end.
_REACH: Final = 0.3
_NEWTON: Final = 8
_EPSILON: Final = 1e-9


class Bundle:
    """What is known of the bound as prices change: planes that it is below; a proximal bundle."""

    def __init__(self, scale: FloatArray, target_ps: int, *, positive: bool) -> None:
        self.scale, self.target_ps, self.positive, self.weight = scale, target_ps, positive, 0.0
        self.offsets: list[float] = []
        self.slopes: list[FloatArray] = []

    def add(self, at: FloatArray, value: float, slope: FloatArray) -> None:
        """Add the plane of a pipeline: what it says at some prices, and by how much for each."""
        self.offsets.append(value - float(slope @ at))
        slope = slope / self.scale
        self.slopes.append(slope)
        if not self.weight:
            reach = max(float(np.abs(at * self.scale).max()), _EPSILON)
            self.weight = float(np.abs(slope).max()) / (_REACH * reach)

    def next(self, center: FloatArray, value: float) -> tuple[FloatArray, float]:
        """Return the prices that promise most near some, and what they promise."""
        if not self.weight:  # no price changes anything
            return center, value
        offsets, slopes = np.array(self.offsets), np.array(self.slopes)
        origin = center * self.scale
        at = origin.copy()

        def soft(point: FloatArray, width: float) -> tuple[float, FloatArray]:
            planes = -(offsets + slopes @ point) / width
            top = planes.max()
            weights = np.exp(planes - top)
            away = point - origin
            lost = self.weight / 2 * float(away @ away)
            return -width * float(top + np.log(weights.sum())) - lost, weights / weights.sum()

        for width in (self.target_ps * 1e-2, self.target_ps * 1e-3, self.target_ps * 1e-4):
            for _ in range(_NEWTON):
                here, share = soft(at, width)
                mean = share @ slopes
                gradient = mean - self.weight * (at - origin)
                bend = (slopes.T * share) @ slopes - np.outer(mean, mean)
                step = np.linalg.solve(bend / width + self.weight * np.eye(len(at)), gradient)
                length = 1.0
                while length > _EPSILON and soft(at + length * step, width)[0] < here:
                    length /= 2
                if length <= _EPSILON:
                    break
                at = at + length * step
        if self.positive:
            at = at.clip(0)
        return at / self.scale, float((offsets + slopes @ at).min())


# ---- What no plan of some sizes can be below, from a price for each type's TP groups -----------
# A pipeline u with k_u groups of each type does at most 1 + (T − A_u)/m_u microbatches in a time T,
# where m is its slowest stage and A all stages and what follows them. Let dp pipelines do N on G
# groups in T, and let π be prices, not negative where groups may be idle. If T were below
# A_u + m_u·(c + π·k_u) for each of them, c = (N − π·G)/dp − 1, they would do fewer than
# Σ(1 + c + π·k_u) ≤ N. So
#
#     T ≥ min over all pipelines u of A_u + m_u·(c + π·k_u),
#
# which is concave in π: it is raised by a proximal bundle method. Its minimum is found by a dynamic
# program over stages from the last one, for intervals of m: that close to the least are halved.
# Blocks and nodes are whole, and the blocks that fit a stage depend on its place. What is left out:
# pipelines may be used in part, and pass the types in any order.


IntArray = NDArray[np.int64]

# Ratio of the ends of an interval of m at first, and of one that is not halved.
_COARSE: Final = 1.06
_FINE: Final = 1.004
# Intervals that are looked into after the first ones, each time that prices change; and at last.
_MOST_HALVED: Final = 150
_MOST_AT_LAST: Final = 2000
# Of the steps that raise the prices, and the share of the target that the last one promises.
_CLOSE: Final = 1.01
_STEPS: Final = 40
_GAIN: Final = 1e-3
# How often the bundle looks farther before it ends, and each time by what factor.
_FARTHER: Final = 3
_LOOSER: Final = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """A bound, and what a TP group of each type is worth for it, in microbatches."""

    bound_ps: int
    prices: FloatArray


class _Kind(NamedTuple):
    """Pipelines that share each node by a number of replicas."""

    here: int  # stages of each in a node
    tails: FloatArray  # shape (stages + 1,): what follows, ps, by the pipeline's stages


@dataclass(frozen=True, slots=True)
class _Least:
    """The least of A + m·(c + π·k), and how it changes with each price."""

    value: float
    slope: FloatArray


def priced_bound(
    space: Space,
    some: tuple[int, ...],
    target_ps: int,
    budget: SearchBudget,
    start: FloatArray | None = None,
) -> Priced:
    """Return what no plan of some numbers of pipelines takes less than, and its prices.

    Parameters
    ----------
    some : tuple of int
        Numbers of pipelines, ascending: memory is that of the last one, synchronization that of
        the first one.
    target_ps : int
        A plan's time: a bound that reaches it is not raised further.
    start : float64 array, shape (types,), optional
        Prices to begin with.
    """
    oracle = _Oracle.of(space, some)
    groups, scale = oracle.groups, space.layers * space.arrays.block.astype(np.float64)
    # a first guess: groups are worth what they compute
    share = (target_ps / scale - 1).clip(0)
    guess = share * min(space.microbatches / max(float(share @ groups), _EPSILON), 1.0)
    best_at, best = guess, oracle.least(guess, _CLOSE)
    bundle = Bundle(scale, target_ps, positive=space.spec.allow_idle)
    bundle.add(guess, best.value, best.slope)
    if start is not None and best.value < target_ps:
        other = oracle.least(start, _CLOSE)
        bundle.add(start, other.value, other.slope)
        if other.value > best.value:
            best_at, best = start, other
    farther = 0
    for _ in range(_STEPS):
        if budget.spent or best.value >= target_ps or not np.isfinite(best.value):
            break
        at, promised = bundle.next(best_at, best.value)
        if promised <= best.value + _GAIN * target_ps:
            # what is promised near the prices: farther away there may be more
            if farther == _FARTHER:
                break
            farther += 1
            bundle.weight /= _LOOSER
            continue
        farther = 0
        found = oracle.least(at, _CLOSE)
        bundle.add(at, found.value, found.slope)
        better = found.value > best.value
        bundle.weight *= 0.5 if better else 1.3
        if better:
            best, best_at = found, at
    value = oracle.least(best_at, _FINE, _MOST_AT_LAST).value
    never = int(np.iinfo(np.int64).max)
    return Priced(int(value * (1 - _EPSILON)) if np.isfinite(value) else never, best_at)


@dataclass(frozen=True, slots=True, eq=False)
class _Oracle:
    """Finds the least of A + m·(c + π·k)."""

    space: Space
    kinds: tuple[_Kind, ...]
    groups: FloatArray
    numbers: tuple[int, int]

    @classmethod
    def of(cls, space: Space, some: tuple[int, ...]) -> _Oracle:
        groups = np.array([device.nodes for device in space.spec.devices]) * float(space.slots)
        kinds = tuple(_kind(space, replicas, some) for replicas in divisors(space.slots))
        return cls(space, kinds, groups, (some[0], some[-1]))

    def least(self, prices: FloatArray, close: float, most: int = _MOST_HALVED) -> _Least:
        """Return the least, to within `close` of m or after `most` more intervals."""
        space = self.space
        rest = space.microbatches - float(prices @ self.groups)
        number = self.numbers[1] if rest >= 0 else self.numbers[0]
        constant = rest / number - 1
        block, arrays = space.arrays.block, space.arrays
        lowest = float(block.min())
        highest = float(
            space.layers * block.max()
            + arrays.embedding.max()
            + arrays.head.max()
            + 2 * max(arrays.inside.max(), arrays.between.max())
        )
        edges = lowest * _COARSE ** np.arange(
            np.ceil(np.log(highest / lowest) / np.log(_COARSE)) + 1
        )
        serial = itertools.count()
        heap: list[tuple[float, int, float, float, int, FloatArray]] = []

        def look(low: float, high: float, kind: int) -> None:
            one = self.kinds[kind]
            value, used = _least_within(
                low,
                high,
                constant,
                prices,
                *one,
                arrays,
                space.static(self.numbers[1]),
                space.layers,
                space.microbatches,
                space.spec.fixed.pp or 0,
            )
            if np.isfinite(value):
                heapq.heappush(heap, (value, next(serial), low, high, kind, used))

        for low, high in itertools.pairwise(edges.tolist()):
            for kind in range(len(self.kinds)):
                look(low, high, kind)
        first = next(serial)
        while heap:
            value, _, low, high, kind, used = heapq.heappop(heap)
            if high <= low * close or next(serial) > first + most:
                slope = (low + high) / 2 * (used - self.groups / number)
                return _Least(value, slope)
            middle = (low * high) ** 0.5
            look(low, middle, kind)
            look(middle, high, kind)
        return _Least(np.inf, self.groups * 0)


def _kind(space: Space, replicas: int, some: tuple[int, ...]) -> _Kind:
    here = space.slots // replicas
    longest = min(space.layers, space.groups)
    whole = space.layers * space.arrays.block_parameters + 2 * space.arrays.table_parameters
    tails = np.full(longest + 1, np.inf)
    for stages in range(here, longest + 1, here):
        tails[stages] = min(
            synchronization_ps(space.spec, device, whole / stages, some[0], replicas)[0]
            + synchronization_ps(space.spec, device, whole / stages, some[-1], replicas)[1]
            for device in space.spec.devices
        )
    return _Kind(here, tails)


@compiled  # pragma: no cover - coverage does not see compiled code
def _least_within(
    low: float,
    high: float,
    constant: float,
    prices: FloatArray,
    here: int,
    tails: FloatArray,
    costs: KernelCosts,
    static: float,
    layers: int,
    microbatches: int,
    fixed: int,
) -> tuple[float, FloatArray]:
    """Return the least of A + m·(c + π·k) for m in [low, high], and its k.

    Stages are placed from the last one on; those of a node, `here` of them, are of one type.
    """
    types, longest = prices.shape[0], tails.shape[0] - 1
    best, best_stages, best_type, best_blocks = np.inf, 0, 0, 0
    whole = np.full(layers + 1, np.inf)  # of whole nodes, by blocks
    whole[0] = 0.0
    part = np.full((types, layers + 1), np.inf)  # of a node that is begun
    before = np.empty(layers + 1)
    chosen = np.zeros((longest + 1, layers + 1), dtype=np.int64)
    taken = np.zeros((longest + 1, types, layers + 1), dtype=np.int64)
    queue = np.empty(layers + 1, dtype=np.int64)
    paid = prices.min() >= 0  # each stage adds to the value
    for q in range(1, longest + 1):
        flight = min(q, microbatches)
        ends, begins = (q - 1) % here == 0, q % here == 0  # of a node
        cheapest = np.inf
        for t in range(types):
            before[:] = whole if ends else part[t]
            part[t, :] = np.inf
            room = costs.capacity[t] - costs.working
            behind = 0.0
            if q == 1:
                behind += costs.head[t]
                room -= static * costs.table_parameters + costs.logits
            else:
                behind += costs.between[t] if ends else costs.inside[t]
            each = static * costs.block_parameters + flight * costs.stored
            step = float(costs.block[t])
            if begins and fixed in (0, q):  # as the first stage
                extra = behind + costs.embedding[t]
                span = _fitting(
                    (high - extra) / step,
                    room - static * costs.table_parameters - flight * costs.inputs,
                    each,
                    layers,
                )
                for b in range(1, span + 1):
                    if before[layers - b] < np.inf:
                        now = before[layers - b] + extra + b * step
                        now += low * (prices[t] + constant) + tails[q]
                        if now < best:
                            best, best_stages, best_type, best_blocks = now, q, t, b
            # as one that others are before
            extra = behind + (costs.between[t] if begins else costs.inside[t])
            span = _fitting((high - extra) / step, room, each, layers)
            if span < 1:
                continue
            first, last = 0, 0
            fixed_part = extra + low * prices[t]
            for n in range(1, layers):
                # the window of what is behind: n - span to n - 1 blocks
                new = before[n - 1] - (n - 1) * step
                while last > first and before[queue[last - 1]] - queue[last - 1] * step >= new:
                    last -= 1
                queue[last] = n - 1
                last += 1
                if queue[first] < n - span:
                    first += 1
                after = queue[first]
                now = before[after] + (n - after) * step + fixed_part
                part[t, n], taken[q, t, n] = now, n - after
                cheapest = min(cheapest, now)
        if begins:
            whole[:] = np.inf
            for t in range(types):
                for n in range(1, layers):
                    if part[t, n] < whole[n]:
                        whole[n], chosen[q, n] = part[t, n], t
        if paid and cheapest + low * constant >= best:
            break
    used = np.zeros(types)
    if best_stages:
        used[best_type] += 1
        n, t = layers - best_blocks, best_type
        for q in range(best_stages - 1, 0, -1):
            if q % here == 0:
                t = chosen[q, n]
            used[t] += 1
            n -= taken[q, t, n]
    return best, used


@compiled  # pragma: no cover - coverage does not see compiled code
def _fitting(most: float, room: float, each: float, layers: int) -> int:
    """Return the blocks of a stage that its time and its memory allow."""
    most = min(np.floor(most), float(layers))
    if np.isfinite(room):
        most = min(most, np.floor(room / each))
    return int(most)
