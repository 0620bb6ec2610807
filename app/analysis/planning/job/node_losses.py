"""Plans after the loss of nodes: intact pipelines stay, remaining nodes are regrouped.

As in Oobleck (Jang et al., SOSP 2023), templates are planned before a loss. The remaining nodes of
broken pipelines form new pipelines if the model fits them, and the batch is divided again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.analysis.planning.job.costs import OPTIMIZER_BYTES
from app.analysis.planning.job.heterogeneous import MixedSearch
from app.analysis.planning.job.space import JobPlan, Space, Unit, space_of
from app.analysis.planning.problem import divisors


@dataclass(frozen=True, slots=True, eq=False)
class AfterLoss:
    """Plan after the loss of nodes of one type."""

    device: int
    lost: int
    plan: JobPlan | None  # None if the remaining nodes do not hold the model
    kept: int  # unchanged pipelines
    moved_bytes: float  # weights and optimizer states copied to new pipelines


def after_losses(plan: JobPlan) -> tuple[AfterLoss, ...]:
    """Return the plans after the loss of 1, 2, … nodes of each type, up to the job's `losses`."""
    spec, sizes = plan.space.spec, plan.space.sizes
    # Unequal pipelines run plain 1F1B, without interleaving.
    space = plan.space if sizes.interleave == 1 else space_of(spec, replace(sizes, interleave=1))
    return tuple(
        _after(plan, space, kind, lost)
        for lost in range(1, spec.losses + 1)
        for kind, device in enumerate(spec.devices)
        if lost <= device.nodes
    )


def _after(plan: JobPlan, space: Space, kind: int, lost: int) -> AfterLoss:
    """Return the plan after the loss of nodes that breaks the fewest pipelines."""
    units = units_of_plan(plan)
    broken: list[int] = []
    number = lost
    for position in sorted(range(len(units)), key=lambda i: units[i].nodes[kind], reverse=True):
        if number > 0 and units[position].nodes[kind]:
            broken.append(position)
            number -= units[position].nodes[kind]
    kept = [unit for i, unit in enumerate(units) if i not in broken]
    rest = [sum(units[i].nodes[t] for i in broken) for t in range(len(space.spec.devices))]
    rest[kind] -= lost - max(number, 0)
    best: JobPlan | None = None
    new: list[Unit] = []
    for added in _regroupings(space, rest, {units[i] for i in broken}):
        shared = _share_batch(space, kept + added)
        if shared is not None and (best is None or shared.time_ps < best.time_ps):
            best, new = shared, added
    each = space.layers * space.arrays.block_parameters * space.sizes.tp
    each += 2 * space.arrays.table_parameters * space.sizes.tp
    size = space.spec.transformer.number_bytes + OPTIMIZER_BYTES
    return AfterLoss(kind, lost, best, sum(unit.replicas for unit in kept), len(new) * each * size)


def units_of_plan(plan: JobPlan) -> list[Unit]:
    """Return the units of a plan in the order of its pipelines."""
    units = []
    at = 0
    while at < plan.dp:
        units.append(plan.pipelines[at].template.unit)
        at += units[-1].replicas
    return units


def _regroupings(space: Space, nodes: list[int], broken: set[Unit]) -> Iterator[list[Unit]]:
    """Yield ways to use the remaining nodes of broken units: as one unit, by type, or not at all.

    Nodes of a slow type may stay idle: a pipeline with them can be slower than without.
    """
    kinds = [kind for kind, number in enumerate(nodes) if number > 0]
    for count in range(len(kinds), 0, -1):
        for some in itertools.combinations(kinds, count):
            together = [number if kind in some else 0 for kind, number in enumerate(nodes)]
            yield _regrouped(space, together, broken)
            if count > 1:
                yield [
                    unit
                    for kind in some
                    for unit in _regrouped(
                        space, [nodes[kind] if k == kind else 0 for k in range(len(nodes))], broken
                    )
                ]
    yield []


def _regrouped(space: Space, nodes: list[int], broken: set[Unit]) -> list[Unit]:
    """Return a unit of all remaining nodes of the broken units, with the most replicas that fit."""
    kinds = [kind for kind, number in enumerate(nodes) if number > 0]
    order = next((unit.order for unit in broken), ())
    for replicas in sorted(divisors(space.slots), reverse=True):
        unit = Unit(tuple(nodes), tuple(k for k in order if k in kinds), replicas)
        if (
            kinds
            and len(unit.order) == len(kinds)
            and space.stages(unit) <= space.layers
            and len(MixedSearch(space, (unit,), (replicas,)).points)
        ):
            return [unit]
    return []


def _share_batch(space: Space, units: list[Unit]) -> JobPlan | None:
    """Return the plan of units with the batch divided again; None if the units form no plan."""
    dp = sum(unit.replicas for unit in units)
    if not units or dp > space.microbatches:
        return None
    distinct = list(Counter(units))
    mixed = MixedSearch(space, tuple(distinct), (dp,))
    return mixed.share([distinct.index(unit) for unit in units])
