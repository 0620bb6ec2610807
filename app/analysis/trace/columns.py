"""Columns of a body: the accepted sets of columns, and their conversion from Arrow to NumPy.

NumPy columns have no nulls. Integer columns may have the types that pandas writes (`datetime64`,
`timedelta64`, floating point) if the conversion is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.trace.limits import MAX_FAULTS, Places, refuse
from app.analysis.trace.model import ABSENT
from app.errors import Fault


@dataclass(frozen=True, slots=True)
class ColumnSet:
    """Names and time unit of the columns of a body."""

    trace_format: str  # name of the format in the interfaces
    # Our name of each column → its name in the body. `rank dp pp tp step mb mc order` are integer
    # columns, `op` is text, `start` and `duration` are times.
    columns: Mapping[str, str]
    optional: frozenset[str]  # our names of columns that may be missing
    # True: times are floating-point seconds from the earliest start of their step. False: times are
    # integer nanoseconds of a host clock.
    seconds: bool


PUBLISHED: Final = ColumnSet(
    trace_format="parquet-published",
    columns={
        "rank": "rank",
        "dp": "dp_rank",
        "pp": "stage",
        "step": "step",
        "op": "optype",
        "mb": "mb_id",
        "mc": "mc",
        "order": "seq_id",
        "start": "start_ts",
        "duration": "duration",
    },
    optional=frozenset(),
    seconds=True,
)

# Operations without a microbatch or model chunk have null or -1 in that column; a job without
# virtual stages may leave the columns out.
NATIVE: Final = ColumnSet(
    trace_format="parquet",
    columns={
        "rank": "rank",
        "dp": "dp",
        "pp": "pp",
        "tp": "tp",
        "step": "step",
        "op": "op",
        "mb": "mb",
        "mc": "mc",
        "start": "start_ns",
        "duration": "dur_ns",
    },
    optional=frozenset({"tp", "mb", "mc"}),
    seconds=False,
)

# Name of the operation-name column in either set.
OP_COLUMNS: Final = (PUBLISHED.columns["op"], NATIVE.columns["op"])

NULLABLE: Final = frozenset({"mb", "mc"})


def choose_layout(names: Collection[str]) -> ColumnSet:
    """Return the set of columns that has most columns in common with `names`.

    Raises
    ------
    InvalidTraceError
        `trace.missing_column` with every missing column, `trace.duplicate_column`.
    """
    present = set(names)
    published = len(present & set(PUBLISHED.columns.values()))
    layout = PUBLISHED if published > len(present & set(NATIVE.columns.values())) else NATIVE
    missing = [
        Fault("missing_column", f"the column {name} is missing", column=name)
        for field, name in layout.columns.items()
        if name not in present and field not in layout.optional
    ]
    if missing:
        refuse(missing)
    seen = list(names)
    repeated = [
        Fault("duplicate_column", f"the column {name} is there twice", column=name)
        for name in layout.columns.values()
        if seen.count(name) > 1
    ]
    if repeated:
        refuse(repeated)
    return layout


def as_numpy(array: pa.Array[Any]) -> NDArray[Any]:
    """Return an Arrow array's values as a NumPy array, without a copy where possible.

    Arrow's `to_numpy` is avoided because it imports pandas if installed, which takes longer than
    reading and replaying a small trace.
    """
    plain = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    if plain and not array.null_count:
        return np.from_dlpack(array)
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


# pandas stores times as ``datetime64`` and ``timedelta64``, and integer columns with missing values
# as floating-point numbers.
_NS_OF_UNIT: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_MOST: Final = (1 << 63) - 1


def can_hold_integers(kind: pa.DataType, *, time: bool) -> bool:
    """Return whether a column of this type may hold signed 64-bit integers.

    Parameters
    ----------
    time : bool
        The column holds nanoseconds.
    """
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return True
    return time and (pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def integers_of(
    array: pa.Array[Any], field: str, places: Places, first_row: int, *, nan_is_null: bool
) -> pa.Array[Any]:
    """Return a column's values as integers; times are converted to nanoseconds.

    Parameters
    ----------
    array : Array
        Column of a type that `can_hold_integers` accepts.
    field : str
        Our name of the column.
    first_row : int
        Row of the body at which the array starts.
    nan_is_null : bool
        A NaN is a missing value.

    Raises
    ------
    InvalidTraceError
        With the first rows: `trace.not_exact`, a fraction or a number that floating point rounds;
        `trace.not_finite`; `trace.time_overflow`, `trace.integer_overflow`.
    """
    kind = array.type
    where = (field, places, first_row)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        array, scale = array.view(pa.int64()), _NS_OF_UNIT[kind.unit]
        if scale == 1:
            return array
        values, missing = _values(array, 0)
        most = _MOST // scale
        beyond = (values > most) | (values < -most)
        _refuse(beyond, "time_overflow", "{field} is beyond all times", where)
        scaled: pa.Array[Any] = pa.array(values * scale, mask=missing)
        return scaled
    if pa.types.is_uint64(kind):
        values, missing = _values(array, 0)
        message = "{field} does not fit in 64 bits with a sign"
        _refuse(values > np.uint64(_MOST), "integer_overflow", message, where)
        return pa.array(values.astype(np.int64), mask=missing)
    if pa.types.is_floating(kind):
        return _whole_numbers(array, where, nan_is_null=nan_is_null)
    return array


def _whole_numbers(
    array: pa.Array[Any], where: tuple[str, Places, int], *, nan_is_null: bool
) -> pa.Array[Any]:
    """Return floating-point values as integers; refuse values that are not whole numbers."""
    values, missing = _values(array, 0.0)
    if nan_is_null:
        missing |= np.isnan(values)
        values = np.where(missing, 0, values)
    _refuse(~np.isfinite(values), "not_finite", "{field} is no number", where)
    # A floating-point type represents every integer exactly only up to this value.
    most = 1 << (np.finfo(values.dtype).nmant + 1)
    with np.errstate(invalid="ignore"):
        exact = (np.abs(values) <= most) & (np.floor(values) == values)
    message = f"{{field}} is no integer that {array.type} holds exactly: write it as int64"
    _refuse(~exact, "not_exact", message, where)
    return pa.array(values.astype(np.int64), mask=missing)


def _values(array: pa.Array[Any], missing: float) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the values of an array, and a mask of the missing values."""
    if not array.null_count:
        return as_numpy(array), np.zeros(len(array), np.bool_)
    nulls = np.array(array.is_null())
    return as_numpy(array.fill_null(missing)), nulls


def _refuse(
    wrong: NDArray[np.bool_], code: str, message: str, where: tuple[str, Places, int]
) -> None:
    field, places, first_row = where
    rows = np.flatnonzero(wrong)[:MAX_FAULTS].tolist()
    if rows:
        text = message.format(field=places.columns.get(field, field))
        refuse(places.fault(code, text, first_row + row, field) for row in rows)


def check_types(schema: pa.Schema, layout: ColumnSet) -> None:
    """Refuse columns of `layout` that have the wrong type.

    Raises
    ------
    InvalidTraceError
        `trace.wrong_type` with every such column.
    """
    faults = []
    for field, name in layout.columns.items():
        if name not in schema.names:
            continue
        kind = schema.field(name).type
        expected = _expected_type(field, kind, layout)
        if expected:
            message = f"the column {name} must hold {expected}, not {kind}"
            faults.append(Fault("wrong_type", message, column=name))
    if faults:
        refuse(faults)


def _expected_type(field: str, kind: pa.DataType, layout: ColumnSet) -> str | None:
    """Return the name of the type that a column must have; None if the column has it."""
    if field == "op":
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(value) or pa.types.is_large_string(value)
        return None if text else "text"
    if layout.seconds and field in ("start", "duration"):
        seconds = pa.types.is_float32(kind) or pa.types.is_float64(kind)
        return None if seconds else "seconds in float32"
    if layout.seconds:
        fits = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    else:
        fits = can_hold_integers(kind, time=field in ("start", "duration"))
    return None if fits else "integers of at most 64 bits with a sign"


def batch_columns(
    batch: pa.RecordBatch, layout: ColumnSet, places: Places, first_row: int
) -> tuple[dict[str, NDArray[Any]], pa.DictionaryArray[Any, Any]]:
    """Return the numeric columns under our names, and the operation names.

    Parameters
    ----------
    batch : RecordBatch
        Rows whose columns have types that `check_types` accepts.
    first_row : int
        Row of the body at which the batch starts.

    Raises
    ------
    InvalidTraceError
        `trace.null` with the first rows; see also `integers_of`.
    """
    given: Mapping[str, pa.Array[Any]] = {
        field: batch.column(name)
        for field, name in layout.columns.items()
        if name in batch.schema.names
        # Arrow reads an optional key that no row of an NDJSON body has as a column of nulls.
        and not (field in layout.optional and batch.column(name).null_count == len(batch))
    }
    if not layout.seconds:
        given = {
            field: array
            if field == "op"
            else integers_of(array, field, places, first_row, nan_is_null=field in NULLABLE)
            for field, array in given.items()
        }
    nullable = frozenset[str]() if layout.seconds else NULLABLE
    with_nulls = [
        field for field, array in given.items() if array.null_count and field not in nullable
    ]
    if with_nulls:
        refuse(
            places.fault("null", f"{layout.columns[field]} is null", first_row + row, field)
            for field in with_nulls
            for row in np.flatnonzero(given[field].is_null().to_numpy(zero_copy_only=False))[
                :MAX_FAULTS
            ].tolist()
        )
    numbers = {
        field: as_numpy(
            array.cast(pa.int64()).fill_null(ABSENT)
            if field in NULLABLE and array.null_count
            else array
        )
        for field, array in given.items()
        if field != "op"
    }
    op = given["op"]
    return numbers, op if isinstance(op, pa.DictionaryArray) else op.dictionary_encode()
