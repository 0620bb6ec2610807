"""OpenTelemetry: spans of Megatron-LM, as OTLP in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.head import Head
from app.analysis.trace.formats.kind import Decoded, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.otlp import decode_otlp

_NAME: Final = "otel"


def _sniff(head: Head) -> bool:
    return head.text.lstrip().startswith(b"{") and b'"resourceSpans"' in head.text


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    read = decode_otlp(body, meta, limits, part=part)
    return Decoded(read.trace, _NAME, read.unmapped)


OTEL: Final = TraceFormat(
    name=_NAME,
    title="OpenTelemetry",
    media_types=("application/vnd.paceline.otel+json", "application/json"),
    suffixes=(".json", ".jsonl"),
    sniff=_sniff,
    decode=_decode,
    text=True,
    recorder="OpenTelemetry of Megatron-LM",
)
