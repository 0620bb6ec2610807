"""Kineto: what the profiler of PyTorch writes, a file a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.kind import NOTHING_TOLD, Decoded, Head, Told, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "kineto"
# The profiler's own fields; the array of events may stand long after them.
_FIELDS: Final = (
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "traceEvents",
)
# Categories of its events, by which a bare array of them is recognized.
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
    return not _CATEGORIES.isdisjoint(head.outline.values("cat"))


def _decode(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    told: Told = NOTHING_TOLD,
) -> Decoded:
    from app.analysis.trace.recordings.kineto import decode_kineto  # noqa: PLC0415

    read = decode_kineto(body, meta, limits, part=part, own=told.own, names=told.names)
    return Decoded(read.trace, _NAME, read.unmapped)


KINETO: Final = TraceFormat(
    name=_NAME,
    title="Kineto",
    media_types=("application/vnd.paceline.kineto+json", "application/json"),
    suffixes=(".json",),
    sniff=_sniff,
    decode=_decode,
    decode_told=_decode,
    own_ranges=True,
    text=True,
    whole_steps=True,
    recorder="PyTorch profiler",
)
