"""Nsight Systems: its SQLite database, which only the command line opens."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.kind import NO_HINTS, Decoded, Head, SenderHints, TraceFormat
from app.analysis.trace.limits import Limits, refuse_body
from app.analysis.trace.model import SessionMeta

_NAME: Final = "nsys"
_MAGIC: Final = b"SQLite format 3\0"


def _sniff(head: Head) -> bool:
    return head.start.startswith(_MAGIC)


def _decode(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    hints: SenderHints = NO_HINTS,
) -> Decoded:
    from app.analysis.trace.recordings.nsys import decode_nsys  # noqa: PLC0415

    if not isinstance(body, Path):
        refuse_body("corrupt", "a database is read from its file only")
    read = decode_nsys(body, meta, limits, hints.names, part=part, own=hints.own)
    return Decoded(read.trace, _NAME, read.unmapped)


NSYS: Final = TraceFormat(
    name=_NAME,
    title="Nsight Systems",
    media_types=("application/vnd.sqlite3", "application/x-sqlite3"),
    suffixes=(".sqlite",),
    sniff=_sniff,
    decode=_decode,
    decode_with_hints=_decode,
    own_ranges=True,
    whole_steps=True,
    recorder="Nsight Systems",
    local_only=True,
)
