"""Stored form of a session's operations.

Packed operations are an Arrow stream compressed with zstd: about 7 bytes per operation on recorded
traces, and a few milliseconds for 100,000 operations. The schema holds the names of operation
types, so codes may change between releases. A received body of about this size that can be decoded
with only the session's metadata is stored as received; its first bytes distinguish it from packed
operations.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.generation import READS, WRITES, require_readable
from app.analysis.trace.compression import GZIP_MAGIC, ZSTD_MAGIC
from app.analysis.trace.formats.kind import TraceFormat
from app.analysis.trace.formats.own import NDJSON, PARQUET, PUBLISHED_PARQUET
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Trace
from app.analysis.trace.readers.parquet_headers import MAGIC
from app.errors import InvalidTraceError

PART_BYTES: Final = 4 * 1024 * 1024
# Maximum number of rows of an Arrow batch. Columns of a single batch are used without a copy;
# columns of several batches are concatenated.
BATCH_ROWS: Final = 1 << 22

_VERSION_KEY: Final = b"paceline.storage"
_NAMES_KEY: Final = b"paceline.op_names"
_REPEATED_KEY: Final = b"paceline.repeated"
_RELATIVE_KEY: Final = b"paceline.step_relative"

_COLUMNS: Final = (
    "rank",
    "dp",
    "pp",
    "step",
    "op",
    "mb",
    "mc",
    "order",
    "start_ns",
    "duration_ns",
)


def pack(trace: Trace) -> Iterator[bytes]:
    """Yield the stored form of `trace` in parts of at most 4 MiB; the joined parts are the blob."""
    columns = {name: pa.array(getattr(trace, name)) for name in _COLUMNS}
    schema = pa.schema(
        [(name, array.type) for name, array in columns.items()],
        metadata={
            _VERSION_KEY: str(WRITES).encode(),
            _NAMES_KEY: json.dumps(trace.op_names).encode(),
            _RELATIVE_KEY: b"1" if trace.step_relative else b"0",
            _REPEATED_KEY: json.dumps([trace.copies, trace.repeated_steps]).encode(),
        },
    )
    batch = pa.record_batch(list(columns.values()), schema=schema)
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    waiting = io.BytesIO()
    with pa.ipc.new_stream(waiting, schema, options=options) as writer:
        for first in range(0, len(trace), BATCH_ROWS):
            writer.write_batch(batch.slice(first, BATCH_ROWS))
            yield from _whole_parts(waiting)
    yield from _whole_parts(waiting)
    if waiting.tell():
        yield waiting.getvalue()


def _whole_parts(waiting: io.BytesIO) -> Iterator[bytes]:
    """Yield the full parts of the bytes written so far; the remaining bytes stay in `waiting`."""
    if waiting.tell() < PART_BYTES:
        return
    written = waiting.getvalue()
    whole = len(written) - len(written) % PART_BYTES
    for first in range(0, whole, PART_BYTES):
        yield written[first : first + PART_BYTES]
    waiting.seek(0)
    waiting.truncate()
    waiting.write(written[whole:])


def unpack(data: bytes | Iterable[bytes], meta: SessionMeta) -> Trace:
    """Return the trace that `pack` stored.

    Parameters
    ----------
    data : bytes or iterable of bytes
        The blob, or its parts in order. Values in the blob are not checked again.
    meta : SessionMeta
        The session's metadata, which is stored elsewhere.

    Raises
    ------
    InvalidTraceError
        `trace.unreadable_blob`: the bytes were not written by `pack`.
    NewerFormatError
        A later version packed the trace.
    """
    blob = data if isinstance(data, bytes) else b"".join(data)
    try:
        with pa.ipc.open_stream(pa.BufferReader(blob)) as reader:
            schema = reader.schema
            described = schema.metadata or {}
            # Checked before the columns are read: a later version may have other columns.
            generation = described.get(_VERSION_KEY, b"")
            if generation.isdigit():
                require_readable(int(generation), "the stored operations are")
            batches: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
            for batch in reader:
                for name in _COLUMNS:
                    batches[name].append(batch.column(name).to_numpy())
    except MemoryError:
        # Arrow's `ArrowMemoryError` is a `MemoryError` too: it does not mean that the bytes are
        # damaged.
        raise
    except (pa.ArrowException, OSError) as error:
        raise InvalidTraceError(
            f"the stored operations cannot be read: {error}", code="trace.unreadable_blob"
        ) from error
    if not generation.isdigit() or not 1 <= int(generation) <= READS:
        message = "the stored operations have a version that this release does not know"
        raise InvalidTraceError(message, code="trace.unreadable_blob")
    # Each column's batches are freed when the column is joined, so only one column is in memory
    # twice.
    columns = {name: _joined(batches.pop(name), schema.field(name).type) for name in _COLUMNS}
    stored_names: list[str] = json.loads(described[_NAMES_KEY])
    # Blobs of older releases lack this key.
    copies, repeated = json.loads(described.get(_REPEATED_KEY, b"[0, []]"))
    op_names = tuple(stored_names)
    if op_names[: len(KNOWN_OP_TYPES)] != KNOWN_OP_TYPES:
        # Another release wrote the blob, with other codes for the operation types.
        op_names = (*KNOWN_OP_TYPES, *(name for name in op_names if name not in KNOWN_OP_TYPES))
        codes = np.array([op_names.index(name) for name in stored_names], np.int16)
        columns["op"] = codes[columns["op"]]
    return Trace(
        meta=meta,
        op_names=op_names,
        step_relative=described[_RELATIVE_KEY] == b"1",
        copies=copies,
        repeated_steps=tuple((step, reason) for step, reason in repeated),
        **columns,
    )


def _joined(batches: list[NDArray[Any]], kind: pa.DataType) -> NDArray[Any]:
    if len(batches) == 1:
        return batches[0]
    joined = np.concatenate(batches) if batches else np.empty(0, kind.to_pandas_dtype())
    batches.clear()
    pa.default_memory_pool().release_unused()
    return joined


# First bytes of bodies that are stored as received → the formats with these first bytes; the
# decoder of the first listed format reads all of them.
_STORED_AS_RECEIVED: Final[Mapping[bytes, tuple[TraceFormat, ...]]] = {
    MAGIC: (PARQUET, PUBLISHED_PARQUET),
    GZIP_MAGIC: (NDJSON,),
    ZSTD_MAGIC: (NDJSON,),
}

# Limits were checked when the body was received; the server's limits may have been lowered since.
_NO_LIMITS: Final = Limits(
    max_decompressed_bytes=sys.maxsize, max_rows=sys.maxsize, max_header_bytes=sys.maxsize
)


def is_stored_as_received(trace_format: TraceFormat, start: bytes) -> bool:
    """Return whether a body with these first bytes is stored as received.

    Parameters
    ----------
    start : bytes
        First four bytes of the body.
    """
    return any(
        start.startswith(magic) and trace_format in formats
        for magic, formats in _STORED_AS_RECEIVED.items()
    )


def read_stored(parts: Iterable[bytes], meta: SessionMeta) -> Trace:
    """Return the trace of a stored session.

    Parameters
    ----------
    parts : iterable of bytes
        Parts of the session's blob, in order.
    meta : SessionMeta
        The session's metadata, which is stored elsewhere.

    Raises
    ------
    InvalidTraceError
        `trace.unreadable_blob`, or the errors of `decode`: the stored bytes are damaged.
    NewerFormatError
        A later version stored the session.
    """
    blob = b"".join(parts)
    for magic, (trace_format, *_) in _STORED_AS_RECEIVED.items():
        if blob.startswith(magic):
            return trace_format.decode(blob, meta, _NO_LIMITS, part=False).trace
    return unpack(blob, meta)
