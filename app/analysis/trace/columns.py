"""From Arrow's record batches to numpy columns without nulls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.trace.column_sets import NULLABLE, ColumnSet
from app.analysis.trace.faults import Places, refuse
from app.analysis.trace.limits import MAX_FAULTS
from app.analysis.trace.model import ABSENT
from app.analysis.trace.operations.integers import can_hold_integers, integers_of
from app.analysis.trace.operations.values import as_numpy
from app.errors import Fault


def check_types(schema: pa.Schema, layout: ColumnSet) -> None:
    """Refuse columns of `layout` whose type cannot hold what they should.

    Raises
    ------
    InvalidTraceError
        `trace.wrong_type` with every such column.
    """
    faults = []
    for field, name in layout.columns.items():
        if name not in schema.names:
            continue
        found = schema.field(name).type
        expected = _problem(field, found, layout)
        if expected:
            message = f"the column {name} must hold {expected}, not {found}"
            faults.append(Fault("wrong_type", message, column=name))
    if faults:
        refuse(faults)


def _problem(field: str, found: pa.DataType, layout: ColumnSet) -> str | None:
    """Return what the column must hold where it does not."""
    if field == "op":
        value = found.value_type if pa.types.is_dictionary(found) else found
        text = pa.types.is_string(value) or pa.types.is_large_string(value)
        return None if text else "text"
    if layout.seconds and field in ("start", "duration"):
        seconds = pa.types.is_float32(found) or pa.types.is_float64(found)
        return None if seconds else "seconds in float32"
    if layout.seconds:
        fits = pa.types.is_integer(found) and not pa.types.is_uint64(found)
    else:
        fits = can_hold_integers(found, time=field in ("start", "duration"))
    return None if fits else "integers of at most 64 bits with a sign"


def batch_columns(
    batch: pa.RecordBatch, layout: ColumnSet, places: Places, first_row: int
) -> tuple[dict[str, NDArray[Any]], pa.DictionaryArray[Any, Any]]:
    """Return the numeric columns under our names, and the operation names.

    Parameters
    ----------
    batch : RecordBatch
        Of types that `check_types` passed.
    first_row : int
        Row of the body that the batch starts with.

    Raises
    ------
    InvalidTraceError
        `trace.null` with the first rows; see also `integers_of`.
    """
    given: Mapping[str, pa.Array[Any]] = {
        field: batch.column(name)
        for field, name in layout.columns.items()
        if name in batch.schema.names and not _is_left_out(field, batch.column(name), layout)
    }
    if not layout.seconds:
        given = {
            field: array
            if field == "op"
            else integers_of(array, field, places, first_row, nan_is_null=field in NULLABLE)
            for field, array in given.items()
        }
    _check_nulls(given, layout, places, first_row)
    numbers = {
        field: _numpy(array, fill=field in NULLABLE)
        for field, array in given.items()
        if field != "op"
    }
    op = given["op"]
    return numbers, op if isinstance(op, pa.DictionaryArray) else op.dictionary_encode()


def _is_left_out(field: str, array: pa.Array[Any], layout: ColumnSet) -> bool:
    """Return whether no row of a text body has an optional key."""
    return field in layout.optional and array.null_count == len(array)


def _numpy(array: pa.Array[Any], *, fill: bool) -> NDArray[Any]:
    if fill and array.null_count:
        array = array.cast(pa.int64()).fill_null(ABSENT)
    return as_numpy(array)


def _check_nulls(
    given: Mapping[str, pa.Array[Any]], layout: ColumnSet, places: Places, first_row: int
) -> None:
    nullable = frozenset[str]() if layout.seconds else NULLABLE
    with_nulls = [
        field for field, array in given.items() if array.null_count and field not in nullable
    ]
    if not with_nulls:
        return
    refuse(
        places.fault("null", f"{layout.columns[field]} is null", first_row + row, field)
        for field in with_nulls
        for row in np.flatnonzero(given[field].is_null().to_numpy(zero_copy_only=False))[
            :MAX_FAULTS
        ].tolist()
    )
