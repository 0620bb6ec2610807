"""Operations laid out densely: one row an operation of the step, one column a (step, DP rank).

All DP ranks and all steps of one shape run the same operations, so a session is a matrix
``[node, step, DP rank]``, where a *node* is one operation of a step's pipeline, (op type, stage,
order). Everything behind this module works on whole rows of that matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import ABSENT, REPLAYED_OP_TYPES, Trace
from app.analysis.whatif.blocks import Dense, Runs, find_runs, transpose_blocks
from app.analysis.whatif.pipeline import COMPUTE
from app.errors import Fault, UnanalyzableError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_NAMED_FAULTS = 10


@dataclass(frozen=True, slots=True)
class DroppedStep:
    """A step that is left out, and why."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Operations of one step on one DP rank, sorted by op type, stage and order.

    Every array has the shape (nodes,). `mb` and `mc` are those of the template lane.
    """

    op: NDArray[np.int16]
    pp: NDArray[np.int32]
    order: NDArray[np.int32]
    mb: NDArray[np.int32]
    mc: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Steps of one shape as dense matrices.

    Parameters
    ----------
    op_names : tuple of str
        Name of each op code.
    nodes : Nodes
    steps : int64 array, shape (steps,)
        The analyzed steps, ascending.
    start_ns, duration_ns : float64 arrays, shape (nodes, steps, dp)
        Recorded start, relative to the step's earliest start, and recorded duration.
    ranks : int32 array, shape (dp, pp)
        The global rank that each cell is analyzed from.
    """

    op_names: tuple[str, ...]
    nodes: Nodes
    steps: IntArray
    start_ns: FloatArray
    duration_ns: FloatArray
    ranks: NDArray[np.int32]

    @property
    def dp(self) -> int:
        """Return the number of DP ranks."""
        return self.ranks.shape[0]

    @property
    def pp(self) -> int:
        """Return the number of pipeline stages."""
        return self.ranks.shape[1]

    def codes(self, *names: str) -> list[int]:
        """Return the codes of the named op types."""
        return [self.op_names.index(name) for name in names]


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """A session's steps by shape, those of the shape with most steps first."""

    groups: tuple[Layout, ...]
    dropped: tuple[DroppedStep, ...]


def lay_out(trace: Trace) -> LaidOut:
    """Arrange a trace's operations by node, step and DP rank.

    Each DP × PP cell is represented by its lowest traced rank. The shape of a step is how many
    operations of each type each stage runs; the most frequent shape is analyzed, steps of another
    shape or with operations missing are dropped by name.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_missing`` where a cell sent nothing at all; ``trace.missing_model_chunk``;
        ``trace.no_complete_step``.
    """
    _require_chunks(trace)
    runs = find_runs(trace)
    ranks = _analyzed_ranks(trace, runs)
    dropped: list[DroppedStep] = []
    dense = transpose_blocks(trace, runs)
    if dense is None:
        dense, dropped = _place_rows(trace, _rows_of(trace, runs, ranks))
    if len(dense.steps) == 0:
        raise UnanalyzableError(
            "No step is complete on all workers",
            code="trace.no_complete_step",
            faults=tuple(
                Fault("incomplete_step", f"Step {d.step}: {d.reason}")
                for d in dropped[:MAX_NAMED_FAULTS]
            ),
        )
    begin = dense.start_ns.min(axis=(0, 2))
    layout = Layout(
        op_names=trace.op_names,
        nodes=_name_nodes(trace, int(dense.steps[0]), ranks[0], dense.shape),
        steps=dense.steps,
        start_ns=np.subtract(
            dense.start_ns, begin[None, :, None], out=np.empty(dense.start_ns.shape)
        ),
        duration_ns=dense.duration_ns,
        ranks=ranks,
    )
    return LaidOut((layout,), tuple(sorted(dropped, key=lambda item: item.step)))


def _require_chunks(trace: Trace) -> None:
    """Refuse computations that no virtual stage can be given to."""
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


def _place_rows(trace: Trace, rows: IntArray | slice) -> tuple[Dense, list[DroppedStep]]:
    """Look up the place of every row; return the complete steps, and those that are dropped."""
    sizes = trace.meta.sizes
    dp, pp, op_count = sizes.dp, sizes.pp, len(trace.op_names)
    order = trace.order[rows]
    steps, step_index = _index_steps(trace.step[rows])
    lane = step_index * dp + trace.dp[rows]
    kind = trace.op[rows].astype(np.int64) * pp + trace.pp[rows]
    counts = np.bincount(
        lane * (op_count * pp) + kind, minlength=len(steps) * dp * op_count * pp
    ).reshape(len(steps), dp, op_count * pp)
    shape = _most_frequent_shape(counts)
    kept, dropped = _split_steps(trace, steps, counts, shape)

    first_node = np.concatenate(([0], np.cumsum(shape)))
    column_of = np.full(len(steps), -1, dtype=np.int64)
    column_of[kept] = np.arange(len(kept)) * dp
    column = column_of[step_index]
    inside = (column >= 0) & (order < shape[kind])
    size = (int(first_node[-1]), len(kept), dp)
    position = (first_node[kind] + order) * (len(kept) * dp) + column + trace.dp[rows]
    position = position[inside]
    filled = np.zeros(size, dtype=bool)
    filled.ravel()[position] = True
    start_ns = np.empty(size, dtype=np.int64)
    start_ns.ravel()[position] = trace.start_ns[rows][inside]
    duration_ns = np.empty(size)
    duration_ns.ravel()[position] = trace.duration_ns[rows][inside]
    complete = filled.all(axis=(0, 2))
    if not complete.all():
        dropped += [
            DroppedStep(int(step), "operations are numbered with gaps")
            for step in steps[kept[~complete]]
        ]
        start_ns, duration_ns = start_ns[:, complete], duration_ns[:, complete]
    return Dense(steps[kept[complete]], shape, start_ns, duration_ns), dropped


def _analyzed_ranks(trace: Trace, runs: Runs) -> NDArray[np.int32]:
    """Return the lowest traced rank of each cell, shape (dp, pp)."""
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
    return lowest


def _rows_of(trace: Trace, runs: Runs, ranks: NDArray[np.int32]) -> IntArray | slice:
    """Return the replayed operations of the analyzed ranks; a slice where that is every row."""
    analyzed = ranks[runs.dp, runs.pp] == runs.rank
    replayed = trace.op < len(REPLAYED_OP_TYPES)
    if analyzed.all() and replayed.all():
        return slice(None)
    return np.flatnonzero(np.repeat(analyzed, runs.end - runs.first) & replayed)


def _index_steps(step: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct steps and each row's index into them.

    Recorders write long runs of one step, so only where the step changes is looked up.
    """
    change = np.flatnonzero(step[1:] != step[:-1]) + 1
    heads = np.concatenate(([0], change))
    steps, inverse = np.unique(step[heads], return_inverse=True)
    lengths = np.diff(np.concatenate((heads, [len(step)])))
    return steps, np.repeat(inverse, lengths)


def _most_frequent_shape(counts: IntArray) -> IntArray:
    """Return the shape that most (step, DP rank) lanes have; of equals the earliest."""
    lanes = counts.reshape(-1, counts.shape[-1])
    if (lanes == lanes[0]).all():
        return lanes[0]
    shapes, first, frequency = np.unique(lanes, axis=0, return_index=True, return_counts=True)
    best = min(range(len(shapes)), key=lambda i: (-frequency[i], first[i]))
    return np.asarray(shapes[best])


def _split_steps(
    trace: Trace, steps: IntArray, counts: IntArray, shape: IntArray
) -> tuple[IntArray, list[DroppedStep]]:
    """Return the indices of the steps of the given shape, and the others with their reason."""
    matches = (counts == shape).all(axis=(1, 2))
    dropped = []
    pp = trace.meta.sizes.pp
    for index in np.flatnonzero(~matches):
        differs = counts[index] != shape
        dp_rank, kind = (int(i) for i in np.argwhere(differs)[0])
        name, stage = trace.op_names[kind // pp], kind % pp
        found, expected = int(counts[index, dp_rank, kind]), int(shape[kind])
        where = "on every DP rank" if differs[:, kind].all() else f"on DP rank {dp_rank}"
        dropped.append(
            DroppedStep(
                int(steps[index]),
                f"{found} instead of {expected} {name} on stage {stage} {where}",
            )
        )
    return np.flatnonzero(matches), dropped


def _name_nodes(trace: Trace, step: int, stage_ranks: NDArray[np.int32], shape: IntArray) -> Nodes:
    """Return what each node is; microbatch and chunk as DP rank 0 recorded them in `step`."""
    pp = len(stage_ranks)
    kind = np.repeat(np.arange(len(shape)), shape)
    first = np.concatenate(([0], np.cumsum(shape)))
    order = np.arange(len(kind)) - first[kind]
    lane = np.flatnonzero((trace.step == step) & (trace.dp == 0))
    lane = lane[trace.rank[lane] == stage_ranks[trace.pp[lane]]]
    lane = lane[trace.op[lane] < len(REPLAYED_OP_TYPES)]
    at = first[trace.op[lane].astype(np.int64) * pp + trace.pp[lane]] + trace.order[lane]
    mb = np.full(len(kind), -1, dtype=np.int32)
    mc = np.full(len(kind), -1, dtype=np.int32)
    mb[at], mc[at] = trace.mb[lane], trace.mc[lane]
    return Nodes(
        op=(kind // pp).astype(np.int16),
        pp=(kind % pp).astype(np.int32),
        order=order.astype(np.int32),
        mb=mb,
        mc=mc,
    )
