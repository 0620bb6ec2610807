"""What the footer of a Parquet body says, read before pyarrow may see it.

A damaged footer is no exception in pyarrow: reading the description of a column chunk that lacks
its metadata ends the process. So the footer is read here, and what pyarrow relies on is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.limits import Limits
from app.analysis.trace.parquet.thrift import ReadBudget, ThriftError, read_struct
from app.errors import BodyTooLargeError

MAGIC: Final = b"PAR1"

# Length of the footer, and the magic number again.
_TAIL: Final = struct.Struct("<I4s")
_SHORTEST: Final = len(MAGIC) + _TAIL.size

# Ids of fields in parquet.thrift.
_SCHEMA, _NUM_ROWS, _ROW_GROUPS = 2, 3, 4
_ELEMENT_TYPE, _ELEMENT_NAME, _ELEMENT_CHILDREN = 1, 4, 5
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_CHUNK_FILE, _CHUNK_META = 1, 3
_CHUNK_NUMBERS: Final = {
    "type": 1,
    "codec": 4,
    "values": 5,
    "size": 6,
    "compressed_size": 7,
    "data_offset": 9,
}
_CHUNK_ENCODINGS, _CHUNK_PATH, _CHUNK_DICTIONARY = 2, 3, 11
_BYTE_ARRAY: Final = 6


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of one row group."""

    name: str
    is_text: bool  # its values are byte arrays, not numbers
    rows: int
    # start, end: its pages in the body, the dictionary first
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Footer:
    """Rows, and the column chunks at the top level of the schema, row group by row group."""

    rows: int
    chunks: tuple[ColumnChunk, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    name: str | None
    kind: int


def read_footer(source: pa.NativeFile, limits: Limits) -> Footer:
    """Read and check the footer.

    Raises
    ------
    InvalidTraceError
        `trace.truncated`, `trace.corrupt`.
    BodyTooLargeError
        `body.header_too_large`.
    """
    data = _footer_bytes(source, limits)
    try:
        fields, _ = read_struct(data, 0, ReadBudget())
        return _checked(fields, source.size() - len(data) - _TAIL.size)
    except (ThriftError, IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        # Fields that are missing or of another type show as one of these.
        refuse_body("corrupt", f"the Parquet footer is damaged: {error!r}")


def _footer_bytes(source: pa.NativeFile, limits: Limits) -> bytes:
    size = source.size()
    if size < _SHORTEST:
        refuse_body("truncated", "the Parquet body ends before its footer")
    source.seek(size - _TAIL.size)
    length, magic = _TAIL.unpack(source.read(_TAIL.size))
    if magic != MAGIC:
        refuse_body("truncated", "the Parquet body ends before its footer")
    if length > size - _SHORTEST:
        refuse_body("corrupt", "the Parquet footer is longer than the body")
    if length > limits.max_header_bytes:
        message = f"the Parquet footer is over {limits.max_header_bytes} bytes"
        raise BodyTooLargeError(message, code="body.header_too_large")
    source.seek(size - _TAIL.size - length)
    return source.read(length)


def _checked(fields: Mapping[int, Any], data_end: int) -> Footer:
    leaves = _leaves(fields[_SCHEMA])
    rows = 0
    chunks: list[ColumnChunk] = []
    for group in fields[_ROW_GROUPS]:
        group_rows, columns = group[_GROUP_ROWS], group[_GROUP_COLUMNS]
        if group_rows < 0 or len(columns) != len(leaves):
            raise ValueError("a row group does not fit the schema")
        if not group_rows:
            # Writers leave an empty group of an empty table, its offsets are anything.
            continue
        rows += group_rows
        for leaf, column in zip(leaves, columns, strict=True):
            chunk = _chunk(leaf, column, group_rows, data_end)
            if chunk is not None:
                chunks.append(chunk)
    if rows != fields[_NUM_ROWS]:
        raise ValueError("the row groups have another number of rows than the footer says")
    return Footer(rows, tuple(chunks))


def _leaves(elements: Sequence[Mapping[int, Any]]) -> list[_Leaf]:
    """Return the columns of the schema in the order of their chunks; nested ones have no name."""
    leaves: list[_Leaf] = []
    # How many children each open group still lacks; the root is the first.
    open_groups = [elements[0][_ELEMENT_CHILDREN]]
    for element in elements[1:]:
        while open_groups and not open_groups[-1]:
            open_groups.pop()
        open_groups[-1] -= 1
        name = element[_ELEMENT_NAME].decode()
        if element.get(_ELEMENT_CHILDREN):
            open_groups.append(element[_ELEMENT_CHILDREN])
        else:
            top = len(open_groups) == 1
            leaves.append(_Leaf(name if top else None, element[_ELEMENT_TYPE]))
    if any(open_groups):
        raise ValueError("the schema is not complete")
    return leaves


def _chunk(leaf: _Leaf, column: Mapping[int, Any], rows: int, data_end: int) -> ColumnChunk | None:
    if _CHUNK_FILE in column:
        raise ValueError("a column is in another file")
    meta = column[_CHUNK_META]
    numbers = {name: meta[field] + 0 for name, field in _CHUNK_NUMBERS.items()}
    if numbers["type"] != leaf.kind or not (meta[_CHUNK_ENCODINGS] and meta[_CHUNK_PATH]):
        raise ValueError("a column does not fit the schema")
    start, dictionary = numbers["data_offset"], meta.get(_CHUNK_DICTIONARY, 0)
    if 0 < dictionary < start:
        start = dictionary
    end = start + numbers["compressed_size"]
    if not len(MAGIC) <= start <= end <= data_end:
        raise ValueError("a column lies outside of the body")
    if leaf.name is None:
        return None
    if numbers["values"] != rows:
        raise ValueError("the columns of a row group have different lengths")
    return ColumnChunk(leaf.name, leaf.kind == _BYTE_ARRAY, rows, start, end)
