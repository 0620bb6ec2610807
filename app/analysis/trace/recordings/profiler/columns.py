"""Events of a profiler's recording as columns, a megabyte of JSON at a time.

Almost all events are operators, launches and kernels of which a few numbers are kept. Arrow's
parser gives these without an object for each, exact to the nanosecond: times are decimals. What it
cannot give, as a number that is a text, is read event by event.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from app.analysis.trace.limits import MAX_TIME_NS

_TEXT, _WHOLE = pa.string(), pa.int64()
# Microseconds with three digits behind the point are nanoseconds; a program that wrote the file
# anew writes more of them.
_NS: Final = pa.decimal128(38, 3)
_FINER: Final = pa.decimal128(38, 12)
_ARGS: Final = pa.struct(
    [
        *(
            (name, _WHOLE)
            for name in (
                "External id",
                "correlation",
                "stream",
                "device",
                "Seq",
                "Group size",
                "Src Rank",
                "Dst Rank",
            )
        ),
        *(
            (name, _TEXT)
            for name in (
                "Collective name",
                "Process Group Name",
                "Process Group Description",
                "name",
                "labels",
            )
        ),
    ]
)
_LARGEST: Final = 1 << 40


def _schema(time: pa.DataType) -> pa.Schema:
    texts = [pa.field(name, _TEXT) for name in ("ph", "cat", "name")]
    whole = [pa.field(name, _WHOLE) for name in ("pid", "tid")]
    times = [pa.field(name, time) for name in ("ts", "dur")]
    fields: list[pa.Field[Any]] = [*texts, *whole, *times, pa.field("args", _ARGS)]
    return pa.schema(fields)


_SCHEMAS: Final = (_schema(_NS), _schema(_FINER))
_ABSENT: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Some events; arrays have one value for each."""

    table: pa.Table
    # category, name: index into `categories` and `names`
    category: NDArray[np.int64]
    name: NDArray[np.int64]
    categories: tuple[str, ...]
    names: tuple[str, ...]
    complete: NDArray[np.bool_]  # of the phase ``X``
    named: NDArray[np.bool_]  # of the phase ``M``
    start: NDArray[np.int64]  # ns
    duration: NDArray[np.int64]  # ns
    usable: NDArray[np.bool_]  # has a time and a thread that can be taken as they are
    process: NDArray[np.int64]
    thread: NDArray[np.int64]

    def argument(self, name: str) -> NDArray[np.int64]:
        """Return an argument that is an integer, -1 where there is none."""
        # One chunk, as all are of what was read at once.
        args: Any = self.table.column("args").combine_chunks()
        return _whole(args.field(name), -1)

    def rows(self, places: NDArray[np.intp]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield some events with their places, as JSON has them, with arguments that are read."""
        rows = self.table.take(places).to_pylist()
        for place, row in zip(places.tolist(), rows, strict=True):
            known = {key: value for key, value in row.items() if value is not None}
            args = known.get("args")
            if args is not None:
                known["args"] = {key: value for key, value in args.items() if value is not None}
            yield place, known


def events_of(lines: str, count: int) -> Events | None:
    """Return the events of some lines of JSON; None where they have to be read one by one."""
    body = lines.encode()
    table = None
    for schema in _SCHEMAS:
        try:
            table = pyarrow.json.read_json(
                io.BytesIO(body),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(body) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=schema,
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
                # Arrow's own pool keeps what it once had.
                memory_pool=pa.system_memory_pool(),
            )
            break
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    if table is None or table.num_rows != count:
        return None
    start, duration = _nanoseconds(table.column("ts")), _nanoseconds(table.column("dur"))
    if start is None or duration is None:
        return None
    process, thread = (_whole(table.column(name), _ABSENT) for name in ("pid", "tid"))
    usable = (start != _ABSENT) & (np.abs(start) <= MAX_TIME_NS)
    usable &= (process >= 0) & (process < _LARGEST) & (thread >= 0) & (thread < _LARGEST >> 17)
    duration = np.where(duration == _ABSENT, 0, duration)
    usable &= np.abs(duration) <= MAX_TIME_NS
    category, categories = _dictionary(table.column("cat"))
    name, names = _dictionary(table.column("name"))
    phase, phases = _dictionary(table.column("ph"))
    return Events(
        table,
        category,
        name,
        categories,
        names,
        phase == _index(phases, "X"),
        phase == _index(phases, "M"),
        start,
        duration,
        usable,
        process,
        thread,
    )


def _index(values: tuple[str, ...], wanted: str) -> int:
    return values.index(wanted) if wanted in values else -1


def _whole(column: Any, absent: int) -> NDArray[np.int64]:  # noqa: ANN401 - an array of Arrow's
    return np.asarray(pc.fill_null(column, absent).to_numpy(), np.int64)


def _dictionary(column: Any) -> tuple[NDArray[np.int64], tuple[str, ...]]:  # noqa: ANN401 - an array of Arrow's
    """Return what each value is in the list of all; a value that is missing is an empty text."""
    encoded = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    return (
        np.asarray(encoded.indices.to_numpy(), np.int64),
        tuple(encoded.dictionary.to_pylist()),
    )


def _nanoseconds(column: Any) -> NDArray[np.int64] | None:  # noqa: ANN401 - an array of Arrow's
    """Return times in ns, `_ABSENT` where there is none; None where one does not fit."""
    if column.type == _FINER:
        column = pc.round(column, 3, "half_to_even").cast(_NS)
    values = column.combine_chunks()
    halves = np.frombuffer(values.buffers()[1], np.int64)
    halves = halves[2 * values.offset : 2 * (values.offset + len(values))].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    missing = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    if ((high != low >> 63) & ~missing).any():
        return None
    return np.where(missing, _ABSENT, low)
