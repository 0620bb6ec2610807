"""Exact, slow reader of NDJSON lines; its errors name the faulty line and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.documents import UnreadableDocumentError, load_json
from app.analysis.trace.columns import NATIVE
from app.analysis.trace.limits import MAX_FAULTS, refuse
from app.errors import Fault

COLUMNS: Final = pa.schema(
    [(name, pa.string() if field == "op" else pa.int64()) for field, name in NATIVE.columns.items()]
)

_INT64: Final = range(-(1 << 63), 1 << 63)


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line.

    Raises
    ------
    ValueError
        The line is not UTF-8, is not JSON (which has no NaN and no infinities), is not an object,
        or has a key twice.
    """
    try:
        value = load_json(line.decode())
    except UnreadableDocumentError as error:
        raise ValueError(error.message) from error
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - all of a line's faults are one kind
    return value


def read_lines(block: bytes, first_line: int) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return the rows of the non-blank lines, and the line number of each row.

    Parameters
    ----------
    first_line : int
        1-based number of the block's first line.

    Raises
    ------
    InvalidTraceError
        `trace.bad_line`, `trace.truncated`, `trace.wrong_type`, `trace.integer_overflow`, with the
        lines of the first faults.
    """
    faults: list[Fault] = []
    lines: list[int] = []
    columns: dict[str, list[Any]] = {name: [] for name in NATIVE.columns.values()}
    texts = block.split(b"\n")
    for offset, text in enumerate(texts):
        if not text.strip():
            continue
        line = first_line + offset
        try:
            row = parse_object(text)
        except ValueError as error:
            # A faulty last line without a line feed was probably cut off.
            code = "truncated" if offset == len(texts) - 1 else "bad_line"
            faults.append(Fault(code, f"not a JSON object: {error}", line=line))
        else:
            faults += _problems(row, line)
            lines.append(line)
            for name, column in columns.items():
                column.append(row.get(name))
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        refuse(faults)
    arrays = [pa.array(columns[field.name], field.type) for field in COLUMNS]
    return pa.record_batch(arrays, schema=COLUMNS), np.array(lines, np.int64)


def _problems(row: Mapping[str, Any], line: int) -> list[Fault]:
    """Return the faults of a row's values; `batch_columns` reports missing values."""
    faults = []
    for field, name in NATIVE.columns.items():
        value = row.get(name)
        if value is None:
            continue
        if field == "op":
            if not isinstance(value, str):
                faults.append(Fault("wrong_type", f"{name} must be text", line=line, column=name))
            elif not _is_utf8(value):
                message = f"{name} has a surrogate without its other half"
                faults.append(Fault("bad_op_name", message, line=line, column=name))
        elif isinstance(value, bool) or not isinstance(value, int):
            message = f"{name} must be a whole number"
            faults.append(Fault("wrong_type", message, line=line, column=name))
        elif value not in _INT64:
            message = f"{name} does not fit in 64 bits"
            faults.append(Fault("integer_overflow", message, line=line, column=name))
    return faults


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
