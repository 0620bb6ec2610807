"""JSON that is too long for memory, read item by item.

A profiler writes one object with some fields and one array of all events, or that array alone, on
one line or on millions. Fields are given whole, the array's items one after the other; what is in
memory is one piece of text and one item. Fractions are exact decimals, so that microseconds with
three digits behind the point become the nanoseconds that they are.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final, NoReturn

from app.analysis.trace.faults import refuse, refuse_body
from app.analysis.trace.limits import MIB, Limits
from app.analysis.trace.ndjson.streams import read_text
from app.errors import Fault

# An event with its stack and shapes has some kilobytes.
MAX_ITEM_CHARS: Final = MIB
# Process groups of 16,384 ranks have about 1 MiB.
MAX_FIELD_CHARS: Final = 4 * MIB
_FIRST_LOOK: Final = 64 * 1024
_SPACE: Final = " \t\n\r"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the outermost object."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Item:
    """An item of an array: its 0-based position there and what it is."""

    index: int
    value: object


def read_items(
    body: Path | bytes,
    limits: Limits,
    arrays: frozenset[str],
    *,
    longest_item: int = MAX_ITEM_CHARS,
) -> Iterator[Field | Item]:
    """Yield the fields of a JSON object and the items of its long arrays, or those of an array.

    Several objects one after the other, as on the lines of a collector's file, are read as one.

    Parameters
    ----------
    body : Path or bytes
        Plain, gzip or zstd.
    arrays : frozenset of str
        Fields whose items are given one by one.
    longest_item : int
        Characters that an item may have.

    Raises
    ------
    InvalidTraceError
        `trace.bad_json` with the item where the text is no JSON, `trace.item_too_long`,
        `trace.truncated`, `trace.corrupt`.
    BodyTooLargeError
        `body.too_large`.
    """
    text = _Text(body, limits, longest_item)
    opening = text.next_char()
    while opening:
        if opening == "[":
            yield from text.items()
        elif opening == "{":
            yield from _object(text, arrays)
        else:
            text.refuse_json("an object or an array must begin here")
        opening = text.next_char()


def read_values(body: Path | bytes, limits: Limits) -> Iterator[Item]:
    """Yield the items of an array, or the objects that stand one after the other, a line each.

    Raises
    ------
    InvalidTraceError, BodyTooLargeError
        See `read_items`.
    """
    text = _Text(body, limits, MAX_ITEM_CHARS)
    opening, index = text.next_char(), 0
    while opening:
        if opening == "[":
            yield from text.items()
        else:
            text.back()
            yield Item(index, text.value(MAX_ITEM_CHARS))
            index += 1
        opening = text.next_char()


def _object(text: _Text, arrays: frozenset[str]) -> Iterator[Field | Item]:
    char = text.next_char()
    if char == "}":
        return
    text.back()
    while True:
        name = text.value(MAX_ITEM_CHARS)
        if not isinstance(name, str) or text.next_char() != ":":
            text.refuse_json("a field has a name and a colon")
        char = text.next_char()
        if char == "[" and name in arrays:
            yield from text.items()
        else:
            text.back()
            yield Field(name, text.value(MAX_FIELD_CHARS))
        char = text.next_char()
        if char == "}":
            return
        if char != ",":
            text.refuse_json("a comma or the end of the object must stand here")


class _Text:
    """A cursor in text that comes in pieces."""

    def __init__(self, body: Path | bytes, limits: Limits, longest_item: int) -> None:
        self._longest_item = longest_item
        self._pieces = read_text(body, limits)
        self._decode = codecs.getincrementaldecoder("utf-8")("strict")
        self._scan = json.JSONDecoder(
            parse_float=Decimal, parse_constant=_refuse_constant, strict=False
        ).raw_decode
        self._buffer = ""
        self._at = 0
        self._ended = False
        # For messages: the item being read, of the array being read.
        self._item: int | None = None

    def next_char(self) -> str:
        """Return the next character that is no space, "" at the end, and step over it."""
        while True:
            buffer, at = self._buffer, self._at
            while at < len(buffer) and buffer[at] in _SPACE:
                at += 1
            self._at = at
            if at < len(buffer):
                self._at += 1
                return buffer[at]
            if not self._more():
                return ""

    def back(self) -> None:
        """Step back over the character that `next_char` gave."""
        if self._at:
            self._at -= 1

    def items(self) -> Iterator[Item]:
        """Yield the items of an array whose bracket was read."""
        index = self._item = 0
        if self.next_char() == "]":
            self._item = None
            return
        self.back()
        while True:
            yield Item(index, self.value(self._longest_item))
            char = self.next_char()
            if char == "]":
                self._item = None
                return
            if char != ",":
                self.refuse_json("a comma or the end of the array must stand here")
            index += 1
            self._item = index

    def value(self, longest: int) -> object:
        """Return the JSON value that begins here."""
        wanted = _FIRST_LOOK
        # The scanner takes no leading space.
        if self.next_char():
            self.back()
        while True:
            try:
                value, end = self._scan(self._buffer, self._at)
            except RecursionError:
                self.refuse_json("nested too deep")
            except (ValueError, InvalidOperation) as error:
                # It may only be cut off, which is known when there is no more.
                if not self._longer(wanted, longest):
                    self._refuse_value(error)
            else:
                # A number at the end of a piece may go on in the next.
                if end < len(self._buffer) or not self._more():
                    self._at = end
                    return value
            wanted *= 2

    def _refuse_value(self, error: ValueError | InvalidOperation) -> NoReturn:
        if isinstance(error, json.JSONDecodeError):
            cut = error.pos >= len(self._buffer) or error.msg.startswith("Unterminated string")
            if cut:
                self._at = len(self._buffer)
            self.refuse_json(error.msg)
        if isinstance(error, InvalidOperation):
            self.refuse_json("a number's exponent is beyond all exponents")
        self.refuse_json(str(error)[:80])

    def refuse_json(self, message: str) -> NoReturn:
        """Refuse the text for what stands here."""
        if self._ended and self._at >= len(self._buffer):
            refuse_body("truncated", "the JSON ends in the middle")
        where = "" if self._item is None else f"event {self._item} "
        refuse([Fault("bad_json", f"{where}is no JSON: {message}".strip(), row=self._item)])

    def _longer(self, wanted: int, longest: int) -> bool:
        """Read until `wanted` characters are there; return whether any came."""
        if len(self._buffer) - self._at > longest:
            message = f"a value is over {longest} characters, or is no JSON"
            refuse([Fault("item_too_long", message, row=self._item)])
        before = len(self._buffer) - self._at
        while len(self._buffer) - self._at < max(wanted, before + 1):
            if not self._more():
                break
        # Where nothing more came, what stands here is cut off, or wrong.
        return len(self._buffer) - self._at > before

    def _more(self) -> bool:
        """Take the next piece of text; return whether there was one."""
        while not self._ended:
            piece = next(self._pieces, None)
            self._ended = piece is None
            try:
                text = self._decode.decode(piece or b"", final=self._ended)
            except UnicodeDecodeError as error:
                refuse_body("corrupt", f"the text is not UTF-8: {error.reason}")
            if text:
                self._buffer = self._buffer[self._at :] + text
                self._at = 0
                return True
        return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
