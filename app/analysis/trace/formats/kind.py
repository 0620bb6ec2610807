"""Description of a trace format, and recognition of the format from a body's first bytes.

Recordings of many programs are JSON, and the keys of one format may occur in the text of another
format, so the JSON is parsed up to its first events. The array of events may follow megabytes of
metadata.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

from app.analysis.trace.compression import (
    GZIP_MAGIC,
    GZIP_WINDOW_BITS,
    ZSTD_MAGIC,
    text_prefix,
)
from app.analysis.trace.limits import MIB, Limits
from app.analysis.trace.metadata import Unmapped
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.recordings.files import UNNAMED, FileNames
from app.analysis.trace.recordings.labels import OwnRanges

# Fields whose array is as long as the recording; recognition does not read the fields behind it.
LONG_FIELDS: Final = frozenset({"traceEvents", "resourceSpans"})
# Maximum number of events that recognition reads. Profilers name all processes and threads in
# events before the first range.
MOST_EVENTS: Final = 1024
_MOST_TEXT: Final = 8 * MIB
_SPACE: Final = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Type of the outermost value of a JSON text, its first fields and its first events."""

    array: bool  # the outermost value is an array, else an object
    # Names of the object's fields in order, up to the first long array.
    fields: tuple[str, ...]
    # First objects of the first long array, or of an outermost array; at most `MOST_EVENTS`.
    events: tuple[Mapping[str, object], ...]

    def any_event(self, *keys: str) -> bool:
        """Return whether any of the events has all of these keys."""
        return any(all(key in event for key in keys) for event in self.events)

    def event_texts(self, key: str) -> frozenset[str]:
        """Return the distinct texts that the events have under a key."""
        values = (event.get(key) for event in self.events)
        return frozenset(value for value in values if isinstance(value, str))


def outline_of(pieces: Iterator[bytes]) -> Outline | None:
    """Return the outline of a JSON text; None if the text is neither an array nor an object.

    Parameters
    ----------
    pieces : iterator of bytes
        Text in UTF-8 without a byte order mark; read only up to the first events.
    """
    text = _Text(pieces)
    opening = text.char()
    if opening == "[":
        return Outline(array=True, fields=(), events=tuple(_events(text)))
    if opening != "{":
        return None
    fields: list[str] = []
    events: tuple[Mapping[str, object], ...] = ()
    try:
        while text.peek() == '"':
            name = text.value()
            fields.append(str(name))
            if text.char() != ":":
                break
            if name in LONG_FIELDS and text.peek() == "[":
                text.char()
                events = tuple(_events(text))
                break
            text.value()
            if text.char() != ",":
                break
    except _EndError:
        pass
    return Outline(array=False, fields=tuple(fields), events=events)


def _events(text: _Text) -> Iterator[Mapping[str, object]]:
    """Yield the first objects of an array whose opening bracket was read."""
    for _ in range(MOST_EVENTS):
        try:
            value = text.value()
        except _EndError:
            return
        if isinstance(value, dict):
            yield value
        if text.char() != ",":
            return


class _EndError(Exception):
    """Raised where the text ends, or where it is not JSON."""


class _Text:
    """Cursor in the beginning of a JSON text."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._buffer = ""
        self._at = 0
        self._taken = 0

    def peek(self) -> str:
        """Return the next non-space character without consuming it; "" at the end."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            self._at = self._at if space is None else space.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def char(self) -> str:
        """Return and consume the next non-space character; "" at the end."""
        char = self.peek()
        self._at += len(char)
        return char

    def value(self) -> object:
        """Return and consume the JSON value at the cursor.

        Raises
        ------
        _EndError
        """
        self.peek()
        while True:
            try:
                value, end = self._scan(self._buffer, self._at)
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._buffer) - len("-Infinity")
                if not (cut or error.msg.startswith("Unterminated string")):
                    raise _EndError from error
            except (ValueError, RecursionError) as error:
                raise _EndError from error
            else:
                # A number that ends with the buffer may continue in the next piece of text.
                if end < len(self._buffer) or not self._more():
                    self._at = end
                    return value
                continue
            # Double the buffer before each retry, so that a long value is parsed only a few times.
            if not self._more(len(self._buffer) - self._at):
                raise _EndError

    def _more(self, wanted: int = 1) -> bool:
        """Append at least `wanted` bytes to the buffer; return whether any bytes were left."""
        taken: list[bytes] = []
        while wanted > 0 and self._taken < _MOST_TEXT and (piece := next(self._pieces, b"")):
            taken.append(piece)
            self._taken += len(piece)
            wanted -= len(piece)
        self._buffer = self._buffer[self._at :] + self._decode(b"".join(taken))
        self._at = 0
        return bool(taken)


_HEAD_BYTES: Final = 4096
_PIECE_BYTES: Final = 64 * 1024
_LITTLE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression of text bodies."""

    magic: bytes  # first bytes of a compressed body
    suffix: str  # suffix of compressed files
    codings: tuple[str, ...]  # names in ``Content-Encoding``
    media_types: tuple[str, ...]  # media types of the compression, not of the content


COMPRESSIONS: Final = (
    Compression(GZIP_MAGIC, ".gz", ("gzip", "x-gzip"), ("application/gzip", "application/x-gzip")),
    Compression(ZSTD_MAGIC, ".zst", ("zstd",), ("application/zstd",)),
)


@dataclass(frozen=True, slots=True)
class Head:
    """First bytes of a body, decompressed."""

    start: bytes  # first bytes as received, at most 4 KiB
    # At most 4 KiB of text, decompressed and without a byte order mark; empty if the compression is
    # damaged.
    text: bytes
    outline: Outline | None  # None if the text is not JSON

    @property
    def whole(self) -> bool:
        """Whether `text` is the whole text, or all that its damaged compression gives."""
        return len(self.text) < _HEAD_BYTES

    @property
    def compressed(self) -> bool:
        """Whether the body is compressed with gzip or zstd."""
        return any(self.start.startswith(compression.magic) for compression in COMPRESSIONS)

    def has_field(self, *names: str) -> bool:
        """Return whether the text is a JSON object with one of these fields before its events."""
        return self.outline is not None and any(name in self.outline.fields for name in names)


def begins_with(body: bytes, begin: re.Pattern[bytes]) -> bool:
    """Return whether the first 64 bytes of a body's text (plain or gzip) match a pattern.

    Returns False if the body is shorter, or compressed otherwise than with gzip.
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
    """Return the beginning of a body, decompressed.

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
    pieces = text_prefix(body, _PIECE_BYTES)
    try:
        taken = bytearray()
        while len(taken) < _HEAD_BYTES and (piece := next(pieces, b"")):
            taken += piece
        begin = bytes(taken)
        first = begin.lstrip()[:1]
        may_be_json = not first.isascii() or first in {b"[", b"{"}
        outline = outline_of(chain([begin], pieces)) if may_be_json else None
        return Head(start, begin[:_HEAD_BYTES], outline)
    finally:
        pieces.close()


OWN_MEDIA_TYPE: Final = "application/vnd.paceline."


@dataclass(frozen=True, slots=True)
class Decoded:
    """Trace and metadata decoded from a body."""

    trace: Trace
    trace_format: str  # name of the body's format
    unmapped: tuple[Unmapped, ...] = ()  # items that are not mapped to operations


class Decode(Protocol):
    """Decoder of a format.

    The module of a format is imported with the first body of that format, because most processes
    receive a single format, and importing all decoders takes a good part of the time of a small
    trace.
    """

    def __call__(
        self, body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
    ) -> Decoded:
        """Decode and check a body; see `app.analysis.trace.decode.decode`."""


@dataclass(frozen=True, slots=True)
class SenderHints:
    """Facts about a recording that its sender gives in addition to the metadata."""

    own: OwnRanges | None = None  # the job's labels for ranges of its own
    names: FileNames = UNNAMED  # rank and world from the names of the session's files


NO_HINTS: Final = SenderHints()


class DecodeWithHints(Protocol):
    """Decoder of a format whose result depends on the sender's hints."""

    def __call__(
        self,
        body: Path | bytes,
        meta: SessionMeta | None,
        limits: Limits,
        *,
        part: bool,
        hints: SenderHints = ...,
    ) -> Decoded:
        """Decode and check a body; see `app.analysis.trace.decode.decode`."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Encoder of a trace in one format."""

    file_name: str  # name of the file that the command line writes
    encode: Callable[[Trace], bytes]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format in which traces are accepted."""

    name: str  # identifier in interfaces, such as a session's format
    title: str  # display name
    # Media types that senders use, ours first. A type that begins with `OWN_MEDIA_TYPE` identifies
    # the format; several formats may share another type.
    media_types: tuple[str, ...]
    suffixes: tuple[str, ...]  # file suffixes, without a suffix of compression
    # Returns whether a body with this beginning has this format. Formats with the same beginning
    # share one `sniff`, and a `decode` that distinguishes them.
    sniff: Callable[[Head], bool]
    decode: Decode
    text: bool = False  # bodies are text, perhaps compressed with gzip or zstd
    # Times count from the earliest start of their step, so times of different steps are not
    # comparable, and a session cannot mix chunks of this format with chunks of other formats.
    step_relative: bool = False
    # Encoders by the format name in ``paceline synth --format``; empty if Paceline does not write
    # the format.
    writers: Mapping[str, Writer] = field(default_factory=dict)
    # Name of the program that writes a foreign format, for ``paceline convert``.
    recorder: str | None = None
    # decode_with_hints: used instead of `decode` if the sender's hints affect the result.
    # own_ranges: recorded ranges have names, which label patterns of the job may match.
    decode_with_hints: DecodeWithHints | None = None
    own_ranges: bool = False
    # Each file belongs to one host and numbers its ranks from 0.
    numbers_ranks: bool = False
    # Each step of a rank is in a single recording: a step is never split over two recordings.
    whole_steps: bool = False
    # Takes a file name; returns the name of the complete file if the file is a shortened copy.
    copy_of: Callable[[str], str | None] | None = None
    # Only the command line reads such files, never a server.
    local_only: bool = False
