"""A body of any accepted format → a `Trace`, or a refusal that says where and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.parquet import MAGIC, decode_parquet
from app.errors import InvalidMetadataError, UnsupportedFormatError


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded body; `trace_format` is ``parquet-published``, ``parquet`` or ``ndjson``."""

    trace: Trace
    trace_format: str


def decode(
    body: Path | bytes,
    meta: SessionMeta | None,
    *,
    limits: Limits,
    content_type: str | None = None,
) -> Decoded:
    head = _head(body)
    if head.startswith(MAGIC):
        if meta is None:
            raise InvalidMetadataError(
                "a Parquet body needs metadata beside it", code="metadata.missing"
            )
        trace, layout = decode_parquet(body, meta, limits)
        return Decoded(trace, layout.trace_format)
    raise UnsupportedFormatError("unknown format")


def _head(body: Path | bytes) -> bytes:
    if isinstance(body, bytes):
        return body[:16]
    with body.open("rb") as file:
        return file.read(16)
