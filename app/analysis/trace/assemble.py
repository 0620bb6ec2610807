"""Assembly of a `Trace` from batches of columns, with checks of the values.

Rows keep the order of the body. If the operations of each (rank, step, type) are contiguous and in
order, as recorders write them, one comparison of neighboring rows finds every fault. The rows of
other bodies are sorted before this comparison. Bounds are checked by the minimum and maximum of
each column. `consume_on_second_core` decodes the next batch while the previous batch is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.trace import operation_order as groups
from app.analysis.trace.columns import ColumnSet
from app.analysis.trace.limits import (
    MAX_FAULTS,
    MAX_MICROBATCH,
    MAX_ORDER,
    MAX_RELATIVE_START_S,
    MAX_STEP,
    MAX_TIME_NS,
    Limits,
    Places,
    refuse,
    refuse_body,
)
from app.analysis.trace.metadata import with_names_of_body
from app.analysis.trace.model import ABSENT, SessionMeta, Sizes, Stretches, Trace, stretches_of
from app.analysis.trace.operation_names import forget_unused, name_operations
from app.analysis.trace.operation_order import check_pipeline
from app.errors import BodyTooLargeError, Fault

_LARGEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class _Bound:
    low: float
    high: float
    code: str
    what: str


def check_values(
    columns: Mapping[str, NDArray[Any]],
    sizes: Sizes,
    *,
    seconds: bool,
    first_row: int,
    places: Places,
) -> None:
    """Refuse a batch with values out of bounds, naming the rows of the first faults.

    Parameters
    ----------
    columns : mapping
        Our names → columns without nulls, of one batch.
    seconds : bool
        Times are floating-point seconds.
    first_row : int
        Row of the body at which the batch starts.

    Raises
    ------
    InvalidTraceError
        With the code of the first fault.
    """
    bounds = _bounds(sizes, seconds=seconds)
    # NumPy warns when a signaling NaN is compared; the check below reports it as a fault.
    with np.errstate(invalid="ignore"):
        broken = [
            name
            for name, values in columns.items()
            # Comparisons with NaN are false, so this form of the condition also catches NaN.
            if not (values.min() >= bounds[name].low and values.max() <= bounds[name].high)
        ]
        if broken:
            refuse(
                fault
                for name in broken
                for fault in _faults(name, columns[name], bounds[name], first_row, places)
            )


def _bounds(sizes: Sizes, *, seconds: bool) -> dict[str, _Bound]:
    bounds = {
        "rank": _Bound(0, sizes.world - 1, "rank_out_of_range", "rank"),
        "dp": _Bound(0, sizes.dp - 1, "dp_out_of_range", "DP rank"),
        "pp": _Bound(0, sizes.pp - 1, "pp_out_of_range", "pipeline stage"),
        "tp": _Bound(0, sizes.tp - 1, "tp_out_of_range", "TP rank"),
        "step": _Bound(0, MAX_STEP, "step_out_of_range", "step"),
        "mb": _Bound(ABSENT, MAX_MICROBATCH, "microbatch_out_of_range", "microbatch"),
        "mc": _Bound(ABSENT, sizes.vpp - 1, "model_chunk_out_of_range", "model chunk"),
        "order": _Bound(0, MAX_ORDER, "order_out_of_range", "order"),
    }
    if seconds:
        # The bound is symmetric because a chunk may lack the earliest operation of its step. For a
        # whole session `_step_relative` refuses steps whose earliest start is not 0.
        bounds["start"] = _Bound(
            -MAX_RELATIVE_START_S,
            np.nextafter(MAX_RELATIVE_START_S, 0),
            "absolute_float_time",
            "start in its step",
        )
    else:
        bounds["start"] = _Bound(-MAX_TIME_NS, MAX_TIME_NS, "time_overflow", "start")
    # Recorders write impossible durations. Such a duration excludes only its step from the analysis
    # (`app.analysis.replay.impossible_times`), so every finite duration is accepted here.
    bounds["duration"] = _Bound(-_LARGEST, _LARGEST, "not_finite", "duration")
    return bounds


def _faults(
    name: str, values: NDArray[Any], bound: _Bound, first_row: int, places: Places
) -> Iterator[Fault]:
    bad = np.flatnonzero(~((values >= bound.low) & (values <= bound.high)))[:MAX_FAULTS]
    for row in bad.tolist():
        value = values[row].item()
        if isinstance(value, float) and not np.isfinite(value):
            code, message = "not_finite", f"the {bound.what} is {value}"
        elif bound.code == "absolute_float_time":
            code = bound.code
            message = (
                f"floating-point starts must count from their step's earliest, below "
                f"{MAX_RELATIVE_START_S:g} s: {value:g}"
            )
        else:
            code = bound.code
            message = f"{bound.what} {value} is outside of {bound.low:.0f} to {bound.high:.0f}"
        yield places.fault(code, message, first_row + row, name)


_TYPES: Final[Mapping[str, type[np.signedinteger[Any]]]] = {
    "rank": np.int32,
    "dp": np.int32,
    "pp": np.int32,
    "step": np.int64,
    "op": np.int16,
    "mb": np.int32,
    "mc": np.int32,
    "order": np.int32,
    "start": np.int64,
    "duration": np.int64,
}
_NS: Final = 1e9
# Maximum number of rows that may equal the row before them, as after a buffer that a recorder sent
# twice. A larger body may repeat up to half of its rows.
_MOST_REPEATED: Final = 1000


@dataclass(frozen=True, slots=True)
class Collected:
    """Columns with valid values, and the results of comparing neighboring rows."""

    meta: SessionMeta
    # Keys are our column names. `op` holds indices into `names`; `order` is present if it was
    # recorded.
    columns: dict[str, NDArray[Any]]
    # heads: rows where a run of operations of the same rank, step and type starts (see
    # `operation_order`); stretches: rows where the rank or the step changes
    heads: NDArray[np.intp]
    stretches: NDArray[np.intp]
    names: Sequence[str]  # operation names as recorded, `KNOWN_OP_TYPES` first
    seconds: bool  # times were floating-point seconds from the earliest start of their step
    in_order: bool  # order (start if no order is recorded) rises within each run
    microbatches_rise: bool  # the microbatch rises within each run


class Assembler:
    """Builder of the trace of one body from its batches.

    Parameters
    ----------
    meta : SessionMeta
    layout : ColumnSet
        Columns of the body.
    places : Places
        Names the place of a faulty row.
    limits : Limits
    capacity : int
        Rows expected; more are accepted up to the limit.
    part : bool
        The body is a part of a session.
    """

    def __init__(  # noqa: PLR0913 - facts of the body before its first row
        self,
        meta: SessionMeta,
        layout: ColumnSet,
        places: Places,
        limits: Limits,
        capacity: int,
        *,
        part: bool = False,
    ) -> None:
        self._meta = meta
        self._layout = layout
        self._places = places
        self._limits = limits
        self._part = part
        self._rows = 0
        self._ordered = "order" in layout.columns
        self._columns: dict[str, NDArray[Any]] = {
            name: _empty(capacity, dtype)
            for name, dtype in _TYPES.items()
            if name != "order" or self._ordered
        }
        self._seconds: NDArray[np.float64] = np.empty(0)
        self._heads: list[NDArray[np.intp]] = []
        self._stretches: list[NDArray[np.intp]] = []
        self._repeated = 0
        self._in_order = True
        self._microbatches_rise = True

    @property
    def rows(self) -> int:
        """Return the number of rows added so far."""
        return self._rows

    def add(self, columns: Mapping[str, NDArray[Any]], op: NDArray[np.int16]) -> None:
        """Check and append a batch: columns without nulls and of at least one row, and name codes.

        Raises
        ------
        InvalidTraceError
            See `check_values`; of neighbors `trace.rank_moved` and `trace.duplicate_operation`.
        BodyTooLargeError
            `body.too_many_rows`.
        """
        first, last = self._rows, self._rows + len(op)
        if last > self._limits.max_rows:
            message = f"the body has over {self._limits.max_rows} rows"
            raise BodyTooLargeError(message, code="body.too_many_rows")
        check_values(
            columns,
            self._meta.sizes,
            seconds=self._layout.seconds,
            first_row=first,
            places=self._places,
        )
        capacity = len(self._columns["op"])
        if last > capacity:
            capacity = max(last, capacity + capacity // 2)
            for name, stored in self._columns.items():
                grown = _empty(capacity, stored.dtype)
                grown[:first] = stored[:first]
                self._columns[name] = grown
        for name, stored in self._columns.items():
            target = stored[first:last]
            if name == "op":
                target[:] = op
            elif name not in columns:
                target.fill(ABSENT)
            elif columns[name].dtype.kind == "f":
                count = last - first
                if len(self._seconds) < count:
                    self._seconds = _empty(count, np.float64)
                scratch = self._seconds[:count]
                np.multiply(columns[name], _NS, out=scratch, dtype=np.float64)
                np.clip(scratch, -MAX_TIME_NS, MAX_TIME_NS, out=scratch)
                target[:] = np.rint(scratch, out=scratch)
            elif name == "duration":
                # Durations are clipped so that their sums fit int64.
                np.clip(columns[name], -MAX_TIME_NS, MAX_TIME_NS, out=target)
            else:
                target[:] = columns[name]
        self._rows = last
        self._compare_neighbors(first, last)

    def finish(self, names: Sequence[str]) -> Trace:
        """Return the trace of all rows; `names` are the names of the codes given to `add`.

        A part of a session passes the same checks but keeps the recorded names and order, because
        the type and position of an operation may depend on operations in other parts.

        Raises
        ------
        InvalidTraceError
            See `decode`.
        """
        if not self._rows:
            refuse_body("no_rows", "there is no operation in the body")
        columns = {name: values[: self._rows] for name, values in self._columns.items()}
        recorded = _as_recorded(self._meta, columns, names, self._layout) if self._part else None
        whole = build_trace(
            Collected(
                meta=self._meta,
                columns=columns,
                heads=np.concatenate(self._heads),
                stretches=np.concatenate(self._stretches),
                names=names,
                seconds=self._layout.seconds,
                in_order=self._in_order,
                microbatches_rise=self._microbatches_rise,
            ),
            self._places,
            part=self._part,
        )
        return recorded or whole

    def _compare_neighbors(self, first: int, last: int) -> None:
        """Compare each new row with the row before it, and record the rows where runs start."""
        if first == 0:
            self._heads.append(np.zeros(1, np.intp))
            self._stretches.append(np.zeros(1, np.intp))
            first = 1
        seen = groups.compare_neighbors(self._columns, first, last)
        if len(seen.moved):
            refuse(
                groups.moved_rank(int(row), self._columns, self._places)
                for row in seen.moved[:MAX_FAULTS]
            )
        if len(seen.falls):
            self._in_order = False
            repeated = np.ones(len(seen.falls), np.bool_)
            for name in ("order",) if self._ordered else ("start", "duration", "mb", "mc"):
                values = self._columns[name]
                repeated &= values[seen.falls] == values[seen.falls - 1]
            self._repeated += int(np.count_nonzero(repeated))
            # Refuse a body of repeated rows early, before the rest of it is read.
            if self._repeated > max(_MOST_REPEATED, self._rows // 2):
                rows = seen.falls[repeated][:MAX_FAULTS]
                refuse(groups.duplicate(int(row), self._columns, self._places) for row in rows)
        self._microbatches_rise = self._microbatches_rise and not seen.microbatch_falls
        self._heads.append(seen.heads)
        self._stretches.append(seen.stretches)


def build_trace(given: Collected, places: Places, *, part: bool) -> Trace:
    """Check the columns against each other and return the trace of their rows.

    Parameters
    ----------
    places : Places
        Names the place of a faulty row.
    part : bool
        Operations of the session may be missing, also the earliest of a step.

    Raises
    ------
    InvalidTraceError
        See `decode`.
    """
    copied, repeated_steps, remaining = 0, dict[int, str](), given
    while True:
        try:
            trace = _build_once(remaining, places, part=part)
        except groups.RepeatedError as error:
            columns = remaining.columns
            kept = ~groups.copies(columns)
            copied += int(np.count_nonzero(~kept))
            rows = np.sort(error.rows).tolist()
            if kept.all():
                # An operation recorded twice with different times makes its step ambiguous: the
                # step is left out.
                for row in rows:
                    rank, name = columns["rank"][row], remaining.names[columns["op"][row]]
                    reason = f"rank {rank} has a {name} twice, at different times"
                    repeated_steps.setdefault(int(columns["step"][row]), reason)
                kept = ~np.isin(columns["step"], list(repeated_steps))
            if not kept.any():
                refuse(groups.duplicate(row, columns, places) for row in rows[:MAX_FAULTS])
            chosen = np.flatnonzero(kept)
            places = replace(places, source=_through(places.source, chosen))
            columns = {name: values[chosen] for name, values in remaining.columns.items()}
            heads = groups.find_heads(columns)
            remaining = replace(
                remaining,
                columns=columns,
                heads=heads,
                stretches=groups.find_stretches(columns, heads),
                in_order=False,
                microbatches_rise=False,
            )
            continue
        if remaining is given:
            return trace
        return replace(trace, copies=copied, repeated_steps=tuple(sorted(repeated_steps.items())))


def _build_once(given: Collected, places: Places, *, part: bool) -> Trace:
    """Return the trace of columns that contain no operation twice.

    Raises
    ------
    groups.RepeatedError
        An operation is repeated; with the repeated rows of `given`.
    """
    columns = {**given.columns, "op": given.columns["op"].copy()}
    heads, sizes = given.heads, given.meta.sizes
    stretches = given.stretches
    groups.check_cells(columns, stretches, sizes, places)
    rank_steps = stretches_of(stretches, columns["start"])
    step_relative = _step_relative(given, rank_steps, places, part=part)
    runs = groups.find_runs(columns, heads, stretches, sizes)
    ordered = "order" in columns
    if ordered:
        groups.check_order(columns, runs, in_order=given.in_order)
    named = name_operations(columns, heads, given.names)
    columns = named.columns
    if named.changed:
        places = replace(places, source=_through(places.source, named.source))
        heads = groups.find_heads(columns)
        stretches = groups.find_stretches(columns, heads)
        rank_steps = stretches_of(stretches, columns["start"])
        runs = groups.find_runs(columns, heads, stretches, sizes)
    try:
        if named.changed or not ordered:
            columns["order"] = groups.order_by_start(columns, runs)
        if sizes.vpp > 1 or named.changed or not (runs.whole and given.microbatches_rise):
            check_pipeline(columns, runs, named.op_names, sizes, places)
    except groups.RepeatedError as error:
        if named.source is None:
            raise
        raise groups.RepeatedError(np.unique(named.source[error.rows])) from error
    trace = _trace(given.meta, columns, named.op_names, step_relative=step_relative)
    trace.known_stretches.append(rank_steps)
    return trace


def _through(
    outer: NDArray[np.intp] | None, inner: NDArray[np.intp] | None
) -> NDArray[np.intp] | None:
    """Return the body's row of each row of a selection that was made from another selection.

    None in place of a selection stands for all rows.
    """
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer[inner]


def _as_recorded(
    meta: SessionMeta, columns: Mapping[str, NDArray[Any]], names: Sequence[str], layout: ColumnSet
) -> Trace:
    kept = dict(columns)
    # Copied because `forget_unused` renumbers the codes in place.
    kept["op"] = columns["op"].copy()
    types = list(names)
    forget_unused(kept, types)
    if "order" not in kept:
        kept["order"] = np.full(len(kept["op"]), ABSENT, np.int32)
    return _trace(meta, kept, tuple(types), step_relative=layout.seconds)


def _trace(
    meta: SessionMeta,
    columns: Mapping[str, NDArray[Any]],
    op_names: tuple[str, ...],
    *,
    step_relative: bool,
) -> Trace:
    return Trace(
        meta=with_names_of_body(meta, columns["rank"]),
        op_names=op_names,
        rank=columns["rank"],
        dp=columns["dp"],
        pp=columns["pp"],
        step=columns["step"],
        op=columns["op"],
        mb=columns["mb"],
        mc=columns["mc"],
        order=columns["order"],
        start_ns=columns["start"],
        duration_ns=columns["duration"],
        step_relative=step_relative,
    )


def _step_relative(given: Collected, stretches: Stretches, places: Places, *, part: bool) -> bool:
    """Return whether the earliest start of every step is 0.

    Floating-point starts of a whole session must be relative to the step, with an earliest start of
    0, because a float cannot resolve a clock reading.
    """
    columns = given.columns
    start = columns["start"]
    if not given.seconds and stretches.earliest_ns.min() != 0:
        return False
    if given.seconds and part:
        return True
    steps, number = np.unique(columns["step"][stretches.first], return_inverse=True)
    earliest = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(earliest, number, stretches.earliest_ns)
    late = np.flatnonzero(earliest != 0)
    if len(late) and given.seconds:
        refuse(
            places.fault(
                "absolute_float_time",
                f"floating-point starts must count from their step's earliest: step "
                f"{steps[which]} begins at {earliest[which] / _NS:g} s",
                int(np.argmax((columns["step"] == steps[which]) & (start == earliest[which]))),
                "start",
            )
            for which in late[:MAX_FAULTS].tolist()
        )
    return not len(late)


def _empty(rows: int, dtype: np.typing.DTypeLike) -> NDArray[Any]:
    """Return an uninitialized array from Arrow's pool, which keeps the pages of freed batches.

    NumPy's allocator returns large arrays to the operating system; touching newly allocated pages
    takes longer than decoding into them.
    """
    size = rows * np.dtype(dtype).itemsize
    buffer = memoryview(pa.allocate_buffer(size))
    return np.ndarray(rows, dtype, buffer)


T = TypeVar("T")


def consume_on_second_core(items: Iterator[T], take: Callable[[T], None]) -> None:
    """Call `take` with each item on a second core while this core produces the next item.

    The calling thread produces the items because Arrow would allocate new memory for a new thread,
    which costs a fifth of the decoding time.
    """
    # Imported here because it loads `logging`, which small bodies do not need.
    from concurrent.futures import Future, ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as pool:
        taken: Future[None] | None = None
        item: T | None
        while True:
            try:
                item = next(items, None)
            finally:
                # The error of the previous item is raised before an error in producing the next
                # item.
                if taken is not None:
                    taken.result()
            if item is None:
                return
            taken = pool.submit(take, item)
