"""Operations as a session has them: packed, or the body as it came.

Which one it is, the first bytes say. A body stays as it came where it is about as small as what
`pack` makes of it, and its own metadata and the session's are all that it takes to decode it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from app.analysis.trace.formats.ndjson import NDJSON
from app.analysis.trace.formats.parquet import PARQUET, PUBLISHED_PARQUET
from app.analysis.trace.limits import Limits
from app.analysis.trace.ndjson.streams import GZIP_MAGIC, ZSTD_MAGIC
from app.analysis.trace.parquet.footer import MAGIC
from app.analysis.trace.storage.packed import unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from app.analysis.trace.formats.kind import TraceFormat
    from app.analysis.trace.model import SessionMeta, Trace

# What bodies that are kept begin with, and the formats that they may be of; the first one decodes
# them all.
_KEPT: Final[Mapping[bytes, tuple[TraceFormat, ...]]] = {
    MAGIC: (PARQUET, PUBLISHED_PARQUET),
    GZIP_MAGIC: (NDJSON,),
    ZSTD_MAGIC: (NDJSON,),
}

# They were within the limits when they came; those of a server may have become lower since.
_ANY: Final = Limits(
    max_decompressed_bytes=sys.maxsize, max_rows=sys.maxsize, max_header_bytes=sys.maxsize
)


def is_kept(known: TraceFormat, start: bytes) -> bool:
    """Return whether a body of a format is stored as it came.

    Parameters
    ----------
    start : bytes
        Its first four bytes.
    """
    return any(start.startswith(magic) and known in formats for magic, formats in _KEPT.items())


def read_stored(parts: Iterable[bytes], meta: SessionMeta) -> Trace:
    """Return the operations of a session.

    Parameters
    ----------
    parts : iterable of bytes
        Of its blob, in order.
    meta : SessionMeta
        The session's metadata, which is stored elsewhere.

    Raises
    ------
    InvalidTraceError
        `trace.unreadable_blob`, or what `decode` raises: the bytes are not those that came.
    """
    blob = b"".join(parts)
    for magic, (known, *_) in _KEPT.items():
        if blob.startswith(magic):
            return known.decode(blob, meta, _ANY, part=False).trace
    return unpack(blob, meta)
