"""Kineto: what the profiler of PyTorch writes, a file a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.head import Head
from app.analysis.trace.formats.kind import Decoded, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "kineto"
# The profiler's first fields; the array of events may begin long after them.
_FIELDS: Final = (
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"baseTimeNanoseconds"',
    b'"traceEvents"',
)


def _sniff(head: Head) -> bool:
    return head.text.lstrip().startswith(b"{") and any(field in head.text for field in _FIELDS)


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    from app.analysis.trace.recordings.kineto import decode_kineto  # noqa: PLC0415

    read = decode_kineto(body, meta, limits, part=part)
    return Decoded(read.trace, _NAME, read.unmapped)


KINETO: Final = TraceFormat(
    name=_NAME,
    title="Kineto",
    media_types=("application/vnd.paceline.kineto+json", "application/json"),
    suffixes=(".json",),
    sniff=_sniff,
    decode=_decode,
    text=True,
    recorder="PyTorch profiler",
)
