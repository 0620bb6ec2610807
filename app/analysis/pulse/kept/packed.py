"""Columns of whole numbers as few bytes, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import zstandard

from app.analysis.pulse.columns import Int64
from app.errors import UnknownDocumentError

VERSION: Final = 1
# Most of it is noise, of which no level makes less.
_LEVEL: Final = 1
_WIDTHS: Final = (1, 2, 4, 8)
_HEAD_BYTES: Final = 4


def pack(
    columns: Mapping[str, Int64],
    *,
    steps: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """Return columns as bytes: each in as few bytes a value as it needs, then zstd.

    Parameters
    ----------
    columns : mapping of str to int64[…]
        They may differ in length.
    steps : sequence of str
        Columns of which what is added to the value before is stored.
    more : mapping, optional
        Plain values that are kept with them.
    """
    told, parts = [], []
    for name, values in columns.items():
        stepped = name in steps
        plain = np.diff(values, prepend=np.int64(0)) if stepped else values
        least = int(plain.min()) if len(plain) else 0
        # Modulo 2⁶⁴, as is what is undone below.
        above = plain.astype(np.int64).view(np.uint64) - np.uint64(least % (1 << 64))
        most = int(above.max()) if len(above) else 0
        width = next(width for width in _WIDTHS if most < 1 << (8 * width))
        narrow = above.astype(f"<u{width}").view(np.uint8).reshape(len(above), width)
        # The bytes of one weight lie together: the high ones hardly differ.
        parts.append(np.ascontiguousarray(narrow.T).tobytes())
        told.append([name, len(values), least, width, stepped])
    head = json.dumps({"version": VERSION, "columns": told, "more": more or {}}).encode()
    body = b"".join([len(head).to_bytes(_HEAD_BYTES, "little"), head, *parts])
    return zstandard.compress(body, _LEVEL)


def unpack(body: bytes) -> tuple[dict[str, Int64], dict[str, Any]]:
    """Return the columns and the plain values.

    Raises
    ------
    UnknownDocumentError
        They are of another version.
    """
    plain = zstandard.decompress(body)
    start = _HEAD_BYTES + int.from_bytes(plain[:_HEAD_BYTES], "little")
    head = json.loads(plain[_HEAD_BYTES:start])
    if head["version"] != VERSION:
        message = f"what is kept of a pulse is of version {head['version']}, not {VERSION}"
        raise UnknownDocumentError(message)
    columns = {}
    for name, size, least, width, stepped in head["columns"]:
        stop = start + size * width
        planes = np.frombuffer(plain[start:stop], np.uint8).reshape(width, size)
        narrow = np.ascontiguousarray(planes.T).view(f"<u{width}").reshape(size)
        values = (narrow.astype(np.uint64) + np.uint64(least % (1 << 64))).view(np.int64)
        columns[name] = np.cumsum(values) if stepped else values
        start = stop
    return columns, head["more"]
