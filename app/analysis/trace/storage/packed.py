"""The form in which operations are stored: an Arrow stream, compressed with zstd.

About 7 bytes an operation on recorded traces, and a few milliseconds for 100,000 of them. Names of
operation types stand in the schema, so codes may change between releases.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Trace
from app.errors import InvalidTraceError

PART_BYTES: Final = 4 * 1024 * 1024
# Columns of one batch are used where they were decompressed; those of more are copied together.
BATCH_ROWS: Final = 1 << 22

_VERSION: Final = b"1"
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
    """Yield the stored form of `trace` in parts of at most 4 MiB; joined, they are the blob."""
    columns = {name: pa.array(getattr(trace, name)) for name in _COLUMNS}
    schema = pa.schema(
        [(name, array.type) for name, array in columns.items()],
        metadata={
            _VERSION_KEY: _VERSION,
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
    """Take the whole parts out of what was written so far."""
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
        The blob, or its parts in order. It is ours, so its values are not checked again.
    meta : SessionMeta
        The session's metadata, which is stored elsewhere.

    Raises
    ------
    InvalidTraceError
        `trace.unreadable_blob` where the bytes are not what `pack` wrote.
    """
    blob = data if isinstance(data, bytes) else b"".join(data)
    try:
        with pa.ipc.open_stream(pa.BufferReader(blob)) as reader:
            schema = reader.schema
            batches: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
            for batch in reader:
                for name in _COLUMNS:
                    batches[name].append(batch.column(name).to_numpy())
    except MemoryError:
        # Of Arrow, too: nothing is wrong with the bytes.
        raise
    except (pa.ArrowException, OSError) as error:
        raise InvalidTraceError(
            f"the stored operations cannot be read: {error}", code="trace.unreadable_blob"
        ) from error
    described = schema.metadata or {}
    if described.get(_VERSION_KEY) != _VERSION:
        message = "the stored operations have a version that this release does not know"
        raise InvalidTraceError(message, code="trace.unreadable_blob")
    # A column's batches are let go as soon as it is joined: there is one column twice, never all.
    columns = {name: _joined(batches.pop(name), schema.field(name).type) for name in _COLUMNS}
    stored_names: list[str] = json.loads(described[_NAMES_KEY])
    # Operations that were stored before it was known have none.
    copies, repeated = json.loads(described.get(_REPEATED_KEY, b"[0, []]"))
    columns["op"], op_names = _current_codes(columns["op"], stored_names)
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


def _current_codes(
    op: NDArray[np.int16], stored: list[str]
) -> tuple[NDArray[np.int16], tuple[str, ...]]:
    """Return codes and names of this release."""
    known = len(KNOWN_OP_TYPES)
    if tuple(stored[:known]) == KNOWN_OP_TYPES:
        return op, tuple(stored)
    names = (*KNOWN_OP_TYPES, *(name for name in stored if name not in KNOWN_OP_TYPES))
    table = np.array([names.index(name) for name in stored], np.int16)
    return table[op], names
