"""Reader of JSON longer than memory, item by item.

A profiler writes an object with fields and one array of events, or only this array, on one line or
on millions of lines. Fields are read whole, array items one at a time; one piece of text and one
item are in memory. Fractions are exact decimals, so microseconds with three digits become exact
nanoseconds. ``NaN``, ``Infinity``, ``nan`` and ``inf`` are not JSON, but recorders write them if
they divide by zero: they are read as floats and refused as times.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final, NoReturn

from app.analysis.trace.compression import read_text
from app.analysis.trace.limits import MIB, Limits, refuse, refuse_body
from app.analysis.trace.recordings.events import Event, event_of
from app.errors import Fault, InvalidTraceError

# Maximum number of characters of an event; an event with its call stack and tensor shapes has some
# kilobytes.
MAX_ITEM_CHARS: Final = MIB
# Maximum number of characters of a field; the process groups of 16,384 ranks take about 1 MiB.
MAX_FIELD_CHARS: Final = 4 * MIB
_FIRST_LOOK: Final = 64 * 1024
_SPACE: Final = " \t\n\r"
# Characters of a batch of items, which is parsed at once.
BATCH_CHARS: Final = MIB
# Items to read one by one before the next attempt at a batch, after text without an item boundary.
_FEW: Final = 64

_NEXT_LINE: Final = "}\n{"

# Takes a batch of items, one per line: the text, the number of items, the 0-based index of the
# first item. Returns whether it accepted the batch; the items of a rejected batch are read one by
# one.
TakeBatch = Callable[[str, int, int], bool]
# Spellings of NaN and infinity: `_NAN` is accepted by Python's `json`, `_NO_VALUE` matches what C
# and C++ write.
_NAN: Final = "NaN"
_NO_VALUE: Final = re.compile(r"-?(?:nan|inf)(?![a-z])", re.IGNORECASE)
_STRING_OR_NO_VALUE: Final = re.compile(
    r'"(?:[^"\\]|\\.)*+(?:"|\Z)|-?(?:nan|inf)(?![a-z])', re.IGNORECASE | re.DOTALL
)


# Most characters that are scanned in vain in search of the items behind those that are no JSON, in
# one text, so that a text of broken items costs no more than its length and this number.
_MOST_SCANNED: Final = 64 * MIB
_BETWEEN_OBJECTS: Final = re.compile(r"\}[ \t\n\r]*,[ \t\n\r]*(?=\{)")
_END_OF_ARRAY: Final = re.compile(r"\}[ \t\n\r]*(?=\][ \t\n\r]*(?:[,}]|\Z))")
# Maximum number of characters between two items where one of them is no JSON.
_MOST_BETWEEN: Final = 256
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_FIRST_WINDOW: Final = 1024  # characters of a candidate for an item that are scanned first
# Maximum number of characters that a scanner may need behind an error's place to change its mind.
_LOOKAHEAD: Final = len("-Infinity")


# Most faulty items that are left out: this number, or this share of all items.
_FEW_FAULTS: Final = 10
_FEW_OF_ALL: Final = 0.05


@dataclass(slots=True)
class Skipped:
    """Faulty items of an array that are left out, as events with unescaped quotes in a name.

    Parameters
    ----------
    key : str
        Key that each item of the array has; an object without it is inside an item that is no JSON.
    """

    key: str
    count: int = 0
    items: int = 0  # all items that were read
    scanned: int = 0  # characters scanned in vain
    replaced: int = 0  # bytes that are not UTF-8
    first: InvalidTraceError | None = None

    def leave_out(self, error: InvalidTraceError, count: int = 1) -> None:
        """Count items that are left out because of an error."""
        self.count += count
        self.first = self.first or error

    def check(self) -> None:
        """Refuse a text with many faulty items.

        Raises
        ------
        InvalidTraceError
            The first of them.
        """
        if self.first is not None and self.count > max(_FEW_FAULTS, _FEW_OF_ALL * self.items):
            raise self.first


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the outermost JSON object."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Item:
    """An array item, and its 0-based index in the array."""

    index: int
    value: object


def read_items(  # noqa: PLR0913 - options of the reader of a format
    body: Path | bytes,
    limits: Limits,
    arrays: frozenset[str],
    *,
    longest_item: int = MAX_ITEM_CHARS,
    batches: TakeBatch | None = None,
    skipped: Skipped | None = None,
) -> Iterator[Field | Item]:
    """Yield the fields of a JSON object and the items of its long arrays, or an array's items.

    Several consecutive objects, as on the lines of a collector's file, are read as one object.

    Parameters
    ----------
    body : Path or bytes
        Plain, gzip or zstd.
    arrays : frozenset of str
        Names of the long arrays, whose items are yielded one by one.
    longest_item : int
        Most characters of an item.
    batches : callable, optional
        Takes items in batches; accepted ones are not yielded.
    skipped : Skipped, optional
        Counts items that are no JSON, which are left out; else they are refused.

    Raises
    ------
    InvalidTraceError
        `trace.bad_json` with the item where the text is not JSON, `trace.item_too_long`,
        `trace.truncated`, `trace.corrupt`.
    BodyTooLargeError
        `body.too_large`.
    """
    text = _Text(body, limits, longest_item, skipped)
    opening = text.next_char()
    while opening:
        if opening == "[":
            yield from text.items(batches)
        elif opening == "{":
            yield from _object(text, arrays, batches)
        else:
            text.refuse_json("an object or an array must begin here")
        opening = text.next_char()


def read_values(body: Path | bytes, limits: Limits) -> Iterator[Item]:
    """Yield the items of an array, or the objects of a sequence without an array.

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


def _object(
    text: _Text, arrays: frozenset[str], batches: TakeBatch | None
) -> Iterator[Field | Item]:
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
            yield from text.items(batches)
        else:
            text.back()
            yield Field(name, text.value(MAX_FIELD_CHARS))
        char = text.next_char()
        if char == "}":
            return
        if char != ",":
            text.refuse_json("a comma or the end of the object must stand here")


class _Text:
    """Cursor in JSON text that arrives in pieces."""

    def __init__(
        self,
        body: Path | bytes,
        limits: Limits,
        longest_item: int,
        skipped: Skipped | None = None,
    ) -> None:
        self._longest_item = longest_item
        self._skipped = skipped
        self._pieces = read_text(body, limits)
        # In a text whose faulty items may be left out, bytes that are not UTF-8 are replaced: they
        # are in names, since JSON's own characters are ASCII.
        errors = "strict" if skipped is None else "replace"
        self._decode = codecs.getincrementaldecoder("utf-8")(errors)
        self._scan = json.JSONDecoder(
            parse_float=Decimal, parse_constant=float, strict=False
        ).raw_decode
        self._buffer = ""
        self._at = 0
        self._ended = False
        self._between = ""  # text from the end of an item to the start of the next, once known
        self._item: int | None = None  # index of the current item of an array, for messages

    def next_char(self) -> str:
        """Return and consume the next non-space character; "" at the end."""
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
        """Move the cursor back by one, to the character that `next_char` returned."""
        if self._at:
            self._at -= 1

    def items(self, batches: TakeBatch | None = None) -> Iterator[Item]:
        """Yield the items of an array whose bracket was read, except items accepted in batches."""
        index = self._item = 0
        if self.next_char() == "]":
            self._item = None
            return
        self.back()
        one_by_one = 1
        while True:
            if batches is not None and not one_by_one:
                taken, one_by_one = self._batch(batches, index)
                index += taken
                self._item = index
            yield from self._next_item(index)
            one_by_one = max(one_by_one - 1, 0)
            end = self._at
            char = self.next_char()
            if char == "]":
                self._item = None
                return
            if char != ",":
                self.refuse_json("a comma or the end of the array must stand here")
            if batches is not None and not self._between:
                self._find_between(end)
            index += 1
            self._item = index
            if self._skipped is not None:
                self._skipped.items = index

    def _next_item(self, index: int) -> Iterator[Item]:
        """Yield the item at the cursor, unless it is no JSON and may be left out."""
        try:
            yield Item(index, self.value(self._longest_item))
        except InvalidTraceError as error:
            count = 0 if self._skipped is None else self._skip(self._skipped)
            if self._skipped is None or not count:
                raise
            self._skipped.leave_out(error, count)

    def _find_between(self, end: int) -> None:
        """Set the text between two items from that behind the first one, which ended at `end`."""
        comma = self._at
        if self.next_char() == "{":
            self.back()
            between = self._buffer[comma - 1 : self._at]
            if end < comma and not between.strip(_SPACE + ","):
                self._between = "}" + between + "{"

    def _skip(self, skipped: Skipped) -> int:
        """Move to the end of an item that is no JSON, and of those behind it that are none.

        An item ends where an object ends and the next item, or the end of the array, follows.

        Returns
        -------
        int
            Number of items that are left out; 0 if no end is found.
        """
        begin = 0  # where the search goes on, from the cursor on
        objects = 1
        while True:
            match = _BETWEEN_OBJECTS.search(self._buffer, self._at + begin)
            if match is None:
                length = len(self._buffer) - self._at
                begin = max(begin, length - _MOST_BETWEEN)
                if length <= self._longest_item and self._more():
                    continue
                ends = [end.start() for end in _END_OF_ARRAY.finditer(self._buffer, self._at)]
                if not (self._ended and ends):
                    return 0
                begin = ends[-1] + 1 - self._at
                break
            begin = match.start() + 1 - self._at
            if begin > self._longest_item or skipped.scanned > _MOST_SCANNED:
                return 0
            if self._is_item_at(match.end() - self._at, skipped):
                break
            objects += 1
        end = self._at + begin
        # An object inside a name lacks the key; without any key all objects count.
        keys = self._buffer.count(f'"{skipped.key}"', self._at, end)
        self._at = end
        return keys or objects

    def _is_item_at(self, place: int, skipped: Skipped) -> bool:
        """Return whether an item of the array begins at a place behind the cursor."""
        # The scanner gets little text, because its errors count the lines before their place.
        window = _FIRST_WINDOW
        while skipped.scanned <= _MOST_SCANNED:
            at = self._at + place
            text = self._buffer[at : at + window]
            try:
                value, end = self._scan(text, 0)
            except (ValueError, InvalidOperation, RecursionError) as error:
                skipped.scanned += 1 + getattr(error, "pos", len(text))
                final = isinstance(error, json.JSONDecodeError) and _is_final(error, len(text))
                if final or len(text) > self._longest_item:
                    return False
                window *= 2
                if len(text) < window // 2 and not self._more():
                    return False
            else:
                skipped.scanned += end
                return isinstance(value, dict) and skipped.key in value
        return False

    def _batch(self, take: TakeBatch, index: int) -> tuple[int, int]:
        """Pass the next items as a batch to the `batches` callback of `read_items`.

        Returns
        -------
        taken : int
            Items accepted in the batch.
        one_by_one : int
            Number of items to read one by one before the next batch.
        """
        between = self._between
        while len(self._buffer) - self._at < BATCH_CHARS and self._more():
            pass
        if self.next_char() != "{":
            self.back()
            return 0, 1
        self.back()
        end = self._buffer.rfind(between, self._at, self._at + 2 * BATCH_CHARS) if between else -1
        if end < 0:
            return 0, _FEW
        text = self._buffer[self._at : end + 1]
        lines = text.replace(between, _NEXT_LINE)
        shorter = len(between) - len(_NEXT_LINE)
        count = 1 + ((len(text) - len(lines)) // shorter if shorter else text.count(between))
        if not take(lines, count, index):
            return 0, count
        self._at = end + len(between) - 1
        return count, 0

    def value(self, longest: int) -> object:
        """Return and consume the JSON value at the cursor, of at most `longest` characters."""
        wanted = _FIRST_LOOK
        # Python's JSON scanner accepts no space before the value.
        if self.next_char():
            self.back()
        while True:
            try:
                value, end = self._scan(self._buffer, self._at)
            except RecursionError:
                self.refuse_json("nested too deep")
            except (ValueError, InvalidOperation) as error:
                if isinstance(error, json.JSONDecodeError) and self._respell_floats(error):
                    continue
                # The error may come from a value that continues in the next piece.
                final = isinstance(error, json.JSONDecodeError) and _is_final(
                    error, len(self._buffer)
                )
                if final or not self._longer(wanted, longest):
                    self._refuse_value(error)
            else:
                # A number that ends with the buffer may continue in the next piece of text.
                if end < len(self._buffer) or not self._more():
                    self._at = end
                    return value
            wanted *= 2

    def _respell_floats(self, error: json.JSONDecodeError) -> bool:
        """Respell NaN and infinities after an error as `json` does; return whether any occurred.

        All such values in the buffer are replaced at once, so that many values cost no more than a
        single value.
        """
        unknown = _NO_VALUE.match(self._buffer, error.pos)
        if unknown is None or unknown[0] == _NAN or not error.msg.startswith("Expecting value"):
            return False

        def respelled(match: re.Match[str]) -> str:
            text = match[0]
            return text if text.startswith('"') else _NAN.rjust(len(text))

        rest = _STRING_OR_NO_VALUE.sub(respelled, self._buffer[error.pos :])
        self._buffer = self._buffer[: error.pos] + rest
        if error.pos == self._at:
            self._at = unknown.end() - len(_NAN)
        return True

    def _refuse_value(self, error: ValueError | InvalidOperation) -> NoReturn:
        if isinstance(error, json.JSONDecodeError):
            cut = error.pos >= len(self._buffer) or error.msg.startswith("Unterminated string")
            self.refuse_json(error.msg, cut=cut)
        if isinstance(error, InvalidOperation):
            self.refuse_json("a number's exponent is beyond all exponents")
        self.refuse_json(str(error)[:80])

    def refuse_json(self, message: str, *, cut: bool = False) -> NoReturn:
        """Refuse the text because of a fault at the cursor; `cut` if it is the end of the text."""
        if self._ended and (cut or self._at >= len(self._buffer)):
            inside = "" if self._item is None else f", in event {self._item}"
            refuse([Fault("truncated", f"the JSON ends in the middle{inside}", row=self._item)])
        where = "" if self._item is None else f"event {self._item} "
        refuse([Fault("bad_json", f"{where}is no JSON: {message}".strip(), row=self._item)])

    def _longer(self, wanted: int, longest: int) -> bool:
        """Read until the buffer holds `wanted` characters; return whether any text was added."""
        if len(self._buffer) - self._at > longest:
            message = f"a value is over {longest} characters, or is no JSON"
            refuse([Fault("item_too_long", message, row=self._item)])
        before = len(self._buffer) - self._at
        while len(self._buffer) - self._at < max(wanted, before + 1):
            if not self._more():
                break
        return len(self._buffer) - self._at > before

    def _more(self) -> bool:
        """Append the next piece of text to the buffer; return whether there was a piece."""
        while not self._ended:
            piece = next(self._pieces, None)
            self._ended = piece is None
            try:
                text = self._decode.decode(piece or b"", final=self._ended)
            except UnicodeDecodeError as error:
                refuse_body("corrupt", f"the text is not UTF-8: {error.reason}")
            if self._skipped is not None:
                replaced = text.count(_REPLACEMENT) - (piece or b"").count(_REPLACEMENT.encode())
                self._skipped.replaced += max(replaced, 0)
            if text:
                self._buffer = self._buffer[self._at :] + text
                self._at = 0
                return True
        return False


def _is_final(error: json.JSONDecodeError, length: int) -> bool:
    """Return whether more text than `length` characters would not change a scanner's error."""
    return not error.msg.startswith("Unterminated string") and error.pos < length - _LOOKAHEAD


def read_events(body: Path | bytes, limits: Limits) -> Iterator[Event]:
    """Yield the events of a file in Chrome's trace format: under ``traceEvents``, or a bare array.

    Raises
    ------
    InvalidTraceError, BodyTooLargeError
        See `read_items` and `event_of`.
    """
    for item in read_items(body, limits, frozenset({"traceEvents"})):
        if isinstance(item, Item):
            yield event_of(item.index, item.value)
