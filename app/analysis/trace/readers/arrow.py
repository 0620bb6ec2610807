"""Reader of Arrow IPC bodies (stream or file format) with our columns.

The metadata may be in the schema, as JSON under ``paceline.meta``. Declared sizes are checked
before decompression: a compressed buffer begins with its uncompressed length, which Arrow trusts,
so a body of some hundred bytes may request any amount of memory. Message headers are flat buffers
(``Message.fbs`` of the Arrow format).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import pyarrow as pa

from app.analysis.trace.assemble import Assembler
from app.analysis.trace.columns import NATIVE, batch_columns, check_types, choose_layout
from app.analysis.trace.limits import Limits, Places, refuse_body
from app.analysis.trace.metadata import agreed_metadata, load_metadata
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.operation_names import OpNames
from app.errors import BodyTooLargeError, InvalidMetadataError

_RECORD_BATCH: Final = 3
_DICTIONARY_BATCH: Final = 2
# Positions of fields in the flat-buffer tables of Arrow's Message.fbs.
_HEADER_TYPE: Final = 1
_HEADER: Final = 2
_DICTIONARY_DATA: Final = 1
_LENGTH: Final = 0
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
_MAX_MESSAGES: Final = 1 << 20


def check_messages(source: pa.NativeFile, limits: Limits) -> int:
    """Refuse a stream whose messages declare more than the limits; return its declared row count.

    Raises
    ------
    InvalidTraceError
        `trace.corrupt`, `trace.decompression_bomb`.
    BodyTooLargeError
        `body.too_large`, `body.too_many_rows`.
    """
    rows = expanded = 0
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(source)):
        if number >= _MAX_MESSAGES:
            refuse_body("decompression_bomb", f"over {_MAX_MESSAGES} messages")
        try:
            length, size = _declared_sizes(message)
        except (struct.error, IndexError) as error:
            refuse_body("corrupt", f"a message of the Arrow stream is damaged: {error}")
        rows += length
        expanded += size
        if rows > limits.max_rows:
            text = f"the body claims over {limits.max_rows} rows"
            raise BodyTooLargeError(text, code="body.too_many_rows")
        if expanded > limits.max_decompressed_bytes:
            text = f"the body decompresses to over {limits.max_decompressed_bytes} bytes"
            raise BodyTooLargeError(text)
    return rows


def _declared_sizes(message: pa.Message) -> tuple[int, int]:
    """Return the row count of a message, and the size of its buffers after decompression, bytes."""
    data = memoryview(message.metadata)
    table = _Table(data, struct.unpack_from("<I", data)[0])
    kind = table.byte(_HEADER_TYPE)
    if kind not in (_RECORD_BATCH, _DICTIONARY_BATCH):
        return 0, 0
    batch = table.table(_HEADER)
    if kind == _DICTIONARY_BATCH:
        batch = batch.table(_DICTIONARY_DATA)
    length = batch.long(_LENGTH)
    compressed = batch.has(_COMPRESSION)
    body = memoryview(message.body) if message.body is not None else memoryview(b"")
    size = 0
    for start, stored in batch.pairs(_BUFFERS):
        if not 0 <= start <= start + stored <= len(body):
            raise IndexError("a buffer is outside of its message")
        size += stored
        if compressed and stored:
            claimed = struct.unpack_from("<q", body, start)[0]
            # A declared size of -1 marks an uncompressed buffer.
            size += max(claimed, 0)
    if length < 0:
        raise IndexError("a negative number of rows")
    return (length if kind == _RECORD_BATCH else 0), size


class _Table:
    """Table of a flat buffer: fields by position, each of which may be missing."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise IndexError("a table begins before its buffer")
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def has(self, field: int) -> bool:
        """Return whether a field is present."""
        return self._offset(field) != 0

    def byte(self, field: int) -> int:
        """Return the value of a one-byte field; 0 if it is missing."""
        offset = self._offset(field)
        return self._data[self._at + offset] if offset else 0

    def long(self, field: int) -> int:
        """Return the value of an eight-byte field; 0 if it is missing."""
        offset = self._offset(field)
        return int(struct.unpack_from("<q", self._data, self._at + offset)[0]) if offset else 0

    def table(self, field: int) -> _Table:
        """Return the table to which a field refers."""
        return _Table(self._data, self._target(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a field's vector of pairs of eight-byte integers; empty if it is missing."""
        if not self.has(field):
            return []
        at = self._target(field)
        count = struct.unpack_from("<I", self._data, at)[0]
        values = struct.unpack_from(f"<{2 * count}q", self._data, at + 4)
        return list(zip(values[::2], values[1::2], strict=True))

    def _offset(self, field: int) -> int:
        at = 4 + 2 * field
        if at + 2 > self._size:
            return 0
        return int(struct.unpack_from("<H", self._data, self._fields + at)[0])

    def _target(self, field: int) -> int:
        offset = self._offset(field)
        if not offset:
            raise IndexError("a field is missing")
        at = self._at + offset
        return at + int(struct.unpack_from("<I", self._data, at)[0])


FILE_MAGIC: Final = b"ARROW1"
STREAM_MAGIC: Final = b"\xff\xff\xff\xff"
META_KEY: Final = b"paceline.meta"
# The Arrow file format is a stream between a magic number, padded to eight bytes, and a footer.
_FILE_HEAD_BYTES: Final = 8

# Errors that Arrow's readers raise on malformed bytes, as found by tests/fuzz.
_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


def decode_arrow(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Trace:
    """Decode an Arrow body and check its values; `decode` lists the errors."""
    try:
        with _open(body) as source:
            claimed = check_messages(source, limits)
        with _open(body) as source, pa.ipc.open_stream(source) as reader:
            schema = reader.schema
            layout = choose_layout(schema.names)
            if layout is not NATIVE:
                refuse_body("missing_column", "the column start_ns is missing")
            check_types(schema, layout)
            session_meta = _metadata(meta, schema, limits)
            places = Places(layout.columns)
            assembler = Assembler(session_meta, layout, places, limits, claimed, part=part)
            names = OpNames(places)
            wanted = [name for name in layout.columns.values() if name in schema.names]
            for whole in reader:
                batch = whole.select(wanted)
                batch.validate(full=True)
                if batch.num_rows:
                    columns, op = batch_columns(batch, layout, places, assembler.rows)
                    assembler.add(columns, names.codes(op, assembler.rows))
            return assembler.finish(names.names)
    except _UNREADABLE as error:
        refuse_body("corrupt", f"the Arrow body cannot be read: {str(error)[:200]}")


def _open(body: Path | bytes) -> pa.NativeFile:
    source = pa.BufferReader(body) if isinstance(body, bytes) else pa.memory_map(str(body))
    head = source.read(len(FILE_MAGIC))
    source.seek(_FILE_HEAD_BYTES if head == FILE_MAGIC else 0)
    return source


def _metadata(meta: SessionMeta | None, schema: pa.Schema, limits: Limits) -> SessionMeta:
    """Return the metadata sent with the body, or those in its schema if none were sent.

    If both are given, their sizes must agree.
    """
    text = (schema.metadata or {}).get(META_KEY)
    if text is None:
        if meta is None:
            message = "an Arrow body needs the session's metadata, in its schema or with it"
            raise InvalidMetadataError(message, code="metadata.missing")
        return meta
    if len(text) > limits.max_header_bytes:
        message = f"the metadata is over {limits.max_header_bytes} bytes"
        raise BodyTooLargeError(message, code="body.header_too_large")
    return agreed_metadata(meta, load_metadata(text.decode("utf-8", "replace")), "schema")
