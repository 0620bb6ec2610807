"""XProf: files of the profiler of JAX and TensorFlow, one a host."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.formats.kind import Decoded, Head, TraceFormat, head_of
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta

_NAME: Final = "xprof"
_FIRST_FIELD: Final = b"\n"
# Names of planes; one is near the beginning of the first plane, behind its length and id.
_PLANES: Final = (b"/host:", b"/device:", b"#Chip", b"Task Environment")
_FIRST_BYTES: Final = 64
# Marks of its JSON: a field near the beginning, and names of processes.
_JSON: Final = b'"highres-ticks"'
# Suffix of the shortened copy for trace viewers.
_VIEWER_SUFFIX: Final = ".trace.json.gz"
_PROCESSES: Final = (b'"/host:', b'"/device:', b" /host:", b" /device:")


def _sniff(head: Head) -> bool:
    text = head.text
    if text.startswith(_FIRST_FIELD) and any(name in text[:_FIRST_BYTES] for name in _PLANES):
        return True
    is_object = text.lstrip().startswith(b"{") and _JSON in text
    return is_object and any(name in text for name in _PROCESSES)


def _copy_of(name: str) -> str | None:
    stem = name.removesuffix(_VIEWER_SUFFIX)
    return None if stem == name else f"{stem}.xplane.pb"


def _decode(body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Decoded:
    from app.analysis.trace.recordings import xprof as reader  # noqa: PLC0415

    planes = not head_of(body).text.lstrip().startswith((b"{", b"["))
    decode = reader.decode_xplane if planes else reader.decode_trace_json
    read = decode(body, meta, limits, part=part)
    return Decoded(read.trace, _NAME, read.unmapped)


XPROF: Final = TraceFormat(
    name=_NAME,
    title="XProf",
    media_types=(
        "application/vnd.paceline.xprof",
        "application/json",
        "application/x-protobuf",
    ),
    suffixes=(".xplane.pb", ".trace.json"),
    sniff=_sniff,
    decode=_decode,
    text=True,
    recorder="XProf (JAX, TensorFlow)",
    numbers_ranks=True,
    copy_of=_copy_of,
)
