"""Replay of a step's operations with changed durations, for many variants at the same time.

An operation is launched at the last end of its dependencies. A computation ends after its duration;
a communication ends its transfer duration after the last launch in its group (section 3.2 of
"Understanding Stragglers in Large Model Training Using What-if Analysis"). `ArrayReplay` handles
all variants, steps and DP ranks of a node in one NumPy call; the compiled executor
(`compiled_replay`) returns the same bits. Without the compiled executor a report takes 1.6 times
(ST), 2.4 times (AR) and 1.4 times (AR tiled 16 times) the processor time. Loading it takes a third
of a second, so that `paceline analyze` of AR would take 0.55 s instead of 0.27 s.
`tests.oracles.replay` checks both executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A graph prepared for replay by either executor."""

    # For each unit: its members, the dependencies of each member, whether the unit's group spans
    # the DP ranks, and the nodes whose ends no later unit needs.
    units: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], bool, tuple[int, ...]], ...]
    ends_last: frozenset[int]  # nodes that may end last
    lags_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)  # as `Graph.lags_ns`
    # Chaining of steps, see `Graph.chained`; None if steps are not chained
    chain: Chain | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """Chained steps: each stage begins a step when it has ended its previous step."""

    stages: int
    # Node that begins a step → the stage whose last end in the previous step the node follows
    begins: Mapping[int, int]
    closes: Mapping[int, int]  # node without dependents on its stage → its stage
    step_gap_ns: float  # regular gap between two steps of a stage


def prepare(graph: Graph, stage: NDArray[np.int32], shortest_ns: FloatArray) -> Program:
    """Return a graph prepared for replay, as a program.

    Parameters
    ----------
    stage : int32 array, shape (nodes,)
        Pipeline stage of each node.
    shortest_ns : float64 array, shape (nodes,)
        Shortest duration of each node in any variant. If it is negative (clock noise), a dependency
        of the node may end after the node and be the last end of the step.
    """
    ends_last = set(graph.last)
    last_use: dict[int, int] = {}
    for index, unit in enumerate(graph.units):
        for node in unit.members:
            last_use[node] = index
        for after in unit.after:
            for node in after:
                last_use[node] = index
    for unit in graph.units if (shortest_ns < 0).any() else ():
        for node, after in zip(unit.members, unit.after, strict=True):
            if shortest_ns[node] < 0:
                ends_last.update(after)
    finished: list[list[int]] = [[] for _ in graph.units]
    for node, index in last_use.items():
        finished[index].append(node)
    units = tuple(
        (unit.members, unit.after, unit.across_dp, tuple(nodes))
        for unit, nodes in zip(graph.units, finished, strict=True)
    )
    chain = _chain(graph, stage.tolist()) if graph.chained else None
    return Program(units, frozenset(ends_last), graph.lags_ns, chain)


def _chain(graph: Graph, stage: Sequence[int]) -> Chain:
    follows = [
        (node, after)
        for unit in graph.units
        for node, after in zip(unit.members, unit.after, strict=True)
    ]
    followed = {
        before for node, after in follows for before in after if stage[before] == stage[node]
    }
    return Chain(
        stages=max(stage) + 1,
        # Nodes without a dependency on their own stage begin the stage's step.
        begins={
            node: stage[node]
            for node, after in follows
            if not any(stage[before] == stage[node] for before in after)
        },
        closes={node: stage[node] for node, _ in follows if node not in followed},
        step_gap_ns=graph.step_gap_ns,
    )


CodeArray = NDArray[np.int32]

# Codes for the duration of an operation in a variant. A code of 0 or more is the index of a row of
# the block's `values_ns`.
IDEAL: Final = -1
RECORDED: Final = -2
# This code and those below select a row of `Batch.masks`: the operation takes its recorded duration
# on the DP ranks in the row, and its ideal duration on all others.
FIRST_MASK: Final = -3
# Code for an operation without a launch delay.
ON_TIME: Final = -1

# Start of a step, shape (lane or partner, variant, step, DP rank)
_STEP_START: FloatArray = np.zeros((1, 1, 1, 1))
# Number of elements that a NumPy call works on. With fewer elements the overhead per call exceeds
# the computing; with more, the live ends exceed the cache of a core.
_BATCH_ELEMENTS: Final = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Variants of the same steps, given by codes."""

    # Shape (variants, nodes): duration code of each node: IDEAL, RECORDED, a row of
    # `Block.values_ns`, or FIRST_MASK and below for the rows of `masks`
    takes: CodeArray
    masks: NDArray[np.bool_]  # (masks, dp): DP ranks that keep their recorded duration
    # Shape (variants, nodes): row of `Block.delays_ns` with each node's launch delay, or ON_TIME
    late: CodeArray | None = None
    # Whether each DP rank is replayed against a single ideal partner, which represents all other DP
    # ranks, instead of against the other DP ranks.
    partnered: bool = False

    def part(self, variants: slice) -> Batch:
        """Return the batch of some of the variants."""
        late = None if self.late is None else self.late[variants]
        return Batch(self.takes[variants], self.masks, late, self.partnered)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Durations and launch delays of some steps, ns."""

    steps: slice  # the block's steps among all
    recorded_ns: FloatArray  # (nodes, all steps, dp)
    ideal_ns: FloatArray  # (nodes,)
    values_ns: FloatArray  # (rows, the block's steps, dp)
    delays_ns: FloatArray  # (rows, steps, dp)
    first_delay: int = 0  # index of the block's first step in `delays_ns`


def one_by_one(block: Block) -> Iterator[Block]:
    """Yield a block for each step of a block."""
    first, end, _ = block.steps.indices(block.recorded_ns.shape[1])
    for number in range(end - first):
        step = slice(number, number + 1)
        yield replace(
            block,
            steps=slice(first + number, first + number + 1),
            values_ns=block.values_ns[:, step],
            first_delay=block.first_delay + number,
        )


class Executor(Protocol):
    """Interface of the executors, which replay the steps of a program."""

    @property
    def program(self) -> Program:
        """Return the program that the executor replays."""
        ...

    @property
    def lanes_at_once(self) -> int:
        """Return the fastest size of a block as a number of lanes (step, DP rank)."""
        ...

    @property
    def tiles(self) -> bool:
        """Return whether the executor itself cuts large blocks into tiles and releases the GIL."""
        ...

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:
        """Return the ends of steps, shape (variants, steps of the block, dp), ns.

        Ends count from the begin of each step, or in chained steps from the begin of the block. The
        executor uses at most `threads` threads.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ArrayReplay:
    """Executor with a NumPy call for each node."""

    program: Program
    # Callback for each node with its launches and ends, shape (lane or partner, variant, step, DP
    # rank).
    observe: Callable[[int, FloatArray, FloatArray], None] | None = None

    @property
    def lanes_at_once(self) -> int:
        """Return the fastest size of a block as a number of lanes (step, DP rank)."""
        return _BATCH_ELEMENTS // 8

    @property
    def tiles(self) -> bool:
        """Return whether the executor itself cuts large blocks into tiles and releases the GIL."""
        return False

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:  # noqa: ARG002
        """Return the ends of steps, shape (variants, steps of the block, dp), ns."""
        recorded = block.recorded_ns[:, block.steps]
        ends = np.empty((len(batch.takes), *recorded.shape[1:]))
        if self.program.chain is not None:
            # The carried ends lie one gap before time 0, so that the first step begins at time 0.
            carry = [_STEP_START - self.program.chain.step_gap_ns] * self.program.chain.stages
            for step, part in enumerate(one_by_one(block)):
                ends[:, step : step + 1] = self._replay(batch, part, carry)
            return ends
        size = max(1, _BATCH_ELEMENTS // recorded[0].size)
        for first in range(0, len(ends), size):
            variants = slice(first, first + size)
            ends[variants] = self._replay(batch.part(variants), block, [])
        return ends

    def _replay(  # noqa: C901 - one walk
        self, batch: Batch, block: Block, carry: list[FloatArray]
    ) -> FloatArray:
        """Return the ends of a block's steps, ns; `carry` has each stage's last end if chained."""
        # Attributes are bound to local names, since this loop dominates the time of short steps.
        times = _Times(batch, block)
        maximum, ends_last = np.maximum, self.program.ends_last
        chain = self.program.chain
        plain = not self.program.lags_ns and chain is None
        closed = list(carry)
        ends: dict[int, FloatArray] = {}
        step_end = _STEP_START
        for members, afters, spans_dp, finished in self.program.units:
            if plain:
                ready = [_latest(after, ends) for after in afters]
            else:
                ready = [
                    self._ready(node, after, ends, carry)
                    for node, after in zip(members, afters, strict=True)
                ]
            launches = [times.launch(*item) for item in zip(members, ready, strict=True)]
            begin = launches[0]
            for launch in launches[1:]:
                begin = maximum(begin, launch)
            if spans_dp and batch.partnered:
                begin = begin.max(axis=0, keepdims=True)
            elif spans_dp:
                begin = begin.max(axis=-1, keepdims=True)
            for node, launch in zip(members, launches, strict=True):
                end = ends[node] = times.end(node, begin)
                if node in ends_last:
                    step_end = maximum(step_end, end)
                stage = None if chain is None else chain.closes.get(node)
                if stage is not None:
                    closed[stage] = maximum(closed[stage], end)
                if self.observe is not None:
                    self.observe(node, launch, end)
            for node in finished:
                del ends[node]
        carry[:] = closed
        return np.asarray(step_end.max(axis=0))

    def _ready(
        self,
        node: int,
        after: tuple[int, ...],
        ends: Mapping[int, FloatArray],
        carry: Sequence[FloatArray],
    ) -> FloatArray:
        """Return the earliest launch of a node, ns: its dependencies' ends plus lags.

        In chained steps the node also follows the end of its stage's previous step.
        """
        chain = self.program.chain
        begins = chain is not None and node in chain.begins
        latest = _STEP_START
        if chain is not None and begins:
            latest = carry[chain.begins[node]] + chain.step_gap_ns
        for number, other in enumerate(after):
            end = ends[other] + self.program.lags_ns.get((node, other), 0.0)
            latest = np.maximum(latest, end) if number or begins else end
        return latest


def _latest(after: tuple[int, ...], ends: Mapping[int, FloatArray]) -> FloatArray:
    """Return the latest end of a node's dependencies, ns; without any, 0, the step's start."""
    if not after:
        return _STEP_START
    latest = ends[after[0]]
    for other in after[1:]:
        latest = np.maximum(latest, ends[other])
    return latest


class _Times:
    """Durations and delays of a batch, shape (lane or partner, variant, step, DP rank).

    An axis along which all values are equal has length 1.
    """

    def __init__(self, batch: Batch, block: Block) -> None:
        self._batch, self._block = batch, block
        self._recorded = block.recorded_ns[:, block.steps]
        self._takes: list[list[int]] = batch.takes.T.tolist()
        self._late: list[list[int]] | None = None if batch.late is None else batch.late.T.tolist()
        own = slice(block.first_delay, block.first_delay + self._recorded.shape[1])
        self._delays = block.delays_ns[:, own]
        self._shape = (2 if batch.partnered else 1, len(batch.takes), *self._recorded.shape[1:])

    def launch(self, node: int, ready: FloatArray) -> FloatArray:
        """Return the launch of a node: the last end of its dependencies plus its launch delay."""
        if self._late is None or max(self._late[node]) == ON_TIME:
            return ready
        launch = np.array(np.broadcast_to(ready, self._shape))
        for variant, row in enumerate(self._late[node]):
            if row != ON_TIME:
                launch[0, variant] += self._delays[row]
        return launch

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Return the end of a node that begins its computation or transfer at `begin`."""
        takes = self._takes[node]
        alike = len(set(takes)) == 1
        end: FloatArray
        if alike and (takes[0] == IDEAL or not self._batch.partnered):
            end = begin + self._duration(node, takes[0])
            return end
        common = IDEAL if self._batch.partnered or IDEAL in takes else RECORDED
        end = np.empty(self._shape)
        np.add(begin, self._duration(node, common), out=end)
        for variant, code in enumerate(takes):
            if code != common:
                own = begin[0, variant if begin.shape[1] > 1 else 0]
                np.add(own, self._duration(node, code), out=end[0, variant])
        return end

    def _duration(self, node: int, code: int) -> FloatArray:
        duration: FloatArray
        if code == IDEAL:
            duration = self._block.ideal_ns[node, None]
        elif code == RECORDED:
            duration = self._recorded[node]
        elif code >= 0:
            duration = self._block.values_ns[code]
        else:
            mask = self._batch.masks[FIRST_MASK - code]
            duration = np.where(mask, self._recorded[node], self._block.ideal_ns[node])
        return duration


# Duration of a transfer in an empty place: the transfer ends before all others, so that no
# operation waits for it. With a duration of 0, dependent operations would still wait until both
# sides are launched.
NO_TRANSFER: Final = -np.inf


def transfers_padded(layout: Layout) -> NDArray[np.bool_]:
    """Return which places of transfers are empty, shape (nodes, steps, dp)."""
    if layout.padding is None:
        return np.zeros(layout.start_ns.shape, dtype=bool)
    return np.asarray(layout.padding.where() & layout.padding.transfers[:, None, None])


def without_transfers(ideal_ns: FloatArray, nodes: NDArray[np.bool_]) -> FloatArray:
    """Return ideal durations with `NO_TRANSFER` for transfers in empty places, shape (nodes,), ns.

    Parameters
    ----------
    nodes : bool array, shape (nodes,)
        Transfers whose place is empty on some DP rank.
    """
    return np.where(nodes & (ideal_ns <= 0), NO_TRANSFER, ideal_ns)


@dataclass(frozen=True, slots=True, eq=False)
class PaddedReplay:
    """Executor of padded steps, in which transfers in empty places do not take place."""

    program: Program
    inner: Executor
    transfers: NDArray[np.bool_]  # (nodes, steps, dp): empty places of transfers
    # Cache of one entry: the last durations, and the same durations with `NO_TRANSFER` in empty
    # places.
    _cache: list[tuple[FloatArray, FloatArray]] = field(init=False, default_factory=list)

    @property
    def lanes_at_once(self) -> int:
        """Return the fastest size of a block as a number of lanes (step, DP rank)."""
        return self.inner.lanes_at_once

    @property
    def tiles(self) -> bool:
        """Return whether the executor itself cuts large blocks into tiles and releases the GIL."""
        return self.inner.tiles

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:
        """Return the ends of steps, shape (variants, steps of the block, dp), ns."""
        nodes = np.asarray(self.transfers.any(axis=(1, 2)))
        ideal = without_transfers(block.ideal_ns, nodes)
        values = block.values_ns
        if len(values):
            # Each row of values belongs to the same node in all variants.
            values = block.values_ns.copy()
            for node in np.flatnonzero(self.transfers.any(axis=(1, 2))).tolist():
                rows = np.unique(batch.takes[:, node])
                for row in rows[rows >= 0].tolist():
                    none = self.transfers[node, block.steps] & (values[row] <= 0)
                    values[row][none] = NO_TRANSFER
        recorded = self._recorded(block.recorded_ns)
        block = replace(block, recorded_ns=recorded, ideal_ns=ideal, values_ns=values)
        return self.inner.step_ends(batch, block, threads)

    def _recorded(self, recorded_ns: FloatArray) -> FloatArray:
        for cached_ns, without in self._cache:
            if cached_ns is recorded_ns:
                return without
        without = np.where(self.transfers, NO_TRANSFER, recorded_ns)
        self._cache[:] = [(recorded_ns, without)]
        return without
