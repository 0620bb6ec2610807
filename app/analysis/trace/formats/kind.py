"""Trace format: its description, and recognition by the first bytes of a body.

Recordings of different programs are all JSON, and the words of one format may occur in another's
text, so JSON is parsed up to its first events. The array of events may follow megabytes of
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
    begin_of_text,
    without_mark,
)
from app.analysis.trace.limits import MIB, Limits
from app.analysis.trace.metadata import Unmapped
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.recordings.files import UNNAMED, FileNames
from app.analysis.trace.recordings.labels import OwnRanges

# ---- What JSON begins with: by that recordings of different programs are told apart ------------
# Words that a format has may stand anywhere in another one's text, and the array of events may
# begin behind megabytes of metadata. So the text is read as JSON as far as its first events.


# Fields with an array that is as long as the recording; nothing behind it is looked at.
LONG_FIELDS: Final = frozenset({"traceEvents", "resourceSpans"})
# Profilers put the names of all processes and threads before the first range.
MOST_EVENTS: Final = 1024
_MOST_TEXT: Final = 8 * MIB
_SPACE: Final = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What JSON begins with, which may be cut off."""

    array: bool  # its outermost value is an array, else an object
    # Names of the object's fields, in order, as far as the first long array.
    fields: tuple[str, ...]
    # The first objects of that array, or of the outermost one; `MOST_EVENTS` at most.
    events: tuple[Mapping[str, object], ...]

    def any_event(self, *keys: str) -> bool:
        """Return whether an event has all of these keys."""
        return any(all(key in event for key in keys) for event in self.events)

    def values(self, key: str) -> frozenset[str]:
        """Return the texts that events have under a key."""
        found = (event.get(key) for event in self.events)
        return frozenset(value for value in found if isinstance(value, str))


def outline_of(pieces: Iterator[bytes]) -> Outline | None:
    """Return what a text begins with as JSON, None where it is none.

    Parameters
    ----------
    pieces : iterator of bytes
        UTF-8, without a byte order mark. No more is taken than is needed.
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
    """Yield the first objects of an array whose bracket was read."""
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
    """The text ends here, or is no JSON."""


class _Text:
    """A cursor in the begin of a text."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._buffer = ""
        self._at = 0
        self._taken = 0

    def peek(self) -> str:
        """Return the next character that is no space, "" at the end."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            self._at = self._at if space is None else space.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def char(self) -> str:
        """Return the next character that is no space, "" at the end, and step over it."""
        char = self.peek()
        self._at += len(char)
        return char

    def value(self) -> object:
        """Return the JSON value that begins here.

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
                # A number at the end of a piece may go on in the next.
                if end < len(self._buffer) or not self._more():
                    self._at = end
                    return value
                continue
            # Twice as much again, so that a long value is not read over and over.
            if not self._more(len(self._buffer) - self._at):
                raise _EndError

    def _more(self, wanted: int = 1) -> bool:
        """Take pieces of `wanted` bytes or more; return whether there were any."""
        taken: list[bytes] = []
        while wanted > 0 and self._taken < _MOST_TEXT and (piece := next(self._pieces, b"")):
            taken.append(piece)
            self._taken += len(piece)
            wanted -= len(piece)
        self._buffer = self._buffer[self._at :] + self._decode(b"".join(taken))
        self._at = 0
        return bool(taken)


# ---- The beginning of a body, by which its format is recognized --------------------------------


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


# ---- What a trace format is --------------------------------------------------------------------


OWN_MEDIA_TYPE: Final = "application/vnd.paceline."


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded body."""

    trace: Trace
    trace_format: str  # the name of its format
    unmapped: tuple[Unmapped, ...] = ()  # what else it holds, that is no operation


class Decode(Protocol):
    """What decodes bodies of a format.

    What only one format needs is imported when a body of it comes: most processes meet one format,
    and reading all of them takes a good part of the time that a small trace takes.
    """

    def __call__(
        self, body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
    ) -> Decoded:
        """Decode and check a body; see `app.analysis.trace.decode.decode`."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a sender says about a recording in addition to its metadata."""

    own: OwnRanges | None = None  # what the job calls ranges of its own
    names: FileNames = UNNAMED  # what the names of its session's files say


NOTHING_TOLD: Final = Told()


class DecodeTold(Protocol):
    """What decodes bodies of a format by what their sender says about them."""

    def __call__(
        self,
        body: Path | bytes,
        meta: SessionMeta | None,
        limits: Limits,
        *,
        part: bool,
        told: Told = ...,
    ) -> Decoded:
        """Decode and check a body; see `app.analysis.trace.decode.decode`."""


@dataclass(frozen=True, slots=True)
class Writer:
    """How a trace is written in a format."""

    file_name: str  # of the file that the command line writes
    encode: Callable[[Trace], bytes]  # returns the bytes of a trace


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format in which traces are accepted."""

    name: str  # as sessions carry it
    title: str  # as people call it
    # What senders call it; the first one is ours. One that begins with `OWN_MEDIA_TYPE` says for
    # sure which format it is, others only that it may be this one.
    media_types: tuple[str, ...]
    suffixes: tuple[str, ...]  # of its files, without that of a compression
    # Takes the beginning of a body and returns whether it is of this format. Formats that begin
    # alike have the same `sniff` and the same `decode`, which tells them apart.
    sniff: Callable[[Head], bool]
    decode: Decode
    text: bool = False  # it is text, which may come compressed with gzip or zstd
    # Its times count from the earliest start of their step, so that nothing is known across
    # steps; its chunks do not mix with those of other formats.
    step_relative: bool = False
    # By the name that ``paceline synth --format`` takes; empty where nothing writes it.
    writers: Mapping[str, Writer] = field(default_factory=dict)
    # What writes it, where that is another program: then ``paceline convert`` reads it.
    recorder: str | None = None
    # Where it depends on what senders say about a recording; `own_ranges` where ranges have names
    # that the job gives them.
    decode_told: DecodeTold | None = None
    own_ranges: bool = False
    # Each file numbers the ranks that it holds from 0, as those of one host.
    numbers_ranks: bool = False
    # Each of its recordings holds whole steps of its ranks: a step is in one of them.
    whole_steps: bool = False
    # Takes the name of a file; returns that of the file of which it is a shortened copy, if it is
    # one.
    copy_of: Callable[[str], str | None] | None = None
    # Its files are opened on the machine of who has them only, never by a server.
    local_only: bool = False
