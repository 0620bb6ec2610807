"""MegaScan: where scopes of Megatron begin and end, of all ranks or of one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.kind import Decoded, Head, TraceFormat
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "megascan"


def _sniff(head: Head) -> bool:
    if head.outline is None or not head.outline.array:
        return False
    own = head.outline.any_event("rel_ts") or head.outline.any_event("pad_before")
    return own or any(
        isinstance(args := event.get("args"), dict) and "iteration" in args
        for event in head.outline.events
    )


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
