"""Reader of the footer and page headers of a Parquet body, checked before pyarrow reads it.

pyarrow ends the process on some damaged footers instead of raising an error, for example if a
column chunk lacks metadata. Parquet readers do not check sizes, and a page of a kilobyte may claim
two gigabytes, so each claimed size is compared with the page's number of values. The module
includes the part of Thrift's compact protocol that footers and page headers use.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from app.analysis.trace.limits import (
    MAX_DICTIONARY,
    MAX_OP_NAME_CHARS,
    MIB,
    Limits,
    check_expanded,
    refuse,
    refuse_body,
)
from app.errors import BodyTooLargeError, Fault

# Field types and markers of Thrift's compact protocol.
_TRUE: Final = 1
_FALSE: Final = 2
_BYTE: Final = 3
_INTEGERS: Final = (5, 6, 4)
_DOUBLE: Final = 7
_BINARY: Final = 8
_LISTS: Final = (9, 10)
_STRUCT: Final = 12

_LONG_LIST: Final = 15
_CONTINUES: Final = 0x80
_VARINT_BYTES: Final = 10
# Deepest nesting of structs that is read; Parquet footers need nine levels.
_MAX_DEPTH: Final = 16


class ThriftError(Exception):
    """Raised if bytes are not a struct of Thrift's compact protocol."""


@dataclass(slots=True)
class ReadBudget:
    """Number of list items that may still be read: a one-byte item takes more in memory."""

    items: int = 1 << 19


def read_struct(
    data: bytes, position: int, budget: ReadBudget, depth: int = 0
) -> tuple[dict[int, Any], int]:
    """Return a struct's values by field id, and the position of the next byte.

    Strings are returned as bytes; floating-point numbers and single bytes are skipped. A body has
    thousands of page headers, so the function is one loop with the short cases inlined.

    Raises
    ------
    ThriftError
        The bytes are malformed, or hold more than the budget.
    IndexError
        The bytes end before the struct does.
    """
    if depth > _MAX_DEPTH:
        raise ThriftError("nested too deep")
    fields: dict[int, Any] = {}
    field = 0
    while head := data[position]:
        position += 1
        kind = head & 0x0F
        if head > kind:
            field += head >> 4
        else:
            field, position = _zigzag(data, position)
        if kind in _INTEGERS:
            value = data[position]
            if value < _CONTINUES:
                position += 1
                fields[field] = (value >> 1) ^ -(value & 1)
            else:
                fields[field], position = _zigzag(data, position)
        elif kind == _BINARY:
            fields[field], position = _binary(data, position)
        elif kind == _STRUCT:
            fields[field], position = read_struct(data, position, budget, depth + 1)
        elif kind in (_TRUE, _FALSE):
            fields[field] = kind == _TRUE
        else:
            fields[field], position = _other(data, position, kind, budget, depth)
    return fields, position + 1


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(_VARINT_BYTES):
        byte = data[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < _CONTINUES:
            return value, position + count + 1
    raise ThriftError("an integer is too long")


def _zigzag(data: bytes, position: int) -> tuple[int, int]:
    value, position = _varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def _binary(data: bytes, position: int) -> tuple[bytes, int]:
    length = data[position]
    if length < _CONTINUES:
        position += 1
    else:
        length, position = _varint(data, position)
    end = position + length
    if end > len(data):
        raise IndexError("a string goes on behind the bytes")
    return data[position:end], end


def _other(
    data: bytes, position: int, kind: int, budget: ReadBudget, depth: int
) -> tuple[list[Any] | None, int]:
    """Return a list, or None for a skipped value, and the position of the next byte."""
    if kind == _BYTE:
        return None, position + 1
    if kind == _DOUBLE:
        return None, position + 8
    if kind not in _LISTS or depth >= _MAX_DEPTH:
        raise ThriftError(f"an unexpected type {kind}")
    head = data[position]
    count, position = head >> 4, position + 1
    if count == _LONG_LIST:
        count, position = _varint(data, position)
    budget.items -= count
    if budget.items < 0:
        raise ThriftError("the lists are too long")
    kind, depth = head & 0x0F, depth + 1
    items: list[Any] = []
    for _ in range(count):
        item: object
        if kind == _STRUCT:
            item, position = read_struct(data, position, budget, depth)
        elif kind in _INTEGERS and data[position] < _CONTINUES:
            value = data[position]
            item, position = (value >> 1) ^ -(value & 1), position + 1
        else:
            item, position = _item(data, position, kind, budget, depth)
        items.append(item)
    return items, position


def _item(
    data: bytes, position: int, kind: int, budget: ReadBudget, depth: int
) -> tuple[object, int]:
    """Return a list item that is not a struct, and the position of the next byte."""
    if kind in _INTEGERS:
        return _zigzag(data, position)
    if kind == _BINARY:
        return _binary(data, position)
    if kind in (_TRUE, _FALSE):
        return data[position] == _TRUE, position + 1
    return _other(data, position, kind, budget, depth)


MAGIC: Final = b"PAR1"

# Last bytes of a Parquet file: length of the footer, and the magic number.
_TAIL: Final = struct.Struct("<I4s")
_SHORTEST: Final = len(MAGIC) + _TAIL.size

# Field ids in the structs of parquet.thrift.
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
    """Part of a column in one row group."""

    name: str
    is_text: bool  # values are byte arrays, not numbers
    rows: int
    # start, end: byte range of the chunk's pages in the body, the dictionary page first
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Footer:
    """Row count, and the column chunks at the top level of the schema, by row group."""

    rows: int
    chunks: tuple[ColumnChunk, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    name: str | None
    kind: int


def read_footer(source: pa.NativeFile, limits: Limits) -> Footer:
    """Return the footer of a Parquet body after checking it.

    Raises
    ------
    InvalidTraceError
        `trace.truncated`, `trace.corrupt`.
    BodyTooLargeError
        `body.header_too_large`.
    """
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
    data_end = size - _TAIL.size - length
    source.seek(data_end)
    data = source.read(length)
    try:
        fields, _ = read_struct(data, 0, ReadBudget())
        return _parse_footer(fields, data_end)
    except (ThriftError, IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        # The footer lacks a field, or a field has another type than parquet.thrift declares.
        refuse_body("corrupt", f"the Parquet footer is damaged: {error!r}")


def _parse_footer(fields: Mapping[int, Any], data_end: int) -> Footer:
    leaves = _leaves(fields[_SCHEMA])
    rows = 0
    chunks: list[ColumnChunk] = []
    for group in fields[_ROW_GROUPS]:
        group_rows, columns = group[_GROUP_ROWS], group[_GROUP_COLUMNS]
        if group_rows < 0 or len(columns) != len(leaves):
            raise ValueError("a row group does not fit the schema")
        if not group_rows:
            # For an empty table writers write an empty row group, whose offsets are arbitrary.
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
    """Return the schema's column names in the order of the chunks; None for nested columns."""
    leaves: list[_Leaf] = []
    # Number of children still missing of each open group; the first group is the root.
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


MAX_PAGE_BYTES: Final = 256 * MIB

# Bytes that a page may take beyond its values: levels, block headers and padding.
_SLACK_BYTES: Final = 64 * 1024
# Maximum number of bytes of a number in a page: its widest encoding, levels and padding.
_NUMBER_BYTES: Final = 16
# Bytes of a decoded value in memory: a number, or the index of a name.
_DECODED_BYTES: Final = 8
# Maximum number of bytes of an operation name in a page: its length field and its text.
_NAME_BYTES: Final = 4 + 4 * MAX_OP_NAME_CHARS

# Field ids of parquet.thrift: those of PageHeader, then those of the inner header of each page
# type.
_TYPE: Final = 1
_UNCOMPRESSED_SIZE: Final = 2
_COMPRESSED_SIZE: Final = 3
_NUM_VALUES: Final = 1
_DATA_PAGE: Final = 0
_DICTIONARY_PAGE: Final = 2
# Page type → id of its inner header in PageHeader, and id of the encoding in the inner header.
_PAGES: Final = {_DATA_PAGE: (5, 2), _DICTIONARY_PAGE: (7, 2), 3: (8, 4)}

# Accepted encodings of names: PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY. The delta encodings of text
# are refused because they build each value from the previous value: a megabyte may expand to
# terabytes.
_NAME_ENCODINGS: Final = frozenset({0, 2, 8})

# Page type, decompressed size, compressed size, number of values, encoding, length of the header.
_PageHeader = tuple[int, int, int, int, int, int]

# Sizes of successive attempts to read a page header: most headers fit the first size, headers with
# statistics are longer.
_HEADER_READS: Final = (512, 64 * 1024, MIB)

# A data page's header as most writers encode it in Thrift's compact protocol. A body has thousands
# of page headers, and matching this pattern takes a third of the time of `read_struct`, which reads
# any header.
_NUMBER: Final = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_SHORT: Final = b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(33))
_USUAL: Final = re.compile(
    rb"""
    \x15\x00                             # a data page
    \x15(%(number)b) \x15(%(number)b)     # its bytes, decompressed and compressed
    (?: \x15%(number)b\x1c | \x2c )       # their check sum; what follows is of data pages
    \x15(%(number)b) \x15(%(number)b)     # values, their encoding
    (?: \x15%(number)b ){2}              # encodings of the levels
    (?: \x1c(?:                          # statistics:
        [\x18\x28\x38\x48\x58\x68](?:%(short)b)   # an extreme
        | [\x16\x26\x36\x46]%(number)b             # how many nulls, or different values
        | [\x11\x12\x21\x22]                       # whether an extreme is exact
    )*\x00 )?
    \x00\x00
    """
    % {b"number": _NUMBER, b"short": _SHORT},
    re.DOTALL | re.VERBOSE,
)


def check_pages(
    source: pa.NativeFile, footer: Footer, wanted: Collection[str], limits: Limits
) -> None:
    """Refuse a body whose pages declare more bytes than their values can take.

    Parameters
    ----------
    wanted : collection of str
        Columns that will be read.

    Raises
    ------
    InvalidTraceError
        `trace.corrupt`, `trace.decompression_bomb`, `trace.unsupported_encoding`.
    BodyTooLargeError
        `body.too_large`.
    """
    total = 0
    most = limits.expanded(source.size())
    for chunk in footer.chunks:
        if chunk.name in wanted:
            total += _check_chunk(source, chunk)
            check_expanded(total, most, limits)


def _check_chunk(source: pa.NativeFile, chunk: ColumnChunk) -> int:
    """Check the pages of one column; return the column's size in memory, bytes."""
    name, position = chunk.name, chunk.start
    width = _NAME_BYTES if chunk.is_text else _NUMBER_BYTES
    total = seen = 0
    pages = _pages(source, chunk)
    while seen < chunk.rows:
        try:
            kind, size, compressed, count, encoding, length = next(pages)
        except (ThriftError, IndexError, KeyError, TypeError, AttributeError) as error:
            refuse_body("corrupt", f"a page header of the column {name} is damaged: {error!r}")
        position += length + compressed
        most = max(chunk.rows, MAX_DICTIONARY) if kind == _DICTIONARY_PAGE else chunk.rows - seen
        if size < 0 or compressed < 0 or not 0 <= count <= most or position > chunk.end:
            refuse_body("corrupt", f"a page header of the column {name} contradicts the footer")
        if size > min(_SLACK_BYTES + width * count, MAX_PAGE_BYTES):
            message = f"a page of the column {name} claims {size} bytes for {count} values"
            refuse([Fault("decompression_bomb", message, column=name)])
        if kind != _DICTIONARY_PAGE:
            seen += count
            if chunk.is_text and encoding not in _NAME_ENCODINGS:
                message = f"the column {name} must be encoded plainly or by dictionary"
                refuse([Fault("unsupported_encoding", message, column=name)])
        total += size
    # Runs of equal values are short in a page, but the decoded column has every value.
    return max(total, chunk.rows * _DECODED_BYTES)


def _pages(source: pa.NativeFile, chunk: ColumnChunk) -> Iterator[_PageHeader]:
    """Yield the headers of a column's pages; the caller stops after the column's last value."""
    position = chunk.start
    while True:
        source.seek(position)
        usual = _USUAL.match(source.read(_HEADER_READS[0]))
        if usual is None:
            header, length = _read_header(source, position)
            page = _page_of(header)
        else:
            size, compressed, count, encoding = map(_zigzag_number, usual.groups())
            page, length = (_DATA_PAGE, size, compressed, count, encoding), usual.end()
        yield *page, length
        position += length + page[2]


def _zigzag_number(written: bytes) -> int:
    """Return a zigzag-encoded number with seven bits per byte, the lowest bits first."""
    value = 0
    for byte in reversed(written):
        value = value << 7 | byte & 0x7F
    return value >> 1 ^ -(value & 1)


def _page_of(header: Mapping[int, Any]) -> tuple[int, int, int, int, int]:
    """Return the page type, both sizes, the number of values and the encoding of a page."""
    kind = header[_TYPE]
    inner, encoding = _PAGES[kind]
    page = header[inner]
    # Adding 0 raises an error for values that are not numbers.
    size, compressed = header[_UNCOMPRESSED_SIZE] + 0, header[_COMPRESSED_SIZE] + 0
    return kind, size, compressed, page[_NUM_VALUES] + 0, page[encoding] + 0


def _read_header(source: pa.NativeFile, position: int) -> tuple[dict[int, Any], int]:
    """Return the fields and the length of the page header at `position`."""
    for size in _HEADER_READS:
        source.seek(position)
        try:
            return read_struct(source.read(size), 0, ReadBudget())
        except IndexError:
            continue
    raise ThriftError("it does not end")
