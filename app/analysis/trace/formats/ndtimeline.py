"""NDTimeline: Chrome's events of its local handler, or the dictionaries of `parse_record`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.kind import Decoded, Head, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "ndtimeline"


def _sniff(head: Head) -> bool:
    if head.outline is None:
        return False
    if not head.outline.array:
        return head.has_field("metric") and head.has_field("start_ts")
    events = any(
        isinstance(args := event.get("args"), dict) and "tp" in args and "pp" in args
        for event in head.outline.events
    )
    return head.outline.any_event("metric", "start_ts") or events


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    from app.analysis.trace.recordings.ndtimeline import decode_ndtimeline  # noqa: PLC0415

    read = decode_ndtimeline(body, meta, limits, part=part)
    return Decoded(read.trace, _NAME, read.unmapped)


NDTIMELINE: Final = TraceFormat(
    name=_NAME,
    title="NDTimeline",
    media_types=("application/vnd.paceline.ndtimeline+json", "application/json"),
    suffixes=(".json", ".jsonl"),
    sniff=_sniff,
    decode=_decode,
    text=True,
    recorder="NDTimeline (veScale)",
)
