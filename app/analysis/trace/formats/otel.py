"""OpenTelemetry: spans of Megatron-LM, as OTLP in JSON or protobuf."""

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
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "otel"

# A request's first field is a list of resources; attributes of a resource are keys (0x0A) and
# values (0x12), and every SDK writes one of `_ATTRIBUTES`.
_FIRST_FIELD: Final = b"\n"
_VALUE: Final = b"\x12"
_ATTRIBUTES: Final = (b"service.name", b"telemetry.sdk.", b"dl.rank")
# Bytes before the first field: none in a request, a length in files of messages.
_MOST_LENGTH_BYTES: Final = 5
# The length of a message below 16 MiB, big-endian, and a compressed message.
_COMPRESSED_AT: Final = 4


def _sniff(head: Head) -> bool:
    return head.has_field("resourceSpans") or _is_protobuf(head)


def _is_protobuf(head: Head) -> bool:
    text = head.text
    if text[:1] == b"\0" and text[_COMPRESSED_AT:].startswith(ZSTD_MAGIC):
        return True
    return (
        _FIRST_FIELD in text[: _MOST_LENGTH_BYTES + 1]
        and _VALUE in text
        and any(name in text for name in _ATTRIBUTES)
        and not text.lstrip().startswith((b"{", b"["))
    )


def _decode(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    hints: SenderHints = NO_HINTS,
) -> Decoded:
    from app.analysis.trace.recordings.otlp import decode_otlp  # noqa: PLC0415

    protobuf = _is_protobuf(head_of(body))
    read = decode_otlp(body, meta, limits, part=part, protobuf=protobuf, own=hints.own)
    return Decoded(read.trace, _NAME, read.unmapped)


OTEL: Final = TraceFormat(
    name=_NAME,
    title="OpenTelemetry",
    media_types=(
        "application/vnd.paceline.otel+json",
        "application/json",
        "application/x-protobuf",
    ),
    suffixes=(".json", ".jsonl", ".pb", ".binpb"),
    sniff=_sniff,
    decode=_decode,
    decode_with_hints=_decode,
    own_ranges=True,
    text=True,
    recorder="OpenTelemetry of Megatron-LM",
)
