"""Bodies of a `Trace`, as a sender would make them."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.analysis.trace.column_sets import NATIVE
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Trace
from app.analysis.trace.ndjson.reader import SCHEMA

_GZIP_LEVEL: Final = 6


def to_parquet(trace: Trace) -> bytes:
    """Return `trace` as Parquet with our int64 columns; its metadata are sent beside it."""
    written = io.BytesIO()
    table = pa.table({name: _column(trace, field) for field, name in _columns().items()})
    pq.write_table(table, written, compression="zstd")
    return written.getvalue()


def to_ndjson_gz(trace: Trace) -> bytes:
    """Return `trace` as gzip NDJSON, metadata in the header line.

    Equal traces give equal bytes.
    """
    header = {"schema": SCHEMA, "meta": metadata_document(trace.meta)}
    names = list(_columns().values())
    template = "{" + ",".join(f'"{name}":%s' for name in names) + "}\n"
    columns = [
        [json.dumps(name) for name in column.to_pylist()]
        if column.type == pa.string()
        else column.to_pylist()
        for column in (_column(trace, field) for field in _columns())
    ]
    text = json.dumps(header) + "\n" + "".join(template % row for row in zip(*columns, strict=True))
    return gzip.compress(text.encode(), compresslevel=_GZIP_LEVEL, mtime=0)


def _columns() -> dict[str, str]:
    return {field: name for field, name in NATIVE.columns.items() if field != "tp"}


def _column(trace: Trace, field: str) -> pa.Array[Any]:
    if field == "op":
        return pa.array(np.array(trace.op_names, np.str_)[trace.op], pa.string())
    attribute = {"start": "start_ns", "duration": "duration_ns"}.get(field, field)
    return pa.array(np.asarray(getattr(trace, attribute), np.int64))
