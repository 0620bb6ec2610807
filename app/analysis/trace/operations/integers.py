"""Integers that Arrow's columns of other types hold exactly, as pandas writes them.

pandas keeps times as ``datetime64`` and ``timedelta64``, and integers of which some are missing as
floating-point numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.trace.faults import Places, refuse
from app.analysis.trace.limits import MAX_FAULTS
from app.analysis.trace.operations.values import as_numpy

_NS_OF_UNIT: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_MOST: Final = (1 << 63) - 1


def can_hold_integers(found: pa.DataType, *, time: bool) -> bool:
    """Return whether a column of this type may hold integers of 64 bits with a sign.

    Parameters
    ----------
    time : bool
        They are nanoseconds.
    """
    if pa.types.is_integer(found) or pa.types.is_floating(found):
        return True
    return time and (pa.types.is_timestamp(found) or pa.types.is_duration(found))


def integers_of(
    array: pa.Array[Any], field: str, places: Places, first_row: int, *, nan_is_null: bool
) -> pa.Array[Any]:
    """Return a column's values as integers, times as nanoseconds.

    Parameters
    ----------
    array : Array
        Of a type that `can_hold_integers` passed.
    field : str
        Our name of the column.
    first_row : int
        Row of the body that the array starts with.
    nan_is_null : bool
        A NaN stands for a value that is missing.

    Raises
    ------
    InvalidTraceError
        With the first rows: `trace.not_exact`, a fraction or a number that floating point rounds;
        `trace.not_finite`; `trace.time_overflow`, `trace.integer_overflow`.
    """
    found = array.type
    if pa.types.is_timestamp(found) or pa.types.is_duration(found):
        values = array.view(pa.int64())
        scale = _NS_OF_UNIT[found.unit]
        return values if scale == 1 else _scaled(values, scale, field, places, first_row)
    if pa.types.is_uint64(found):
        return _signed(array, field, places, first_row)
    if pa.types.is_floating(found):
        return _whole(array, field, places, first_row, nan_is_null=nan_is_null)
    return array


def _scaled(
    array: pa.Array[Any], scale: int, field: str, places: Places, first_row: int
) -> pa.Array[Any]:
    values, missing = _values(array, 0)
    most = _MOST // scale
    _refuse(
        (values > most) | (values < -most),
        "time_overflow",
        "{field} is beyond all times",
        (field, places, first_row),
    )
    scaled: pa.Array[Any] = pa.array(values * scale, mask=missing)
    return scaled


def _signed(array: pa.Array[Any], field: str, places: Places, first_row: int) -> pa.Array[Any]:
    values, missing = _values(array, 0)
    _refuse(
        values > np.uint64(_MOST),
        "integer_overflow",
        "{field} does not fit in 64 bits with a sign",
        (field, places, first_row),
    )
    return pa.array(values.astype(np.int64), mask=missing)


def _whole(
    array: pa.Array[Any], field: str, places: Places, first_row: int, *, nan_is_null: bool
) -> pa.Array[Any]:
    values, missing = _values(array, 0.0)
    if nan_is_null:
        missing |= np.isnan(values)
        values = np.where(missing, 0, values)
    where = (field, places, first_row)
    _refuse(~np.isfinite(values), "not_finite", "{field} is no number", where)
    # Above it, floating point has no longer every integer.
    most = 1 << (np.finfo(values.dtype).nmant + 1)
    with np.errstate(invalid="ignore"):
        exact = (np.abs(values) <= most) & (np.floor(values) == values)
    message = f"{{field}} is no integer that {array.type} holds exactly: write it as int64"
    _refuse(~exact, "not_exact", message, where)
    return pa.array(values.astype(np.int64), mask=missing)


def _values(array: pa.Array[Any], missing: float) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the values of an array, and which of them are missing."""
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
        said = message.format(field=places.columns.get(field, field))
        refuse(places.fault(code, said, first_row + row, field) for row in rows)
