# ruff: noqa: PLR0911, PLR0913, PLR0915, PLR0917, PLR0912, C901 - compiled loops: no objects there
"""Lower bound of a job's time with whole microbatches, over all pipelines as node vectors.

Sharper than `price_bounds` where pipelines have few microbatches: with prices π and
c = (N − π·G)/dp, T ≥ min over u of A_u + m_u·(max(⌈c + π·k_u⌉, 1) − 1). Pipelines are vectors of
whole nodes with each order of their types; where they are too many there is no such bound.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.planning.job.costs import synchronization_ps
from app.analysis.planning.job.price_bounds import Bundle
from app.analysis.planning.job.space import Space, pace_after
from app.analysis.planning.problem import divisors
from app.analysis.planning.search.budget import SearchBudget

# ---- Every pipeline that can be, as a vector of whole nodes with each order of their types -----
# Pipelines are costed by type: stages of one are alike but for what fits them, which depends on
# their place. A cap on the slowest stage limits the blocks of each type's stages, and the fastest
# are filled first: ΣC is the least for it.


IntArray = NDArray[np.int64]

FloatArray = NDArray[np.float64]

# Of the pipelines that are told, the one that needs least time for each number of microbatches, up
# to this one.
_MOST_COUNTED: Final = 64
EPSILON: Final = 1e-9
_NONE: Final = 2**62


class Way(NamedTuple):
    """Pipelines of which each node holds `here` stages; blocks of a stage are by a cap on it."""

    here: int
    caps: IntArray  # (caps,): what the slowest stage may take, ascending
    inner: IntArray  # (caps, types): blocks of a stage within that time
    first: IntArray  # (caps, types): of the pipeline's first one
    last: IntArray  # (caps, types): of its last one
    single: IntArray  # (caps, types): of one that is alone
    kept: IntArray  # (types, stages + 1, blocks + 1): of stages at the end, by a limit
    most: IntArray  # (ends, types, stages + 1): what fits the last, the first and a single one
    node: IntArray  # (types,): what transfers of a node take
    tails: IntArray  # (types, stages + 1): what follows, by the slowest type
    rank: IntArray  # (types,): the lowest is the slowest in what follows


class Model(NamedTuple):
    """What all ways have in common."""

    nodes: IntArray
    orders: IntArray  # (orders, types)
    fastest: IntArray  # (types,): types, the fastest first
    block: IntArray
    embedding: IntArray
    head: IntArray
    saved: IntArray  # (types,): what an end of a pipeline need not receive
    layers: int
    microbatches: int
    fixed: int


def vectors(space: Space, here: int) -> int:
    """Return how many vectors of nodes can be a pipeline."""
    counts = np.ones(1, dtype=np.int64)
    for device in space.spec.devices:
        counts = np.convolve(counts, np.ones(device.nodes + 1, dtype=np.int64))
        counts = counts[: space.layers // here + 1]
    return int(counts.sum())


def model_of(space: Space) -> Model:
    """Return what all ways of some sizes have in common."""
    arrays, kinds = space.arrays, len(space.spec.devices)
    return Model(
        nodes=np.array([device.nodes for device in space.spec.devices], dtype=np.int64),
        orders=np.array(list(itertools.permutations(range(kinds))), dtype=np.int64),
        fastest=np.argsort(arrays.block, kind="stable"),
        block=arrays.block,
        embedding=arrays.embedding,
        head=arrays.head,
        saved=arrays.between,
        layers=space.layers,
        microbatches=space.microbatches,
        fixed=space.spec.fixed.pp or 0,
    )


def way_of(space: Space, here: int, some: tuple[int, ...]) -> Way:
    """Return what pipelines take of which a node holds `here` stages.

    Parameters
    ----------
    some : tuple of int
        Numbers of pipelines, ascending: memory is that of the last one, synchronization that of
        the first one.
    """
    arrays, layers, spec = space.arrays, space.layers, space.spec
    between, inside = arrays.between, arrays.inside
    middle = {1: 2 * between, 2: inside + between}.get(here, 2 * inside)
    edge = between if here == 1 else inside
    extras = [
        np.minimum(middle, inside + between) if here > 1 else middle,
        edge + arrays.embedding,
        edge + arrays.head,
        arrays.embedding + arrays.head,
    ]
    steps = np.arange(1, layers + 1)[:, None] * arrays.block
    caps = np.unique(np.concatenate([(extra + steps).ravel() for extra in extras]))
    inner, first, last, single = (
        np.clip((caps[:, None] - extra) // arrays.block, 0, layers) for extra in extras
    )
    longest, static = min(layers, space.groups), space.static(some[-1])
    flight = np.minimum(np.arange(longest + 1), space.microbatches)
    table, logits = static * arrays.table_parameters, arrays.logits
    most = np.stack(
        [
            _fitting(space, static, flight, fixed)
            for fixed in (
                flight * 0.0,
                table + logits,
                table + flight * arrays.inputs,
                2 * table + logits + flight * arrays.inputs,
            )
        ]
    )
    kept = np.minimum(most[0][:, :, None], np.arange(layers + 1))
    kept[:, 0] = 0
    whole = layers * arrays.block_parameters + 2 * arrays.table_parameters
    tails = np.zeros((len(between), longest + 1), dtype=np.int64)
    for kind, device in enumerate(spec.devices):
        for stages in range(here, longest + 1, here):
            shared = space.slots // here
            synchronization, _ = synchronization_ps(spec, device, whole / stages, some[0], shared)
            _, step = synchronization_ps(spec, device, whole / stages, some[-1], shared)
            tails[kind, stages] = synchronization + step
    return Way(
        here,
        caps,
        inner,
        first,
        last,
        single,
        kept.cumsum(axis=1),
        most[1:],
        2 * between + 2 * (here - 1) * inside,
        tails,
        np.argsort(sorted(range(len(between)), key=lambda kind: pace_after(spec.devices[kind]))),
    )


def _fitting(space: Space, static: float, flight: IntArray, fixed: FloatArray | float) -> IntArray:
    """Return the blocks that fit a stage, by its type and its place from the end."""
    arrays = space.arrays
    room = arrays.capacity[:, None] - arrays.working - fixed
    blocks = np.floor(room / (static * arrays.block_parameters + flight * arrays.stored))
    fits: IntArray = np.clip(blocks, 0, space.layers).astype(np.int64)
    return fits


@compiled  # pragma: no cover - coverage does not see compiled code
def least_of(
    way: Way, model: Model, prices: FloatArray, constant: float, goal: int
) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return pipelines that take less than `goal`, one for each count of microbatches.

    Of those that should do n for their prices, π·k_u and a constant, the one that does n soonest:
    its time, its A, its m, and its TP groups of each type.
    """
    types = model.nodes.shape[0]
    least = np.full(_MOST_COUNTED + 1, goal, dtype=np.int64)
    sums = np.zeros(_MOST_COUNTED + 1, dtype=np.int64)
    slowest = np.zeros(_MOST_COUNTED + 1, dtype=np.int64)
    groups = np.zeros((_MOST_COUNTED + 1, types))
    vector = np.zeros(types, dtype=np.int64)
    here, layers, count, used = way.here, model.layers, way.caps.shape[0], 0
    most_nodes = min(layers, way.kept.shape[1] - 1) // here
    while True:
        at = 0
        while at < types and (vector[at] == model.nodes[at] or used == most_nodes):
            used -= vector[at]
            vector[at] = 0
            at += 1
        if at == types:
            break
        vector[at] += 1
        used += 1
        stages = used * here
        if model.fixed not in (0, stages):
            continue
        paid, worst, fits = constant, -1, True
        base, quick, free, head = np.int64(0), np.int64(_NONE), np.int64(0), np.int64(_NONE)
        for t in range(types):
            if vector[t]:
                k = vector[t] * here
                paid += prices[t] * k
                fits = fits and way.kept[t, k, 1] == k
                if worst < 0 or way.rank[t] < way.rank[worst]:
                    worst = t
                base += k * model.block[t] + (vector[t] * way.node[t] if stages > 1 else 0)
                quick = min(quick, model.block[t])
                free = max(free, 2 * model.saved[t])
                head = min(head, model.head[t])
        need = max(int(np.ceil(paid - EPSILON)), 1)
        if not fits or need > model.microbatches:
            continue
        place = min(need, _MOST_COUNTED)
        base += way.tails[worst, stages]
        at_least = base + head - free + (layers - stages) * quick
        if at_least + (need - 1) * way.caps[0] >= least[place]:
            continue
        low = _smallest_cap(way, model, vector)
        if at_least + (need - 1) * way.caps[low] >= least[place]:
            continue
        for number in range(model.orders.shape[0]):
            order = model.orders[number]
            if not _is_one(order, vector):
                continue
            final = order[0]
            for t in order:
                final = t if vector[t] else final
            own = base + model.embedding[order[0]] + model.head[final]
            if stages > 1:
                own -= model.saved[order[0]] + model.saved[final]
            if _filled(way, model, vector, order, stages, count - 1) < 0:
                continue
            begin, end = low, count - 1
            while begin < end:
                middle = (begin + end) // 2
                if _filled(way, model, vector, order, stages, middle) >= 0:
                    end = middle
                else:
                    begin = middle + 1
            # with one microbatch only the sum counts
            c = count - 1 if need == 1 else begin
            at_least = own + (layers - stages) * quick
            while c < count and at_least + (need - 1) * way.caps[c] < least[place]:
                total = own + _filled(way, model, vector, order, stages, c)
                if total + (need - 1) * way.caps[c] < least[place]:
                    least[place] = total + (need - 1) * way.caps[c]
                    sums[place], slowest[place] = total, way.caps[c]
                    for t in range(types):
                        groups[place, t] = vector[t] * here
                c += 1
    found = np.flatnonzero(slowest)
    return least[found], sums[found], slowest[found], groups[found]


@compiled  # pragma: no cover - coverage does not see compiled code
def _is_one(order: IntArray, vector: IntArray) -> bool:
    """Return whether an order has the types of a vector first, the others ascending."""
    for o in range(order.shape[0] - 1):
        unused = vector[order[o]] == 0
        if unused and (vector[order[o + 1]] or order[o + 1] < order[o]):
            return False
    return True


@compiled  # pragma: no cover - coverage does not see compiled code
def _smallest_cap(way: Way, model: Model, vector: IntArray) -> int:
    """Return the least cap that blocks may fit in, each type's stages at the pipeline's end."""
    low, high = 0, way.caps.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        room, more = 0, 0
        for t in range(vector.shape[0]):
            if vector[t]:
                one = way.inner[middle, t]
                room += way.kept[t, vector[t] * way.here, one]
                more = max(more, way.first[middle, t] - one, way.last[middle, t] - one)
                more = max(more, way.single[middle, t] - one)
        if room + 2 * more >= model.layers:
            high = middle
        else:
            low = middle + 1
    return low


@compiled  # pragma: no cover - coverage does not see compiled code
def _filled(
    way: Way, model: Model, vector: IntArray, order: IntArray, stages: int, cap: int
) -> int:
    """Return what blocks beyond one a stage take on the fastest stages; -1 where they do not fit.

    Parameters
    ----------
    cap : int
        The number of the cap on the slowest stage.
    """
    layers, t = model.layers, order[0]
    if stages == 1:
        fits = min(way.single[cap, t], way.most[2, t, 1]) >= layers
        return (layers - 1) * model.block[t] if fits else -1
    room = np.zeros(vector.shape[0], dtype=np.int64)
    begin, total = stages, 0
    for t in order:
        if not vector[t]:
            break
        one, k = way.inner[cap, t], vector[t] * way.here
        end = begin - k
        if way.kept[t, begin, 1] - way.kept[t, end, 1] < k:
            return -1
        here = way.kept[t, begin, one] - way.kept[t, end, one]
        if begin == stages:
            other = min(way.first[cap, t], way.most[1, t, begin])
            if other < 1:
                return -1
            here += other - (way.kept[t, begin, one] - way.kept[t, begin - 1, one])
        if end == 0:
            other = min(way.last[cap, t], way.most[0, t, 1])
            if other < 1:
                return -1
            here += other - way.kept[t, 1, one]
        if here < k:
            return -1
        room[t] = here - k
        total += here
        begin = end
    if total < layers:
        return -1
    rest, time = layers - stages, 0
    for t in model.fastest:
        take = min(room[t], rest)
        time += take * model.block[t]
        rest -= take
    return time


# ---- The bound of `priced` where pipelines have few microbatches: a pipeline does whole ones ----
# Let dp pipelines do N on G groups in T; π are prices, c = (N − π·G)/dp. A pipeline u that does
# less than c + π·k_u does at most ⌈c + π·k_u⌉ − 1, as its microbatches are whole; if all did, there
# would be fewer than N. So one does n = ⌈c + π·k_u⌉ or more (at least 1), and
#
#     T ≥ min over all pipelines u of A_u + m_u·(max(⌈c + π·k_u⌉, 1) − 1).
#
# The prices with which a T is reached are a convex set: each pipeline that does n in T asks for c +
# π·k_u > n, and the prices that keep most from all that are known are tried next. Pipelines are all
# vectors of whole nodes with each order of their types; where they are too many there is no such
# bound. What is left out: pipelines may be used in part, and where a node holds several stages of a
# pipeline, each receives from inside the node.


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
