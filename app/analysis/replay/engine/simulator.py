"""Simulator of a session: recorded and ideal durations, and step times of variants.

Own durations exclude waiting; ideal ones have no stragglers. Nanoseconds. Source: section 3.2 of
"Understanding Stragglers in Large Model Training Using What-if Analysis".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.analysis.loops import in_threads, threads_for
from app.analysis.replay.engine.replay import (
    FIRST_MASK,
    IDEAL,
    ON_TIME,
    RECORDED,
    Batch,
    Block,
    CodeArray,
    Executor,
)
from app.analysis.replay.layout.dense import FloatArray, IntArray, Layout
from app.analysis.replay.layout.dependency_graph import Graph
from app.analysis.replay.robust_statistics import mean, median
from app.analysis.trace import model as ops

# ---- What each operation takes by itself: recorded, and as it would be without stragglers ------
# Source: section 3.2 of "Understanding Stragglers in Large Model Training Using What-if Analysis".


# A communication that ends this long before its last member was launched cannot be right: its
# clock or its record is at fault, and it counts as instantaneous. Above it, clock noise is kept.
FAULT_NS = -10e6
# Transfers that are looked at at once; where a node has as many, its rows need no copies.
_AT_A_TIME: Final = 1 << 12

# Computing differs because work is divided unevenly: dividing it evenly gives everyone the mean.
IDEAL_IS_MEAN = frozenset(
    {ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE, ops.OPTIMIZER, ops.GC}
)


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Durations without waiting."""

    # (nodes, steps, dp): computation as recorded; communication from the moment when the last
    # member of its group was launched (transfer duration)
    recorded_ns: FloatArray
    # (nodes,): the value that every operation of the node's type would have without stragglers
    ideal_ns: FloatArray


# As `Durations.recorded_ns`, and how many transfer durations at fault count as 0.
OwnDurations: TypeAlias = tuple[FloatArray, int]


def own_durations(layout: Layout, graph: Graph) -> OwnDurations:
    """Separate transferring from waiting.

    Returns
    -------
    durations : float64 array, shape (nodes, steps, dp)
        As `Durations.recorded_ns`.
    clamped : int
        Transfer durations at fault that count as 0.
    """
    recorded = layout.duration_ns.copy(order="C")
    padded = None if layout.padding is None else layout.padding.where()
    if padded is not None:
        # no transfer, so none at fault
        recorded[padded] = np.inf
    clamped = 0
    alike: dict[tuple[int, bool], list[tuple[int, ...]]] = {}
    for unit in graph.units:
        if unit.communication and (len(unit.members) > 1 or unit.across_dp):
            alike.setdefault((len(unit.members), unit.across_dp), []).append(unit.members)
    at_a_time = max(1, _AT_A_TIME // recorded[0].size)
    for (_, across_dp), groups in alike.items():
        # Groups of one size at once: in short steps calling costs more than computing.
        for first in range(0, len(groups), at_a_time):
            together = groups[first : first + at_a_time]
            members: list[NDArray[np.intp] | slice]
            if at_a_time == 1:
                members = [slice(node, node + 1) for node in together[0]]
            else:
                members = list(np.array(together).T)
            clamped += _take_off_waiting(recorded, layout.start_ns, members, across_dp=across_dp)
    if padded is not None:
        recorded[padded] = 0.0
    return recorded, clamped


def _take_off_waiting(
    recorded: FloatArray,
    start_ns: FloatArray,
    members: Sequence[NDArray[np.intp] | slice],
    *,
    across_dp: bool,
) -> int:
    """Let groups take time from their last launch on; return how many are at fault.

    Parameters
    ----------
    recorded, start_ns : float64 arrays, shape (nodes, steps, dp)
        The former is changed in place.
    members : sequence of slices or int64 arrays, shape (groups,)
        The first members of all groups, the second ones…
    across_dp : bool
        Whether the groups span the DP ranks.
    """
    clamped = 0
    starts = [start_ns[nodes] for nodes in members]
    latest = starts[0]
    for start in starts[1:]:
        latest = np.maximum(latest, start)
    if across_dp:
        latest = latest.max(axis=-1, keepdims=True)
    for nodes, start in zip(members, starts, strict=True):
        transfer = recorded[nodes]
        transfer += start
        transfer -= latest
        if transfer.min() < FAULT_NS:
            faulty = transfer < FAULT_NS
            clamped += int(faulty.sum())
            transfer[faulty] = 0.0
        # A slice has been changed in place.
        if not isinstance(nodes, slice):
            recorded[nodes] = transfer
    return clamped


def ideal_durations(layouts: Sequence[Layout], recorded: Sequence[FloatArray]) -> list[FloatArray]:
    """Return the ideal duration of each layout's nodes, shape (nodes,).

    The ideal duration of an op type is taken over all steps, microbatches, stages and DP ranks of
    the session: the mean for computation, the median for communication, whose rare outliers are
    long. Where DP ranks run different numbers of microbatches, each runs as many as the mean.
    """
    by_type: dict[int, list[FloatArray]] = {}
    for layout, values in zip(layouts, recorded, strict=True):
        padded = None if layout.padding is None else layout.padding.where()
        for code, nodes in _nodes_by_type(layout):
            own = values[nodes].ravel() if padded is None else values[nodes][~padded[nodes]]
            by_type.setdefault(code, []).append(own)
    names = layouts[0].op_names

    def typical(code: int) -> float:
        parts = by_type[code]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return float((mean if names[code] in IDEAL_IS_MEAN else median)(values))

    threads = threads_for(sum(values.size for values in recorded))
    ideal = dict(zip(by_type, in_threads(threads, typical, list(by_type)), strict=True))
    of_nodes = [np.array([ideal[code] for code in layout.nodes.op.tolist()]) for layout in layouts]
    counts = [layout.padding.counts.ravel() for layout in layouts if layout.padding is not None]
    microbatches = float(np.mean(np.concatenate(counts))) if counts else 0.0
    return [
        durations if layout.padding is None else durations * layout.padding.weights(microbatches)
        for layout, durations in zip(layouts, of_nodes, strict=True)
    ]


def _nodes_by_type(layout: Layout) -> Iterator[tuple[int, slice]]:
    """Yield each op type's code and its nodes, which are neighbors."""
    codes, firsts = np.unique(layout.nodes.op, return_index=True)
    ends = [*firsts[1:].tolist(), len(layout.nodes)]
    for code, first, end in zip(codes.tolist(), firsts.tolist(), ends, strict=True):
        yield code, slice(first, end)


# ---- Variants of a session: which operations keep their recorded duration, and what the rest gets


# Rows of durations or delays of some steps, shape (rows, those steps, dp), ns; several threads ask.
RowsOfSteps = Callable[[slice], FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Keep:
    """The operations that keep their recorded durations; all others become ideal."""

    cells: NDArray[np.bool_]
    """Workers whose operations are kept."""
    types: NDArray[np.bool_]
    """Op types that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """Nodes, and what they take in place of their recorded durations."""

    nodes: IntArray  # (replaced,)
    # Given a slice of steps, returns their durations, shape (replaced, steps, dp).
    times_ns: RowsOfSteps


@dataclass(frozen=True, slots=True, eq=False)
class Simulator:
    """Replays variants of one layout.

    Results are step times in ns, the steps in the layout's order.
    """

    layout: Layout
    durations: Durations
    executor: Executor

    def keep(
        self, *, cells: NDArray[np.bool_] | None = None, types: Sequence[str] | None = None
    ) -> Keep:
        """Return what keeps the given cells and op types; everything where nothing is given."""
        layout = self.layout
        if cells is None:
            cells = np.ones((layout.dp, layout.pp), dtype=bool)
        if types is None:
            return Keep(cells, np.ones(len(layout.op_names), dtype=bool))
        return Keep(cells, self._types(types))

    def _types(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which op types these are, shape (op types,)."""
        chosen = np.zeros(len(self.layout.op_names), dtype=bool)
        chosen[self.layout.codes(*names)] = True
        return chosen

    def step_times(self, keeps: Sequence[Keep]) -> FloatArray:
        """Replay variants on all DP ranks.

        Returns
        -------
        float64 array, shape (variants, steps)
        """
        return self._step_times(self._kept(keeps))

    def ideal_step_times(self) -> FloatArray:
        """Return the step times with every operation ideal, shape (steps,)."""
        none = self._kept([self.keep(types=[])])
        if self._chained:
            return np.asarray(self._step_times(none)[0])
        # One step stands for all.
        return np.full(len(self.layout.steps), self._ends(none, slice(0, 1)).max())

    def worker_step_times(self) -> tuple[FloatArray, FloatArray]:
        """Replay every worker, and every DP rank, as the only one that keeps its durations.

        With everything else ideal, the other DP ranks are equal at all times: one ideal partner,
        met at the collectives, stands for all of them. So each (step, DP rank) lane is replayed
        against a partner of its own, and all workers of a stage cost one such replay.

        Returns
        -------
        by_worker : float64 array, shape (steps, dp, pp)
        by_dp : float64 array, shape (steps, dp)
        """
        layout = self.layout
        stage = layout.nodes.pp
        takes = np.full((layout.pp + 1, len(stage)), IDEAL, dtype=np.int32)
        takes[stage, np.arange(len(stage))] = RECORDED
        takes[-1] = RECORDED
        batch = Batch(takes, _no_masks(layout), partnered=layout.dp > 1)
        times = np.empty((len(layout.steps), layout.dp, layout.pp + 1))
        threads = self._threads(batch)
        for steps in self._at_once():
            ends = self._ends(batch, steps, threads=threads)
            times[steps] = np.moveaxis(self._since_last(ends), 0, -1)
        return times[..., :-1], times[..., -1]

    def delayed_step_times(
        self, types: Sequence[Sequence[str]], delays_ns: RowsOfSteps | FloatArray
    ) -> FloatArray:
        """Replay recorded durations with the launch delays of some op types at a time.

        Parameters
        ----------
        types : sequence of sequences of str
            The op types that are late in each variant.
        delays_ns : callable or float64 array
            Returns the launch delays of some steps, shape (nodes, steps, dp), or has them of all.

        Returns
        -------
        float64 array, shape (variants, steps)
        """
        nodes = self.layout.nodes
        takes = np.full((len(types), len(nodes)), RECORDED, dtype=np.int32)
        every = np.arange(len(nodes), dtype=np.int32)
        kept = np.array([self._types(names) for names in types])
        late = np.where(kept[:, nodes.op], every, np.int32(ON_TIME))
        batch = Batch(takes, _no_masks(self.layout), late)
        return self._step_times(batch, delays_ns=delays_ns)

    def replaced_step_times(self, *replacements: Replacement) -> FloatArray:
        """Replay recorded durations, in each variant those of some nodes replaced.

        Returns
        -------
        float64 array, shape (variants, steps)
        """
        takes = np.full((len(replacements), len(self.layout.nodes)), RECORDED, dtype=np.int32)
        first = 0
        for row, item in zip(takes, replacements, strict=True):
            row[item.nodes] = np.arange(first, first + len(item.nodes))
            first += len(item.nodes)

        def values(steps: slice) -> FloatArray:
            return np.concatenate([item.times_ns(steps) for item in replacements])

        return self.coded_step_times(takes, values)

    def coded_step_times(
        self,
        takes: CodeArray,
        values_ns: RowsOfSteps,
        late: CodeArray | None = None,
        delays_ns: RowsOfSteps | FloatArray | None = None,
    ) -> FloatArray:
        """Replay variants that the caller has coded.

        Parameters
        ----------
        takes, late : int32 arrays, shape (variants, nodes)
            See `Batch`; codes of masks are not allowed.
        values_ns, delays_ns : callable
            Given a slice of steps, return the rows that the codes are about; of delays also an
            array that has all steps.

        Returns
        -------
        float64 array, shape (variants, steps)
        """
        batch = Batch(takes, _no_masks(self.layout), late)
        return self._step_times(batch, values_ns, delays_ns)

    def _step_times(
        self,
        batch: Batch,
        values_ns: RowsOfSteps | None = None,
        delays_ns: RowsOfSteps | FloatArray | None = None,
    ) -> FloatArray:
        times = np.empty((len(batch.takes), len(self.layout.steps)))
        at_once = values_ns is None and not callable(delays_ns)
        blocks = self._at_once() if at_once else self.blocks()
        threads = self._threads(batch)
        within = threads if len(blocks) == 1 else 1

        def replay(steps: slice) -> None:
            ends = self._ends(batch, steps, values_ns, delays_ns, threads=within).max(axis=-1)
            times[:, steps] = self._since_last(ends)

        in_threads(threads, replay, blocks)
        return times

    def _threads(self, batch: Batch) -> int:
        if not self.executor.tiles:
            return 1
        return threads_for(len(batch.takes) * self.layout.duration_ns.size)

    @property
    def _chained(self) -> bool:
        return self.executor.program.chain is not None

    def _since_last(self, ends: FloatArray) -> FloatArray:
        """Return step times; where steps are chained, from the end of the one before (axis 1)."""
        return np.diff(ends, axis=1, prepend=0.0) if self._chained else ends

    def _ends(
        self,
        batch: Batch,
        steps: slice,
        values_ns: RowsOfSteps | None = None,
        delays_ns: RowsOfSteps | FloatArray | None = None,
        *,
        threads: int = 1,
    ) -> FloatArray:
        none = np.empty((0, *self.layout.duration_ns[0, steps].shape))
        block = Block(
            steps,
            self.durations.recorded_ns,
            self.durations.ideal_ns,
            none if values_ns is None else values_ns(steps),
            none if delays_ns is None else delays_ns(steps) if callable(delays_ns) else delays_ns,
            0 if delays_ns is None or callable(delays_ns) else steps.start,
        )
        return self.executor.step_ends(batch, block, threads)

    def blocks(self) -> list[slice]:
        """Cut the steps so that what is alive of a block stays in the cache."""
        count = len(self.layout.steps)
        if self._chained:
            return [slice(0, count)]
        size = max(1, self.executor.lanes_at_once // self.layout.dp)
        return [slice(first, min(first + size, count)) for first in range(0, count, size)]

    def _at_once(self) -> list[slice]:
        """Cut the steps for variants whose durations and delays are there already."""
        return [slice(0, len(self.layout.steps))] if self.executor.tiles else self.blocks()

    def _kept(self, keeps: Sequence[Keep]) -> Batch:
        """Code which variants keep which nodes."""
        nodes = self.layout.nodes
        cells, types = np.array([k.cells for k in keeps]), np.array([k.types for k in keeps])
        some = cells.any(axis=1)
        of_stage = np.where(some, np.int32(RECORDED), np.int32(IDEAL))
        variants, stages = np.nonzero(some & ~cells.all(axis=1))
        of_stage[variants, stages] = FIRST_MASK - np.arange(len(stages))
        takes = np.where(types[:, nodes.op], of_stage[:, nodes.pp], np.int32(IDEAL))
        return Batch(takes, cells[variants, :, stages])


def _no_masks(layout: Layout) -> NDArray[np.bool_]:
    return np.empty((0, layout.dp), dtype=bool)
