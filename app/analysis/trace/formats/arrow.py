"""Arrow IPC: our columns, as a stream or as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.encode import to_arrow
from app.analysis.trace.formats.kind import Decoded, Head, TraceFormat, Writer
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.readers.arrow import FILE_MAGIC, STREAM_MAGIC, decode_arrow

_NAME: Final = "arrow"


def _sniff(head: Head) -> bool:
    return head.start.startswith((FILE_MAGIC, STREAM_MAGIC))


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    return Decoded(decode_arrow(body, meta, limits, part=part), _NAME)


ARROW: Final = TraceFormat(
    name=_NAME,
    title="Arrow IPC",
    media_types=("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"),
    suffixes=(".arrow", ".arrows"),
    sniff=_sniff,
    decode=_decode,
    writers={"arrow": Writer("trace.arrow", to_arrow)},
)
