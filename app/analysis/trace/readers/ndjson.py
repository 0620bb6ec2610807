"""Reader of NDJSON bodies: a header line with the metadata, then one operation per line.

Three readers return the same columns of a block. Times are for 117,000 operations (14 MB) on one
core:

- `ndjson_exact` (1,470 ms) is the reference: it names the line and key at fault, and reads
  the blocks that the other two reject.
- pyarrow (240 ms) reads lines that begin as objects, in the command line and other processes that
  read few bodies.
- `ndjson_compiled` (20 ms) reads plain lines in servers, which load it at start: a body of that
  size takes about 350 ms to receive, and pyarrow would add two thirds of this time.
"""

from __future__ import annotations

import io
import json
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
from numpy.typing import NDArray

from app.analysis.trace.assemble import Assembler, consume_on_second_core
from app.analysis.trace.columns import NATIVE, batch_columns
from app.analysis.trace.compression import read_text
from app.analysis.trace.limits import MIB, Limits, Places, refuse
from app.analysis.trace.metadata import agreed_metadata, parse_metadata
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.operation_names import OpNames
from app.analysis.trace.readers.ndjson_exact import COLUMNS, parse_object, read_lines
from app.errors import BodyTooLargeError, Fault, InvalidMetadataError, UnsupportedFormatError

SCHEMA: Final = "paceline.trace/1"

# Bytes read as one block: few enough that the second core soon gets the first block and that the
# block fits the core's cache.
_BLOCK_BYTES: Final = MIB
_MAX_LINE_BYTES: Final = MIB
# Maximum number of blank lines of a body: a blank line takes reading time too, but is not counted
# as a row.
_MAX_BLANK_LINES: Final = 1 << 20
_FIRST_CAPACITY: Final = 1 << 16
# Module of the compiled reader. Only processes that read many bodies load it, since loading takes
# longer than reading most bodies.
_COMPILED: Final = "app.analysis.trace.readers.ndjson_compiled"
_NEWLINE: Final = ord("\n")
_BRACE: Final = ord("{")


class _Lines:
    """Line numbers of rows by block; only blocks with blank lines store a number for each row."""

    def __init__(self) -> None:
        self._first_rows: list[int] = []
        self._lines: list[int | NDArray[np.int64]] = []

    def add(self, first_row: int, lines: int | NDArray[np.int64]) -> None:
        """Add a block that starts at `first_row`, with the line of its first row or of each row."""
        self._first_rows.append(first_row)
        self._lines.append(lines)

    def line_of(self, row: int) -> int:
        """Return the 1-based line number of a row."""
        block = bisect_right(self._first_rows, row) - 1
        offset = row - self._first_rows[block]
        lines = self._lines[block]
        return lines + offset if isinstance(lines, int) else int(lines[offset])


def decode_ndjson(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Trace:
    """Decode an NDJSON body and check its values; `decode` lists the errors.

    `meta` may be None if the header line has the metadata; if both are given, their sizes must
    agree.
    """
    blocks = _blocks(read_text(body, limits), limits)
    line, block = next(blocks, (1, b""))
    head, _, rest = block.partition(b"\n")
    header = _header(head)
    if header is not None:
        meta = _metadata(meta, header)
        line, block = line + 1, rest
    if meta is None:
        message = 'the first line must be the header: {"schema": "paceline.trace/1", "meta": {…}}'
        raise InvalidMetadataError(message, code="metadata.missing")

    lines = _Lines()
    places = Places(NATIVE.columns, line_of=lines.line_of)
    # A body of a single block has at most as many rows as the block has lines.
    capacity = _FIRST_CAPACITY if len(block) > _BLOCK_BYTES // 2 else block.count(b"\n") + 1
    assembler = Assembler(meta, NATIVE, places, limits, capacity, part=part)
    names = OpNames(places)

    def take(numbered: tuple[int, bytes]) -> None:
        line, block = numbered
        if not block:
            return
        batch, numbers = _read_block(block, line)
        if batch.num_rows:
            lines.add(assembler.rows, numbers)
            columns, op = batch_columns(batch, NATIVE, places, assembler.rows)
            assembler.add(columns, names.codes(op, assembler.rows))

    following = next(blocks, None)
    if following is None:
        take((line, block))
    else:
        consume_on_second_core(chain([(line, block), following], blocks), take)
    return assembler.finish(names.names)


def _blocks(pieces: Iterator[bytes], limits: Limits) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the 1-based number of its first line."""
    line = 1
    held: list[bytes] = []
    size = 0
    # A small slice of a highly compressed body may expand to many blocks.
    for part in (
        piece[start : start + _BLOCK_BYTES]
        for piece in pieces
        for start in range(0, len(piece), _BLOCK_BYTES)
    ):
        held.append(part)
        size += len(part)
        if size < _BLOCK_BYTES:
            continue
        waiting = b"".join(held)
        end = waiting.rfind(b"\n") + 1
        longest = limits.max_header_bytes if line == 1 else _MAX_LINE_BYTES
        if size - end > longest:
            if line == 1 and not end:
                message = f"the header line is over {longest} bytes"
                raise BodyTooLargeError(message, code="body.header_too_large")
            text = f"a line is over {longest} bytes"
            refuse([Fault("line_too_long", text, line=line + waiting.count(b"\n"))])
        if end:
            block = waiting[:end]
            yield line, block
            # Counting with NumPy is faster than `bytes.count`, which searches for each line feed
            # separately.
            line += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))
            if line > limits.max_rows + _MAX_BLANK_LINES:
                message = f"the body has over {limits.max_rows} lines"
                raise BodyTooLargeError(message, code="body.too_many_rows")
        held = [waiting[end:]]
        size -= end
    if size:
        yield line, b"".join(held)


def _header(line: bytes) -> Mapping[str, Any] | None:
    """Return the header; None if the first line is an operation."""
    try:
        header = parse_object(line)
    except ValueError as error:
        refuse([Fault("bad_line", f"the first line is not a JSON object: {error}", line=1)])
    if "schema" not in header:
        return None
    if header["schema"] != SCHEMA:
        shown = json.dumps(header["schema"])[:80]
        message = f"the header names the schema {shown}, known is {SCHEMA}"
        raise UnsupportedFormatError(message, code="trace.unknown_schema")
    return header


def _metadata(meta: SessionMeta | None, header: Mapping[str, Any]) -> SessionMeta | None:
    """Return the metadata sent with the body, or those in its header if none were sent.

    If both are given, their sizes must agree.
    """
    document = header.get("meta")
    if document is None:
        return meta
    if not isinstance(document, Mapping):
        message = "the header's meta must be a mapping"
        raise InvalidMetadataError(message, code="metadata.malformed")
    return agreed_metadata(meta, parse_metadata(document), "header")


def _read_block(block: bytes, line: int) -> tuple[pa.RecordBatch, int | NDArray[np.int64]]:
    """Return the rows of a block, and the line number of its first row or of each row."""
    batch = None
    if _COMPILED in sys.modules:
        from app.analysis.trace.readers.ndjson_compiled import read_plain  # noqa: PLC0415 - see `_COMPILED`

        batch = read_plain(block)
    if batch is None:
        batch = _read_fast(block)
    if batch is not None:
        return batch, line
    # Blank lines and spaces around lines are allowed: read the block again without them.
    texts = [text.strip() for text in block.split(b"\n")]
    lines = np.array([line + at for at, text in enumerate(texts) if text], np.int64)
    batch = _read_fast(b"\n".join(filter(None, texts)))
    if batch is not None:
        return batch, lines
    return read_lines(block, line)


def _read_fast(block: bytes) -> pa.RecordBatch | None:
    """Return the rows of a block; None if pyarrow refuses the block or could misread it."""
    # pyarrow aborts the process on a block that begins with `null`, so every line must begin an
    # object.
    if not block.startswith(b"{"):
        return None
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data[:-1] == _NEWLINE)
    if not (data[ends + 1] == _BRACE).all():
        return None
    try:
        table = pa_json.read_json(
            io.BytesIO(block),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(block)),
            parse_options=pa_json.ParseOptions(
                explicit_schema=COLUMNS, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowException:
        return None
    # pyarrow also accepts two objects in a line and an object over several lines; the row count
    # then differs from the line count.
    if table.num_rows != block.count(b"\n") + (block[-1] != _NEWLINE):
        return None
    return table.select(COLUMNS.names).combine_chunks().to_batches()[0]
