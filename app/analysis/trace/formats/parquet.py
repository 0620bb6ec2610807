"""Parquet: our integer columns, or those of the published traces."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.columns import NATIVE, PUBLISHED
from app.analysis.trace.encode import to_parquet, to_published_parquet
from app.analysis.trace.formats.kind import Decoded, Head, TraceFormat, Writer
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.readers.parquet import decode_parquet
from app.analysis.trace.readers.parquet_headers import MAGIC
from app.errors import InvalidMetadataError

_MEDIA_TYPES: Final = (
    "application/vnd.apache.parquet",
    "application/x-parquet",
    "application/parquet",
)


def _sniff(head: Head) -> bool:
    return head.start.startswith(MAGIC)


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    if meta is None:
        message = "a Parquet body needs the session's metadata with it"
        raise InvalidMetadataError(message, code="metadata.missing")
    trace, layout = decode_parquet(body, meta, limits, part=part)
    return Decoded(trace, layout.trace_format)


PARQUET: Final = TraceFormat(
    name=NATIVE.trace_format,
    title="Parquet",
    media_types=_MEDIA_TYPES,
    suffixes=(".parquet",),
    sniff=_sniff,
    decode=_decode,
    writers={"parquet": Writer("trace.parquet", to_parquet)},
)

PUBLISHED_PARQUET: Final = TraceFormat(
    name=PUBLISHED.trace_format,
    title="Parquet with the published columns",
    media_types=_MEDIA_TYPES,
    suffixes=(".parquet",),
    sniff=_sniff,
    decode=_decode,
    step_relative=PUBLISHED.seconds,
    writers={"published": Writer("trace.parquet", to_published_parquet)},
)
