"""Pipelines over nodes of several types: which of them can do a batch within a time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from app.analysis.planning.job.cuts import cover, most_microbatches
from app.analysis.planning.job.result import JobPipeline, JobPlan
from app.analysis.planning.job.space import Space, Unit, fronts, padded, template_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


class MixedSearch:
    """Pipelines at given sizes over nodes of several types.

    Parameters
    ----------
    some : tuple of int
        Numbers of pipelines that are looked into, ascending. Of several, memory is that of the
        last one, and synchronization that of the first one: the least that it can be.
    """

    def __init__(self, space: Space, units: tuple[Unit, ...], some: tuple[int, ...]) -> None:
        self.space, self.units, self.some = space, units, some
        self.dp = dp = some[-1]
        types = len(space.spec.devices)
        self.shape = np.array([device.nodes for device in space.spec.devices], dtype=np.int64)
        self.sizes = np.array([unit.nodes for unit in units], dtype=np.int64).reshape(-1, types)
        self.replicas = np.array([unit.replicas for unit in units], dtype=np.int64)
        orders = np.array([padded(unit.order, types) for unit in units], dtype=np.int64)
        self.points, self.starts = fronts(
            self.sizes,
            orders.reshape(-1, types),
            space.slots // self.replicas,
            space.arrays,
            space.static(dp),
            space.layers,
            space.microbatches,
            1,
        )
        tails = {}
        for unit in units:
            key = unit.order, sum(unit.nodes), unit.replicas
            if key not in tails:
                synchronization, _ = space.tail_parts_ps(unit, some[0])
                _, step = space.tail_parts_ps(unit, dp)
                tails[key] = synchronization + step
        self.tails = np.array(
            [tails[unit.order, sum(unit.nodes), unit.replicas] for unit in units], dtype=np.int64
        )

        # units that differ in their order only
        same = np.unique(np.column_stack([self.sizes, self.replicas]), axis=0, return_inverse=True)[
            1
        ]
        self.same: IntArray = same.reshape(-1)

    def _cover(self, most: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return the table of `cover`, its choices, and the units that these number."""
        by_most = np.lexsort((-most, self.same))
        units = by_most[np.flatnonzero(np.diff(self.same[by_most], prepend=-1))]
        units = units[most[units] > 0]
        worth = most[units] * self.replicas[units]
        table, choice = cover(self.sizes[units], self.replicas[units], worth, self.shape, self.dp)
        return table, choice, units

    def possible(self, time_ps: int) -> tuple[int, ...]:
        """Return the numbers of pipelines that are not proven to take longer than a time."""
        most = most_microbatches(self.points, self.starts, time_ps, self.tails)
        table, _, _ = self._cover(most)
        final = table.max(axis=1) if self.space.spec.allow_idle else table[:, -1]
        return tuple(dp for dp in self.some if final[dp] >= self.space.microbatches)

    def plan_within(self, time_ps: int) -> JobPlan | None:
        """Return a plan that takes at most `time_ps`; None where there is none."""
        most = most_microbatches(self.points, self.starts, time_ps, self.tails)
        table, choice, useful = self._cover(most)
        final = table[self.dp] if self.space.spec.allow_idle else table[self.dp, -1:]
        if final.max() < self.space.microbatches:
            return None
        state = int(final.argmax()) + table.shape[1] - len(final)
        found = walk(choice, self.sizes[useful], self.replicas[useful], self.shape, self.dp, state)
        chosen = useful[found].tolist()
        return self._plan(chosen, most)

    @property
    def longest_ps(self) -> int:
        """Return a time in which any pipeline can do all microbatches."""
        return int(self.points[:, 0].max()) * (self.space.microbatches + 1) + int(self.tails.max())

    def share(self, chosen: list[int]) -> JobPlan | None:
        """Return the plan of some units that shares the batch best; None where one does not fit."""
        if any(self.starts[i] == self.starts[i + 1] for i in chosen):
            return None
        count = self.replicas[chosen]
        low, high = 0, self.longest_ps
        while low < high:
            middle = (low + high) // 2
            most = most_microbatches(self.points, self.starts, middle, self.tails)[chosen]
            if most.min() > 0 and (most * count).sum() >= self.space.microbatches:
                high = middle
            else:
                low = middle + 1
        most = most_microbatches(self.points, self.starts, low, self.tails)
        return self._plan(chosen, most)

    def _plan(self, chosen: list[int], most: IntArray) -> JobPlan:
        """Share the batch: of pipelines that can do more than all of it, the slowest do less."""
        pipelines = [unit for unit in chosen for _ in range(self.replicas[unit])]
        shares = shares_of(
            [self._times(unit, int(most[unit])) for unit in pipelines], self.space.microbatches
        )
        used = [0] * len(self.shape)
        planned = []
        at = 0
        for unit_number in chosen:
            unit = self.units[unit_number]
            nodes = tuple(
                (kind, used[kind] + node) for kind in unit.order for node in range(unit.nodes[kind])
            )
            for kind in unit.order:
                used[kind] += unit.nodes[kind]
            for share in shares[at : at + unit.replicas]:
                template = template_of(self.space, unit, self.dp, share)
                if template is None:
                    raise AssertionError(unit)  # its front has a cut
                planned.append(JobPipeline(template, share, nodes))
            at += unit.replicas
        return JobPlan(self.space, tuple(planned))

    def _times(self, unit: int, most: int) -> IntArray:
        """Return ``[n - 1]``: what a unit's pipeline takes for 1 to `most` microbatches."""
        points = self.points[self.starts[unit] : self.starts[unit + 1]]
        number = np.arange(most)[:, None]
        times: IntArray = (points[:, 0] + number * points[:, 1]).min(axis=1) + self.tails[unit]
        return times


def shares_of(times: list[IntArray], microbatches: int) -> list[int]:
    """Return each pipeline's microbatches: all of them, the slowest pipeline as fast as can be.

    Parameters
    ----------
    times : list of int64 arrays
        For each pipeline ``[n - 1]``, what it takes for n microbatches, up to what it may do.
    """
    shares = [len(one) for one in times]
    heap = [(-int(one[-1]), i) for i, one in enumerate(times) if len(one) > 1]
    heapq.heapify(heap)
    for _ in range(sum(shares) - microbatches):
        _, i = heapq.heappop(heap)
        shares[i] -= 1
        if shares[i] > 1:
            heapq.heappush(heap, (-int(times[i][shares[i] - 1]), i))
    return shares


def walk(  # noqa: PLR0913, PLR0917 - as `cover`
    choice: IntArray, sizes: IntArray, replicas: IntArray, shape: IntArray, d: int, state: int
) -> list[int]:
    """Return the units with which `cover` reached a state with d pipelines."""
    strides = np.cumprod([1, *(shape[:0:-1] + 1)])[::-1]
    chosen = []
    while d:
        chosen.append(unit := int(choice[d, state]))
        state -= int((sizes[unit] * strides).sum())
        d -= int(replicas[unit])
    return chosen
