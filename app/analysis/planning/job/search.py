"""Best-first search for a whole job's plan over parallel sizes and numbers of pipelines.

The combination with the least lower bound is expanded. With one node type each division of the
nodes is costed; with several a dynamic program decides whether a time is enough, and bisection
finds the least one. Combinations left open keep their bound: the proven gap. Among plans equal by
t_std the one that executes fastest wins.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.planning.job.costs import synchronization_ps
from app.analysis.planning.job.heterogeneous import (
    Division,
    MixedSearch,
    divided,
    equal_divisions,
    near_divisions,
)
from app.analysis.planning.job.large_clusters import bound_of_large
from app.analysis.planning.job.schedule import iteration_ps
from app.analysis.planning.job.space import (
    NO_BOUND,
    BestJobs,
    FoundJob,
    JobPipeline,
    JobPlan,
    Sizes,
    Space,
    Unit,
    space_of,
    template_of,
    units_of,
)
from app.analysis.planning.job.spec import INTERLEAVES, MICROBATCHES, JobSpec, Recompute
from app.analysis.planning.problem import divisors, powers_of_two
from app.analysis.planning.search.budget import SearchBudget

# ---- What no plan of some sizes and number of pipelines can be below ---------------------------
# Embedding and head count each as the blocks that take as long on the type where these are fewest:
# L blocks in all. A pipeline of stage times C_j does n microbatches in ΣC + (n − 1)·m + tail, m =
# max C. Let θ_j = C_j / m ≤ 1, x_j what a block takes on stage j: Σ θ_j/x_j ≥ L/m, so within T
#
#     n ≤ 1 + Σ_j θ_j·((T − tail)/(L·x_j) − 1) ≤ 1 + Σ_j max((T − tail)/(L·x_j) − 1, 0).
#
# Summed over dp pipelines, N ≤ dp + Σ_t G_t·max((T − tail)/(L·x_t) − 1, 0), where a type has G_t
# groups: the T at which both sides are equal is the bound (`_by_type`). A second one (`_by_rate`)
# counts what the tails cost: of rate R_d = Σ 1/x_j and ΣC ≥ A, what one pass takes on the fastest
# type, n_d ≤ 1 + (T − A − tail_d)·R_d/L; with Σ R_d ≤ R, tail_d ≥ τ/S_d and R_d ≥ S_d/x_max:
# T ≥ A + (N − dp)·L/R + dp·τ/(x_max·R). And each pipeline has a device on which a pass takes no
# longer than T, so there are dp of them (`_some_pass`). With v chunks a bubble is 1/v as long.


FloatArray = NDArray[np.float64]

IntArray = NDArray[np.int64]


def lower_bounds_ps(space: Space, dp: IntArray) -> IntArray:
    """Return the bound for each number of pipelines: at most that of groups and microbatches."""
    spec, chunks = space.spec, space.sizes.interleave
    arrays, total = space.arrays, space.microbatches
    block = arrays.block.astype(np.float64)
    number = np.array([device.nodes for device in spec.devices]) * space.slots
    rate = float((number / block).sum())
    ends = float((arrays.embedding / block).min() + (arrays.head / block).min())
    layers = space.layers + ends
    once = layers * block.min()
    whole = space.layers * arrays.block_parameters + 2 * arrays.table_parameters
    steps = 1 << np.arange(int(dp.max()).bit_length())
    # a tail grows with dp; the optimizer's step, which shrinks, is left out
    tail = np.array([_least_tail(space, whole, int(d)) for d in steps])[
        np.searchsorted(steps, dp, side="right") - 1
    ]
    by_rate = (
        once / chunks + (total - dp / chunks) * layers / rate + dp * tail / (block.max() * rate)
    )
    longest = np.minimum(space.groups - dp + 1, space.layers)
    by_type = _by_type(total - dp / chunks, layers * block, number, chunks) + tail / longest
    by_pass = _some_pass(dp, layers * block, number) / chunks
    bounds: IntArray = np.floor(
        np.maximum(np.maximum(by_rate, by_type), by_pass) * (1 - 1e-12)
    ).astype(np.int64)
    bounds[~_may_fit(space, dp)] = np.iinfo(np.int64).max
    return bounds


def _by_type(
    microbatches: FloatArray, passes: FloatArray, groups: IntArray, chunks: int
) -> FloatArray:
    """Return the least T with Σ G_t·max(T/P_t − 1/v, 0) of some microbatches; P_t is a pass."""
    order = np.argsort(passes)
    passes, groups = passes[order], groups[order]
    times = np.full(len(microbatches), np.inf)
    for used in range(1, len(passes) + 1):
        rate = float((groups[:used] / passes[:used]).sum())
        times = np.minimum(times, (microbatches + groups[:used].sum() / chunks) / rate)
    return times


def _least_tail(space: Space, parameters: float, dp: int) -> float:
    """Return the least synchronization of a whole model's gradients, whatever shares a node."""
    return float(
        min(
            synchronization_ps(space.spec, device, parameters, dp, in_node)[0]
            for device in space.spec.devices
            for in_node in (1, space.slots)
        )
    )


def _some_pass(dp: IntArray, passes: FloatArray, groups: IntArray) -> FloatArray:
    """Return what a pass takes on the slowest type that is some pipeline's fastest."""
    order = np.argsort(passes)
    reached = np.cumsum(groups[order])
    last = np.minimum(np.searchsorted(reached, dp), len(order) - 1)
    slowest: FloatArray = passes[order][last]
    return slowest


def _may_fit(space: Space, dp: IntArray) -> NDArray[np.bool_]:
    """Return whether dp models fit all devices, and one the shortest of the pipelines."""
    arrays, layers = space.arrays, space.layers
    if not np.isfinite(arrays.capacity).all():
        return np.ones(len(dp), dtype=np.bool_)
    groups = np.array([device.nodes for device in space.spec.devices]) * space.slots
    static = np.array([space.static(int(d)) for d in dp])
    room = np.maximum(arrays.capacity - arrays.working, 0)
    longest = np.minimum(space.groups // dp, layers)
    fits = np.empty(len(dp), dtype=np.bool_)
    for i, pipelines in enumerate(dp.tolist()):
        # of each type as many stages last, last but one, … as there are pipelines
        deepest = max(int(longest[i]), -(-int(groups.max()) // pipelines))
        levels = np.arange(1, deepest + 1)
        flight = np.minimum(levels, space.microbatches)
        if space.sizes.interleave > 1:
            flight = flight * 0 + 1 / space.sizes.interleave
        held = static[i] * arrays.block_parameters + flight * arrays.stored
        blocks = np.minimum(np.floor(room[:, None] / held), layers)
        there = np.clip(groups[:, None] - (levels - 1) * pipelines, 0, pipelines)
        shortest = blocks.max(axis=0)[: longest[i]].sum()
        fits[i] = (blocks * there).sum() >= pipelines * layers and shortest >= layers
    return fits


# ---- The search for the plan of a whole job: best first over sizes and numbers of pipelines ----
# Every combination of sizes and dp has a lower bound (`bounds`). The one with the lowest is looked
# into: on one type of nodes all pipelines are alike and each division of the nodes is costed; on
# several a dynamic program over the nodes of each type says whether pipelines can do the batch in a
# time, and bisection finds the least such time. What is open when the time is up, or is too large
# for the program, leaves its bound (`large.ranges`): the gap that is proven. Of the plans that are
# as good by t_std, the one that executes fastest is taken.


# Alternatives that are kept.
ALTERNATIVES: Final = 10
# Plans of one type of nodes that may be among them are costed although they cannot be the best.
_NEAR: Final = 1.25
# Steps of the program over nodes, for each time that is asked for; more is left open.
_MOST_STEPS: Final = 3e7
# Sizes, those of the lowest bounds, with which nodes are also divided nearly equally at first.
_MOST_NEAR: Final = 10
# Of plans that differ by less in t_std, the one that executes fastest is taken.
_AS_GOOD: Final = 1.01


def search_job(spec: JobSpec, budget: SearchBudget | None = None) -> FoundJob | None:
    """Search for the fastest plan; None where nothing fits.

    Parameters
    ----------
    budget : SearchBudget, optional
        With a time limit the best plan so far is returned, with the gap that is proven.
    """
    budget = budget or SearchBudget()
    began_s = budget.clock()
    best = BestJobs()
    spaces = [space_of(spec, sizes) for sizes in sizes_of(spec)]
    open_ = [
        (bound, number, dp)
        for number, space in enumerate(spaces)
        if len(some := numbers_of(space))
        for dp, bound in zip(some.tolist(), lower_bounds_ps(space, some).tolist(), strict=True)
        if bound < NO_BOUND
    ]
    heapq.heapify(open_)
    if len(spec.devices) == 1:
        least = _uniform(spaces, open_, best, budget)
    else:
        least = _mixed(spaces, open_, best, budget)
    if not best.plans:
        return None
    ranked = sorted(best.plans.values(), key=lambda plan: plan.time_ps)
    near = [plan for plan in ranked[:ALTERNATIVES] if plan.time_ps <= best.time_ps * _AS_GOOD]
    return FoundJob(
        plan=min(near, key=iteration_ps),
        least_ps=best.time_ps,
        lower_bound_ps=min(least, best.time_ps),
        alternatives=tuple(ranked[:ALTERNATIVES]),
        planning_time_s=budget.clock() - began_s,
    )


def numbers_of(space: Space) -> IntArray:
    """Return the numbers of pipelines that there can be, ascending."""
    spec, most = space.spec, min(space.groups, space.microbatches)
    if len(spec.devices) > 1 or spec.allow_idle:
        least = 1 if spec.allow_idle else -(-space.groups // space.layers)
        some = set(range(least, most + 1))
    else:
        some = {
            replicas * count
            for replicas in divisors(space.slots)
            for count in divisors(spec.nodes)
            if replicas * count <= most
        }
    return np.array(sorted(dp for dp in some if spec.fixed.dp in {None, dp}), dtype=np.int64)


def sizes_of(spec: JobSpec) -> Iterator[Sizes]:
    """Yield the sizes that are searched, or what is fixed of them."""
    fixed, model = spec.fixed, spec.transformer
    degrees = [
        tp
        for tp in powers_of_two(spec.gpus_per_node)
        if spec.gpus_per_node % tp == 0 and model.heads % tp == 0
    ]
    microbatches = [b for b in MICROBATCHES if spec.global_batch % b == 0]
    chunks = INTERLEAVES if len(spec.devices) == 1 else INTERLEAVES[:1]
    for tp in degrees if fixed.tp is None else [fixed.tp]:
        for microbatch in microbatches if fixed.microbatch is None else [fixed.microbatch]:
            for recompute in Recompute if fixed.recompute is None else [fixed.recompute]:
                for interleave in chunks if fixed.interleave is None else [fixed.interleave]:
                    yield Sizes(tp, microbatch, recompute, interleave)


# ---- one type of nodes


def _uniform(
    spaces: list[Space], open_: list[tuple[int, int, int]], best: BestJobs, budget: SearchBudget
) -> int:
    """Cost every division into equal pipelines; return the bound of what is left."""
    while open_ and open_[0][0] < best.time_ps * _NEAR:
        bound, number, dp = heapq.heappop(open_)
        for unit in _equal_units(spaces[number], dp):
            best.offer(_equal_plan(spaces[number], unit, dp))
        if best.plans and budget.spent:
            return min(bound, best.time_ps)
    return best.time_ps


def _equal_units(space: Space, dp: int) -> Iterator[Unit]:
    """Yield the units that `dp` equal pipelines can have on nodes of one type."""
    spec = space.spec
    for replicas in divisors(space.slots):
        count, rest = divmod(dp, replicas)
        if rest or count > spec.nodes:
            continue
        nodes, idle = divmod(spec.nodes, count)
        sizes = range(1, nodes + 1) if spec.allow_idle else () if idle else (nodes,)
        for size in sizes:
            unit = Unit((size,), (0,), replicas)
            if space.stages(unit) <= space.layers and spec.fixed.pp in {None, space.stages(unit)}:
                yield unit


def _equal_plan(space: Space, unit: Unit, dp: int) -> JobPlan | None:
    shares = equal_shares(space, dp, space.stages(unit))
    if shares is None:
        return None
    template = template_of(space, unit, dp, shares[0])
    if template is None:
        return None
    size = unit.nodes[0]
    return JobPlan(
        space,
        tuple(
            JobPipeline(
                template,
                share,
                tuple((0, i // unit.replicas * size + node) for node in range(size)),
            )
            for i, share in enumerate(shares)
        ),
    )


def equal_shares(space: Space, dp: int, stages: int) -> list[int] | None:
    """Return the microbatches of equal pipelines; interleaved ones take multiples of their stages.

    None where there are too few, or no such multiples.
    """
    each = stages if space.sizes.interleave > 1 else 1
    number, rest = divmod(space.microbatches, each)
    if rest or number < dp:
        return None
    share, more = divmod(number, dp)
    return [(share + 1) * each] * more + [share * each] * (dp - more)


# ---- several types of nodes


def _mixed(
    spaces: list[Space], open_: list[tuple[int, int, int]], best: BestJobs, budget: SearchBudget
) -> int:
    """Look into ranges of dp, the lowest bound first; return the bound of what is left."""
    spec = spaces[0].spec
    states = math.prod(device.nodes + 1 for device in spec.devices)
    few = states**2 * max(space.groups for space in spaces) <= _MOST_STEPS
    _types_divided(spaces, open_, best, budget, most_near=0 if few else _MOST_NEAR)
    bounds: dict[int, dict[int, int]] = {}
    for bound, number, dp in open_:
        bounds.setdefault(number, {})[dp] = bound
    ranges = [(min(some.values()), number, tuple(sorted(some))) for number, some in bounds.items()]
    units: dict[int, tuple[Unit, ...]] = {}
    exact: list[tuple[int, int, tuple[int, ...]]] = []
    large: list[tuple[int, int, tuple[int, ...]]] = []
    for bound, number, some in ranges:
        space = spaces[number]
        tp = space.sizes.tp
        if states**2 * some[-1] <= _MOST_STEPS and tp not in units:
            units[tp] = units_of(space)
        small = tp in units and states * len(units[tp]) * some[-1] <= _MOST_STEPS
        (exact if small else large).append((bound, number, some))
    left = bound_of_large(spaces, large, bounds, best, budget)
    heapq.heapify(exact)
    while exact and exact[0][0] < best.time_ps:
        bound, number, some = heapq.heappop(exact)
        if best.plans and budget.spent:
            left = min(left, bound)
            break
        space = spaces[number]
        mixed = MixedSearch(space, units[space.sizes.tp], some)
        if not mixed.units:
            continue
        if len(some) == 1:
            left = min(left, _least_time(mixed, bound, best, budget))
        else:
            kept = mixed.possible(best.time_ps - 1)
            for half in (kept[: len(kept) // 2], kept[len(kept) // 2 :]):
                if half:
                    least = max(bound, min(bounds[number][dp] for dp in half))
                    heapq.heappush(exact, (least, number, half))
        budget.tell(max(best.time_ps / max(min(left, bound), 1) - 1, 0.0))
    return min(left, best.time_ps)


def _least_time(mixed: MixedSearch, bound: int, best: BestJobs, budget: SearchBudget) -> int:
    """Find a plan that is better than the best, and the best such one; return its bound."""
    if best.plans:
        found = mixed.plan_within(best.time_ps - 1)
    else:
        high = 2 * bound
        while (found := mixed.plan_within(high)) is None and high < NO_BOUND // 8:
            high *= 2
    if found is None:
        return NO_BOUND
    low = bound
    while found is not None:
        best.offer(found)
        high = found.time_ps
        while low < high:
            if budget.spent:
                return low
            middle = (low + high) // 2
            found = mixed.plan_within(middle)
            if found is not None:
                break
            low = middle + 1
        else:
            return high
    return low


def _types_divided(
    spaces: list[Space],
    open_: list[tuple[int, int, int]],
    best: BestJobs,
    budget: SearchBudget,
    *,
    most_near: int,
) -> None:
    """Offer plans in which nodes of some types are divided equally; with some sizes nearly so."""
    equal: dict[int, tuple[Division, ...]] = {}
    near: set[int] = set()
    for bound, number, dp in sorted(open_):
        if bound >= best.time_ps or (best.plans and budget.spent):
            return
        if dp & (dp - 1) == 0 or spaces[0].spec.fixed.dp is not None:
            space = spaces[number]
            if space.sizes.tp not in equal:
                equal[space.sizes.tp] = equal_divisions(space)
            divisions = equal[space.sizes.tp]
            if number not in near and len(near) < most_near:
                near.add(number)
                divisions += near_divisions(space)
            best.offer(divided(space, divisions, dp))
