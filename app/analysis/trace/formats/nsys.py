"""Nsight Systems: its SQLite database, which only the command line opens."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.formats.head import Head
from app.analysis.trace.formats.kind import Decoded, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.nsys import MAGIC, decode_nsys

_NAME: Final = "nsys"


def _sniff(head: Head) -> bool:
    return head.start.startswith(MAGIC)


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    if not isinstance(body, Path):
        refuse_body("corrupt", "a database is read from its file only")
    read = decode_nsys(body, meta, limits, part=part)
    return Decoded(read.trace, _NAME, read.unmapped)


NSYS: Final = TraceFormat(
    name=_NAME,
    title="Nsight Systems",
    media_types=("application/vnd.sqlite3", "application/x-sqlite3"),
    suffixes=(".sqlite",),
    sniff=_sniff,
    decode=_decode,
    recorder="Nsight Systems",
    local_only=True,
)
