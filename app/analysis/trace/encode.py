"""Encoders of a `Trace`, one for each format that the command line writes."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from app.analysis.trace.columns import NATIVE, PUBLISHED
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Trace
from app.analysis.trace.readers.arrow import META_KEY
from app.analysis.trace.readers.ndjson import SCHEMA

_GZIP_LEVEL: Final = 6


def to_parquet(trace: Trace) -> bytes:
    """Return `trace` as Parquet with our int64 columns; the session's metadata are not included."""
    written = io.BytesIO()
    pq.write_table(_native_table(trace), written, compression="zstd")
    return written.getvalue()


def to_published_parquet(trace: Trace) -> bytes:
    """Return `trace` as Parquet with the columns of the published traces, without its metadata.

    Times are float32 seconds from the start of each step: they resolve about 0.1 µs, and are not
    comparable across steps.
    """
    steps, number = np.unique(trace.step, return_inverse=True)
    earliest = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(earliest, number, trace.start_ns)
    columns = {
        **{field: getattr(trace, field) for field in ("rank", "dp", "pp", "step", "mb", "mc")},
        "order": trace.order,
        "op": np.array(trace.op_names, np.str_)[trace.op],
        "start": ((trace.start_ns - earliest[number]) / 1e9).astype(np.float32),
        "duration": (trace.duration_ns / 1e9).astype(np.float32),
    }
    written = io.BytesIO()
    names = PUBLISHED.columns
    pq.write_table(pa.table({names[field]: values for field, values in columns.items()}), written)
    return written.getvalue()


def to_arrow(trace: Trace) -> bytes:
    """Return `trace` as a zstd-compressed Arrow stream with the metadata in its schema."""
    written = io.BytesIO()
    table = _native_table(trace)
    document = json.dumps(metadata_document(trace.meta)).encode()
    schema = table.schema.with_metadata({META_KEY: document})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(written, schema, options=options) as writer:
        writer.write_table(table.cast(schema))
    return written.getvalue()


def to_ndjson_gz(trace: Trace) -> bytes:
    """Return `trace` as gzip NDJSON with the metadata in the header line.

    Equal traces give equal bytes.
    """
    return gzip.compress(_ndjson(trace), compresslevel=_GZIP_LEVEL, mtime=0)


def to_ndjson_zstd(trace: Trace) -> bytes:
    """Return `trace` as NDJSON in a zstd frame, with the metadata in the header line."""
    return zstandard.ZstdCompressor().compress(_ndjson(trace))


def _ndjson(trace: Trace) -> bytes:
    header = {"schema": SCHEMA, "meta": metadata_document(trace.meta)}
    names = list(_columns().values())
    template = "{" + ",".join(f'"{name}":%s' for name in names) + "}\n"
    columns = [
        [json.dumps(name) for name in column.to_pylist()]
        if column.type == pa.string()
        else column.to_pylist()
        for column in (_column(trace, field) for field in _columns())
    ]
    rows = "".join(template % row for row in zip(*columns, strict=True))
    return (json.dumps(header) + "\n" + rows).encode()


def _native_table(trace: Trace) -> pa.Table:
    return pa.table({name: _column(trace, field) for field, name in _columns().items()})


def _columns() -> dict[str, str]:
    return {field: name for field, name in NATIVE.columns.items() if field != "tp"}


def _column(trace: Trace, field: str) -> pa.Array[Any]:
    if field == "op":
        return pa.array(np.array(trace.op_names, np.str_)[trace.op], pa.string())
    attribute = {"start": "start_ns", "duration": "duration_ns"}.get(field, field)
    return pa.array(np.asarray(getattr(trace, attribute), np.int64))
