"""What JSON begins with: by that recordings of different programs are told apart.

Words that a format has may stand anywhere in another one's text, and the array of events may begin
behind megabytes of metadata. So the text is read as JSON as far as its first events.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from app.analysis.trace.limits import MIB

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
