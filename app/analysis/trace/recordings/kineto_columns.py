"""Reader of Kineto events as columns, a megabyte of JSON at a time.

Most events are operators, launches and kernels with a few numbers each. Arrow's parser reads them
as columns, without a Python object for each event and exact to the nanosecond. Named ranges and
collectives, and files that Arrow cannot read as columns, are read event by event.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from app.analysis.trace.limits import MAX_TIME_NS
from app.analysis.trace.recordings.json_events import Item
from app.analysis.trace.recordings.profiler.scan import Activity, Scan

_TEXT, _WHOLE = pa.string(), pa.int64()
# Type of times: microseconds with three decimal digits are whole nanoseconds; programs that rewrite
# the file may write more digits.
_THOUSANDTHS: Final = pa.decimal128(38, 3)
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


_SCHEMAS: Final = (_schema(_THOUSANDTHS), _schema(_FINER))
_ABSENT: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Batch of events as arrays with one value per event."""

    table: pa.Table
    # category, name: index into `categories` and into `names`
    category: NDArray[np.int64]
    name: NDArray[np.int64]
    categories: tuple[str, ...]
    names: tuple[str, ...]
    complete: NDArray[np.bool_]  # the event's phase is ``X`` (complete)
    named: NDArray[np.bool_]  # the event's phase is ``M`` (metadata)
    start: NDArray[np.int64]  # ns
    duration: NDArray[np.int64]  # ns
    usable: NDArray[np.bool_]  # time, process and thread are within the ranges of this module
    process: NDArray[np.int64]
    thread: NDArray[np.int64]

    def argument(self, name: str) -> NDArray[np.int64]:
        """Return an integer argument of each event; -1 if the event lacks it."""
        # `combine_chunks` copies nothing here, because the table has a single chunk.
        args: Any = self.table.column("args").combine_chunks()
        return _whole(args.field(name), -1)

    def of_categories(self, wanted: Collection[str]) -> NDArray[np.bool_]:
        """Return whether each event is of one of the categories."""
        numbers = [at for at, category in enumerate(self.categories) if category in wanted]
        return np.isin(self.category, numbers)

    def rows(self, places: NDArray[np.intp]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the index and fields of the given events, with the arguments in `_ARGS` only."""
        rows = self.table.take(places).to_pylist()
        for place, row in zip(places.tolist(), rows, strict=True):
            present = {key: value for key, value in row.items() if value is not None}
            args = present.get("args")
            if args is not None:
                present["args"] = {key: value for key, value in args.items() if value is not None}
            yield place, present


def events_of(lines: str, count: int) -> Events | None:
    """Return the events of a batch of JSON lines; None if the events must be read one by one."""
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
                # The system's pool is used because Arrow's own pool keeps freed memory.
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


def _index(texts: tuple[str, ...], wanted: str) -> int:
    return texts.index(wanted) if wanted in texts else -1


def _whole(column: Any, absent: int) -> NDArray[np.int64]:  # noqa: ANN401 - an Arrow array
    return np.asarray(pc.fill_null(column, absent).to_numpy(), np.int64)


def _dictionary(column: Any) -> tuple[NDArray[np.int64], tuple[str, ...]]:  # noqa: ANN401 - an Arrow array
    """Return the index of each value among the distinct values, and the distinct values.

    Null becomes "".
    """
    encoded = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    return (
        np.asarray(encoded.indices.to_numpy(), np.int64),
        tuple(encoded.dictionary.to_pylist()),
    )


def _nanoseconds(column: Any) -> NDArray[np.int64] | None:  # noqa: ANN401 - an Arrow array
    """Return times in ns, `_ABSENT` for missing times; None if a time does not fit int64."""
    if column.type == _FINER:
        column = pc.round(column, 3, "half_to_even").cast(_THOUSANDTHS)
    values = column.combine_chunks()
    halves = np.frombuffer(values.buffers()[1], np.int64)
    halves = halves[2 * values.offset : 2 * (values.offset + len(values))].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    missing = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    if ((high != low >> 63) & ~missing).any():
        return None
    return np.where(missing, _ABSENT, low)


_SHIFT: Final = 23
# Maximum number of entries of the cache of event kinds by name.
_MOST_NAMES: Final = 1 << 16


class Kind(IntEnum):
    """Way in which an event is added to a scan."""

    NOT = auto()
    ALONE = auto()  # kept as an object
    LAUNCH = auto()
    RANGE = auto()  # only the external id is kept
    OPERATOR = auto()
    NODE = auto()  # the operator of a node of autograd
    GRADIENT = auto()  # the range around a node of autograd
    KERNEL = auto()
    COPY = auto()
    SET = auto()


_ACTIVITIES: Final = {
    Kind.KERNEL: Activity.KERNEL,
    Kind.COPY: Activity.COPY,
    Kind.SET: Activity.SET,
}


class Batches:
    """Adder of event batches to a scan.

    Parameters
    ----------
    kind_of : callable
        Returns the kind of an event by its category and name.
    take : callable
        Adds one event to the scan.
    """

    def __init__(
        self, scan: Scan, kind_of: Callable[[str, str], Kind], take: Callable[[Item], None]
    ) -> None:
        self._scan = scan
        self._kind_of = kind_of
        self._take = take
        self._kind_of_name: dict[tuple[str, str], Kind] = {}

    def __call__(self, lines: str, count: int, index: int) -> bool:
        """Add a batch of lines with one event each; return whether the batch could be parsed."""
        events = events_of(lines, count)
        if events is None:
            return False
        pairs = events.category * len(events.names) + events.name
        numbers, places = np.unique(pairs, return_inverse=True)
        kinds_of = np.empty(len(numbers), np.int64)
        if len(self._kind_of_name) > _MOST_NAMES:
            self._kind_of_name.clear()
        for at, number in enumerate(numbers.tolist()):
            category, name = divmod(number, len(events.names))
            key = (events.categories[category], events.names[name])
            kind = self._kind_of_name.get(key)
            if kind is None:
                kind = self._kind_of_name[key] = self._kind_of(*key)
            kinds_of[at] = kind
        complete = np.where(events.complete, kinds_of[places], Kind.NOT)
        kinds = np.where(events.named, Kind.ALONE, complete)
        if not events.usable[kinds > Kind.ALONE].all():
            return False
        row: Mapping[str, Any]
        for place, row in events.rows(np.flatnonzero(kinds == Kind.ALONE)):
            self._take(Item(index + place, row))
        self._add(events, kinds)
        return True

    def _add(self, events: Events, kinds: NDArray[np.int64]) -> None:
        scan = self._scan
        correlation, external = events.argument("correlation"), events.argument("External id")
        launches = (kinds == Kind.LAUNCH) & (correlation != -1)
        on_host = (kinds >= Kind.LAUNCH) & (kinds <= Kind.GRADIENT)
        keys = (events.process[on_host] << _SHIFT) | events.thread[on_host]
        values, places = np.unique(keys, return_inverse=True)
        mask = (1 << _SHIFT) - 1
        numbers = [scan.thread((key >> _SHIFT, key & mask)) for key in values.tolist()]
        thread = np.zeros(len(kinds), np.int64)
        thread[on_host] = np.array(numbers, np.int64)[places]
        scan.launches.table.extend(events.start[launches], correlation[launches], thread[launches])
        called = (kinds >= Kind.RANGE) & (kinds <= Kind.GRADIENT)
        named = called & (external != -1)
        scan.operators.table.extend(events.start[named], external[named], thread[named])
        for kind, table in ((Kind.NODE, scan.nodes.table), (Kind.GRADIENT, scan.gradients.table)):
            mine = kinds == kind
            table.extend(events.start[mine], events.duration[mine], thread[mine])
        operators = (kinds >= Kind.OPERATOR) & (kinds <= Kind.GRADIENT)
        self._outer(events, operators, thread)
        on_device = kinds >= Kind.KERNEL
        device, stream = (events.argument(name)[on_device] for name in ("device", "stream"))
        pairs, places = np.unique(np.stack([device, stream], axis=1), axis=0, return_inverse=True)
        numbers = [
            scan.thread(("stream", *("None" if n == -1 else n for n in pair)))
            for pair in pairs.tolist()
        ]
        streams = np.array(numbers, np.int64)[places.ravel()]
        activity = np.zeros(len(kinds), np.int64)
        for kind, what in _ACTIVITIES.items():
            activity[kinds == kind] = what
        scan.kernels.table.extend(
            events.start[on_device],
            events.duration[on_device],
            correlation[on_device],
            external[on_device],
            np.full(int(on_device.sum()), -1, np.int64),
            streams,
            activity[on_device],
        )

    def _outer(self, events: Events, chosen: NDArray[np.bool_], thread: NDArray[np.int64]) -> None:
        """Add the operators that lie in no other operator, by the rule of `Scan.add_operator`."""
        for number in np.unique(thread[chosen]).tolist():
            mine = chosen & (thread == number)
            start, duration = events.start[mine], events.duration[mine]
            ends = np.concatenate(
                [[self._scan.busy_until.get(number, int(start[0]))], start + duration]
            )
            latest = np.maximum.accumulate(ends)
            outer = start >= latest[:-1]
            self._scan.outer.table.extend(
                start[outer], duration[outer], np.full(int(outer.sum()), number, np.int64)
            )
            self._scan.busy_until[number] = int(latest[-1])
