"""What a Parquet body would decompress to, read from its page headers.

The sizes in a footer are not checked against anything by readers, and a page of a kilobyte may
claim to be two gigabytes. The header of a page is believed by the decompressor, so its claim is
compared with the number of values that it says to hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from app.analysis.trace.faults import check_expanded, refuse, refuse_body
from app.analysis.trace.limits import MAX_DICTIONARY, MAX_OP_NAME_CHARS, MIB, Limits
from app.analysis.trace.parquet.footer import ColumnChunk, Footer
from app.analysis.trace.parquet.thrift import ReadBudget, ThriftError, read_struct
from app.errors import Fault

MAX_PAGE_BYTES: Final = 256 * MIB

# Levels, block headers and padding of a page.
_SLACK_BYTES: Final = 64 * 1024
# The widest number, its levels and the padding of its blocks.
_NUMBER_BYTES: Final = 16
# In memory, as numbers or as indices of names.
_DECODED_BYTES: Final = 8
# Length and text; more is no name of an operation.
_NAME_BYTES: Final = 4 + 4 * MAX_OP_NAME_CHARS

# Ids of fields in parquet.thrift: of PageHeader, then of the header inside for each page type.
_TYPE: Final = 1
_UNCOMPRESSED_SIZE: Final = 2
_COMPRESSED_SIZE: Final = 3
_NUM_VALUES: Final = 1
_DATA_PAGE: Final = 0
_DICTIONARY_PAGE: Final = 2
# Page type → field of its header, and the field of the encoding there.
_PAGES: Final = {_DATA_PAGE: (5, 2), _DICTIONARY_PAGE: (7, 2), 3: (8, 4)}

# PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY. The delta encodings of text build each value on the
# last: a megabyte of them makes terabytes.
_NAME_ENCODINGS: Final = frozenset({0, 2, 8})

# Kind, decompressed and compressed size, number of values, encoding and length of the header.
_Facts = tuple[int, int, int, int, int, int]

# Headers mostly have less; with statistics, more.
_HEADER_READS: Final = (512, 64 * 1024, MIB)

# The header of a data page as most writers write it, in Thrift's compact protocol. A body has
# thousands of them: this reads one in a third of the time of `read_struct`, which reads any.
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
    """Refuse a body whose pages claim more than their values can need.

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
    """Walk the pages of one column; return the bytes that it will take."""
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
    # Runs of equal values are short as pages and long as columns.
    return max(total, chunk.rows * _DECODED_BYTES)


def _pages(source: pa.NativeFile, chunk: ColumnChunk) -> Iterator[_Facts]:
    """Yield the facts of each page of a column, endlessly: how many there are, values tell."""
    position = chunk.start
    while True:
        source.seek(position)
        usual = _USUAL.match(source.read(_HEADER_READS[0]))
        if usual is None:
            header, length = _header(source, position)
            facts = _facts(header)
        else:
            size, compressed, count, encoding = map(_number, usual.groups())
            facts, length = (_DATA_PAGE, size, compressed, count, encoding), usual.end()
        yield *facts, length
        position += length + facts[2]


def _number(written: bytes) -> int:
    """Return a number with a sign, seven bits a byte, the lowest first."""
    value = 0
    for byte in reversed(written):
        value = value << 7 | byte & 0x7F
    return value >> 1 ^ -(value & 1)


def _facts(header: Mapping[int, Any]) -> tuple[int, int, int, int, int]:
    """Return kind, decompressed and compressed size, number of values, encoding of the page."""
    kind = header[_TYPE]
    inner, encoding = _PAGES[kind]
    page = header[inner]
    # The sums fail for what is no number.
    size, compressed = header[_UNCOMPRESSED_SIZE] + 0, header[_COMPRESSED_SIZE] + 0
    return kind, size, compressed, page[_NUM_VALUES] + 0, page[encoding] + 0


def _header(source: pa.NativeFile, position: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the page header at `position`, and its length."""
    for size in _HEADER_READS:
        source.seek(position)
        try:
            return read_struct(source.read(size), 0, ReadBudget())
        except IndexError:
            continue
    raise ThriftError("it does not end")
