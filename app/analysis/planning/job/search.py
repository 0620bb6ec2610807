"""Best-first search for a whole job's plan over parallel sizes and numbers of pipelines.

The search expands the combination with the lowest bound. With one node type, each division of the
nodes is costed; with several types, a dynamic program decides whether a plan exists within a time,
and bisection finds the shortest such time. The bounds of combinations that are not searched give
the proven gap. Among plans with about equal t_std the fastest executed plan is chosen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from app.analysis.planning.job.costs import synchronization_ps
from app.analysis.planning.job.heterogeneous import (
    Division,
    MixedSearch,
    divided,
    equal_divisions,
    near_divisions,
)
from app.analysis.planning.job.large_clusters import search_ranges
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
from app.analysis.planning.transformer import Attention
from app.analysis.quantities import BoolArray, FloatArray, IntArray

# Lower bound of all plans with given sizes and number of pipelines dp.
# Embedding and head count as the number of blocks that takes the same time, on the type where this
# number is least; L is the total number of blocks. A pipeline with stage times C_j completes n
# microbatches in ΣC + (n − 1)·m + tail, m = max C. With θ_j = C_j / m ≤ 1 and the time x_j of a
# block on stage j, Σ θ_j/x_j ≥ L/m, so within a time T
#
#     n ≤ 1 + Σ_j θ_j·((T − tail)/(L·x_j) − 1) ≤ 1 + Σ_j max((T − tail)/(L·x_j) − 1, 0).
#
# Summed over dp pipelines, N ≤ dp + Σ_t G_t·max((T − tail)/(L·x_t) − 1, 0), where type t has G_t
# groups: the T at which both sides are equal is the bound of `_bound_by_type`. A second bound, from
# rates, includes the tails: with R_d = Σ 1/x_j and ΣC ≥ A, the time of a pass on the fastest type,
# n_d ≤ 1 + (T − A − tail_d)·R_d/L; with Σ R_d ≤ R, tail_d ≥ τ/S_d and R_d ≥ S_d/x_max:
# T ≥ A + (N − dp)·L/R + dp·τ/(x_max·R). The third bound (`_bound_by_pass`): each pipeline has a
# device on which a pass takes at most T, so at least dp devices are that fast. With v chunks per
# stage a bubble takes 1/v of the time.


def lower_bounds_ps(space: Space, dp: IntArray) -> IntArray:
    """Return a lower bound of the time for each number of pipelines, ps, in the shape of `dp`."""
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
    # Synchronization grows with dp, so its time at the next lower power of two is a lower bound.
    # The optimizer's step is left out because it shrinks as dp grows.
    tail = np.array(
        [
            min(
                synchronization_ps(space.spec, device, whole, int(d), in_node)[0]
                for device in space.spec.devices
                for in_node in (1, space.slots)
            )
            for d in steps
        ]
    )[np.searchsorted(steps, dp, side="right") - 1]
    by_rate = (
        once / chunks + (total - dp / chunks) * layers / rate + dp * tail / (block.max() * rate)
    )
    longest = np.minimum(space.groups - dp + 1, space.layers)
    by_type = _bound_by_type(total - dp / chunks, layers * block, number, chunks) + tail / longest
    by_pass = _bound_by_pass(dp, layers * block, number) / chunks
    bounds: IntArray = np.floor(
        np.maximum(np.maximum(by_rate, by_type), by_pass) * (1 - 1e-12)
    ).astype(np.int64)
    bounds[~_may_fit(space, dp)] = np.iinfo(np.int64).max
    return bounds


def _bound_by_type(
    microbatches: FloatArray, passes: FloatArray, groups: IntArray, chunks: int
) -> FloatArray:
    """Return the least T with Σ G_t·max(T/P_t − 1/v, 0) ≥ microbatches; P_t: time of a pass."""
    order = np.argsort(passes)
    passes, groups = passes[order], groups[order]
    times = np.full(len(microbatches), np.inf)
    for used in range(1, len(passes) + 1):
        rate = float((groups[:used] / passes[:used]).sum())
        times = np.minimum(times, (microbatches + groups[:used].sum() / chunks) / rate)
    return times


def _bound_by_pass(dp: IntArray, passes: FloatArray, groups: IntArray) -> FloatArray:
    """Return the time of a pass on the slowest type that must be a pipeline's fastest type, ps."""
    order = np.argsort(passes)
    reached = np.cumsum(groups[order])
    last = np.minimum(np.searchsorted(reached, dp), len(order) - 1)
    slowest: FloatArray = passes[order][last]
    return slowest


def _may_fit(space: Space, dp: IntArray) -> BoolArray:
    """Return whether dp models may fit all devices, and one model the shortest pipeline."""
    arrays, layers = space.arrays, space.layers
    if not np.isfinite(arrays.capacity).all():
        return np.ones(len(dp), dtype=np.bool_)
    groups = np.array([device.nodes for device in space.spec.devices]) * space.slots
    static = np.array([space.static(int(d)) for d in dp])
    room = np.maximum(arrays.capacity - arrays.working, 0)
    longest = np.minimum(space.groups // dp, layers)
    fits = np.empty(len(dp), dtype=np.bool_)
    for i, pipelines in enumerate(dp.tolist()):
        # Of each type at most dp stages are last in their pipelines, at most dp last but one, and
        # so on.
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


# Maximum number of alternatives in the result.
ALTERNATIVES: Final = 10
# With one node type, combinations whose bound is within this factor of the best time are costed as
# alternatives.
_NEAR: Final = 1.25
# Maximum number of steps of the dynamic program for each tried time. Larger combinations are not
# searched, and their bound stays open.
_MOST_STEPS: Final = 3e7
# Number of sizes, those with the lowest bounds, for which nearly equal divisions of the nodes are
# costed as first plans.
_MOST_NEAR: Final = 10
# Among plans within this factor of the least t_std, the plan with the shortest executed time is
# chosen.
_AS_GOOD: Final = 1.01


def search_job(spec: JobSpec, budget: SearchBudget | None = None) -> FoundJob | None:
    """Return the fastest plan found with its proof; None if no plan fits.

    Parameters
    ----------
    budget : SearchBudget, optional
        With a time limit the best plan so far is returned, with its proven gap.
    """
    budget = budget or SearchBudget()
    began_s = budget.clock()
    best = BestJobs()
    spaces = [space_of(spec, sizes) for sizes in sizes_of(spec)]
    open_ = [
        (bound, number, dp)
        for number, space in enumerate(spaces)
        if len(dp_counts := pipeline_counts(space))
        for dp, bound in zip(
            dp_counts.tolist(), lower_bounds_ps(space, dp_counts).tolist(), strict=True
        )
        if bound < NO_BOUND
    ]
    heapq.heapify(open_)
    if len(spec.devices) == 1:
        least = _search_uniform(spaces, open_, best, budget)
    else:
        least = _search_mixed(spaces, open_, best, budget)
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


def pipeline_counts(space: Space) -> IntArray:
    """Return the possible numbers of pipelines, ascending."""
    spec, most = space.spec, min(space.groups, space.microbatches)
    if len(spec.devices) > 1 or spec.allow_idle:
        least = 1 if spec.allow_idle else -(-space.groups // space.layers)
        dp_counts = set(range(least, most + 1))
    else:
        dp_counts = {
            replicas * count
            for replicas in divisors(space.slots)
            for count in divisors(spec.nodes)
            if replicas * count <= most
        }
    return np.array(sorted(dp for dp in dp_counts if spec.fixed.dp in {None, dp}), dtype=np.int64)


def sizes_of(spec: JobSpec) -> Iterator[Sizes]:
    """Yield the parallel sizes to search; sizes fixed in the specification stay fixed."""
    fixed, model = spec.fixed, spec.transformer
    degrees = [
        tp
        for tp in powers_of_two(spec.gpus_per_node)
        if spec.gpus_per_node % tp == 0 and model.heads % tp == 0
    ]
    microbatches = [b for b in MICROBATCHES if spec.global_batch % b == 0]
    # Flash attention stores no scores that selective recomputation would leave out.
    flash = model.attention is Attention.FLASH
    modes = [mode for mode in Recompute if not (flash and mode is Recompute.SELECTIVE)]
    chunks = INTERLEAVES if len(spec.devices) == 1 else INTERLEAVES[:1]
    for tp in degrees if fixed.tp is None else [fixed.tp]:
        for microbatch in microbatches if fixed.microbatch is None else [fixed.microbatch]:
            for recompute in modes if fixed.recompute is None else [fixed.recompute]:
                for interleave in chunks if fixed.interleave is None else [fixed.interleave]:
                    yield Sizes(tp, microbatch, recompute, interleave)


def _search_uniform(
    spaces: list[Space], open_: list[tuple[int, int, int]], best: BestJobs, budget: SearchBudget
) -> int:
    """Cost divisions of one node type into equal pipelines; return a bound of the others, ps."""
    while open_ and open_[0][0] < best.time_ps * _NEAR:
        bound, number, dp = heapq.heappop(open_)
        for unit in _equal_units(spaces[number], dp):
            best.offer(_equal_plan(spaces[number], unit, dp))
        if best.plans and budget.spent:
            return min(bound, best.time_ps)
    return best.time_ps


def _equal_units(space: Space, dp: int) -> Iterator[Unit]:
    """Yield the possible units of `dp` equal pipelines on nodes of one type."""
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
    """Return the microbatches per pipeline; with interleaving, a multiple of the stages.

    None if there are too few microbatches, or no such multiples.
    """
    each = stages if space.sizes.interleave > 1 else 1
    number, rest = divmod(space.microbatches, each)
    if rest or number < dp:
        return None
    share, more = divmod(number, dp)
    return [(share + 1) * each] * more + [share * each] * (dp - more)


def _search_mixed(
    spaces: list[Space], open_: list[tuple[int, int, int]], best: BestJobs, budget: SearchBudget
) -> int:
    """Search ranges of dp on several node types, lowest bound first; return the others' bound."""
    spec = spaces[0].spec
    states = math.prod(device.nodes + 1 for device in spec.devices)
    few = states**2 * max(space.groups for space in spaces) <= _MOST_STEPS
    _offer_divisions(spaces, open_, best, budget, most_near=0 if few else _MOST_NEAR)
    bounds: dict[int, dict[int, int]] = {}
    for bound, number, dp in open_:
        bounds.setdefault(number, {})[dp] = bound
    ranges = [
        (min(dp_counts.values()), number, tuple(sorted(dp_counts)))
        for number, dp_counts in bounds.items()
    ]
    units: dict[int, tuple[Unit, ...]] = {}
    exact: list[tuple[int, int, tuple[int, ...]]] = []
    large: list[tuple[int, int, tuple[int, ...]]] = []
    for bound, number, dp_counts in ranges:
        space = spaces[number]
        tp = space.sizes.tp
        if states**2 * dp_counts[-1] <= _MOST_STEPS and tp not in units:
            units[tp] = units_of(space)
        small = tp in units and states * len(units[tp]) * dp_counts[-1] <= _MOST_STEPS
        (exact if small else large).append((bound, number, dp_counts))
    left = search_ranges(spaces, large, bounds, best, budget)
    heapq.heapify(exact)
    while exact and exact[0][0] < best.time_ps:
        bound, number, dp_counts = heapq.heappop(exact)
        if best.plans and budget.spent:
            left = min(left, bound)
            break
        space = spaces[number]
        mixed = MixedSearch(space, units[space.sizes.tp], dp_counts)
        if not mixed.units:
            continue
        if len(dp_counts) == 1:
            left = min(left, _bisect_time(mixed, bound, best, budget))
        else:
            kept = mixed.possible(best.time_ps - 1)
            for half in (kept[: len(kept) // 2], kept[len(kept) // 2 :]):
                if half:
                    least = max(bound, min(bounds[number][dp] for dp in half))
                    heapq.heappush(exact, (least, number, half))
        budget.report_gap(max(best.time_ps / max(min(left, bound), 1) - 1, 0.0))
    return min(left, best.time_ps)


def _bisect_time(mixed: MixedSearch, bound: int, best: BestJobs, budget: SearchBudget) -> int:
    """Offer a combination's best plan, by bisection of its time; return its lower bound, ps."""
    if best.plans:
        plan = mixed.plan_within(best.time_ps - 1)
    else:
        high = 2 * bound
        while (plan := mixed.plan_within(high)) is None and high < NO_BOUND // 8:
            high *= 2
    if plan is None:
        return NO_BOUND
    low = bound
    while plan is not None:
        best.offer(plan)
        high = plan.time_ps
        while low < high:
            if budget.spent:
                return low
            middle = (low + high) // 2
            plan = mixed.plan_within(middle)
            if plan is not None:
                break
            low = middle + 1
        else:
            return high
    return low


def _offer_divisions(
    spaces: list[Space],
    open_: list[tuple[int, int, int]],
    best: BestJobs,
    budget: SearchBudget,
    *,
    most_near: int,
) -> None:
    """Offer plans with equally divided nodes, and for `most_near` sizes nearly equally divided."""
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
