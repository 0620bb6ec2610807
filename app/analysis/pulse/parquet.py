"""Reader of pulses in Parquet files: yields rows sorted by time, in bounded memory.

Unusable rows are counted by a stable code; an unusable file raises `InvalidPulseError`:

=======================  ======================================================================
``pulse.not_parquet``    the file is no Parquet file, or is damaged
``pulse.missing_column`` a column is missing
``pulse.wrong_type``     a column holds something else than numbers (of `phase`: texts)
=======================  ======================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.analysis.pulse.columns import (
    BEAT_COLUMNS,
    KEYS,
    LONGEST_PHASE,
    MEASURES,
    MOST_PHASES,
    MOST_RANKS,
    NO_BEAT,
    UNKNOWN_COLUMN,
    Pulses,
    joined,
    usable,
)
from app.analysis.quantities import BoolArray, IntArray
from app.errors import InvalidPulseError

OUT_OF_ORDER: Final = "pulse.out_of_order"

BATCH_ROWS: Final = 1 << 16
# Number of rows that are sorted in memory at once if a file is not sorted by time.
_SORTED_ROWS: Final = 1_000_000
# Rows that follow a row with a later time are tolerated without sorting if they are late by less
# than this.
_LATE_NS: Final = 5_000_000_000
# The error of a clock is corrected before sorting if it differs from the median of all clocks by
# more than this.
_WRONG_CLOCK_NS: Final = 2_000_000_000
# Number of first steps of each rank whose ends are compared to find the errors of clocks.
_COMPARED: Final = 64
_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


@dataclass(slots=True)
class PulseFile:
    """A Parquet file of pulses; `counts` has the number of dropped rows by code after reading."""

    path: Path
    counts: Counter[str] = field(default_factory=Counter)
    has_beats: bool = False

    def __post_init__(self) -> None:
        """Check that the file is a Parquet file with all needed columns.

        Raises
        ------
        InvalidPulseError
            The file is no Parquet file, or lacks a column.
        """
        with _readable(self.path):
            schema = pq.read_schema(self.path)
        missing = [name for name in (*KEYS, *MEASURES) if name not in schema.names]
        if missing:
            message = f"{self.path} has no column {missing[0]}"
            raise InvalidPulseError(message, code="pulse.missing_column")
        types = pa.types
        for name in (*KEYS, *MEASURES, "since_ns"):
            kind = schema.field(name).type if name in schema.names else pa.null()
            if not (types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)):
                message = f"{name} of {self.path} holds {kind}, not integers"
                raise InvalidPulseError(message, code="pulse.wrong_type")
        self.has_beats = "phase" in schema.names
        if self.has_beats:
            kind = schema.field("phase").type
            text = kind.value_type if types.is_dictionary(kind) else kind
            if not (types.is_string(text) or types.is_large_string(text) or types.is_null(text)):
                message = f"phase of {self.path} holds {kind}, not texts"
                raise InvalidPulseError(message, code="pulse.wrong_type")
        names = {*KEYS, *MEASURES, *BEAT_COLUMNS}
        for name in schema.names:
            if name not in names:
                self.counts[UNKNOWN_COLUMN] += 1

    def batches(self) -> Iterator[Pulses]:
        """Yield the rows of the file in batches, sorted by time.

        A file that is nearly sorted is read once. Any other file is split into time ranges of a
        million rows, and read again for each of them.
        """
        order = self._survey()
        if order.late_ns <= _LATE_NS:
            yield from self._read(self.counts)
            return
        if order.rows:
            self.counts[OUT_OF_ORDER] += order.late_rows
        edges = order.edges()
        for number, (low, high) in enumerate(pairwise(edges)):
            parts, times = [], []
            for batch in self._read(self.counts if number == 0 else Counter()):
                at = order.corrected(batch.rank, batch.time_ns)
                kept = (at >= low) & (at < high)
                if kept.any():
                    parts.append(batch.take(kept))
                    times.append(at[kept])
            if parts:
                rows = joined(parts)
                parts.clear()
                order_of = np.argsort(np.concatenate(times), kind="stable")
                for start in range(0, len(rows), BATCH_ROWS):
                    yield rows.take(order_of[start : start + BATCH_ROWS])

    def _read(self, counts: Counter[str]) -> Iterator[Pulses]:
        texts = ["phase"] if self.has_beats else []
        with _readable(self.path), pq.ParquetFile(self.path, read_dictionary=texts) as file:
            wanted = [*KEYS, *MEASURES, *BEAT_COLUMNS]
            names = [name for name in wanted if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=True):
                rows = _pulses(batch, counts)
                if len(rows):
                    yield rows

    def _survey(self) -> _Order:
        """Measure how late rows follow rows with later times, and find which clocks are wrong."""
        order = _Order()
        ranks = self._follow(order)
        with _readable(self.path), pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(
                BATCH_ROWS, columns=["rank", "step", "time_ns", "step_ns"], use_threads=False
            ):
                seen = {name: _integers(batch.column(name)) for name in ("rank", "step", "time_ns")}
                good = seen["rank"][1] & seen["step"][1] & seen["time_ns"][1]
                rank, step, time = (seen[name][0][good] for name in ("rank", "step", "time_ns"))
                is_step = _integers(batch.column("step_ns"))[1][good]
                order.add(rank, step, time, is_step)
                if order.has_compared(ranks):
                    break
        order.compare()
        if order.offsets:
            order.forget()
            self._follow(order)
        return order

    def _follow(self, order: _Order) -> IntArray:
        """Measure the lateness of all rows with `order`; return the ranks in the file."""
        ranks = np.empty(0, np.int64)
        with _readable(self.path), pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(
                BATCH_ROWS, columns=["rank", "time_ns"], use_threads=False
            ):
                rank, good = _integers(batch.column("rank"))
                time, also = _integers(batch.column("time_ns"))
                good = good & also
                rank, time = (rank, time) if good.all() else (rank[good], time[good])
                order.follow(order.corrected(rank, time))
                new = ~np.isin(rank, ranks)
                if new.any():
                    ranks = np.append(ranks, np.unique(rank[new]))
        return ranks


@dataclass(slots=True)
class _Order:
    """Lateness of a file's rows, a sample of their times, and the errors of the ranks' clocks."""

    rows: int = 0
    late_ns: int = 0
    late_rows: int = 0
    newest_ns: int = np.iinfo(np.int64).min
    stride: int = 1
    sample: list[IntArray] = field(default_factory=list)
    first: dict[int, dict[int, int]] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)

    def add(self, rank: IntArray, step: IntArray, time: IntArray, is_step: BoolArray) -> None:
        """Store the ends of the first steps of each rank."""
        for number in np.unique(rank).tolist():
            if number not in self.first and len(self.first) >= MOST_RANKS:
                continue
            ends = self.first.setdefault(number, {})
            if len(ends) < _COMPARED:
                rows = np.flatnonzero((rank == number) & is_step)[: _COMPARED - len(ends)]
                for row in rows.tolist():
                    ends.setdefault(int(step[row]), int(time[row]))

    def has_compared(self, ranks: IntArray) -> bool:
        """Return whether enough steps of all ranks are stored to compare their clocks."""
        return all(len(self.first.get(rank, ())) >= _COMPARED for rank in ranks.tolist())

    def compare(self) -> None:
        """Compute the errors of wrong clocks: the median distance from the median ends of steps."""
        by_step: dict[int, list[int]] = {}
        for ends in self.first.values():
            for step, time in ends.items():
                by_step.setdefault(step, []).append(time)
        usual = {step: int(np.median(times)) for step, times in by_step.items() if len(times) > 2}  # noqa: PLR2004
        for rank, ends in self.first.items():
            ahead = [time - usual[step] for step, time in ends.items() if step in usual]
            by = int(np.median(ahead)) if ahead else 0
            if abs(by) > _WRONG_CLOCK_NS:
                self.offsets[rank] = by

    def corrected(self, rank: IntArray, time: IntArray) -> IntArray:
        """Return the times, corrected by the errors of the ranks' clocks."""
        if not self.offsets:
            return time
        return time - np.array([self.offsets.get(number, 0) for number in rank.tolist()], np.int64)

    def forget(self) -> None:
        """Reset the lateness, which was measured with uncorrected times."""
        self.rows, self.late_ns, self.late_rows = 0, 0, 0
        self.newest_ns, self.stride, self.sample = _Order().newest_ns, 1, []

    def follow(self, times: IntArray) -> None:
        """Measure the lateness of the next rows, and sample their times."""
        if not len(times):
            return
        if times[0] < self.newest_ns or (times[1:] < times[:-1]).any():
            newest = np.maximum(np.maximum.accumulate(times), self.newest_ns)
            late = newest - times
            self.late_ns = max(self.late_ns, int(late.max()))
            self.late_rows += int(np.count_nonzero(late > 0))
            self.newest_ns = int(newest[-1])
        else:
            self.newest_ns = int(times[-1])
        self.rows += len(times)
        self.sample.append(times[:: self.stride].copy())
        if sum(map(len, self.sample)) > _SORTED_ROWS:
            self.sample = [np.concatenate(self.sample)[::2].copy()]
            self.stride *= 2

    def edges(self) -> list[int]:
        """Return the edges of time ranges that hold about `_SORTED_ROWS` rows each."""
        count = max(1, -(-self.rows // _SORTED_ROWS))
        sample = np.concatenate(self.sample)
        inner = [int(np.quantile(sample, part / count, method="lower")) for part in range(1, count)]
        limits = np.iinfo(np.int64)
        return [int(limits.min), *sorted(set(inner)), int(limits.max)]


def _pulses(batch: pa.RecordBatch, counts: Counter[str]) -> Pulses:
    """Return the usable rows of a batch, and count the unusable rows by code."""
    columns = {name: _integers(batch.column(name)) for name in (*KEYS, *MEASURES)}
    damaged = np.zeros(len(batch), np.bool_)
    for name in columns:
        if pa.types.is_floating(batch.column(name).type):
            damaged |= ~np.isfinite(np.asarray(batch.column(name).fill_null(0.0), np.float64))
    if "since_ns" in batch.schema.names:
        columns["since_ns"] = _integers(batch.column("since_ns"))
    else:
        columns["since_ns"] = np.zeros(len(batch), np.int64), np.zeros(len(batch), np.bool_)
    phase, phases = _phases(batch)
    return usable(columns, phase, phases, counts, damaged)


def _integers(column: pa.Array[Any]) -> tuple[IntArray, BoolArray]:
    """Return the values of a column, and a mask of the values that are not null."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    if pa.types.is_int64(column.type) and not column.null_count:
        return np.asarray(column), np.ones(len(column), np.bool_)
    valid = np.asarray(column.is_valid())
    if pa.types.is_floating(column.type):
        plain = np.asarray(column.fill_null(0.0), np.float64)
        sound = np.isfinite(plain) & (np.abs(plain) < 2.0**63)
        return np.where(sound, plain, 0).astype(np.int64), valid & sound
    if pa.types.is_uint64(column.type):
        plain = np.asarray(column.fill_null(0))
        sound = plain < np.uint64(1 << 63)
        return np.where(sound, plain, 0).astype(np.int64), valid & sound
    if column.null_count:
        column = column.fill_null(0)
    return np.asarray(column).astype(np.int64), valid


def _phases(batch: pa.RecordBatch) -> tuple[IntArray, tuple[str, ...]]:
    if "phase" not in batch.schema.names:
        return np.full(len(batch), NO_BEAT), ()
    column: Any = batch.column("phase")
    if column.null_count == len(column):
        return np.full(len(batch), NO_BEAT), ()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    texts = [str(text or "") for text in column.dictionary.to_pylist()]
    index: dict[str, int] = {}
    numbers = []
    for text in texts:
        short = text[:LONGEST_PHASE] if len(index) < MOST_PHASES else "other"
        numbers.append(index.setdefault(short, len(index)) if text else NO_BEAT)
    codes = np.asarray(column.indices.fill_null(len(numbers))).astype(np.int64)
    return np.array([*numbers, NO_BEAT], np.int64)[codes], tuple(index)


class _readable:  # noqa: N801 - used as a function
    """Raise `InvalidPulseError` for errors that occur while Parquet is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _UNREADABLE) and not isinstance(error, InvalidPulseError):
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            message = f"{self.path} cannot be read as Parquet: {reason}"
            raise InvalidPulseError(message, code="pulse.not_parquet") from error


def columns_of(rows: Pulses) -> Mapping[str, Any]:
    """Return rows as the columns of a Parquet table; measures are null in rows of beats."""
    beat = rows.phase != NO_BEAT
    table: dict[str, Any] = {name: pa.array(getattr(rows, name)) for name in KEYS}
    for name in MEASURES:
        table[name] = pa.array(getattr(rows, name), mask=beat)
    names = np.array([*rows.phases, None], object)
    table["phase"] = pa.array(names[rows.phase], pa.string())
    table["since_ns"] = pa.array(rows.since_ns, mask=~beat)
    return table
