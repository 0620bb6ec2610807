"""Paceline's formats: Parquet with our columns or the published columns, Arrow IPC, and NDJSON."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.columns import NATIVE, PUBLISHED
from app.analysis.trace.encode import (
    to_arrow,
    to_ndjson_gz,
    to_ndjson_zstd,
    to_parquet,
    to_published_parquet,
)
from app.analysis.trace.formats.kind import Decoded, Head, TraceFormat, Writer
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.readers.arrow import FILE_MAGIC, STREAM_MAGIC, decode_arrow
from app.analysis.trace.readers.parquet import decode_parquet
from app.analysis.trace.readers.parquet_headers import MAGIC
from app.errors import InvalidMetadataError

_PARQUET_MEDIA_TYPES: Final = (
    "application/vnd.apache.parquet",
    "application/x-parquet",
    "application/parquet",
)


def _is_parquet(head: Head) -> bool:
    return head.start.startswith(MAGIC)


def _decode_parquet(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Decoded:
    if meta is None:
        message = "a Parquet body needs the session's metadata with it"
        raise InvalidMetadataError(message, code="metadata.missing")
    trace, layout = decode_parquet(body, meta, limits, part=part)
    return Decoded(trace, layout.trace_format)


PARQUET: Final = TraceFormat(
    name=NATIVE.trace_format,
    title="Parquet",
    media_types=_PARQUET_MEDIA_TYPES,
    suffixes=(".parquet",),
    sniff=_is_parquet,
    decode=_decode_parquet,
    writers={"parquet": Writer("trace.parquet", to_parquet)},
)

PUBLISHED_PARQUET: Final = TraceFormat(
    name=PUBLISHED.trace_format,
    title="Parquet with the published columns",
    media_types=_PARQUET_MEDIA_TYPES,
    suffixes=(".parquet",),
    sniff=_is_parquet,
    decode=_decode_parquet,
    step_relative=PUBLISHED.seconds,
    writers={"published": Writer("trace.parquet", to_published_parquet)},
)


def _is_arrow(head: Head) -> bool:
    return head.start.startswith((FILE_MAGIC, STREAM_MAGIC))


def _decode_arrow(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Decoded:
    return Decoded(decode_arrow(body, meta, limits, part=part), "arrow")


ARROW: Final = TraceFormat(
    name="arrow",
    title="Arrow IPC",
    media_types=("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"),
    suffixes=(".arrow", ".arrows"),
    sniff=_is_arrow,
    decode=_decode_arrow,
    writers={"arrow": Writer("trace.arrow", to_arrow)},
)


def _is_ndjson(head: Head) -> bool:
    # The first line is our header or, if the header is missing, an operation.
    row = head.has_field(NATIVE.columns["op"]) and head.has_field(NATIVE.columns["start"])
    return row or head.has_field("schema")


def _decode_ndjson(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Decoded:
    from app.analysis.trace.readers.ndjson import decode_ndjson  # noqa: PLC0415

    return Decoded(decode_ndjson(body, meta, limits, part=part), "ndjson")


NDJSON: Final = TraceFormat(
    name="ndjson",
    title="NDJSON",
    media_types=("application/x-ndjson", "application/ndjson", "application/jsonl"),
    suffixes=(".ndjson", ".jsonl"),
    sniff=_is_ndjson,
    decode=_decode_ndjson,
    text=True,
    writers={
        "ndjson": Writer("trace.ndjson.gz", to_ndjson_gz),
        "ndjson-zstd": Writer("trace.ndjson.zst", to_ndjson_zstd),
    },
)
