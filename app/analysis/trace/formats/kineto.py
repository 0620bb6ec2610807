"""Kineto: JSON of PyTorch's profiler, one file a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.kind import NO_HINTS, Decoded, Head, SenderHints, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "kineto"
# Fields of the profiler; the array of events may follow long after them.
_FIELDS: Final = (
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "traceEvents",
)
# Categories of events, which identify a bare array of them.
_CATEGORIES: Final = frozenset(
    {
        "cpu_op",
        "cuda_driver",
        "cuda_runtime",
        "gpu_user_annotation",
        "kernel",
        "Kernel",
        "Operator",
        "python_function",
        "Runtime",
        "user_annotation",
    }
)


def _sniff(head: Head) -> bool:
    if head.outline is None or not head.outline.array:
        return head.has_field(*_FIELDS)
    return not _CATEGORIES.isdisjoint(head.outline.event_texts("cat"))


def _decode(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    hints: SenderHints = NO_HINTS,
) -> Decoded:
    from app.analysis.trace.recordings.kineto import decode_kineto  # noqa: PLC0415

    read = decode_kineto(body, meta, limits, part=part, own=hints.own, names=hints.names)
    return Decoded(read.trace, _NAME, read.unmapped)


KINETO: Final = TraceFormat(
    name=_NAME,
    title="Kineto",
    media_types=("application/vnd.paceline.kineto+json", "application/json"),
    suffixes=(".json",),
    sniff=_sniff,
    decode=_decode,
    decode_with_hints=_decode,
    own_ranges=True,
    text=True,
    whole_steps=True,
    recorder="PyTorch profiler",
)
