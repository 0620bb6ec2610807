"""Arrangement of the rows of a trace in dense layouts, with a layout for each shape of steps.

Recorders and our own storage write the operations of a rank and step together, in the same order in
every step and at equal distances. The rows of such a rank are a matrix (step, operation), which is
transposed as one block. If a trace is not regular in this way, each of its rows is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.loops import in_threads, threads_for
from app.analysis.replay.layout.dense import (
    MAX_NAMED_FAULTS,
    DroppedStep,
    FloatArray,
    IntArray,
    LaidOut,
    Layout,
    Nodes,
    Padding,
    no_complete_step,
)
from app.analysis.replay.layout.pipeline import (
    COMPUTE,
    DIRECTIONS,
    MAX_GROUPS,
    Route,
    flow_of,
    launch_scores,
    split_by_order,
)
from app.analysis.replay.layout.slots import Placed, StepRows, place
from app.analysis.replay.layout.step_shapes import Census, find_uneven, infer_shapes
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    FORWARD_COMPUTE,
    REPLAYED_OP_TYPES,
    Trace,
)
from app.analysis.trace.parallelism import busiest_ranks, has_rings
from app.errors import Fault, UnanalyzableError

Number = TypeVar("Number", np.int16, np.int32, np.int64)

# Number of DP ranks whose values are written together. Values of neighboring DP ranks share cache
# lines.
_TOGETHER: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class BlockRuns:
    """Runs of consecutive rows of the same rank and step; arrays of shape (runs,)."""

    first: NDArray[np.int64]  # first row
    end: NDArray[np.int64]  # row after the last
    rank: NDArray[np.int32]
    step: NDArray[np.int64]
    dp: NDArray[np.int32]
    pp: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Times of a regular trace as dense arrays."""

    steps: NDArray[np.int64]  # (steps,)
    shape: NDArray[np.int64]  # (op types × PP,): operations of each type and stage in a step
    begin_ns: NDArray[np.int64]  # (steps,): first start
    start_ns: NDArray[np.float64]  # (nodes, steps, dp): relative to `begin_ns`
    duration_ns: NDArray[np.float64]  # (nodes, steps, dp)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Rows of a rank as a matrix (step, operation)."""

    first: int  # first row
    stride: int  # rows from a step to the next
    size: int  # operations of a step
    dp: int
    pp: int


def find_runs(trace: Trace) -> BlockRuns:
    """Return the runs of consecutive rows of the same rank and step."""
    first = trace.stretches().first
    end = np.append(first[1:], len(trace))
    return BlockRuns(
        first, end, trace.rank[first], trace.step[first], trace.dp[first], trace.pp[first]
    )


def transpose_blocks(trace: Trace, runs: BlockRuns) -> Dense | None:
    """Return the dense arrays of a regular trace; None if the trace is irregular."""
    workers = trace.meta.sizes.workers
    step_count, odd = divmod(len(runs.first), workers)
    if odd or int(trace.op.max()) >= len(REPLAYED_OP_TYPES):
        return None
    in_order = np.lexsort((runs.step, runs.rank)).reshape(workers, step_count)
    steps = runs.step[in_order[0]]
    if (np.diff(steps) <= 0).any() or (runs.step[in_order] != steps).any():
        return None
    if (runs.rank[in_order] != runs.rank[in_order[:, :1]]).any():
        return None
    begin_ns = trace.stretches().earliest_ns[in_order].min(axis=0)
    # Only ranks whose runs have equal lengths and equal distances are transposed as a block.
    first, length = runs.first[in_order], (runs.end - runs.first)[in_order]
    stride = np.diff(first, axis=1)
    regular = (length == length[:, :1]).all(axis=1)
    if stride.size:
        regular &= (stride == stride[:, :1]).all(axis=1) & (stride[:, 0] > 0)
    blocks = [
        _Block(
            int(first[rank, 0]),
            int(stride[rank, 0]) if stride.size else 0,
            int(length[rank, 0]),
            int(runs.dp[in_order[rank, 0]]),
            int(runs.pp[in_order[rank, 0]]),
        )
        for rank in np.flatnonzero(regular)
    ]
    return _transpose(trace, steps, begin_ns, blocks)


def _transpose(
    trace: Trace,
    steps: NDArray[np.int64],
    begin_ns: NDArray[np.int64],
    blocks: list[_Block],
) -> Dense | None:
    """Return the dense arrays of blocks; None if a stage has different operations in two blocks."""
    sizes = trace.meta.sizes
    if len(blocks) != sizes.workers or len({(b.dp, b.pp) for b in blocks}) != sizes.workers:
        return None
    templates = {block.pp: slice(block.first, block.first + block.size) for block in blocks}
    shape = np.zeros((len(trace.op_names), sizes.pp), dtype=np.int64)
    for stage, lane in templates.items():
        shape[:, stage] = np.bincount(trace.op[lane], minlength=len(shape))
    first_node = np.concatenate(([0], np.cumsum(shape.ravel())))
    start_ns = np.empty((int(first_node[-1]), len(steps), sizes.dp))
    duration_ns = np.empty(start_ns.shape)
    threads = threads_for(len(trace))
    compares: list[Callable[[], bool]] = []
    moves: list[Callable[[], None]] = []
    for stage, lane in templates.items():
        op, order = trace.op[lane], trace.order[lane]
        kind = op.astype(np.int64) * sizes.pp + stage
        if (order >= shape.ravel()[kind]).any():
            return None
        nodes = first_node[kind] + order.astype(np.int64)
        # Blocks of the stage in the order of DP ranks; each worker has a single block
        mine = sorted((block for block in blocks if block.pp == stage), key=lambda b: b.dp)
        if any(block.size != len(op) for block in mine):
            return None
        compares.append(partial(_are_alike, trace, lane, mine, len(steps)))
        moves += [
            partial(_transpose_rows, trace.start_ns, begin_ns, mine, nodes, start_ns),
            partial(
                _transpose_rows,
                trace.duration_ns,
                np.zeros_like(begin_ns),
                mine,
                nodes,
                duration_ns,
            ),
        ]
    if not all(in_threads(threads, lambda compare: compare(), compares)):
        return None
    in_threads(threads, lambda move: move(), moves)
    return Dense(steps, shape.ravel(), begin_ns, start_ns, duration_ns)


def _are_alike(trace: Trace, template: slice, blocks: Sequence[_Block], steps: int) -> bool:
    """Return whether all blocks have the op types and orders of the template in every step."""
    ops, orders = trace.op[template], trace.order[template]
    return all(
        (_matrix(trace.op, block, steps) == ops).all()
        and (_matrix(trace.order, block, steps) == orders).all()
        for block in blocks
    )


def _transpose_rows(
    values: IntArray, less: IntArray, blocks: Sequence[_Block], nodes: IntArray, out: FloatArray
) -> None:
    """Write the values of a column for the blocks of a stage into `out`.

    Parameters
    ----------
    values : int64 array, shape (operations,)
        Column of the trace.
    less : int64 array, shape (steps,)
        Value that is subtracted from the values of each step.
    blocks : sequence of _Block
        Blocks of the stage, in the order of DP ranks.
    nodes : int64 array, shape (size,)
        Node of each row of a step in a block.
    out : float64 array, shape (all nodes, steps, dp)
    """
    for dp in range(0, len(blocks), _TOGETHER):
        some = slice(dp, dp + _TOGETHER)
        own = np.stack([_matrix(values, block, len(less)) for block in blocks[some]])
        own -= less[:, None]
        out[nodes, :, some] = own.transpose(2, 1, 0)


def _matrix(column: NDArray[Number], block: _Block, steps: int) -> NDArray[Number]:
    """Return a block's values of a column as a view of shape (steps, operations)."""
    item, data = column.itemsize, np.ascontiguousarray(column).data
    strides = (block.stride * item, item)
    return np.ndarray((steps, block.size), column.dtype, data, block.first * item, strides)


MAX_NAMED_WORKERS = 3
# Largest number of operations of a step on a DP rank, which is far above any real pipeline. A trace
# with more operations is refused.
MAX_NODES = 2_000_000


def lay_out(trace: Trace, routes: Sequence[Route] = (), *, pads: bool = True) -> LaidOut:
    """Return a trace's operations by node, step and DP rank, in a layout for each shape of steps.

    Each worker (DP rank, stage) is represented by one of its recorded ranks. The shape of a step is
    the number of operations of each type on each stage, and the order of its computations. A step
    is dropped if a rank did not record it, if too many of its operations are missing, or if it
    belongs to a warm-up or an evaluation.

    Parameters
    ----------
    routes : sequence of sequences of (stage, chunk)
        For each direction in which microbatches enter, its virtual stages in the order of a
        forward; empty if microbatches pass chunk after chunk.
    pads : bool
        Whether DP ranks may run different numbers of microbatches: ranks with fewer microbatches
        then have empty places.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_missing``: a worker has no recorded operation; ``trace.missing_model_chunk``;
        ``trace.too_many_operations`` in a step; ``trace.no_complete_step``.
    """
    _require_chunks(trace)
    runs = find_runs(trace)
    ranks = _analyzed_ranks(trace, runs)
    dense = transpose_blocks(trace, runs)
    unanswered: tuple[str, ...] = ()
    if dense is not None and _is_plain(dense.shape, ranks.shape[1]):
        groups, dropped = [_from_dense(trace, runs, dense, ranks)], dict[int, str]()
    else:
        # Sends without recorded receives are left out: in recorded jobs receives are posted late,
        # and the time for which a send waits for its receive would count as transfer.
        recorded = {trace.op_names[code] for code in np.unique(trace.op).tolist()}
        unanswered = tuple(
            d.send for d in DIRECTIONS if d.send in recorded and d.recv not in recorded
        )
        groups, dropped = _group_by_shape(trace, runs, ranks, (unanswered, routes), pads=pads)
    groups = [replace(group, routes=tuple(routes)) for group in groups] if routes else groups
    groups = [part for group in groups for part in split_by_order(group)]
    groups.sort(key=lambda layout: (-len(layout.steps), int(layout.steps[0])))
    for layout in groups[MAX_GROUPS:]:
        reason = f"its shape is not among the {MAX_GROUPS} most frequent ones"
        dropped |= dict.fromkeys(layout.steps.tolist(), reason)
    named = tuple(DroppedStep(step, reason) for step, reason in sorted(dropped.items()))
    if not groups:
        raise no_complete_step(named)
    return LaidOut(tuple(groups[:MAX_GROUPS]), named, unanswered)


def _is_plain(shape: IntArray, pp: int) -> bool:
    """Return whether a shape has forwards, backwards, and both sides of its recorded transfers."""
    kinds = shape.reshape(-1, pp).sum(axis=1)
    recorded = dict(zip(REPLAYED_OP_TYPES, (kinds > 0).tolist(), strict=False))
    both = all(recorded[direction.send] == recorded[direction.recv] for direction in DIRECTIONS)
    return both and recorded[BACKWARD_COMPUTE] and recorded[FORWARD_COMPUTE]


def _from_dense(trace: Trace, runs: BlockRuns, dense: Dense, ranks: NDArray[np.int32]) -> Layout:
    """Return the layout of a regular trace from its dense arrays."""
    # The rows of DP rank 0 in the first step. In a regular trace their microbatches and chunks are
    # those of all lanes.
    template = (runs.step == dense.steps[0]) & (runs.dp == 0) & (runs.rank == ranks[0][runs.pp])
    first, end = runs.first[template].tolist(), runs.end[template].tolist()
    lane = np.concatenate([np.arange(*run) for run in zip(first, end, strict=True)])
    shape = dense.shape
    first_node = np.cumsum(shape) - shape
    kind = trace.op[lane].astype(np.int64) * len(ranks[0]) + trace.pp[lane]
    node = first_node[kind] + trace.order[lane]
    mb, mc = (np.full(int(shape.sum()), ABSENT, dtype=np.int32) for _ in range(2))
    mb[node], mc[node] = trace.mb[lane], trace.mc[lane]
    return Layout(
        op_names=trace.op_names,
        nodes=_nodes_of(dense.shape, len(ranks[0]), mb, mc),
        steps=dense.steps,
        start_ns=dense.start_ns,
        duration_ns=dense.duration_ns,
        ranks=ranks,
        launch=dense.start_ns[:, 0, 0],
        begin_ns=dense.begin_ns.astype(np.float64),
    )


def _group_by_shape(
    trace: Trace,
    runs: BlockRuns,
    ranks: NDArray[np.int32],
    left_out_and_routes: tuple[Sequence[str], Sequence[Route]],
    *,
    pads: bool,
) -> tuple[list[Layout], dict[int, str]]:
    """Return the layouts of an irregular trace by shape, and the reason of each dropped step."""
    left_out, routes = left_out_and_routes
    steps, dropped = _steps_of_all_ranks(runs, ranks)
    replayed = np.array([name not in left_out for name in trace.op_names])
    replayed[len(REPLAYED_OP_TYPES) :] = False
    census, rows = _count(trace, runs, ranks, (steps, replayed), routes)
    uneven = find_uneven(census) if pads else None
    shapes = infer_shapes(census if uneven is None else uneven.census)
    dropped |= {int(steps[index]): reason for index, reason in shapes.dropped.items()}
    kept = np.setdiff1d(np.arange(len(steps)), list(shapes.dropped))
    layouts = []
    flat = shapes.expected.reshape(len(steps), len(REPLAYED_OP_TYPES) * ranks.shape[1])
    distinct, group_of = np.unique(flat[kept], axis=0, return_inverse=True)
    number = np.full(len(steps), -1)
    number[kept] = group_of.ravel()
    for group, shape in enumerate(distinct.astype(np.int64)):
        chosen = np.flatnonzero(number == group)
        nodes_of_step = int(shape.sum())
        if nodes_of_step > MAX_NODES:
            message = (
                f"{nodes_of_step} operations in one step of one DP rank, at most {MAX_NODES} are "
                "analyzed"
            )
            raise UnanalyzableError(
                message,
                code="trace.too_many_operations",
                faults=(Fault("too_many_operations", message, column="step"),),
            )
        index = np.full(len(steps), -1)
        index[chosen] = np.arange(len(chosen))
        inside = number[rows.step] == group
        part = StepRows(
            row=rows.row[inside],
            step=index[rows.step[inside]],
            dp=rows.dp[inside],
            kind=rows.kind[inside],
            order=rows.order[inside],
            own=None if uneven is None else uneven.own(shape, chosen),
        )
        placed = place(trace, part, shape, census.flow, (len(chosen), len(ranks)))
        nodes = _nodes_of(shape, ranks.shape[1], placed.mb, placed.mc)
        free = shapes.free[nodes.op, nodes.pp]
        padding = None if uneven is None else uneven.padding(nodes, chosen, placed.missing)
        layouts.append(
            _from_placed(trace.op_names, nodes, placed, steps[chosen], (ranks, free, padding))
        )
    return layouts, dropped


def _nodes_of(shape: IntArray, pp: int, mb: NDArray[np.int32], mc: NDArray[np.int32]) -> Nodes:
    """Return the nodes of a shape with the given microbatches and chunks."""
    kind = np.repeat(np.arange(len(shape)), shape)
    order = np.arange(len(kind)) - np.repeat(np.cumsum(shape) - shape, shape)
    return Nodes(
        op=(kind // pp).astype(np.int16),
        pp=(kind % pp).astype(np.int32),
        order=order.astype(np.int32),
        mb=mb,
        mc=mc,
    )


def _from_placed(
    op_names: tuple[str, ...],
    nodes: Nodes,
    placed: Placed,
    steps: IntArray,
    more: tuple[NDArray[np.int32], NDArray[np.bool_], Padding | None],
) -> Layout:
    ranks, free, padding = more
    missing = placed.missing
    present = placed.start_ns
    if missing is not None:
        present = np.where(missing, np.iinfo(np.int64).max, present)
    begin = present.min(axis=(0, 2))
    start_ns = (placed.start_ns - begin[None, :, None]).astype(np.float64)
    if missing is None:
        launch = start_ns[:, 0, 0]
    else:
        start_ns[missing] = 0.0
        launch = launch_scores(nodes, np.where(missing, np.nan, start_ns), padding)
    return Layout(
        op_names=op_names,
        nodes=nodes,
        steps=steps,
        start_ns=start_ns,
        duration_ns=placed.duration_ns,
        ranks=ranks,
        launch=launch,
        begin_ns=begin.astype(np.float64),
        missing=missing,
        free=None if missing is None else free,
        padding=padding,
    )


def _require_chunks(trace: Trace) -> None:
    """Raise ``trace.missing_model_chunk`` if a computation names none of several chunks."""
    if trace.meta.sizes.vpp == 1:
        return
    computes = np.array([name in COMPUTE for name in trace.op_names])
    rows = np.flatnonzero((trace.mc == ABSENT) & computes[trace.op])[:MAX_NAMED_FAULTS]
    if len(rows):
        message = (
            f"With {trace.meta.sizes.vpp} chunks a stage, computation must name its model chunk"
        )
        raise UnanalyzableError(
            message,
            code="trace.missing_model_chunk",
            faults=tuple(
                Fault("missing_model_chunk", message, row=row, column="mc") for row in rows.tolist()
            ),
        )


def _analyzed_ranks(trace: Trace, runs: BlockRuns) -> NDArray[np.int32]:
    """Return the rank that represents each worker, shape (dp, pp).

    It is the worker's lowest recorded rank. In a ring of context-parallel ranks it is the rank that
    computes for longest, since the others wait for it inside their computations, each at another
    place.
    """
    sizes = trace.meta.sizes
    lowest = np.full((sizes.dp, sizes.pp), np.iinfo(np.int32).max, dtype=np.int32)
    np.minimum.at(lowest, (runs.dp, runs.pp), runs.rank)
    missing = np.argwhere(lowest == np.iinfo(np.int32).max)
    if len(missing):
        cells = [(int(d), int(p)) for d, p in missing[:MAX_NAMED_FAULTS]]
        listed = ", ".join(f"({d}, {p})" for d, p in cells)
        raise UnanalyzableError(
            f"{len(missing)} of {sizes.workers} workers sent nothing: (DP rank, stage) {listed}",
            code="trace.rank_missing",
            faults=tuple(
                Fault("rank_missing", f"DP rank {d}, stage {p} sent nothing") for d, p in cells
            ),
        )
    several = len(np.unique(runs.rank)) > sizes.workers
    if sizes.cp == 1 or not several or not has_rings(trace):
        return lowest
    busiest = busiest_ranks(trace)
    return np.where(busiest < 0, lowest, busiest)


def _steps_of_all_ranks(
    runs: BlockRuns, ranks: NDArray[np.int32]
) -> tuple[IntArray, dict[int, str]]:
    """Return the steps that all analyzed ranks recorded, and the incomplete steps.

    An incomplete step is given with its missing ranks as text.
    """
    workers = ranks.size
    analyzed = np.flatnonzero(ranks[runs.dp, runs.pp] == runs.rank)
    steps, index = np.unique(runs.step[analyzed], return_inverse=True)
    cell = runs.dp[analyzed].astype(np.int64) * ranks.shape[1] + runs.pp[analyzed]
    seen = np.unique(index * workers + cell)
    count = np.bincount(seen // workers, minlength=len(steps))
    dropped = {}
    for incomplete in np.flatnonzero(count < workers).tolist():
        first, last = np.searchsorted(seen, (incomplete * workers, (incomplete + 1) * workers))
        absent = np.setdiff1d(np.arange(workers), seen[first:last] % workers)
        cells = np.divmod(absent[:MAX_NAMED_WORKERS], ranks.shape[1])
        names = [
            f"rank {ranks[d, p]} (DP rank {d}, stage {p})" for d, p in zip(*cells, strict=True)
        ]
        more = f" and {len(absent) - len(names)} more" if len(absent) > len(names) else ""
        dropped[int(steps[incomplete])] = f"{', '.join(names)}{more} sent nothing"
    return steps[count == workers], dropped


def _count(
    trace: Trace,
    runs: BlockRuns,
    ranks: NDArray[np.int32],
    chosen: tuple[IntArray, NDArray[np.bool_]],
    routes: Sequence[Route],
) -> tuple[Census, StepRows]:
    """Return the numbers of operations by lane, and their rows, for the chosen steps and types.

    A lane is one step of one DP rank.
    """
    steps, replayed = chosen
    dp, pp = ranks.shape
    type_count = len(REPLAYED_OP_TYPES)
    place_of = np.searchsorted(steps, runs.step)
    there = np.isin(runs.step, steps) & (ranks[runs.dp, runs.pp] == runs.rank)
    length = runs.end - runs.first
    inside = np.repeat(there, length) & replayed[trace.op]
    row = np.flatnonzero(inside)
    rows = StepRows(
        row=row,
        step=np.repeat(place_of, length)[row],
        dp=trace.dp[row].astype(np.int64),
        kind=trace.op[row].astype(np.int64) * pp + trace.pp[row],
        order=trace.order[row].astype(np.int64),
    )
    lane = rows.step * dp + rows.dp
    counts = np.bincount(
        lane * (type_count * pp) + rows.kind, minlength=len(steps) * dp * type_count * pp
    )
    forwards = trace.op[row] == REPLAYED_OP_TYPES.index(FORWARD_COMPUTE)
    chunk = np.maximum(trace.mc[row[forwards]], 0).astype(np.int64)
    # Each virtual stage (stage, chunk) as a single number
    places = np.unique(trace.pp[row[forwards]] + chunk * pp)
    flow = flow_of(((int(p % pp), int(p // pp)) for p in places), routes)
    census = Census(
        steps=steps,
        counts=counts.reshape(len(steps), dp, type_count, pp).astype(np.int32),
        microbatches=_named_microbatches(
            lane[forwards], trace.mb[row[forwards]].astype(np.int64), (len(steps), dp)
        ),
        flow=flow,
    )
    return census, rows


def _named_microbatches(lane: IntArray, mb: IntArray, size: tuple[int, int]) -> IntArray:
    """Return the largest number of distinct microbatch names in a lane, shape (steps,)."""
    named = mb != ABSENT
    if not named.any():
        return np.zeros(size[0], dtype=np.int64)
    span = int(mb.max()) + 1
    different = np.unique(lane[named] * span + mb[named]) // span
    counts = np.bincount(different, minlength=size[0] * size[1]).reshape(size)
    return np.asarray(counts.max(axis=1))
