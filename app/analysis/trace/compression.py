"""Decompression of text bodies (gzip, zstd) in bounded memory.

The decompressor gets slices so small that even the most compressed slice expands to some megabytes;
the total size is checked against the limit. Consecutive gzip members or zstd frames are joined to
one text.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

import zstandard
from isal import isal_zlib

from app.analysis.trace.limits import MIB, Limits, check_expanded, refuse_body

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
MAX_WINDOW_BYTES: Final = 8 * MIB

# UTF-8 byte order mark, which Windows programs write before text.
MARK: Final = codecs.BOM_UTF8
_OTHER_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# Maximum number of gzip members or zstd frames of a body. bgzip writes a member for every 64 kB of
# text; the limit exists because an empty member costs the reader as much time as a full member.
_MAX_MEMBERS: Final = 1 << 18
# zlib's `wbits` value for data with a gzip header and check sum.
GZIP_WINDOW_BITS: Final = 31
_PLAIN_SLICE: Final = MIB
# Maximum number of bytes of a plain and of a compressed body that format recognition reads. The
# plain limit has room for the process groups of 16,384 ranks before the first event; the compressed
# limit is lower because an empty gzip member costs as much time as a full member.
_MOST_PLAIN_BYTES: Final = 8 * MIB
_MOST_COMPRESSED_BYTES: Final = MIB

# The cast is needed because isal's type stubs declare the exception class as an instance.
_DAMAGED: Final = (cast("type[Exception]", isal_zlib.error), zstandard.ZstdError)


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Codec:
    name: str
    magic: bytes
    start: Callable[[], _Decompressor]
    # Compressed bytes decompressed at once. A slice of 16 KiB of deflate expands to at most 16 MiB
    # (1,032 to 1), a slice of 1 KiB of zstd to at most 32 MiB (4 bytes may hold a block of 128
    # KiB).
    slice_bytes: int


def _zstd() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)


_CODECS: Final = (
    _Codec("gzip", GZIP_MAGIC, lambda: isal_zlib.decompressobj(GZIP_WINDOW_BITS), 16 * 1024),
    _Codec("zstd", ZSTD_MAGIC, lambda: _zstd().decompressobj(), 1024),
)


def open_body(body: Path | bytes) -> io.BufferedIOBase:
    """Open a body as a binary file; the caller closes it.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    return io.BytesIO(body) if isinstance(body, bytes) else body.open("rb")


def read_text(body: Path | bytes, limits: Limits) -> Generator[bytes, None, None]:
    """Yield the text of a plain, gzip or zstd body piece by piece, without a byte order mark.

    Raises
    ------
    InvalidTraceError
        `trace.truncated`, `trace.corrupt`; `trace.utf16`; `trace.decompression_bomb` as soon as the
        text is longer than `Limits.expanded` allows.
    BodyTooLargeError
        `body.too_large`, as soon as the text is longer than the limit.
    """
    with open_body(body) as file:
        head = file.read(len(ZSTD_MAGIC))
        file.seek(0)
        codec = next((codec for codec in _CODECS if head.startswith(codec.magic)), None)
        if codec is None:
            pieces, most = _slices(file, _PLAIN_SLICE), limits.max_decompressed_bytes
        else:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            pieces, most = _decompress(file, codec), limits.expanded(size)
        total = 0
        for piece in pieces:
            unmarked = without_mark(piece) if total == 0 else piece
            total += len(piece)
            check_expanded(total, most, limits)
            yield unmarked


def without_mark(begin: bytes) -> bytes:
    """Return the first piece of a text without its byte order mark.

    Raises
    ------
    InvalidTraceError
        `trace.utf16`: the mark is that of UTF-16.
    """
    if begin.startswith(_OTHER_MARKS):
        refuse_body(
            "utf16",
            "the text is UTF-16, as a redirection of Windows PowerShell writes it: write it as "
            "UTF-8, or send the file as its recorder wrote it",
        )
    return begin.removeprefix(MARK)


def text_prefix(body: Path | bytes, size: int) -> Generator[bytes, None, None]:
    """Yield the beginning of a body's text, decompressed, in pieces of at most `size` bytes.

    The text ends where the compression is damaged or cut off, or at the limit of the bytes that
    format recognition may read.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with open_body(body) as whole:
        start = whole.read(len(ZSTD_MAGIC))
        whole.seek(0)
        compressed = start.startswith((GZIP_MAGIC, ZSTD_MAGIC))
        most = _MOST_COMPRESSED_BYTES if compressed else _MOST_PLAIN_BYTES
        file = io.BufferedReader(_Prefix(whole, most))
        read: Callable[[int], bytes] = file.read
        if start.startswith(GZIP_MAGIC):
            read = gzip.GzipFile(fileobj=file).read1
        elif start.startswith(ZSTD_MAGIC):
            read = _zstd().stream_reader(file, read_across_frames=True).read
        while True:
            try:
                piece = read(size)
            except (zlib.error, zstandard.ZstdError, gzip.BadGzipFile, EOFError):
                return
            if not piece:
                return
            yield piece


class _Prefix(io.RawIOBase):
    """File object of the first `most` bytes of another file."""

    def __init__(self, file: io.BufferedIOBase, most: int) -> None:
        self._file = file
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        view = memoryview(buffer)[: self._left]
        count = self._file.readinto(view)
        self._left -= count
        return count


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
                # Archivers pad the file with zeros behind the last member.
                data = data.lstrip(b"\0")
                if not data:
                    break
                members += 1
                _check_member(codec, data, members)
                decompressor = codec.start()
            try:
                yield decompressor.decompress(data)
            except _DAMAGED as error:
                if "too much memory" in str(error):
                    message = f"the zstd window is over {MAX_WINDOW_BYTES} bytes"
                    refuse_body("decompression_bomb", message)
                refuse_body("corrupt", f"the {codec.name} body is damaged: {error}")
            data = b""
            if decompressor.eof:
                data, decompressor = decompressor.unused_data, None
    if decompressor is not None:
        refuse_body("truncated", f"the {codec.name} body ends before its end mark")


def _check_member(codec: _Codec, data: bytes, members: int) -> None:
    """Refuse data after a gzip member or zstd frame that begins no further member.

    Also refuse a body with too many members.
    """
    # The magic is checked here because ISA-L waits for a whole header before it rejects it.
    if not data.startswith(codec.magic[: len(data)]):
        refuse_body("corrupt", f"what is behind the {codec.name} body is none")
    if members > _MAX_MEMBERS:
        refuse_body("decompression_bomb", f"over {_MAX_MEMBERS} {codec.name} members")
