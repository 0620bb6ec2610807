"""Uniqueness and order of operations within each group of one (rank, step, type).

A *run* is a stretch of neighboring rows of one group. If every group is a single run, as recorders
write them, neighboring rows are compared; else rows are sorted. The module also checks pipeline
operations by microbatch and model chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.limits import MAX_FAULTS, Places, refuse
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    WGRAD_COMPUTE,
    Sizes,
)
from app.errors import Fault

# Up to this many possible keys for each row, a table of all keys is faster than sorting the keys.
_DENSE: Final = 32

Columns = Mapping[str, NDArray[Any]]


class RepeatedError(Exception):
    """Raised if operations are repeated; `rows` are the rows that repeat an earlier row."""

    def __init__(self, rows: NDArray[np.intp]) -> None:
        super().__init__(f"{len(rows)} operations are there twice")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of a trace."""

    # heads, lengths: (runs,): first row and number of rows of each run
    heads: NDArray[np.intp]
    lengths: NDArray[np.intp]
    group: NDArray[np.int64]  # (runs,): group index of each run, from 0 without gaps
    whole: bool  # every group is one run

    def group_of_rows(self) -> NDArray[np.int64]:
        """Return the group index of every row."""
        return np.repeat(self.group, self.lengths)


def same_as_before(
    columns: Columns, first: int, last: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return, for rows `first` to `last`, whether rank and group equal those of the row before.

    Returns
    -------
    same_rank, same_group : bool arrays, shape (last - first,)
        Whether the rank, and whether rank, step and type are those of the row before.
    """
    before, current = slice(first - 1, last - 1), slice(first, last)
    rank, step, op = columns["rank"], columns["step"], columns["op"]
    same_rank = rank[current] == rank[before]
    same_group = same_rank & (step[current] == step[before])
    same_group &= op[current] == op[before]
    return same_rank, same_group


@dataclass(frozen=True, slots=True)
class Neighbors:
    """Rows that differ from the previous row, by kind of difference."""

    heads: NDArray[np.intp]  # rows where runs start
    stretches: NDArray[np.intp]  # rows where the rank or the step changes
    moved: NDArray[np.intp]  # rows where a rank changes its DP × PP cell
    falls: NDArray[np.intp]  # rows in a run without rising order (or start)
    microbatch_falls: bool  # in some run a known microbatch does not rise


def compare_neighbors(columns: Columns, first: int, last: int) -> Neighbors:
    """Return the rows from `first` to `last` that differ from the previous row."""
    before, current = slice(first - 1, last - 1), slice(first, last)
    same_rank, same_group = same_as_before(columns, first, last)
    dp, pp, mb, step = (columns[name] for name in ("dp", "pp", "mb", "step"))
    by = columns["order" if "order" in columns else "start"]
    moved = same_rank & ((dp[current] != dp[before]) | (pp[current] != pp[before]))
    falls = same_group & (by[current] <= by[before])
    microbatch_falls = same_group & (mb[current] <= mb[before]) & (mb[current] != ABSENT)
    return Neighbors(
        np.flatnonzero(~same_group) + first,
        np.flatnonzero(~same_rank | (step[current] != step[before])) + first,
        np.flatnonzero(moved) + first,
        np.flatnonzero(falls) + first,
        bool(microbatch_falls.any()),
    )


def find_heads(columns: Columns) -> NDArray[np.intp]:
    """Return the rows where runs start."""
    _, same_group = same_as_before(columns, 1, len(columns["op"]))
    return np.concatenate([np.zeros(1, np.intp), np.flatnonzero(~same_group) + 1])


def find_stretches(columns: Columns, heads: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows, among `heads`, where the rank or the step changes."""
    rank, step = columns["rank"][heads], columns["step"][heads]
    changes = (rank[1:] != rank[:-1]) | (step[1:] != step[:-1])
    return np.concatenate([heads[:1], heads[1:][changes]])


def find_runs(
    columns: Columns, heads: NDArray[np.intp], stretches: NDArray[np.intp], sizes: Sizes
) -> Runs:
    """Return the runs that start at `heads`, with the group of each run."""
    key = np.unique(columns["step"][stretches], return_inverse=True)[1].astype(np.int64)
    key = key * sizes.world + columns["rank"][stretches]
    runs_of_stretch = np.diff(np.searchsorted(heads, stretches), append=len(heads))
    op = columns["op"][heads]
    types = int(op.max()) + 1
    key = np.repeat(key * types, runs_of_stretch) + op
    whole = _distinct(key)
    group = (
        np.arange(len(heads), dtype=np.int64)
        if whole
        else np.unique(key, return_inverse=True)[1].astype(np.int64)
    )
    return Runs(heads, np.diff(heads, append=len(columns["op"])), group, whole)


def _distinct(key: NDArray[np.int64]) -> bool:
    """Return whether all of the non-negative values are distinct."""
    size = int(key.max()) + 1
    if size > _DENSE * len(key):
        in_order = np.sort(key)
        return not bool((in_order[1:] == in_order[:-1]).any())
    seen = np.zeros(size, np.bool_)
    seen[key] = True
    return int(np.count_nonzero(seen)) == len(key)


def check_cells(
    columns: Columns, stretches: NDArray[np.intp], sizes: Sizes, places: Places
) -> None:
    """Refuse a rank that appears in two cells of the DP × PP grid.

    `stretches` are the rows to check; between them the cell does not change.
    """
    rank = columns["rank"][stretches]
    cell = columns["dp"][stretches].astype(np.int64) * sizes.pp + columns["pp"][stretches]
    first = np.empty(sizes.world, np.int64)
    # For a repeated index NumPy keeps the last assignment; reversed, this is the cell of the rank's
    # first row.
    first[rank[::-1]] = cell[::-1]
    moved = stretches[first[rank] != cell][:MAX_FAULTS]
    if len(moved):
        refuse(moved_rank(int(row), columns, places) for row in moved)


def moved_rank(row: int, columns: Columns, places: Places) -> Fault:
    """Return the fault of a row whose DP rank or stage differs from the rank's earlier rows."""
    message = (
        f"rank {columns['rank'][row]} has another DP rank or pipeline stage than in a row before"
    )
    return places.fault("rank_moved", message, row, "rank")


def check_order(columns: Columns, runs: Runs, *, in_order: bool) -> None:
    """Raise an error if two operations of a group have the same recorded order.

    Parameters
    ----------
    in_order : bool
        The recorded order rises within each run, so only rows of different runs are compared.

    Raises
    ------
    RepeatedError
    """
    if in_order and runs.whole:
        return
    order = columns["order"].astype(np.int64)
    _require_distinct(runs.group_of_rows() * (int(order.max()) + 1) + order)


def order_by_start(columns: Columns, runs: Runs) -> NDArray[np.int32]:
    """Return the position of each operation by start within its group.

    Operations with equal starts keep the body's order; operations that are equal in every column
    are repeated.

    Raises
    ------
    RepeatedError
    """
    start = columns["start"]
    count = len(start)
    position = np.arange(count)
    rises = np.empty(count, np.bool_)
    rises[0] = True
    np.greater(start[1:], start[:-1], out=rises[1:])
    rises[runs.heads] = True
    if runs.whole and bool(rises.all()):
        return (position - np.repeat(runs.heads, runs.lengths)).astype(np.int32)
    group = runs.group_of_rows()
    rows = np.lexsort((start, group))
    new_group = np.empty(count, np.bool_)
    new_group[0] = True
    sorted_group = group[rows]
    np.not_equal(sorted_group[1:], sorted_group[:-1], out=new_group[1:])
    equal = ~new_group[1:]
    for name in ("start", "duration", "mb", "mc"):
        values = columns[name][rows]
        equal &= values[1:] == values[:-1]
    if equal.any():
        raise RepeatedError(rows[1:][equal])
    first = np.flatnonzero(new_group)
    order = np.empty(count, np.int32)
    order[rows] = position - np.repeat(first, np.diff(first, append=count))
    return order


def _require_distinct(key: NDArray[np.int64], rows: NDArray[np.intp] | None = None) -> None:
    if _distinct(key):
        return
    sorting = np.argsort(key, kind="stable")
    repeated = sorting[1:][key[sorting][1:] == key[sorting][:-1]]
    raise RepeatedError(repeated if rows is None else rows[repeated])


def copies(columns: Columns) -> NDArray[np.bool_]:
    """Return a mask of the rows that equal an earlier row in every column."""
    rows = np.lexsort([columns[name] for name in sorted(columns)])
    same = np.ones(len(rows) - 1, np.bool_)
    for values in columns.values():
        in_order = values[rows]
        same &= in_order[1:] == in_order[:-1]
    repeated = np.zeros(len(rows), np.bool_)
    repeated[rows[1:][same]] = True
    return repeated


def duplicate(row: int, columns: Columns, places: Places) -> Fault:
    """Return the fault of a repeated operation."""
    message = f"rank {columns['rank'][row]} has this operation of step {columns['step'][row]} twice"
    return places.fault("duplicate_operation", message, row, "op")


_COMPUTE = (FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE)
# Types that occur once per microbatch and chunk. Other types may repeat: a tensor-parallel
# collective runs in every layer.
_ONCE_A_MICROBATCH = (*_COMPUTE, FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)


def check_pipeline(
    columns: Columns,
    runs: Runs,
    op_names: tuple[str, ...],
    sizes: Sizes,
    places: Places,
) -> None:
    """Check that each pipeline operation has a unique microbatch and model chunk.

    With one chunk per stage, the order of the computations implies their microbatches. With virtual
    stages the order is ambiguous, so microbatch and chunk must be recorded.

    Raises
    ------
    InvalidTraceError
        `trace.missing_microbatch`, `trace.missing_model_chunk`.
    RepeatedError
    """
    op = columns["op"]
    if sizes.vpp > 1:
        computes = np.array([name in _COMPUTE for name in op_names])[op]
        refused = [
            places.fault(
                code, f"with {sizes.vpp} chunks a stage, {what} must be recorded", row, name
            )
            for name, code, what in (
                ("mb", "missing_microbatch", "the microbatch of computation"),
                ("mc", "missing_model_chunk", "the model chunk of computation"),
            )
            for row in np.flatnonzero(computes & (columns[name] == ABSENT))[:MAX_FAULTS].tolist()
        ]
        if refused:
            refuse(refused)
    once = np.array([name in _ONCE_A_MICROBATCH for name in op_names])[op]
    rows = np.flatnonzero(once & (columns["mb"] != ABSENT))
    if len(rows):
        mb = columns["mb"][rows].astype(np.int64)
        mc = columns["mc"][rows].astype(np.int64) + 1
        key = runs.group_of_rows()[rows]
        key = (key * (int(mc.max()) + 1) + mc) * (int(mb.max()) + 1) + mb
        _require_distinct(key, rows)
