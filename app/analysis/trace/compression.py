"""Decompression of text bodies (gzip, zstd) to UTF-8 in bounded memory.

The decompressor gets slices so small that even the most compressed slice expands to some megabytes;
the total size is checked against the limit. Consecutive gzip members or zstd frames are joined to
one text. A body that was compressed twice is decompressed twice, and UTF-16 with a byte order mark,
as a redirection of Windows PowerShell writes it, becomes UTF-8.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Final, Protocol, cast

import zstandard
from isal import isal_zlib

from app.analysis.trace.limits import MIB, Limits, check_expanded, refuse_body
from app.errors import InvalidTraceError

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAGIC_BYTES: Final = len(ZSTD_MAGIC)
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
        `trace.truncated`, `trace.corrupt`; `trace.decompression_bomb` as soon as the text is longer
        than `Limits.expanded` allows.
    BodyTooLargeError
        `body.too_large`, as soon as the text is longer than the limit.
    """
    with open_body(body) as file:
        codec = _codec_of(file.read(_MAGIC_BYTES))
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if codec is None:
            pieces, most = _slices(file, _PLAIN_SLICE), limits.max_decompressed_bytes
        else:
            most = limits.expanded(size)
            outer = _decompress(_slices(file, codec.slice_bytes), codec)
            begin, pieces = _first(_checked(outer, most, limits))
            codec = _codec_of(begin)
            if codec is not None:
                pieces = _decompress(_cut(pieces, codec.slice_bytes), codec)
        yield from _as_utf8(_checked(pieces, most, limits))


def _codec_of(begin: bytes) -> _Codec | None:
    return next((codec for codec in _CODECS if begin.startswith(codec.magic)), None)


def _first(pieces: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first bytes of pieces, at least as many as identify them, and all pieces."""
    begin = b""
    while len(begin) < _MAGIC_BYTES and (piece := next(pieces, None)) is not None:
        begin += piece
    return begin, chain([begin], pieces)


def _checked(pieces: Iterator[bytes], most: int, limits: Limits) -> Iterator[bytes]:
    """Yield pieces as long as they are not longer than allowed together."""
    total = 0
    for piece in pieces:
        total += len(piece)
        check_expanded(total, most, limits)
        yield piece


def _cut(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the bytes of pieces in slices of at most `size` bytes."""
    for piece in pieces:
        for at in range(0, len(piece), size):
            yield piece[at : at + size]


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a text in UTF-8 without its byte order mark; only a text in UTF-16 is changed.

    Raises
    ------
    InvalidTraceError
        `trace.corrupt`: the text has a mark of UTF-16 and is not UTF-16.
    """
    begin, pieces = _first(pieces)
    if not begin.startswith(_OTHER_MARKS):
        unmarked = chain([begin.removeprefix(MARK)], islice(pieces, 1, None))
        yield from filter(None, unmarked)
        return
    decoder = codecs.getincrementaldecoder("utf-16")("strict")
    try:
        for piece in pieces:
            if text := decoder.decode(piece):
                yield text.encode()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        refuse_body("corrupt", f"the text is not UTF-16: {error.reason}")


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
        codec = _codec_of(whole.read(_MAGIC_BYTES))
        whole.seek(0)
        most = _MOST_PLAIN_BYTES if codec is None else _MOST_COMPRESSED_BYTES
        pieces = _prefix(io.BufferedReader(_Prefix(whole, most)), codec, size)
        if codec is not None:
            begin, pieces = _first(pieces)
            codec = _codec_of(begin)
            if codec is not None:
                pieces = _prefix(io.BufferedReader(_OfPieces(pieces)), codec, size)
        # Only a text in UTF-16 can be invalid; its prefix ends there.
        with contextlib.suppress(InvalidTraceError):
            yield from _as_utf8(pieces)


def _prefix(file: io.BufferedReader, codec: _Codec | None, size: int) -> Iterator[bytes]:
    """Yield the bytes of a plain or compressed file up to damage of its compression."""
    read: Callable[[int], bytes] = file.read
    if codec is not None and codec.magic == GZIP_MAGIC:
        read = gzip.GzipFile(fileobj=file).read1
    elif codec is not None:
        read = _zstd().stream_reader(file, read_across_frames=True).read
    while True:
        try:
            piece = read(size)
        except (zlib.error, zstandard.ZstdError, gzip.BadGzipFile, EOFError):
            return
        if not piece:
            return
        yield piece


class _OfPieces(io.RawIOBase):
    """File object of pieces of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        while not self._left and (piece := next(self._pieces, None)) is not None:
            self._left = piece
        view = memoryview(buffer)
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


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


def _decompress(slices: Iterator[bytes], codec: _Codec) -> Iterator[bytes]:
    """Yield the decompressed bytes of slices of at most `_Codec.slice_bytes`."""
    decompressor: _Decompressor | None = codec.start()
    members = 1
    for piece in slices:
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
