"""OpenTelemetry: spans of Megatron-LM, as OTLP in JSON.

OTLP's protobuf, which Python's exporter sends, is recognized in order to say what to do instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.head import Head, head_of
from app.analysis.trace.formats.kind import Decoded, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.errors import UnsupportedFormatError

_NAME: Final = "otel"


# A request's first field is a list of resources, a resource's attributes are keys (0x0A) and values
# (0x12), and every SDK gives it one of these.
_FIRST_FIELD: Final = b"\n"
_VALUE: Final = b"\x12"
_ATTRIBUTES: Final = (b"service.name", b"telemetry.sdk.", b"dl.rank")


def _sniff(head: Head) -> bool:
    is_json = head.text.lstrip().startswith(b"{") and b'"resourceSpans"' in head.text
    return is_json or _is_protobuf(head)


def _is_protobuf(head: Head) -> bool:
    return (
        head.text.startswith(_FIRST_FIELD)
        and _VALUE in head.text
        and any(name in head.text for name in _ATTRIBUTES)
    )


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    from app.analysis.trace.recordings.otlp import decode_otlp  # noqa: PLC0415

    if _is_protobuf(head_of(body)):
        message = (
            "OpenTelemetry is read as OTLP in JSON, not in protobuf, which Python's exporter "
            "sends: let it send to an OpenTelemetry collector whose file exporter writes JSON "
            "(exporters: file: format: json), and send that file"
        )
        raise UnsupportedFormatError(message, code="trace.protobuf")
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
