"""Replay of the operations of a step under changed durations, many variants at once.

An operation is launched at the last end it depends on. A computation ends after its duration, a
communication its transfer duration after the last launch in its group (section 3.2 of the paper).
`ArrayReplay` handles all variants, steps and DP ranks of a node in one NumPy call; the compiled
executor (`compiled_replay`) returns the same bits. Without it a report takes 1.6 times (ST), 2.4
times (AR) and 1.4 times (AR tiled 16 times) the processor time; loading it takes a third of a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import Graph

# ---- A graph prepared for replay, by either executor -------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A graph prepared for replay: what to read, what to write, what to forget."""

    # For each unit its members, for each member what it follows, whether the group spans the DP
    # ranks, and the nodes whose end nothing needs after it.
    units: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], bool, tuple[int, ...]], ...]
    ends_last: frozenset[int]  # nodes that may end last
    # mapping of (node, what it follows) to float: as `Graph.lags_ns`
    lags_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # How steps follow one another where their stages do not begin them together.
    chain: Chain | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps that follow one another stage by stage."""

    stages: int
    # Stage of each node that begins a step: it follows the stage's last end in the step before.
    begins: Mapping[int, int]
    closes: Mapping[int, int]  # stage of each node that nothing of its stage follows
    step_gap_ns: float  # what regularly passes between two steps of a stage


def prepare(graph: Graph, stage: NDArray[np.int32], shortest_ns: FloatArray) -> Program:
    """Prepare a graph for replay.

    Parameters
    ----------
    stage : int32 array, shape (nodes,)
        The pipeline stage of each node.
    shortest_ns : float64 array, shape (nodes,)
        The shortest duration of each node in any variant. Where it is negative (clock noise), what
        the node follows may end after it and can be the step's last end.
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
        # what follows nothing of its own stage is held up by the stage's last step all the same
        begins={
            node: stage[node]
            for node, after in follows
            if not any(stage[before] == stage[node] for before in after)
        },
        closes={node: stage[node] for node, _ in follows if node not in followed},
        step_gap_ns=graph.step_gap_ns,
    )


# ---- Replay of a step's operations under changed durations, many variants at once --------------
# An operation is launched when the last operation that it depends on has ended. A computation ends
# after its duration; a communication when the last member of its group was launched plus its own
# transfer duration (section 3.2 of the paper).
#
# Two executors do the same, to the bit. `ArrayReplay` walks the graph once and handles all
# variants, steps and DP ranks of a node in one NumPy call; it is there at once and observes.
# Loading the compiled executor's run-time first takes a third of a second: `paceline analyze` of AR
# takes 0.55 s then, and not 0.27 s. With NumPy in place of the compiled executor (`kernel`), where
# that is loaded, a whole report takes 1.6 times (ST), 2.4 times (AR) and 1.4 times (AR tiled 16
# times) as long in processor time. `tests.oracles.replay` is the slow twin of both.


CodeArray = NDArray[np.int32]

# What an operation of a variant takes. 0 and above: that row of the block's `values_ns`.
IDEAL: Final = -1
RECORDED: Final = -2
# And below: its recorded duration on the DP ranks of a row of `Batch.masks`, ideal elsewhere.
FIRST_MASK: Final = -3
# An operation that is launched at once.
ON_TIME: Final = -1

# [lane or partner, variant, step, DP rank]
_STEP_START: FloatArray = np.zeros((1, 1, 1, 1))
# Elements that one NumPy call works on. Fewer, and calling costs more than computing; more, and
# the ends that are alive no longer fit in the cache of a core.
_BATCH_ELEMENTS: Final = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Variants of the same steps."""

    # (variants, nodes): what each node takes: IDEAL, RECORDED, a row of `Block.values_ns`, or
    # FIRST_MASK and below for the rows of `masks`
    takes: CodeArray
    masks: NDArray[np.bool_]  # (masks, dp): DP ranks that keep their recorded duration
    # (variants, nodes): by which row of `Block.delays_ns` a node is launched late; ON_TIME where
    # it is not
    late: CodeArray | None = None
    # Each lane is replayed against one ideal partner, that stands for all other DP ranks, and not
    # against the other lanes.
    partnered: bool = False

    def part(self, variants: slice) -> Batch:
        """Return some of the variants."""
        late = None if self.late is None else self.late[variants]
        return Batch(self.takes[variants], self.masks, late, self.partnered)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Durations of some steps, ns."""

    steps: slice  # the steps of the block
    recorded_ns: FloatArray  # (nodes, all steps, dp)
    ideal_ns: FloatArray  # (nodes,)
    values_ns: FloatArray  # (rows, the block's steps, dp)
    delays_ns: FloatArray  # (rows, steps, dp)
    first_delay: int = 0  # which of the steps of `delays_ns` is the block's first


def one_by_one(block: Block) -> Iterator[Block]:
    """Yield the steps of a block as blocks of their own."""
    first, end, _ = block.steps.indices(block.recorded_ns.shape[1])
    for number in range(end - first):
        here = slice(number, number + 1)
        yield replace(
            block,
            steps=slice(first + number, first + number + 1),
            values_ns=block.values_ns[:, here],
            first_delay=block.first_delay + number,
        )


class Executor(Protocol):
    """Executes steps."""

    @property
    def program(self) -> Program:
        """Return what it executes."""
        ...

    @property
    def lanes_at_once(self) -> int:
        """Return about how many (step, DP rank) a block should have."""
        ...

    @property
    def tiles(self) -> bool:
        """Return whether it cuts large blocks itself, and lets other threads run meanwhile."""
        ...

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:
        """Return when the steps end, shape (variants, the block's steps, dp), ns.

        Since their own begin; where they are chained, since the begin of the block. With at
        most `threads` threads.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ArrayReplay:
    """Executes steps with one NumPy call a node."""

    program: Program
    # Is given (node, launch, end) of each node, [lane or partner, variant, step, DP rank].
    observe: Callable[[int, FloatArray, FloatArray], None] | None = None

    @property
    def lanes_at_once(self) -> int:
        """Return about how many (step, DP rank) a block should have."""
        return _BATCH_ELEMENTS // 8

    @property
    def tiles(self) -> bool:
        """Return whether it cuts large blocks itself, and lets other threads run meanwhile."""
        return False

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:  # noqa: ARG002
        """Return when the steps end, shape (variants, the block's steps, dp), ns."""
        recorded = block.recorded_ns[:, block.steps]
        ends = np.empty((len(batch.takes), *recorded.shape[1:]))
        if self.program.chain is not None:
            # the first step begins at once
            carry = [_STEP_START - self.program.chain.step_gap_ns] * self.program.chain.stages
            for step, part in enumerate(one_by_one(block)):
                ends[:, step : step + 1] = self._replay(batch, part, carry)
            return ends
        size = max(1, _BATCH_ELEMENTS // recorded[0].size)
        for first in range(0, len(ends), size):
            variants = slice(first, first + size)
            ends[variants] = self._replay(batch.part(variants), block, [])
        return ends

    def _lag(self, node: int, before: int) -> float:
        return self.program.lags_ns.get((node, before), 0.0)

    def _replay(  # noqa: C901 - one walk
        self, batch: Batch, block: Block, carry: list[FloatArray]
    ) -> FloatArray:
        """Replay a block; `carry` is each stage's last end so far, where steps are chained."""
        # For short steps this loop is what replay costs, so names are bound once.
        times = _Times(batch, block)
        maximum, ends_last = np.maximum, self.program.ends_last
        plain = not self.program.lags_ns and self.program.chain is None
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
                if not plain:
                    self._close(node, end, closed)
                if self.observe is not None:
                    self.observe(node, launch, end)
            for node in finished:
                del ends[node]
        carry[:] = closed
        return np.asarray(step_end.max(axis=0))

    def _close(self, node: int, end: FloatArray, closed: list[FloatArray]) -> None:
        """Let a node's stage end the step no earlier than the node does."""
        stage = None if self.program.chain is None else self.program.chain.closes.get(node)
        if stage is not None:
            closed[stage] = np.maximum(closed[stage], end)

    def _ready(
        self,
        node: int,
        after: tuple[int, ...],
        ends: Mapping[int, FloatArray],
        carry: Sequence[FloatArray],
    ) -> FloatArray:
        """Return when all that a node follows has ended, what passes before its launch included."""
        chain = self.program.chain
        begins = chain is not None and node in chain.begins
        latest = _STEP_START
        if chain is not None and begins:
            latest = carry[chain.begins[node]] + chain.step_gap_ns
        for number, other in enumerate(after):
            end = ends[other] + self._lag(node, other)
            latest = np.maximum(latest, end) if number or begins else end
        return latest


def _latest(after: tuple[int, ...], ends: Mapping[int, FloatArray]) -> FloatArray:
    """Return the latest end of what a node follows; the step's start where that is nothing."""
    if not after:
        return _STEP_START
    latest = ends[after[0]]
    for other in after[1:]:
        latest = np.maximum(latest, ends[other])
    return latest


class _Times:
    """Durations and delays of a batch, [lane or partner, variant, step, DP rank].

    As long as nothing tells variants, lanes or steps apart, one number stands for all of them.
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
        """Return when a node is launched, given when what it depends on has ended."""
        if self._late is None or max(self._late[node]) == ON_TIME:
            return ready
        launch = np.array(np.broadcast_to(ready, self._shape))
        for variant, row in enumerate(self._late[node]):
            if row != ON_TIME:
                launch[0, variant] += self._delays[row]
        return launch

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Return when a node ends, given when it begins to compute or to transfer."""
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


# ---- Steps in which DP ranks run different numbers of microbatches: nothing is handed over in padd
#
# A transfer that takes no time would still wait until both of its sides are launched, and hold up
# what a rank runs in earnest. One that ends before all time holds up nothing.


# What a transfer takes that does not happen.
NO_TRANSFER: Final = -np.inf


def transfers_padded(layout: Layout) -> NDArray[np.bool_]:
    """Return the places in which no transfer happens, shape (nodes, steps, dp)."""
    if layout.padding is None:
        return np.zeros(layout.start_ns.shape, dtype=bool)
    return np.asarray(layout.padding.where() & layout.padding.transfers[:, None, None])


def without_transfers(ideal_ns: FloatArray, nodes: NDArray[np.bool_]) -> FloatArray:
    """Return ideal durations, shape (nodes,), in which some transfers that take no time are none.

    Parameters
    ----------
    nodes : bool array, shape (nodes,)
        Transfers that do not happen on some DP rank.
    """
    return np.where(nodes & (ideal_ns <= 0), NO_TRANSFER, ideal_ns)


@dataclass(frozen=True, slots=True, eq=False)
class PaddedReplay:
    """Executes padded steps: what takes no time in a place without a transfer is none."""

    program: Program
    inner: Executor
    transfers: NDArray[np.bool_]  # (nodes, steps, dp): places in which none happens
    # Durations that were asked for last, and those without transfers in padding.
    _known: list[tuple[FloatArray, FloatArray]] = field(init=False, default_factory=list)

    @property
    def lanes_at_once(self) -> int:
        """Return about how many (step, DP rank) a block should have."""
        return self.inner.lanes_at_once

    @property
    def tiles(self) -> bool:
        """Return whether it cuts large blocks itself, and lets other threads run meanwhile."""
        return self.inner.tiles

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:
        """Return when the steps end, shape (variants, the block's steps, dp), ns."""
        nodes = np.asarray(self.transfers.any(axis=(1, 2)))
        ideal = without_transfers(block.ideal_ns, nodes)
        values = block.values_ns
        if len(values):
            values = self._values(batch, block)
        recorded = self._recorded(block.recorded_ns)
        block = replace(block, recorded_ns=recorded, ideal_ns=ideal, values_ns=values)
        return self.inner.step_ends(batch, block, threads)

    def _recorded(self, recorded_ns: FloatArray) -> FloatArray:
        for known, without in self._known:
            if known is recorded_ns:
                return without
        without = np.where(self.transfers, NO_TRANSFER, recorded_ns)
        self._known[:] = [(recorded_ns, without)]
        return without

    def _values(self, batch: Batch, block: Block) -> FloatArray:
        """Return the rows of values: of nodes whose transfers do not happen, none that take none.

        A row is of one node, whichever variants take it.
        """
        values = block.values_ns.copy()
        for node in np.flatnonzero(self.transfers.any(axis=(1, 2))).tolist():
            rows = np.unique(batch.takes[:, node])
            for row in rows[rows >= 0].tolist():
                none = self.transfers[node, block.steps] & (values[row] <= 0)
                values[row][none] = NO_TRANSFER
        return values
