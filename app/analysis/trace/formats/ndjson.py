"""NDJSON: a header line with the metadata, then an operation a line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.columns import NATIVE
from app.analysis.trace.encode import to_ndjson_gz, to_ndjson_zstd
from app.analysis.trace.formats.kind import Decoded, Head, TraceFormat, Writer
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "ndjson"


def _sniff(head: Head) -> bool:
    # A header, or a row where the header should be.
    row = head.has_field(NATIVE.columns["op"]) and head.has_field(NATIVE.columns["start"])
    return row or head.has_field("schema")


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    from app.analysis.trace.readers.ndjson import decode_ndjson  # noqa: PLC0415

    return Decoded(decode_ndjson(body, meta, limits, part=part), _NAME)


NDJSON: Final = TraceFormat(
    name=_NAME,
    title="NDJSON",
    media_types=("application/x-ndjson", "application/ndjson", "application/jsonl"),
    suffixes=(".ndjson", ".jsonl"),
    sniff=_sniff,
    decode=_decode,
    text=True,
    writers={
        "ndjson": Writer("trace.ndjson.gz", to_ndjson_gz),
        "ndjson-zstd": Writer("trace.ndjson.zst", to_ndjson_zstd),
    },
)
