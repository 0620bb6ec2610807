"""Simulator of a session: recorded and ideal durations, and step times of variants, in ns.

An own duration excludes waiting for other ranks. An ideal duration is that of an operation in a job
without stragglers. Source: section 3.2 of "Understanding Stragglers in Large Model Training Using
What-if Analysis".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

# A transfer duration below this value is a fault of a clock or of the recorder and counts as 0; a
# negative duration above it is clock noise and is kept.
FAULT_NS = -10e6
# Number of transfer durations that a NumPy call works on. Nodes with this many or more durations
# are changed in place, without copies.
_AT_A_TIME: Final = 1 << 12

# Op types whose ideal duration is the mean instead of the median: their durations differ because
# work is divided unevenly, and with an even division every rank would take the mean.
IDEAL_IS_MEAN = frozenset(
    {ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE, ops.OPTIMIZER, ops.GC}
)


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Durations without waiting, recorded and ideal."""

    # Shape (nodes, steps, dp), ns: of a computation the recorded duration; of a communication the
    # transfer duration, from the last launch in its group to its end
    recorded_ns: FloatArray
    # Shape (nodes,), ns: ideal duration of the node's op type
    ideal_ns: FloatArray


# Own durations as in `Durations.recorded_ns`, and the number of faulty transfer durations that were
# set to 0.
OwnDurations: TypeAlias = tuple[FloatArray, int]


def own_durations(layout: Layout, graph: Graph) -> OwnDurations:
    """Return recorded durations without waiting: of a communication, the transfer duration.

    Returns
    -------
    durations : float64 array, shape (nodes, steps, dp)
        Own durations as in `Durations.recorded_ns`, ns.
    clamped : int
        Number of faulty transfer durations that count as 0.
    """
    recorded = layout.duration_ns.copy(order="C")
    padded = None if layout.padding is None else layout.padding.where()
    if padded is not None:
        # Empty places have no transfer, so their duration is infinite, which keeps them from
        # counting as faulty.
        recorded[padded] = np.inf
    clamped = 0
    alike: dict[tuple[int, bool], list[tuple[int, ...]]] = {}
    for unit in graph.units:
        if unit.communication and (len(unit.members) > 1 or unit.across_dp):
            alike.setdefault((len(unit.members), unit.across_dp), []).append(unit.members)
    at_a_time = max(1, _AT_A_TIME // recorded[0].size)
    for (_, across_dp), groups in alike.items():
        # Groups of the same size share NumPy calls, whose overhead dominates in short steps.
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
    """Subtract waiting from the durations of groups in place; return the number of faulty ones.

    Parameters
    ----------
    recorded, start_ns : float64 arrays, shape (nodes, steps, dp)
        Durations, which are changed in place, and starts, ns.
    members : sequence of slices or int64 arrays, shape (groups,)
        The first members of all groups, the second ones, and so on.
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
        # A slice is a view, so the durations were changed in place; an index array needs this
        # write.
        if not isinstance(nodes, slice):
            recorded[nodes] = transfer
    return clamped


def ideal_durations(layouts: Sequence[Layout], recorded: Sequence[FloatArray]) -> list[FloatArray]:
    """Return the ideal durations of each layout's nodes, shape (nodes,), ns.

    The ideal duration of an op type is taken over all steps, microbatches, stages and DP ranks of
    the session: the mean for computation, and the median for communication, whose rare outliers are
    long. If DP ranks run different numbers of microbatches, the ideal step has their mean number.
    """
    by_type: dict[int, list[FloatArray]] = {}
    for layout, values in zip(layouts, recorded, strict=True):
        padded = None if layout.padding is None else layout.padding.where()
        # The nodes of an op type are contiguous, so each op type is a slice.
        codes, firsts = np.unique(layout.nodes.op, return_index=True)
        ends = [*firsts[1:].tolist(), len(layout.nodes)]
        for code, first, end in zip(codes.tolist(), firsts.tolist(), ends, strict=True):
            nodes = slice(first, end)
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


# Function of a slice of steps that returns rows of durations or delays, shape (rows, steps of the
# slice, dp), ns; called by several threads.
RowsOfSteps = Callable[[slice], FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Keep:
    """Variant in which some operations keep their recorded durations and all others are ideal."""

    cells: NDArray[np.bool_]  # (dp, pp): workers whose operations are kept
    types: NDArray[np.bool_]  # (op types,): op types that are kept


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """Variant in which some nodes have other durations than the recorded ones."""

    nodes: IntArray  # (replaced,)
    # Returns the durations of these nodes in a slice of steps, shape (replaced, steps, dp), ns
    times_ns: RowsOfSteps


@dataclass(frozen=True, slots=True, eq=False)
class Simulator:
    """Simulator of a layout: step times of variants, ns, in the order of the layout's steps."""

    layout: Layout
    durations: Durations
    executor: Executor

    def keep(
        self, *, cells: NDArray[np.bool_] | None = None, types: Sequence[str] | None = None
    ) -> Keep:
        """Return the variant that keeps the given workers and op types; all by default."""
        layout = self.layout
        if cells is None:
            cells = np.ones((layout.dp, layout.pp), dtype=bool)
        if types is None:
            return Keep(cells, np.ones(len(layout.op_names), dtype=bool))
        return Keep(cells, self._types(types))

    def _types(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return a mask of the named op types, shape (op types,)."""
        chosen = np.zeros(len(self.layout.op_names), dtype=bool)
        chosen[self.layout.codes(*names)] = True
        return chosen

    def step_times(self, keeps: Sequence[Keep]) -> FloatArray:
        """Return the step times of variants, shape (variants, steps), ns."""
        return self._step_times(self._kept(keeps))

    def ideal_step_times(self) -> FloatArray:
        """Return T_ideal, the step times with all operations ideal, shape (steps,), ns."""
        none = self._kept([self.keep(types=[])])
        if self._chained:
            return np.asarray(self._step_times(none)[0])
        # All ideal steps are equal, so a single step is replayed.
        return np.full(len(self.layout.steps), self._ends(none, slice(0, 1)).max())

    def worker_step_times(self) -> tuple[FloatArray, FloatArray]:
        """Return the step times if only a single worker, or a single DP rank, is as recorded.

        All other operations are ideal (T^-w of the paper, from which S_w is computed). The other DP
        ranks are then equal at all times, so a single ideal partner at the collectives represents
        all of them: each lane (step, DP rank) is replayed against a partner of its own, and all
        workers of a stage take a single such replay.

        Returns
        -------
        by_worker : float64 array, shape (steps, dp, pp), ns
        by_dp : float64 array, shape (steps, dp), ns
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
        """Return the step times with the launch delays of op types, shape (variants, steps), ns.

        Parameters
        ----------
        types : sequence of sequences of str
            Op types of each variant that are launched with their recorded delays.
        delays_ns : callable or float64 array
            Launch delays, ns: a function of a slice of steps, or an array of all steps, shape
            (nodes, steps, dp).
        """
        nodes = self.layout.nodes
        takes = np.full((len(types), len(nodes)), RECORDED, dtype=np.int32)
        every = np.arange(len(nodes), dtype=np.int32)
        kept = np.array([self._types(names) for names in types])
        late = np.where(kept[:, nodes.op], every, np.int32(ON_TIME))
        batch = Batch(takes, _no_masks(self.layout), late)
        return self._step_times(batch, delays_ns=delays_ns)

    def replaced_step_times(self, *replacements: Replacement) -> FloatArray:
        """Return the step times with replaced durations, shape (replacements, steps), ns."""
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
        """Return the step times of variants that are given by codes, shape (variants, steps), ns.

        Parameters
        ----------
        takes, late : int32 arrays, shape (variants, nodes)
            See `Batch`; codes of masks are not allowed.
        values_ns, delays_ns : callable
            Functions of a slice of steps that return the rows to which the codes refer, ns. Delays
            may also be an array of all steps.
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
        """Return step times from ends, ns; of chained steps (axis 1) the differences of ends."""
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
        """Return slices of steps that fit in the cache; a single slice if steps are chained."""
        count = len(self.layout.steps)
        if self._chained:
            return [slice(0, count)]
        size = max(1, self.executor.lanes_at_once // self.layout.dp)
        return [slice(first, min(first + size, count)) for first in range(0, count, size)]

    def _at_once(self) -> list[slice]:
        """Return slices of steps that are replayed together if durations are given as arrays."""
        return [slice(0, len(self.layout.steps))] if self.executor.tiles else self.blocks()

    def _kept(self, keeps: Sequence[Keep]) -> Batch:
        """Return the batch of variants that keep the recorded durations of some operations."""
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
