"""MegaScan: where scopes of Megatron begin and end, of all ranks or of one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.head import Head
from app.analysis.trace.formats.kind import Decoded, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "megascan"


def _sniff(head: Head) -> bool:
    text = head.text.lstrip()
    own = b'"rel_ts"' in text or b'"pad_before"' in text
    aggregated = b'"iteration' in text and b'"ph"' in text and b'"args"' in text
    return text.startswith(b"[") and (own or aggregated)


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    from app.analysis.trace.recordings.megascan import decode_megascan  # noqa: PLC0415

    read = decode_megascan(body, meta, limits, part=part)
    return Decoded(read.trace, _NAME, read.unmapped)


MEGASCAN: Final = TraceFormat(
    name=_NAME,
    title="MegaScan",
    media_types=("application/vnd.paceline.megascan+json", "application/json"),
    suffixes=(".json",),
    sniff=_sniff,
    decode=_decode,
    text=True,
    recorder="MegaScan (MegatronApp)",
)
