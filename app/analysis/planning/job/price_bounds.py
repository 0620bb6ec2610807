# ruff: noqa: PLR0913, PLR0915, PLR0917, PLR0912, C901 - compiled loops: no objects there
"""Lower bound of a job's time from prices of each type's TP groups (Lagrange duality).

A pipeline u with k_u groups of each type completes at most 1 + (T − A_u)/m_u microbatches in a time
T, where m_u is the time of its slowest stage and A_u the time of all stages, synchronization and
optimizer. Let dp pipelines complete N microbatches on G groups in T, and let π be prices, not
negative for types whose groups may be idle. If T were below A_u + m_u·(c + π·k_u) for each
pipeline, with c = (N − π·G)/dp − 1, the pipelines would complete fewer than Σ(1 + c + π·k_u) ≤ N
microbatches. So

    T ≥ min over pipelines u of A_u + m_u·(c + π·k_u),

which is concave in π and maximized by a proximal bundle method. A dynamic program over stages, from
the last stage to the first, finds the minimum for intervals of m; intervals near the minimum are
halved. Blocks and nodes are whole, and the number of blocks that fit a stage depends on the stage's
place. The bound relaxes two constraints: pipelines may be used in part, and pass the types in any
order.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.planning.job.costs import synchronization_ps
from app.analysis.planning.job.space import KernelCosts, Space
from app.analysis.planning.problem import divisors
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.quantities import FloatArray

# Relative size of the first price change, and number of Newton steps for each smoothing width.
_REACH: Final = 0.3
_NEWTON: Final = 8
_EPSILON: Final = 1e-9
# Ratio of the ends of an interval of m: of the initial intervals, and of an interval that is not
# halved further.
_COARSE: Final = 1.06
_FINE: Final = 1.004
# Maximum number of halved intervals for each price, and for the final bound.
_MOST_HALVED: Final = 150
_MOST_AT_LAST: Final = 2000
# Precision of m while prices change, maximum number of price changes, and minimum predicted gain of
# a price change as a share of the target.
_CLOSE: Final = 1.01
_STEPS: Final = 40
_GAIN: Final = 1e-3
# Number of times that the proximal weight is reduced before the search ends, and the divisor of
# each reduction.
_FARTHER: Final = 3
_LOOSER: Final = 8.0


class Bundle:
    """Cutting planes of the bound, concave in the prices, for a proximal bundle method."""

    def __init__(self, scale: FloatArray, target_ps: int, *, positive: bool) -> None:
        self.scale, self.target_ps, self.positive, self.weight = scale, target_ps, positive, 0.0
        self.offsets: list[float] = []
        self.slopes: list[FloatArray] = []

    def add(self, at: FloatArray, value: float, slope: FloatArray) -> None:
        """Add the plane with the bound's value and slope at given prices."""
        self.offsets.append(value - float(slope @ at))
        slope = slope / self.scale
        self.slopes.append(slope)
        if not self.weight:
            reach = max(float(np.abs(at * self.scale).max()), _EPSILON)
            self.weight = float(np.abs(slope).max()) / (_REACH * reach)

    def next(self, center: FloatArray, value: float) -> tuple[FloatArray, float]:
        """Return the proximal maximum of the planes near a center, and the planes' value at it."""
        if not self.weight:  # all planes are flat
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
                smooth, share = soft(at, width)
                mean = share @ slopes
                gradient = mean - self.weight * (at - origin)
                bend = (slopes.T * share) @ slopes - np.outer(mean, mean)
                step = np.linalg.solve(bend / width + self.weight * np.eye(len(at)), gradient)
                length = 1.0
                while length > _EPSILON and soft(at + length * step, width)[0] < smooth:
                    length /= 2
                if length <= _EPSILON:
                    break
                at = at + length * step
        if self.positive:
            at = at.clip(0)
        return at / self.scale, float((offsets + slopes @ at).min())


@dataclass(frozen=True, slots=True, eq=False)
class PriceBound:
    """Lower bound and its prices, in microbatches per TP group of each type."""

    bound_ps: int
    prices: FloatArray


class _NodeSharing(NamedTuple):
    """Division of each node among several pipelines, with the tails of these pipelines."""

    node_stages: int  # stages of each pipeline in a node
    tails: FloatArray  # (stages + 1,): synchronization and optimizer by number of stages, ps


@dataclass(frozen=True, slots=True)
class _LeastPriced:
    """Minimum of A + m·(c + π·k), and its gradient by price."""

    value: float
    slope: FloatArray


def priced_bound(
    space: Space,
    dp_counts: tuple[int, ...],
    target_ps: int,
    budget: SearchBudget,
    start: FloatArray | None = None,
) -> PriceBound:
    """Return a lower bound of all plans with the given numbers of pipelines, and its prices.

    Parameters
    ----------
    dp_counts : tuple of int
        Numbers of pipelines, ascending. Memory is computed for the last number and synchronization
        for the first, which gives lower bounds for all numbers.
    target_ps : int
        Time of a plan; a bound that reaches it is not raised further.
    start : float64 array, shape (types,), optional
        Initial prices.
    """
    oracle = _Oracle.of(space, dp_counts)
    groups, scale = oracle.groups, space.layers * space.arrays.block.astype(np.float64)
    # Initial prices are proportional to the computing speed of the groups.
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
            # The planes predict little gain nearby: a smaller proximal weight allows a larger price
            # change.
            if farther == _FARTHER:
                break
            farther += 1
            bundle.weight /= _LOOSER
            continue
        farther = 0
        least = oracle.least(at, _CLOSE)
        bundle.add(at, least.value, least.slope)
        better = least.value > best.value
        bundle.weight *= 0.5 if better else 1.3
        if better:
            best, best_at = least, at
    value = oracle.least(best_at, _FINE, _MOST_AT_LAST).value
    never = int(np.iinfo(np.int64).max)
    return PriceBound(int(value * (1 - _EPSILON)) if np.isfinite(value) else never, best_at)


@dataclass(frozen=True, slots=True, eq=False)
class _Oracle:
    """Minimizes A + m·(c + π·k) over pipelines, for given prices."""

    space: Space
    kinds: tuple[_NodeSharing, ...]
    groups: FloatArray
    numbers: tuple[int, int]

    @classmethod
    def of(cls, space: Space, dp_counts: tuple[int, ...]) -> _Oracle:
        groups = np.array([device.nodes for device in space.spec.devices]) * float(space.slots)
        longest = min(space.layers, space.groups)
        whole = space.layers * space.arrays.block_parameters + 2 * space.arrays.table_parameters
        kinds = []
        for replicas in divisors(space.slots):
            node_stages = space.slots // replicas
            tails = np.full(longest + 1, np.inf)
            for stages in range(node_stages, longest + 1, node_stages):
                share = whole / stages
                tails[stages] = min(
                    synchronization_ps(space.spec, device, share, dp_counts[0], replicas)[0]
                    + synchronization_ps(space.spec, device, share, dp_counts[-1], replicas)[1]
                    for device in space.spec.devices
                )
            kinds.append(_NodeSharing(node_stages, tails))
        return cls(space, tuple(kinds), groups, (dp_counts[0], dp_counts[-1]))

    def least(self, prices: FloatArray, close: float, most: int = _MOST_HALVED) -> _LeastPriced:
        """Return the minimum, with m within a factor `close` or after `most` halved intervals."""
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
            sharing = self.kinds[kind]
            value, used = _least_within(
                low,
                high,
                constant,
                prices,
                *sharing,
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
                return _LeastPriced(value, slope)
            middle = (low * high) ** 0.5
            look(low, middle, kind)
            look(middle, high, kind)
        return _LeastPriced(np.inf, self.groups * 0)


@compiled  # pragma: no cover - coverage does not see compiled code
def _least_within(
    low: float,
    high: float,
    constant: float,
    prices: FloatArray,
    node_stages: int,
    tails: FloatArray,
    costs: KernelCosts,
    static: float,
    layers: int,
    microbatches: int,
    fixed: int,
) -> tuple[float, FloatArray]:
    """Return the minimum of A + m·(c + π·k) for m in [low, high], and the minimizer's k.

    Stages are placed from the pipeline's last stage to its first; the `node_stages` stages of a
    node have the same device type.
    """
    types, longest = prices.shape[0], tails.shape[0] - 1
    best, best_stages, best_type, best_blocks = np.inf, 0, 0, 0
    whole = np.full(layers + 1, np.inf)  # least value with whole nodes, by blocks
    whole[0] = 0.0
    part = np.full((types, layers + 1), np.inf)  # least value with a partly used node
    before = np.empty(layers + 1)
    chosen = np.zeros((longest + 1, layers + 1), dtype=np.int64)
    taken = np.zeros((longest + 1, types, layers + 1), dtype=np.int64)
    queue = np.empty(layers + 1, dtype=np.int64)
    paid = prices.min() >= 0  # every further stage increases the value
    for q in range(1, longest + 1):
        flight = min(q, microbatches)
        ends, begins = (q - 1) % node_stages == 0, q % node_stages == 0  # of a node
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
            if begins and fixed in (0, q):  # as the pipeline's first stage
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
            # Otherwise the pipeline has further stages before this stage.
            extra = behind + (costs.between[t] if begins else costs.inside[t])
            span = _fitting((high - extra) / step, room, each, layers)
            if span < 1:
                continue
            first, last = 0, 0
            fixed_part = extra + low * prices[t]
            for n in range(1, layers):
                # Sliding-window minimum over n - span to n - 1 blocks in the stages after this one.
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
            if q % node_stages == 0:
                t = chosen[q, n]
            used[t] += 1
            n -= taken[q, t, n]
    return best, used


@compiled  # pragma: no cover - coverage does not see compiled code
def _fitting(most: float, room: float, each: float, layers: int) -> int:
    """Return the maximum number of blocks that fit a stage's time and memory."""
    most = min(np.floor(most), float(layers))
    if np.isfinite(room):
        most = min(most, np.floor(room / each))
    return int(most)
