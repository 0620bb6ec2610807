"""Compressed text, decompressed in bounded memory.

Input goes to the decompressor in slices so small that even the densest one expands to some
megabytes only; the total is counted against the limit. Several gzip members or zstd frames, one
after the other, are one text.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import zstandard

from app.analysis.trace.faults import check_expanded, refuse_body
from app.analysis.trace.limits import MIB, Limits

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
MAX_WINDOW_BYTES: Final = 8 * MIB

# bgzip writes one member for every 64 kB; an empty one costs the reader as much as a full one.
_MAX_MEMBERS: Final = 1 << 18
# With gzip's own header and check sum.
_GZIP_WINDOW_BITS: Final = 31
_PLAIN_SLICE: Final = MIB


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Codec:
    name: str
    start: Callable[[], _Decompressor]
    # A slice of 16 KiB gives 16 MiB at most (deflate: 1,032 to 1), one of 1 KiB 32 MiB (zstd: a
    # block of 128 KiB in 4 bytes).
    slice_bytes: int


def _gzip() -> _Decompressor:
    return zlib.decompressobj(_GZIP_WINDOW_BITS)


def _zstd() -> _Decompressor:
    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()


_CODECS: Final = {
    GZIP_MAGIC: _Codec("gzip", _gzip, 16 * 1024),
    ZSTD_MAGIC: _Codec("zstd", _zstd, 1024),
}


def read_text(body: Path | bytes, limits: Limits) -> Iterator[bytes]:
    """Yield the text of a plain, gzip or zstd body piece by piece.

    Raises
    ------
    InvalidTraceError
        `trace.truncated`, `trace.corrupt`; `trace.decompression_bomb` as soon as the text is longer
        than `Limits.expanded` says.
    BodyTooLargeError
        `body.too_large`, as soon as the text is longer than the limit.
    """
    with io.BytesIO(body) if isinstance(body, bytes) else body.open("rb") as file:
        head = file.read(len(ZSTD_MAGIC))
        file.seek(0)
        codec = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)
        pieces = _slices(file, _PLAIN_SLICE) if codec is None else _decompress(file, codec)
        most = limits.max_decompressed_bytes if codec is None else limits.expanded(_size(file))
        total = 0
        for piece in pieces:
            total += len(piece)
            check_expanded(total, most, limits)
            yield piece


def _size(file: io.BufferedIOBase) -> int:
    here = file.tell()
    size = file.seek(0, io.SEEK_END)
    file.seek(here)
    return size


def _slices(file: io.BufferedIOBase, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _decompress(file: io.BufferedIOBase, codec: _Codec) -> Iterator[bytes]:
    decompressor: _Decompressor | None = codec.start()
    members = 1
    for piece in _slices(file, codec.slice_bytes):
        data = piece
        while data:
            if decompressor is None:
                # Archivers pad with zeros behind the last member.
                data = data.lstrip(b"\0")
                if not data:
                    break
                members += 1
                if members > _MAX_MEMBERS:
                    refuse_body("decompression_bomb", f"over {_MAX_MEMBERS} {codec.name} members")
                decompressor = codec.start()
            try:
                yield decompressor.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                if "too much memory" in str(error):
                    message = f"the zstd window is over {MAX_WINDOW_BYTES} bytes"
                    refuse_body("decompression_bomb", message)
                refuse_body("corrupt", f"the {codec.name} body is damaged: {error}")
            data = b""
            if decompressor.eof:
                data, decompressor = decompressor.unused_data, None
    if decompressor is not None:
        refuse_body("truncated", f"the {codec.name} body ends before its end mark")
