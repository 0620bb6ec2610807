# ruff: noqa: PLR0913, PLR0917, C901 - compiled loops: no objects there
"""Search space of a job's pipelines, and the results of the search.

A unit is a set of whole nodes for one pipeline or for `replicas` equal pipelines. A node holds
`slots / replicas` consecutive stages of each of these pipelines, and nodes of one type are
adjacent. All pipelines of a plan have the same `Sizes`, so that gradient shards match.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.planning.job.costs import (
    StageCosts,
    stage_costs,
    static_bytes_per_parameter,
    synchronization_ps,
)
from app.analysis.planning.job.cuts import best_cut, front_of
from app.analysis.planning.job.spec import JobDevice, JobSpec, Recompute
from app.analysis.planning.problem import divisors
from app.analysis.quantities import FloatArray, IntArray

# Bound if there is no plan: larger than any time, ps.
NO_BOUND: Final = 2**63 - 1
# Number of blocks that fit a stage if its memory is unlimited: larger than any model.
_UNLIMITED: Final = 2**40


@dataclass(frozen=True, slots=True)
class JobPipeline:
    """Pipeline: its template, number of microbatches, and the (type, number) of its nodes."""

    template: JobTemplate
    microbatches: int
    nodes: tuple[tuple[int, int], ...]

    @property
    def time_ps(self) -> int:
        """Return the pipeline's t_std plus synchronization and optimizer, ps."""
        return self.template.time_ps(self.microbatches)


@dataclass(frozen=True, slots=True, eq=False)
class JobPlan:
    """Plan: pipelines that share the global batch."""

    space: Space
    pipelines: tuple[JobPipeline, ...]

    @property
    def dp(self) -> int:
        """Return the number of pipelines."""
        return len(self.pipelines)

    @property
    def pp(self) -> int:
        """Return the number of stages of the longest pipeline."""
        return max(len(pipeline.template.stages) for pipeline in self.pipelines)

    @property
    def time_ps(self) -> int:
        """Return the slowest pipeline's t_std plus synchronization and optimizer, ps."""
        return max(pipeline.time_ps for pipeline in self.pipelines)


@dataclass(slots=True)
class BestJobs:
    """Best plan so far for each combination of sizes, dp and pp."""

    plans: dict[tuple[Sizes, int, int], JobPlan] = field(default_factory=dict)
    time_ps: int = NO_BOUND

    def offer(self, plan: JobPlan | None) -> None:
        """Keep a plan if it is the best of its combination."""
        if plan is None:
            return
        key = plan.space.sizes, plan.dp, plan.pp
        previous = self.plans.get(key)
        if previous is None or plan.time_ps < previous.time_ps:
            self.plans[key] = plan
            self.time_ps = min(self.time_ps, plan.time_ps)


@dataclass(frozen=True, slots=True, eq=False)
class FoundJob:
    """Best plan with its proof, and the best plans of other sizes by t_std."""

    plan: JobPlan  # the fastest executed of those within 1 % of the least t_std
    least_ps: int  # least t_std found
    lower_bound_ps: int  # of t_std
    alternatives: tuple[JobPlan, ...]
    planning_time_s: float
    # Plans of simpler ways to run the job, by the way's name; None if no plan of a way fits.
    comparison: Mapping[str, JobPlan | None] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Return the optimality gap of the least t_std, as a fraction."""
        return max(self.least_ps / self.lower_bound_ps - 1, 0.0)

    @property
    def optimal(self) -> bool:
        """Return whether the least t_std is proven optimal."""
        return self.lower_bound_ps >= self.least_ps


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parallel sizes common to all pipelines of a plan."""

    tp: int
    microbatch: int
    recompute: Recompute
    interleave: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes by type, order of the types in the pipeline, and number of pipelines on the nodes."""

    nodes: tuple[int, ...]
    order: tuple[int, ...]
    replicas: int


@dataclass(frozen=True, slots=True)
class JobStage:
    """Number of blocks of a stage, with the type of its node and the node's number in the unit."""

    blocks: int
    device: int
    node: int


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """Unit with its stages, ΣC, max C, and the time of synchronization and optimizer, ps."""

    unit: Unit
    stages: tuple[JobStage, ...]
    sum_ps: int
    slowest_ps: int
    tail_ps: int

    def time_ps(self, microbatches: int) -> int:
        """Return t_std of a pipeline including its tail, ps."""
        return self.sum_ps + (microbatches - 1) * self.slowest_ps + self.tail_ps


class KernelCosts(NamedTuple):
    """`StageCosts` of every device type as arrays for compiled code."""

    block: IntArray
    embedding: IntArray
    head: IntArray
    inside: IntArray
    between: IntArray
    capacity: FloatArray
    block_parameters: float
    table_parameters: float
    stored: float
    working: float
    inputs: float
    logits: float


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Search space of a job at given parallel sizes."""

    spec: JobSpec
    sizes: Sizes
    costs: tuple[StageCosts, ...]
    arrays: KernelCosts
    microbatches: int

    @property
    def slots(self) -> int:
        """Return the number of TP groups per node."""
        return self.spec.gpus_per_node // self.sizes.tp

    @property
    def groups(self) -> int:
        """Return the total number of TP groups on all nodes."""
        return self.spec.nodes * self.slots

    @property
    def layers(self) -> int:
        """Return the number of blocks of the model."""
        return self.spec.transformer.layers_count

    def stages(self, unit: Unit) -> int:
        """Return the number of stages of each pipeline of a unit."""
        return sum(unit.nodes) * self.slots // unit.replicas

    def tail_ps(self, unit: Unit, dp: int) -> int:
        """Return the tail after the last backward: exposed synchronization and optimizer, ps."""
        return sum(self.tail_parts_ps(unit, dp))

    def tail_parts_ps(self, unit: Unit, dp: int) -> tuple[int, int]:
        """Return exposed synchronization and optimizer step of a unit's average stage, ps."""
        spec, stages = self.spec, self.stages(unit)
        total = self.layers * self.arrays.block_parameters + 2 * self.arrays.table_parameters
        slowest = min(
            (spec.devices[kind] for kind in unit.order),
            key=pace_after,
        )
        return synchronization_ps(spec, slowest, total / stages, dp, unit.replicas)

    def static(self, dp: int) -> float:
        """Return the bytes of weights, gradients and optimizer state per parameter."""
        return sum(static_bytes_per_parameter(self.spec, dp))


def pace_after(device: JobDevice) -> tuple[float, float]:
    """Return the key that sorts devices by speed after the last backward pass, slowest first."""
    link = device.link_gbytes_per_s
    return device.accelerator.bytes_per_s, float("inf") if link is None else link


def space_of(spec: JobSpec, sizes: Sizes) -> Space:
    """Return the search space of a job at given sizes."""
    costs = tuple(
        stage_costs(spec, device, sizes.tp, sizes.microbatch, sizes.recompute)
        for device in spec.devices
    )
    any_costs = costs[0]
    arrays = KernelCosts(
        block=np.array([cost.block_ps for cost in costs], dtype=np.int64),
        embedding=np.array([cost.embedding_ps for cost in costs], dtype=np.int64),
        head=np.array([cost.head_ps for cost in costs], dtype=np.int64),
        inside=np.array([cost.receive_inside_ps for cost in costs], dtype=np.int64),
        between=np.array([cost.receive_between_ps for cost in costs], dtype=np.int64),
        capacity=np.array([cost.capacity_bytes for cost in costs]),
        block_parameters=any_costs.block_parameters,
        table_parameters=any_costs.table_parameters,
        stored=any_costs.stored_bytes,
        working=any_costs.working_bytes,
        inputs=any_costs.input_bytes,
        logits=any_costs.logits_bytes,
    )
    return Space(spec, sizes, costs, arrays, spec.global_batch // sizes.microbatch)


@compiled  # pragma: no cover - coverage does not see compiled code
def in_flight(stages: int, position: int, interleave: int, microbatches: int) -> float:
    """Return the number of microbatches whose activations a stage holds, plain or interleaved."""
    if interleave == 1:
        return float(min(stages - position, microbatches))
    chunks = 2 * (stages - position - 1) + (interleave - 1) * stages + 1
    return min(chunks / interleave, float(microbatches))


@compiled  # pragma: no cover - coverage does not see compiled code
def arrange(
    nodes: IntArray,
    order: IntArray,
    node_stages: int,
    costs: KernelCosts,
    static: float,
    interleave: int,
    microbatches: int,
) -> tuple[IntArray, IntArray, IntArray]:
    """Return by stage its type, its time without blocks (ps), and the blocks that its memory holds.

    Parameters
    ----------
    nodes : int64 array, shape (types,)
        Nodes of each type.
    order : int64 array, shape (types,)
        Types in the order of the pipeline, padded with -1.
    node_stages : int
        Stages of the pipeline in each node.
    static : float
        Bytes of weights, gradients and optimizer state per parameter.
    """
    stages = 0
    for t in range(nodes.shape[0]):
        stages += nodes[t] * node_stages
    kind = np.empty(stages, dtype=np.int64)
    at = 0
    for o in range(order.shape[0]):
        if order[o] >= 0:
            for _ in range(nodes[order[o]] * node_stages):
                kind[at] = order[o]
                at += 1
    extra = np.zeros(stages, dtype=np.int64)
    most = np.empty(stages, dtype=np.int64)
    for j in range(stages):
        t = kind[j]
        first, last = j == 0, j == stages - 1
        flight = in_flight(stages, j, interleave, microbatches)
        fixed = costs.working
        if first:
            extra[j] += costs.embedding[t]
            fixed += static * costs.table_parameters + flight * costs.inputs
        if last:
            extra[j] += costs.head[t]
            fixed += static * costs.table_parameters + costs.logits
        if stages > 1:
            # Time to receive activations (edge 0) and gradients (edge 1). With interleaving, the
            # first and the last stage also receive, from each other.
            for edge in range(2):
                at_end = first if edge == 0 else last
                crosses = j % node_stages == 0 if edge == 0 else (j + 1) % node_stages == 0
                times = interleave - 1 if at_end else interleave
                crosses = stages > node_stages if at_end else crosses
                extra[j] += times * (costs.between[t] if crosses else costs.inside[t])
        if np.isfinite(costs.capacity[t]):
            room = costs.capacity[t] - fixed
            each = static * costs.block_parameters + flight * costs.stored
            most[j] = max(int(np.floor(room / each)), 0)
        else:
            most[j] = _UNLIMITED
    return kind, extra, most


@compiled  # pragma: no cover - coverage does not see compiled code
def fronts(
    nodes: IntArray,
    orders: IntArray,
    node_stages: IntArray,
    costs: KernelCosts,
    static: float,
    layers: int,
    microbatches: int,
    least: int,
) -> tuple[IntArray, IntArray]:
    """Return the concatenated Pareto fronts (`front_of`) of units, and each front's start; 1F1B."""
    count = nodes.shape[0]
    starts = np.zeros(count + 1, dtype=np.int64)
    points = np.empty((1024, 2), dtype=np.int64)
    for i in range(count):
        kind, extra, most = arrange(
            nodes[i], orders[i], node_stages[i], costs, static, 1, microbatches
        )
        block = costs.block[kind]
        mine = front_of(block, extra, most, layers, least)
        end = starts[i] + mine.shape[0]
        while end > points.shape[0]:
            points = np.concatenate((points, np.empty_like(points)))
        points[starts[i] : end] = mine
        starts[i + 1] = end
    return points[: starts[count]].copy(), starts


def padded(order: tuple[int, ...], types: int) -> list[int]:
    """Return the order of a unit's types, padded with -1 to the number of types."""
    return [*order, *[-1] * (types - len(order))]


def template_of(space: Space, unit: Unit, dp: int, microbatches: int) -> JobTemplate | None:
    """Return a unit's template with its best cut for n microbatches; None if no cut fits."""
    node_stages = space.slots // unit.replicas
    chunks = space.sizes.interleave
    kind, extra, most = arrange(
        np.array(unit.nodes, dtype=np.int64),
        np.array(padded(unit.order, len(unit.nodes)), dtype=np.int64),
        node_stages,
        space.arrays,
        space.static(dp),
        chunks,
        space.microbatches,
    )
    block = space.arrays.block[kind]
    if chunks > 1:
        # Interleaved 1F1B needs equal stages that consist of whole chunks.
        each, rest = divmod(space.layers, len(most))
        if len(most) == 1 or rest or each % chunks or int(most.min()) < each:
            return None
        blocks: tuple[int, ...] = (each,) * len(most)
    else:
        cut = best_cut(block, extra, most, space.layers, microbatches)
        if cut is None:
            return None
        _, blocks = cut
    times = extra + np.array(blocks) * block
    total, slowest = int(times.sum()), int(times.max())
    nodes = [
        (device, node)
        for device in unit.order
        for node in range(unit.nodes[device])
        for _ in range(node_stages)
    ]
    return JobTemplate(
        unit=unit,
        stages=tuple(JobStage(b, *at) for b, at in zip(blocks, nodes, strict=True)),
        sum_ps=slowest + -(-(total - slowest) // chunks),
        slowest_ps=slowest,
        tail_ps=space.tail_ps(unit, dp),
    )


def units_of(space: Space) -> tuple[Unit, ...]:
    """Return every possible unit of a cluster, in each order of the unit's types."""
    shape = [device.nodes for device in space.spec.devices]
    slots, fixed = space.slots, space.spec.fixed.pp
    units = []
    for nodes in itertools.product(*(range(number + 1) for number in shape)):
        used = [kind for kind, number in enumerate(nodes) if number]
        for replicas in divisors(slots):
            stages = sum(nodes) * slots // replicas
            if not used or stages > space.layers or fixed not in {None, stages}:
                continue
            units += [Unit(nodes, order, replicas) for order in itertools.permutations(used)]
    return tuple(units)
