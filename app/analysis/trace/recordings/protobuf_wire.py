"""Reader of protobuf's wire format, field by field, for messages longer than memory.

The official runtime parses a message as a whole. This module splits the outermost messages of files
of gigabytes, and the runtime parses the parts one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from app.analysis.trace.limits import refuse_body

# Wire types: https://protobuf.dev/programming-guides/encoding/#structure
VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_FIXED: Final = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10
_STRETCH_BYTES: Final = 256 * 1024
_LOW_BITS: Final = 0x7F


@dataclass(frozen=True, slots=True)
class Field:
    """Header of a message field; the bytes of its value follow unless the value is a varint."""

    number: int
    kind: int  # wire type
    size: int  # bytes of the value that follows; 0 for a varint
    value: int = 0  # value of a varint


def _whole_fields(piece: bytes) -> int:  # noqa: C901 - calls would take longer than the work
    """Return the number of bytes at the start of a piece that form whole fields.

    The loop runs for each of millions of events, so the decoding of numbers is inlined.
    """
    at = whole = 0
    end = len(piece)
    try:
        while at < end:
            tag = piece[at]
            at += 1
            if tag > _LOW_BITS:
                while piece[at] > _LOW_BITS:
                    at += 1
                at += 1
            kind = tag & 7
            if kind == BYTES:
                size = shift = 0
                while (byte := piece[at]) > _LOW_BITS:
                    size |= (byte & _LOW_BITS) << shift
                    shift += 7
                    at += 1
                at += 1 + (size | byte << shift)
            elif kind == VARINT:
                while piece[at] > _LOW_BITS:
                    at += 1
                at += 1
            elif kind in _FIXED:
                at += _FIXED[kind]
            else:
                # The rest of the piece is counted as whole, so that the protobuf runtime parses it
                # and raises its error for the unknown wire type.
                return end
            if at <= end:
                whole = at
    except IndexError:
        # The piece ends within a number.
        return whole
    return whole


class Wire:
    """Cursor in a protobuf message whose bytes arrive in pieces.

    Parameters
    ----------
    pieces : iterator of bytes
        Consecutive parts of the message.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = b""
        self._at = 0
        self._before = 0  # number of bytes read before the buffer

    @property
    def place(self) -> int:
        """Return the number of bytes read so far."""
        return self._before + self._at

    def at_end(self) -> bool:
        """Return whether the cursor is at the end of the message."""
        return not self.peek(1)

    def peek(self, size: int) -> bytes:
        """Return the next bytes without consuming them; fewer at the end of the message."""
        while len(self._buffer) - self._at < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._before += self._at
            self._buffer = self._buffer[self._at :] + piece
            self._at = 0
        return self._buffer[self._at : self._at + size]

    def take(self, size: int) -> bytes:
        """Return and consume the next bytes.

        Raises
        ------
        InvalidTraceError
            `trace.truncated`.
        """
        taken = self.peek(size)
        if len(taken) < size:
            message = f"the protobuf ends in the middle of a value at byte {self.place}"
            refuse_body("truncated", message)
        self._at += size
        return taken

    def varint(self) -> int:
        """Return and consume a varint.

        Raises
        ------
        InvalidTraceError
            `trace.truncated`, `trace.corrupt`.
        """
        value = count = 0
        while (byte := self.take(1)[0]) > _LOW_BITS:
            value |= (byte & _LOW_BITS) << 7 * count
            count += 1
            if count == _MAX_VARINT_BYTES:
                self._refuse("a number is too long")
        return value | byte << 7 * count

    def fields(self, size: int | None = None) -> Iterator[Field]:
        """Yield the fields of a message; skip the rest of a value that the caller has not read.

        Parameters
        ----------
        size : int or None
            Bytes of the message; None for all bytes to the end.

        Raises
        ------
        InvalidTraceError
            `trace.truncated`, `trace.corrupt`, with the place in bytes.
        """
        end = None if size is None else self.place + size
        while self.place < end if end is not None else not self.at_end():
            tag = self.varint()
            number, kind = tag >> 3, tag & 7
            if kind == VARINT:
                yield Field(number, kind, 0, self.varint())
                continue
            if kind not in _FIXED and kind != BYTES:
                self._refuse(f"there is no wire type {kind}")
            length = self.varint() if kind == BYTES else _FIXED[kind]
            after = self.place + length
            if end is not None and after > end:
                self._refuse("a field is longer than its message")
            yield Field(number, kind, length)
            # Skip the value in pieces, since it may be longer than memory.
            while (left := after - self.place) > len(self._buffer) - self._at:
                self._at = len(self._buffer)
                if self.at_end():
                    self.take(left)
            self._at += left
        if end is not None and self.place > end:
            self._refuse("a field is longer than its message")

    def stretches(self, size: int, longest: int) -> Iterator[bytes]:
        """Yield parts of a message, each of them a valid message with thousands of whole fields.

        Parameters
        ----------
        size : int
            Bytes of the message.
        longest : int
            Most bytes of a field.

        Raises
        ------
        InvalidTraceError
            `trace.corrupt`, `trace.truncated`, `trace.item_too_long`.
        """
        end = self.place + size
        wanted = _STRETCH_BYTES
        while self.place < end:
            piece = self.peek(min(wanted, end - self.place))
            whole = _whole_fields(piece)
            if whole:
                yield self.take(whole)
                wanted = _STRETCH_BYTES
            elif len(piece) == end - self.place:
                self._refuse("a field is longer than its message")
            elif len(piece) < wanted:
                self.take(wanted)
            elif wanted > longest:
                refuse_body(
                    "item_too_long", f"a field at byte {self.place} is over {longest} bytes"
                )
            else:
                wanted *= 2

    def _refuse(self, message: str) -> NoReturn:
        refuse_body("corrupt", f"no protobuf at byte {self.place}: {message}")
