"""Formats of other programs: recordings of profilers and of training frameworks.

Decoders are imported with the first body of their format; see `Decode`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.compression import ZSTD_MAGIC
from app.analysis.trace.formats.kind import (
    NO_HINTS,
    Decoded,
    Head,
    SenderHints,
    TraceFormat,
    head_of,
)
from app.analysis.trace.limits import Limits, refuse_body
from app.analysis.trace.model import SessionMeta

_NSYS_MAGIC: Final = b"SQLite format 3\0"


def _is_nsys(head: Head) -> bool:
    return head.start.startswith(_NSYS_MAGIC)


def _decode_nsys(
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
    return Decoded(read.trace, "nsys", read.unmapped)


NSYS: Final = TraceFormat(
    name="nsys",
    title="Nsight Systems",
    media_types=("application/vnd.sqlite3", "application/x-sqlite3"),
    suffixes=(".sqlite",),
    sniff=_is_nsys,
    decode=_decode_nsys,
    decode_with_hints=_decode_nsys,
    own_ranges=True,
    whole_steps=True,
    recorder="Nsight Systems",
    local_only=True,
)


_XPROF_FIRST_FIELD: Final = b"\n"
# Beginnings of plane names. One of these is among the first bytes of a file, behind the length and
# id of the first plane.
_XPROF_PLANES: Final = (b"/host:", b"/device:", b"#Chip", b"Task Environment")
_XPROF_FIRST_BYTES: Final = 64
# Texts that identify XProf's JSON: a field near the beginning, and names of processes.
_XPROF_JSON: Final = b'"highres-ticks"'
# File suffix of the shortened copy of a trace that XProf writes for trace viewers.
_XPROF_VIEWER_SUFFIX: Final = ".trace.json.gz"
_XPROF_PROCESSES: Final = (b'"/host:', b'"/device:', b" /host:", b" /device:")


def _is_xprof(head: Head) -> bool:
    text = head.text
    if text.startswith(_XPROF_FIRST_FIELD) and any(
        name in text[:_XPROF_FIRST_BYTES] for name in _XPROF_PLANES
    ):
        return True
    is_object = text.lstrip().startswith(b"{") and _XPROF_JSON in text
    return is_object and any(name in text for name in _XPROF_PROCESSES)


def _xplane_of(name: str) -> str | None:
    stem = name.removesuffix(_XPROF_VIEWER_SUFFIX)
    return None if stem == name else f"{stem}.xplane.pb"


def _decode_xprof(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Decoded:
    from app.analysis.trace.recordings import xprof as reader  # noqa: PLC0415

    planes = not head_of(body).text.lstrip().startswith((b"{", b"["))
    decode = reader.decode_xplane if planes else reader.decode_trace_json
    read = decode(body, meta, limits, part=part)
    return Decoded(read.trace, "xprof", read.unmapped)


XPROF: Final = TraceFormat(
    name="xprof",
    title="XProf",
    media_types=(
        "application/vnd.paceline.xprof",
        "application/json",
        "application/x-protobuf",
    ),
    suffixes=(".xplane.pb", ".trace.json"),
    sniff=_is_xprof,
    decode=_decode_xprof,
    text=True,
    recorder="XProf (JAX, TensorFlow)",
    numbers_ranks=True,
    copy_of=_xplane_of,
)


# Fields that PyTorch's profiler writes before the array of events, which may follow long after
# them.
_KINETO_FIELDS: Final = (
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "traceEvents",
)
# Event categories of PyTorch's profiler, which identify an array of events without surrounding
# fields.
_KINETO_CATEGORIES: Final = frozenset(
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


def _is_kineto(head: Head) -> bool:
    if head.outline is None or not head.outline.array:
        return head.has_field(*_KINETO_FIELDS)
    return not _KINETO_CATEGORIES.isdisjoint(head.outline.event_texts("cat"))


def _decode_kineto(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    hints: SenderHints = NO_HINTS,
) -> Decoded:
    from app.analysis.trace.recordings.kineto import decode_kineto  # noqa: PLC0415

    read = decode_kineto(body, meta, limits, part=part, own=hints.own, names=hints.names)
    return Decoded(read.trace, "kineto", read.unmapped)


KINETO: Final = TraceFormat(
    name="kineto",
    title="Kineto",
    media_types=("application/vnd.paceline.kineto+json", "application/json"),
    suffixes=(".json",),
    sniff=_is_kineto,
    decode=_decode_kineto,
    decode_with_hints=_decode_kineto,
    own_ranges=True,
    text=True,
    whole_steps=True,
    recorder="PyTorch profiler",
)


def _is_ndtimeline(head: Head) -> bool:
    if head.outline is None:
        return False
    if not head.outline.array:
        return head.has_field("metric") and head.has_field("start_ts")
    events = any(
        isinstance(args := event.get("args"), dict) and "tp" in args and "pp" in args
        for event in head.outline.events
    )
    return head.outline.any_event("metric", "start_ts") or events


def _decode_ndtimeline(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Decoded:
    from app.analysis.trace.recordings.ndtimeline import decode_ndtimeline  # noqa: PLC0415

    read = decode_ndtimeline(body, meta, limits, part=part)
    return Decoded(read.trace, "ndtimeline", read.unmapped)


NDTIMELINE: Final = TraceFormat(
    name="ndtimeline",
    title="NDTimeline",
    media_types=("application/vnd.paceline.ndtimeline+json", "application/json"),
    suffixes=(".json", ".jsonl"),
    sniff=_is_ndtimeline,
    decode=_decode_ndtimeline,
    text=True,
    recorder="NDTimeline (veScale)",
)


def _is_megascan(head: Head) -> bool:
    if head.outline is None or not head.outline.array:
        return False
    own = head.outline.any_event("rel_ts") or head.outline.any_event("pad_before")
    return own or any(
        isinstance(args := event.get("args"), dict) and "iteration" in args
        for event in head.outline.events
    )


def _decode_megascan(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Decoded:
    from app.analysis.trace.recordings.megascan import decode_megascan  # noqa: PLC0415

    read = decode_megascan(body, meta, limits, part=part)
    return Decoded(read.trace, "megascan", read.unmapped)


MEGASCAN: Final = TraceFormat(
    name="megascan",
    title="MegaScan",
    media_types=("application/vnd.paceline.megascan+json", "application/json"),
    suffixes=(".json",),
    sniff=_is_megascan,
    decode=_decode_megascan,
    text=True,
    recorder="MegaScan (MegatronApp)",
)


# The first field of an OTLP request is a list of resources. Attributes of a resource are keys
# (0x0A) and values (0x12), and every SDK writes one of `_OTEL_ATTRIBUTES`.
_OTEL_FIRST_FIELD: Final = b"\n"
_OTEL_VALUE: Final = b"\x12"
_OTEL_ATTRIBUTES: Final = (b"service.name", b"telemetry.sdk.", b"dl.rank")
# Maximum number of bytes before the first field: a request has none, a file of messages has the
# length of the first message.
_OTEL_MOST_LENGTH_BYTES: Final = 5
# Position of the compressed data in a file of messages: behind the 4-byte big-endian length, whose
# first byte is 0 because messages are below 16 MiB.
_OTEL_COMPRESSED_AT: Final = 4


def _is_otel(head: Head) -> bool:
    return head.has_field("resourceSpans") or _is_otlp_protobuf(head)


def _is_otlp_protobuf(head: Head) -> bool:
    text = head.text
    if text[:1] == b"\0" and text[_OTEL_COMPRESSED_AT:].startswith(ZSTD_MAGIC):
        return True
    return (
        _OTEL_FIRST_FIELD in text[: _OTEL_MOST_LENGTH_BYTES + 1]
        and _OTEL_VALUE in text
        and any(name in text for name in _OTEL_ATTRIBUTES)
        and not text.lstrip().startswith((b"{", b"["))
    )


def _decode_otel(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    hints: SenderHints = NO_HINTS,
) -> Decoded:
    from app.analysis.trace.recordings.otlp import decode_otlp  # noqa: PLC0415

    protobuf = _is_otlp_protobuf(head_of(body))
    read = decode_otlp(body, meta, limits, part=part, protobuf=protobuf, own=hints.own)
    return Decoded(read.trace, "otel", read.unmapped)


OTEL: Final = TraceFormat(
    name="otel",
    title="OpenTelemetry",
    media_types=(
        "application/vnd.paceline.otel+json",
        "application/json",
        "application/x-protobuf",
    ),
    suffixes=(".json", ".jsonl", ".pb", ".binpb"),
    sniff=_is_otel,
    decode=_decode_otel,
    decode_with_hints=_decode_otel,
    own_ranges=True,
    text=True,
    recorder="OpenTelemetry of Megatron-LM",
)
