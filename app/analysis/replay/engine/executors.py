"""Choice of the executor, and piecewise replay of computations that wait for collectives.

Ranks wait for one another at each collective inside a computation, so the sum of the longest pieces
is longer than the longest sum. Such a computation is therefore cut at its collectives into pieces,
which keep their shares of its duration. The module also configures processes that replay often:
they load the compiled executor at start and keep freed memory for the next arrays.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from app.analysis.loops import compiled_pays
from app.analysis.replay.engine.replay import (
    NO_TRANSFER,
    ON_TIME,
    RECORDED,
    ArrayReplay,
    Batch,
    Block,
    CodeArray,
    Executor,
    PaddedReplay,
    Program,
    prepare,
    transfers_padded,
)
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import Graph, Unit, sorted_graph

# Numbers of the parameters of `mallopt` (malloc.h)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
# Free memory at the top of the heap that the process keeps instead of returning it to the system,
# bytes.
KEPT: Final = 256 << 20


def keep_freed_memory() -> bool:
    """Configure glibc to keep freed memory in the process; return whether that succeeded.

    A report allocates and frees hundreds of arrays of megabytes. The system clears each page that
    it takes back, which was a tenth of the time of large reports. Without glibc nothing changes.
    """
    mallopt = of_glibc("mallopt")
    if mallopt is None:
        return False
    # The value 0 turns off separate memory mappings, which glibc would return to the system when
    # freed.
    return all(
        mallopt(name, value) for name, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, KEPT))
    )


def of_glibc(name: str) -> ctypes._NamedFuncPointer | None:
    """Return a function of glibc by name; None if the C library is not glibc."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def executor_for(program: Program, operations: int) -> Executor:
    """Return the compiled executor if it is loaded or worth its loading time, else `ArrayReplay`.

    Parameters
    ----------
    operations : int
        Number of operations to replay, from which the saved time is estimated.
    """
    if not compiled_pays(operations):
        return ArrayReplay(program)
    from app.analysis.replay.engine.compiled_replay import CompiledReplay  # noqa: PLC0415 - see above

    return CompiledReplay(program)


def warm_up() -> None:
    """Load the compiled executor, so that all later replays use it.

    Takes seconds the first time on a machine, when it is compiled and cached on disk. Also exempts
    all loaded objects from garbage collection, which otherwise scans them amid reports, and keeps
    freed memory.
    """
    from app.analysis.replay.engine.compiled_replay import CompiledReplay  # noqa: PLC0415 - see above

    program = Program((((0,), ((),), True, (0,)),), frozenset({0}))
    unit_ns = np.ones((1, 1, 1))
    batch = Batch(np.full((1, 1), RECORDED, dtype=np.int32), np.empty((0, 1), dtype=bool))
    for late in (None, np.full((1, 1), ON_TIME, dtype=np.int32)):
        block = Block(slice(0, 1), unit_ns, unit_ns[0, 0], unit_ns[:0], unit_ns[:0])
        CompiledReplay(program).step_ends(replace(batch, late=late), block)
    keep_freed_memory()
    gc.collect()
    gc.freeze()


def executor_of(layout: Layout, graph: Graph, shortest_ns: FloatArray, operations: int) -> Executor:
    """Return the executor of a layout's steps, which handles empty places and cut computations.

    Parameters
    ----------
    shortest_ns : float64 array, shape (nodes,)
        Shortest duration of each node in any variant; see `prepare`.
    operations : int
        Number of operations to replay.
    """
    if layout.padding is not None:
        transfers = transfers_padded(layout)
        shortest_ns = np.where(transfers.any(axis=(1, 2)), NO_TRANSFER, shortest_ns)
        inner = _executor_of(layout, graph, shortest_ns, operations)
        return PaddedReplay(inner.program, inner, transfers)
    return _executor_of(layout, graph, shortest_ns, operations)


def _executor_of(
    layout: Layout, graph: Graph, shortest_ns: FloatArray, operations: int
) -> Executor:
    program = prepare(graph, layout.nodes.pp, shortest_ns)
    if not graph.inside:
        return executor_for(program, operations)
    cut = _Cut.of(graph, len(layout.nodes))
    base = np.array(cut.base, dtype=np.int64)
    finer = sorted_graph(
        cut.units(graph), layout, chained=graph.chained, lags_ns=cut.lags_ns(graph)
    )
    pieces = prepare(
        replace(finer, step_gap_ns=graph.step_gap_ns),
        np.concatenate((layout.nodes.pp, layout.nodes.pp[base])),
        np.concatenate((shortest_ns, shortest_ns[base])),
    )
    return PiecewiseReplay(program, executor_for(pieces, operations), cut, layout.shares)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Computations cut into pieces. The last piece keeps its node; the others get new nodes."""

    # Computation → its pieces, and the collectives between the pieces, both in order.
    rows: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]
    holder: Mapping[int, int]  # collective → the computation that waits for it
    base: tuple[int, ...]  # (new nodes,): computation of each

    @classmethod
    def of(cls, graph: Graph, nodes: int) -> _Cut:
        rows = {}
        base: list[int] = []
        for computation, collectives in graph.inside.items():
            new = tuple(range(nodes + len(base), nodes + len(base) + len(collectives)))
            rows[computation] = ((*new, computation), collectives)
            base += [computation] * len(collectives)
        holder = {c: computation for computation, cs in graph.inside.items() for c in cs}
        return cls(rows, holder, tuple(base))

    def first(self, node: int) -> int:
        """Return the first piece of a node's computation; the node itself if it is not cut."""
        computation = self.holder.get(node, node)
        return self.rows[computation][0][0] if computation in self.rows else node

    def last(self, node: int) -> int:
        """Return the last piece of a node's computation; the node itself if it is not cut."""
        return self.holder.get(node, node)

    def units(self, graph: Graph) -> list[Unit]:
        """Return the units of the graph with pieces in place of the cut computations."""
        units = []
        outer: dict[int, set[int]] = {computation: set() for computation in self.rows}
        alone: dict[int, Unit] = {}
        for unit in graph.units:
            if self.rows.keys().isdisjoint(self.last(node) for node in unit.members):
                after = tuple(
                    tuple(sorted({self.last(node) for node in befores})) for befores in unit.after
                )
                units.append(replace(unit, after=after))
            for node, befores in zip(unit.members, unit.after, strict=True):
                computation = self.last(node)
                if computation in self.rows:
                    alone[node] = unit
                    outer[computation] |= {self.last(before) for before in befores} - {computation}
        for computation, (pieces, collectives) in self.rows.items():
            units.append(_piece(pieces[0], tuple(sorted(outer[computation]))))
            for number, collective in enumerate(collectives):
                units.append(replace(alone[collective], after=((pieces[number],),)))
                units.append(_piece(pieces[number + 1], (collective,)))
        return units

    def lags_ns(self, graph: Graph) -> dict[tuple[int, int], float]:
        """Return the regular delays between the last and the first pieces of computations, ns."""
        lags: dict[tuple[int, int], float] = {}
        for (node, before), lag in graph.lags_ns.items():
            edge = self.first(node), self.last(before)
            if self.last(node) != edge[1]:
                lags[edge] = max(lag, lags.get(edge, 0.0))
        return lags


def _piece(node: int, after: tuple[int, ...]) -> Unit:
    return Unit((node,), (after,), communication=False, across_dp=False)


@dataclass(frozen=True, slots=True, eq=False)
class PiecewiseReplay:
    """Executor of steps with cut computations; its batches and blocks describe uncut ones."""

    program: Program
    inner: Executor
    cut: _Cut
    # Computation → share of each piece in its duration, shape (pieces, steps, dp)
    shares: Mapping[int, FloatArray]
    # Cache of one entry: the last durations of uncut operations, and the durations of their pieces.
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
        takes, values = self._takes(batch.takes, block)
        late = None if batch.late is None else self._late(batch.late)
        ideal = np.concatenate((block.ideal_ns, block.ideal_ns[list(self.cut.base)]))
        for computation, (pieces, _) in self.cut.rows.items():
            of_piece = self.shares[computation].mean(axis=(1, 2))
            ideal[list(pieces)] = block.ideal_ns[computation] * of_piece
        whole = replace(
            block, recorded_ns=self._cut_up(block.recorded_ns), ideal_ns=ideal, values_ns=values
        )
        return self.inner.step_ends(replace(batch, takes=takes, late=late), whole, threads)

    def _cut_up(self, recorded_ns: FloatArray) -> FloatArray:
        """Return the durations of nodes and pieces, shape (nodes + new nodes, steps, dp), ns."""
        for cached_ns, pieces_ns in self._cache:
            if cached_ns is recorded_ns:
                return pieces_ns
        pieces_ns = np.concatenate((recorded_ns, recorded_ns[list(self.cut.base)]))
        for computation, (pieces, _) in self.cut.rows.items():
            pieces_ns[list(pieces)] = recorded_ns[computation] * self.shares[computation]
        self._cache[:] = [(recorded_ns, pieces_ns)]
        return pieces_ns

    def _takes(self, takes: CodeArray, block: Block) -> tuple[CodeArray, FloatArray]:
        """Return the duration codes of nodes and pieces, and the rows of values that they name."""
        cut = np.concatenate((takes, takes[:, list(self.cut.base)]), axis=1)
        rows = [block.values_ns]
        count = len(block.values_ns)
        for computation, (pieces, _) in self.cut.rows.items():
            of_steps = self.shares[computation][:, block.steps]
            for row in np.unique(takes[:, computation]).tolist():
                if row < 0:
                    continue
                mine = takes[:, computation] == row
                rows.append(block.values_ns[row] * of_steps)
                cut[np.ix_(mine, list(pieces))] = np.arange(
                    count, count + len(pieces), dtype=np.int32
                )
                count += len(pieces)
        return cut, rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _late(self, late: CodeArray) -> CodeArray:
        """Return the delay codes of nodes and pieces.

        The first piece of a computation takes the code of the node that is launched first.
        """
        cut = np.concatenate(
            (late, np.full((len(late), len(self.cut.base)), ON_TIME, dtype=np.int32)), axis=1
        )
        for computation, (pieces, collectives) in self.cut.rows.items():
            # The entry is the node that depends on no other of these nodes: it is launched first.
            inside = {computation, *collectives}
            after = {
                node: befores
                for members, afters, _, _ in self.program.units
                for node, befores in zip(members, afters, strict=True)
                if node in inside
            }
            entry = next(node for node in after if inside.isdisjoint(after[node]))
            cut[:, [computation, *collectives]] = ON_TIME
            cut[:, pieces[0]] = late[:, entry]
        return cut


def shares_of(
    start_ns: FloatArray,
    duration_ns: FloatArray,
    computation: int,
    collectives: tuple[int, ...],
) -> FloatArray:
    """Return the shares of a computation's own time before, between and after its collectives.

    Parameters
    ----------
    start_ns, duration_ns : float64 arrays, shape (nodes, steps, dp)
        Recorded starts and durations, ns.

    Returns
    -------
    float64 array, shape (collectives + 1, steps, dp)
        Shares of the computation's own time, which add up to 1.
    """
    begins = [start_ns[node] for node in collectives]
    ends = [start_ns[node] + duration_ns[node] for node in collectives]
    first, last = start_ns[computation], start_ns[computation] + duration_ns[computation]
    cuts = [first, *(time for pair in zip(begins, ends, strict=True) for time in pair), last]
    own = np.array([end - begin for begin, end in list(pairwise(cuts))[::2]])
    np.maximum(own, 0.0, out=own)
    total = own.sum(axis=0)
    even = np.full(own.shape, 1 / len(own))
    shares: FloatArray = np.divide(own, total, out=even, where=total > 0)
    return shares
