# ruff: noqa: PLR0911, PLR0913, PLR0915, PLR0917, PLR0912, C901 - compiled loops: no objects there
"""Lower bound of a job's time for whole numbers of microbatches, over all vectors of nodes.

This bound is sharper than `price_bounds` if pipelines have few microbatches. Let dp pipelines
complete N microbatches on G tensor-parallel groups in a time T. Give each group of a type a price
π, in microbatches, and let c = (N − π·G)/dp. A pipeline u on k_u groups that completes fewer than c
+ π·k_u microbatches completes at most ⌈c + π·k_u⌉ − 1, since microbatches are whole. If this were
true of all pipelines, they would complete fewer than N microbatches in total. So at least one
pipeline completes ⌈c + π·k_u⌉ or more, at least 1, and

    T ≥ min over pipelines u of A_u + m_u·(max(⌈c + π·k_u⌉, 1) − 1),

where m_u is the time of the slowest stage of u, and A_u the time of all its stages, synchronization
and optimizer. The prices for which the bound reaches a given T form a convex set. A bundle method
searches this set with the pipelines enumerated so far: each pipeline that completes n microbatches
in T requires c + π·k_u > n. Pipelines are enumerated as vectors of whole nodes, with each order of
their types; if there are too many vectors, the bound is not computed. The bound relaxes two
constraints: pipelines may be used in part, and if a node holds several stages of a pipeline, each
of them receives its input from inside the node.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.planning.job.costs import synchronization_ps
from app.analysis.planning.job.price_bounds import Bundle
from app.analysis.planning.job.space import Space, pace_after
from app.analysis.planning.problem import divisors
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.quantities import FloatArray, IntArray

# Maximum number of microbatches for which the fastest pipeline is kept for each number separately;
# larger numbers share one entry.
_MOST_COUNTED: Final = 64
EPSILON: Final = 1e-9
_NONE: Final = 2**62
# Maximum number of node vectors, which bounds the time: all vectors are enumerated for every price.
_MOST_VECTORS: Final = 1_500_000
# Maximum number of price changes, and relative precision of the bound at which price changes end.
_STEPS: Final = 60
_CLOSE: Final = 1e-3
# Limits of the size of a price change, tried in turn: the next limit applies if no change within
# the previous limit improves the bound.
_REACHES: Final = (0.1, 1.0, 10.0)
# Maximum number of pipelines that are returned as candidates for plans.
_MOST_WORTHWHILE: Final = 200


class PipelineTables(NamedTuple):
    """Tables of pipelines with `node_stages` stages per node, by cap on the slowest stage.

    A cap limits the number of blocks that the stages of each type may have. Within a cap the
    fastest stages are filled first, which gives the least sum of stage times ΣC.
    """

    node_stages: int
    caps: IntArray  # (caps,): limits of a stage's time, ascending, ps
    inner: IntArray  # (caps, types): most blocks of an inner stage
    first: IntArray  # (caps, types): most blocks of the first stage
    last: IntArray  # (caps, types): most blocks of the last stage
    single: IntArray  # (caps, types): most blocks of a single stage
    kept: IntArray  # (types, stages + 1, blocks + 1): blocks that fit the last stages, by cap
    most: IntArray  # (ends, types, stages + 1): blocks that fit the last, first and single stage
    node: IntArray  # (types,): transfers of a node's stages, ps
    tails: IntArray  # (types, stages + 1): synchronization and optimizer, by slowest type, ps
    rank: IntArray  # (types,): order of the types by that, the slowest first


class Model(NamedTuple):
    """Nodes, stage times and sizes that all tables share."""

    nodes: IntArray  # (types,)
    orders: IntArray  # (orders, types): permutations of the types
    fastest: IntArray  # (types,): types, the fastest first
    block: IntArray  # (types,): time of a block, ps
    embedding: IntArray  # (types,)
    head: IntArray  # (types,)
    saved: IntArray  # (types,): transfer that an end of a pipeline does not receive, ps
    layers: int
    microbatches: int
    fixed: int  # fixed number of stages; 0 without one


def vectors(space: Space, node_stages: int) -> int:
    """Return the number of node vectors that can form a pipeline."""
    counts = np.ones(1, dtype=np.int64)
    for device in space.spec.devices:
        counts = np.convolve(counts, np.ones(device.nodes + 1, dtype=np.int64))
        counts = counts[: space.layers // node_stages + 1]
    return int(counts.sum())


def model_of(space: Space) -> Model:
    """Return nodes, stage times and sizes of a job at given parallel sizes, for compiled loops."""
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


def pipeline_tables(space: Space, node_stages: int, dp_counts: tuple[int, ...]) -> PipelineTables:
    """Return the tables of the pipelines with `node_stages` stages per node.

    Parameters
    ----------
    dp_counts : tuple of int
        Numbers of pipelines, ascending. Memory is computed for the last number and synchronization
        for the first, so that the tables give lower bounds for all numbers.
    """
    arrays, layers, spec = space.arrays, space.layers, space.spec
    between, inside = arrays.between, arrays.inside
    middle = {1: 2 * between, 2: inside + between}.get(node_stages, 2 * inside)
    edge = between if node_stages == 1 else inside
    extras = [
        np.minimum(middle, inside + between) if node_stages > 1 else middle,
        edge + arrays.embedding,
        edge + arrays.head,
        arrays.embedding + arrays.head,
    ]
    steps = np.arange(1, layers + 1)[:, None] * arrays.block
    caps = np.unique(np.concatenate([(extra + steps).ravel() for extra in extras]))
    inner, first, last, single = (
        np.clip((caps[:, None] - extra) // arrays.block, 0, layers) for extra in extras
    )
    longest, static = min(layers, space.groups), space.static(dp_counts[-1])
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
        for stages in range(node_stages, longest + 1, node_stages):
            shared = space.slots // node_stages
            synchronization, _ = synchronization_ps(
                spec, device, whole / stages, dp_counts[0], shared
            )
            _, step = synchronization_ps(spec, device, whole / stages, dp_counts[-1], shared)
            tails[kind, stages] = synchronization + step
    return PipelineTables(
        node_stages,
        caps,
        inner,
        first,
        last,
        single,
        kept.cumsum(axis=1),
        most[1:],
        2 * between + 2 * (node_stages - 1) * inside,
        tails,
        np.argsort(sorted(range(len(between)), key=lambda kind: pace_after(spec.devices[kind]))),
    )


def _fitting(space: Space, static: float, flight: IntArray, fixed: FloatArray | float) -> IntArray:
    """Return the number of blocks that fit a stage's memory, by type and position from the end."""
    arrays = space.arrays
    room = arrays.capacity[:, None] - arrays.working - fixed
    blocks = np.floor(room / (static * arrays.block_parameters + flight * arrays.stored))
    fits: IntArray = np.clip(blocks, 0, space.layers).astype(np.int64)
    return fits


@compiled  # pragma: no cover - coverage does not see compiled code
def least_of(
    way: PipelineTables, model: Model, prices: FloatArray, constant: float, goal: int
) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return the fastest pipeline for each number n of microbatches, if it is faster than `goal`.

    A pipeline u must complete n = ⌈c + π·k_u⌉ microbatches, with c = `constant` and π = `prices`.
    The arrays are the pipelines' times for n microbatches, A and m, ps, shape (pipelines,), and
    numbers of TP groups by type, shape (pipelines, types).
    """
    types = model.nodes.shape[0]
    least = np.full(_MOST_COUNTED + 1, goal, dtype=np.int64)
    sums = np.zeros(_MOST_COUNTED + 1, dtype=np.int64)
    slowest = np.zeros(_MOST_COUNTED + 1, dtype=np.int64)
    groups = np.zeros((_MOST_COUNTED + 1, types))
    vector = np.zeros(types, dtype=np.int64)
    node_stages, layers, count, used = way.node_stages, model.layers, way.caps.shape[0], 0
    most_nodes = min(layers, way.kept.shape[1] - 1) // node_stages
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
        stages = used * node_stages
        if model.fixed not in (0, stages):
            continue
        paid, worst, fits = constant, -1, True
        base, quick, free, head = np.int64(0), np.int64(_NONE), np.int64(0), np.int64(_NONE)
        for t in range(types):
            if vector[t]:
                k = vector[t] * node_stages
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
            if not _is_canonical(order, vector):
                continue
            final = order[0]
            for t in order:
                final = t if vector[t] else final
            own = base + model.embedding[order[0]] + model.head[final]
            if stages > 1:
                own -= model.saved[order[0]] + model.saved[final]
            if _fill_time(way, model, vector, order, stages, count - 1) < 0:
                continue
            begin, end = low, count - 1
            while begin < end:
                middle = (begin + end) // 2
                if _fill_time(way, model, vector, order, stages, middle) >= 0:
                    end = middle
                else:
                    begin = middle + 1
            # A single microbatch takes ΣC: the factor of max C is 0, so the cap does not matter.
            c = count - 1 if need == 1 else begin
            at_least = own + (layers - stages) * quick
            while c < count and at_least + (need - 1) * way.caps[c] < least[place]:
                total = own + _fill_time(way, model, vector, order, stages, c)
                if total + (need - 1) * way.caps[c] < least[place]:
                    least[place] = total + (need - 1) * way.caps[c]
                    sums[place], slowest[place] = total, way.caps[c]
                    for t in range(types):
                        groups[place, t] = vector[t] * node_stages
                c += 1
    filled = np.flatnonzero(slowest)
    return least[filled], sums[filled], slowest[filled], groups[filled]


@compiled  # pragma: no cover - coverage does not see compiled code
def _is_canonical(order: IntArray, vector: IntArray) -> bool:
    """Return whether an order lists the vector's used types first, then unused types ascending.

    Orders that differ only in the positions of unused types describe the same pipeline; exactly one
    of them is canonical.
    """
    for o in range(order.shape[0] - 1):
        unused = vector[order[o]] == 0
        if unused and (vector[order[o + 1]] or order[o + 1] < order[o]):
            return False
    return True


@compiled  # pragma: no cover - coverage does not see compiled code
def _smallest_cap(way: PipelineTables, model: Model, vector: IntArray) -> int:
    """Return the index of the least cap under which all blocks may fit, judged optimistically."""
    low, high = 0, way.caps.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        room, more = 0, 0
        for t in range(vector.shape[0]):
            if vector[t]:
                inner = way.inner[middle, t]
                room += way.kept[t, vector[t] * way.node_stages, inner]
                more = max(more, way.first[middle, t] - inner, way.last[middle, t] - inner)
                more = max(more, way.single[middle, t] - inner)
        if room + 2 * more >= model.layers:
            high = middle
        else:
            low = middle + 1
    return low


@compiled  # pragma: no cover - coverage does not see compiled code
def _fill_time(
    way: PipelineTables, model: Model, vector: IntArray, order: IntArray, stages: int, cap: int
) -> int:
    """Return the time of all blocks beyond one per stage; -1 if they do not fit under the cap.

    The blocks go to the fastest stages first.

    Parameters
    ----------
    cap : int
        Index of the cap on the slowest stage's time.
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
        inner, k = way.inner[cap, t], vector[t] * way.node_stages
        end = begin - k
        if way.kept[t, begin, 1] - way.kept[t, end, 1] < k:
            return -1
        blocks = way.kept[t, begin, inner] - way.kept[t, end, inner]
        if begin == stages:
            other = min(way.first[cap, t], way.most[1, t, begin])
            if other < 1:
                return -1
            blocks += other - (way.kept[t, begin, inner] - way.kept[t, begin - 1, inner])
        if end == 0:
            other = min(way.last[cap, t], way.most[0, t, 1])
            if other < 1:
                return -1
            blocks += other - way.kept[t, 1, inner]
        if blocks < k:
            return -1
        room[t] = blocks - k
        total += blocks
        begin = end
    if total < layers:
        return -1
    rest, time = layers - stages, 0
    for t in model.fastest:
        take = min(room[t], rest)
        time += take * model.block[t]
        rest -= take
    return time


class _KnownPipelines(NamedTuple):
    """Pipelines enumerated so far as columns, shape (pipelines,) or (pipelines, types)."""

    sums: IntArray  # A
    slowest: IntArray  # m
    groups: FloatArray  # TP groups of each type
    node_stages: IntArray  # stages in each node

    @classmethod
    def of(cls, lists: list[_KnownPipelines]) -> _KnownPipelines:
        return cls(*(np.concatenate(parts) for parts in zip(*lists, strict=True)))

    def done(self, time_ps: int) -> IntArray:
        """Return each pipeline's number of microbatches within a time, shape (pipelines,)."""
        return np.where(self.sums <= time_ps, 1 + (time_ps - self.sums) // self.slowest, 0)


@dataclass(frozen=True, slots=True, eq=False)
class CountedBound:
    """Lower bound with its prices, and pipelines (nodes by type, replicas) worth their price."""

    bound_ps: int
    prices: FloatArray
    pipelines: tuple[tuple[tuple[int, ...], int], ...] = ()


def counted_bound(
    space: Space,
    dp_counts: tuple[int, ...],
    target_ps: int,
    budget: SearchBudget,
    prices: FloatArray,
) -> CountedBound:
    """Return a lower bound of all plans with the given numbers of pipelines, ps; 0 if unknown.

    Parameters
    ----------
    dp_counts : tuple of int
        Numbers of pipelines, ascending. Memory is computed for the last number and synchronization
        for the first, which gives lower bounds for all numbers.
    target_ps : int
        Time of a known plan; a bound that reaches this time is not raised further.
    prices : float64 array, shape (types,)
        Initial prices: microbatches that a TP group of each type must contribute.
    """
    stages_per_node = [space.slots // replicas for replicas in divisors(space.slots)]
    if sum(vectors(space, node_stages) for node_stages in stages_per_node) > _MOST_VECTORS:
        return CountedBound(0, prices)
    tables, model = (
        [pipeline_tables(space, node_stages, dp_counts) for node_stages in stages_per_node],
        model_of(space),
    )
    groups = model.nodes * float(space.slots)
    scale = space.layers * model.block.astype(np.float64)
    bundle = Bundle(scale, target_ps, positive=space.spec.allow_idle)
    pipelines: list[_KnownPipelines] = []
    best, best_at, goal, high = 0, prices, target_ps, target_ps
    for _ in range(_STEPS):
        rest = space.microbatches - float(prices @ groups)
        number = dp_counts[-1] if rest >= 0 else dp_counts[0]
        fastest = [least_of(way, model, prices, rest / number, goal) for way in tables]
        reached = min([goal, *(int(times.min()) for times, *_ in fastest if len(times))])
        if reached > best:
            best, best_at = reached, prices
        if best >= target_ps or budget.spent:
            break
        new = [
            _KnownPipelines(sums, slowest, used, np.full(len(sums), way.node_stages))
            for way, (_, sums, slowest, used) in zip(tables, fastest, strict=True)
        ]
        pipelines = [_KnownPipelines.of([*pipelines, *new])]
        while best < high * (1 - _CLOSE):
            goal = (best + high) // 2 if goal <= best else goal
            done = space.microbatches / number - pipelines[0].done(goal)
            bundle.offsets = (goal + pipelines[0].slowest * done).tolist()
            slopes = pipelines[0].slowest[:, None] * (pipelines[0].groups - groups / number)
            bundle.slopes = list(slopes / bundle.scale)
            prices, promised = _next_prices(bundle, goal, prices)
            if promised > goal:
                break
            high, goal = goal, (best + goal) // 2
        else:
            break
    rest = space.microbatches - float(best_at @ groups)
    constant = rest / (dp_counts[-1] if rest >= 0 else dp_counts[0])
    return CountedBound(best, best_at, _best_paying(space, pipelines, best_at, constant, target_ps))


def _best_paying(
    space: Space,
    pipelines: list[_KnownPipelines],
    prices: FloatArray,
    constant: float,
    time_ps: int,
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return the distinct pipelines that complete the most microbatches beyond their price."""
    if not pipelines:
        return ()
    [table] = pipelines
    short = table.groups @ prices + constant - table.done(time_ps)
    distinct: dict[tuple[tuple[int, ...], int], None] = {}
    for i in np.argsort(short, kind="stable").tolist():
        nodes = (table.groups[i] / table.node_stages[i]).astype(np.int64).tolist()
        distinct[tuple(nodes), space.slots // int(table.node_stages[i])] = None
        if len(distinct) == _MOST_WORTHWHILE:
            break
    return tuple(distinct)


def _next_prices(bundle: Bundle, goal: int, prices: FloatArray) -> tuple[FloatArray, float]:
    """Return the next prices near the given ones, and the bound predicted for them."""
    reach = max(float(np.abs(prices * bundle.scale).max()), EPSILON)
    steep = max(float(np.abs(slope).max()) for slope in bundle.slopes)
    at, promised = prices, 0.0
    for far in _REACHES:
        bundle.weight = steep / (far * reach)
        at, promised = bundle.next(prices, 0.0)
        if promised > goal * (1 + EPSILON):
            break
    return at, promised
