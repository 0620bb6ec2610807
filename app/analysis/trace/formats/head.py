"""The beginning of a body, by which its format is recognized."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from app.analysis.trace.formats.outline import Outline, outline_of
from app.analysis.trace.ndjson.streams import (
    GZIP_MAGIC,
    GZIP_WINDOW_BITS,
    ZSTD_MAGIC,
    begin_of_text,
    without_mark,
)

_HEAD_BYTES: Final = 4096
_PIECE_BYTES: Final = 64 * 1024
_LITTLE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression in which text may come."""

    magic: bytes  # what it begins with
    suffix: str  # of its files
    codings: tuple[str, ...]  # as ``Content-Encoding`` calls it
    media_types: tuple[str, ...]  # which say only that something is compressed in this way


COMPRESSIONS: Final = (
    Compression(GZIP_MAGIC, ".gz", ("gzip", "x-gzip"), ("application/gzip", "application/x-gzip")),
    Compression(ZSTD_MAGIC, ".zst", ("zstd",), ("application/zstd",)),
)


@dataclass(frozen=True, slots=True)
class Head:
    """What a body begins with."""

    start: bytes  # as it is, 4 KiB at most
    # Decompressed and without a byte order mark, 4 KiB at most; empty where it is compressed and
    # damaged.
    text: bytes
    outline: Outline | None  # where the text is JSON

    @property
    def whole(self) -> bool:
        """Whether the text ends here, as it is or because its compression is cut off or damaged."""
        return len(self.text) < _HEAD_BYTES

    @property
    def compressed(self) -> bool:
        """Whether the body is compressed with gzip or zstd."""
        return any(self.start.startswith(known.magic) for known in COMPRESSIONS)

    def has_field(self, *names: str) -> bool:
        """Return whether the text is a JSON object with one of these fields before its events."""
        return self.outline is not None and any(name in self.outline.fields for name in names)


def begins_with(body: bytes, begin: re.Pattern[bytes]) -> bool:
    """Return whether the text of a body begins in a way, of which as little as needed is read.

    False where it takes more to tell.
    """
    start = body[:_HEAD_BYTES]
    if not start.startswith(GZIP_MAGIC):
        return begin.match(start) is not None
    try:
        text = zlib.decompressobj(GZIP_WINDOW_BITS).decompress(start, _LITTLE_BYTES)
    except zlib.error:
        return False
    return begin.match(text) is not None


def head_of(body: Path | bytes) -> Head:
    """Return the beginning of a body.

    Raises
    ------
    InvalidTraceError
        `trace.utf16`.
    OSError
        The file cannot be read.
    """
    if isinstance(body, bytes):
        start = body[:_HEAD_BYTES]
    else:
        with body.open("rb") as file:
            start = file.read(_HEAD_BYTES)
    pieces = begin_of_text(body, _PIECE_BYTES)
    try:
        begin = _at_least(pieces, _HEAD_BYTES)
        begin = without_mark(begin)
        outline = outline_of(chain([begin], pieces)) if _may_be_json(begin) else None
        return Head(start, begin[:_HEAD_BYTES], outline)
    finally:
        pieces.close()


def _may_be_json(begin: bytes) -> bool:
    """Return whether a text may be JSON by what it begins with; binary bodies are read as text."""
    first = begin.lstrip()[:1]
    return not first.isascii() or first in {b"[", b"{"}


def _at_least(pieces: Iterator[bytes], size: int) -> bytes:
    """Return the first pieces, of `size` bytes together where there are as many."""
    taken = bytearray()
    for piece in pieces:
        taken += piece
        if len(taken) >= size:
            break
    return bytes(taken)
