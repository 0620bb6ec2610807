"""The beginning of a body, by which its format is recognized."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zstandard

from app.analysis.trace.ndjson.streams import GZIP_MAGIC, MAX_WINDOW_BYTES, ZSTD_MAGIC

_HEAD_BYTES: Final = 4096
_GZIP_WINDOW_BITS: Final = 31


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
    """The first bytes of a body."""

    start: bytes  # as they are, 4 KiB at most
    text: bytes  # decompressed, 4 KiB at most; empty where they are compressed and damaged

    @property
    def compressed(self) -> bool:
        """Whether the body is compressed with gzip or zstd."""
        return any(self.start.startswith(known.magic) for known in COMPRESSIONS)


def head_of(body: Path | bytes) -> Head:
    """Return the beginning of a body.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    if isinstance(body, bytes):
        start = body[:_HEAD_BYTES]
    else:
        with body.open("rb") as file:
            start = file.read(_HEAD_BYTES)
    return Head(start, _text(start))


def _text(start: bytes) -> bytes:
    try:
        if start.startswith(GZIP_MAGIC):
            return zlib.decompressobj(_GZIP_WINDOW_BITS).decompress(start, _HEAD_BYTES)
        if start.startswith(ZSTD_MAGIC):
            decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
            return decompressor.stream_reader(io.BytesIO(start)).read(_HEAD_BYTES)
    except (zlib.error, zstandard.ZstdError):
        return b""
    return start
