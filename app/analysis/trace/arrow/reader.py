"""Arrow IPC bodies: our columns, as a stream or as a file.

The metadata may stand in the schema, as JSON under ``paceline.meta``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from app.analysis.trace.arrow.messages import check_messages
from app.analysis.trace.assemble import Assembler
from app.analysis.trace.column_sets import NATIVE, choose_layout
from app.analysis.trace.columns import batch_columns, check_types
from app.analysis.trace.faults import Places, refuse_body
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.operations.codes import OpNames
from app.errors import BodyTooLargeError, InvalidMetadataError

FILE_MAGIC: Final = b"ARROW1"
STREAM_MAGIC: Final = b"\xff\xff\xff\xff"
META_KEY: Final = b"paceline.meta"
# A file is a stream between its magic, padded to eight bytes, and its footer.
_FILE_HEAD_BYTES: Final = 8

# What Arrow's readers raise on bytes that are not what they claim; see tests/fuzz.
_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


def decode_arrow(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Trace:
    """Decode and check an Arrow body; see `decode` for what it raises."""
    try:
        with _open(body) as source:
            claimed = check_messages(source, limits)
        with _open(body) as source, pa.ipc.open_stream(source) as reader:
            schema = reader.schema
            layout = choose_layout(schema.names)
            if layout is not NATIVE:
                refuse_body("missing_column", "the column start_ns is missing")
            check_types(schema, layout)
            known = _agreed(meta, schema, limits)
            places = Places(layout.columns)
            assembler = Assembler(known, layout, places, limits, claimed, part=part)
            names = OpNames(places)
            wanted = [name for name in layout.columns.values() if name in schema.names]
            for batch in _batches(reader, wanted):
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


def _batches(reader: pa.RecordBatchStreamReader, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        known = batch.select(wanted)
        known.validate(full=True)
        if known.num_rows:
            yield known


def _agreed(meta: SessionMeta | None, schema: pa.Schema, limits: Limits) -> SessionMeta:
    text = (schema.metadata or {}).get(META_KEY)
    if text is None:
        if meta is None:
            message = "an Arrow body needs the session's metadata, in its schema or with it"
            raise InvalidMetadataError(message, code="metadata.missing")
        return meta
    if len(text) > limits.max_header_bytes:
        message = f"the metadata is over {limits.max_header_bytes} bytes"
        raise BodyTooLargeError(message, code="body.header_too_large")
    of_schema = load_metadata(text.decode("utf-8", "replace"))
    if meta is not None and meta.sizes != of_schema.sizes:
        message = "the sizes in the schema and those given with the body differ"
        raise InvalidMetadataError(message, code="metadata.conflict")
    return meta or of_schema
