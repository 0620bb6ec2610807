"""Checked access to the fields of a recording's events, as parsed from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn

from app.analysis.trace.limits import MAX_TIME_NS, refuse
from app.errors import Fault

NS_PER_US: Final = 1000
# Largest power of ten of a time: larger numbers are no times, and take much memory as integers.
_MAX_POWER: Final = 30


class Event:
    """An event of a recording, with checked access to its fields.

    Parameters
    ----------
    index : int
        0-based position in the recording.
    fields : mapping
        As parsed from JSON, fractions as `decimal.Decimal`.
    """

    __slots__ = ("fields", "index")

    def __init__(self, index: int, fields: Mapping[str, Any]) -> None:
        self.index = index
        self.fields = fields

    @property
    def args(self) -> Event:
        """Return the event's arguments; empty if it has none."""
        args = self.fields.get("args")
        return Event(self.index, args if isinstance(args, dict) else {})

    def text(self, key: str) -> str:
        """Return the text under a key; "" if it is missing or null.

        Raises
        ------
        InvalidTraceError
            `trace.wrong_type`.
        """
        value = self.fields.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            self._refuse(key, "text")
        return value

    def integer(self, key: str) -> int:
        """Return the 64-bit integer under a key, which may also be written as text.

        Raises
        ------
        InvalidTraceError
            `trace.missing_key`, `trace.wrong_type`, `trace.integer_overflow`.
        """
        value = self.optional_integer(key)
        if value is None:
            self._refuse_missing(key)
        return value

    def optional_integer(self, key: str) -> int | None:
        """Return the 64-bit integer under a key; None if it is missing or null.

        Raises
        ------
        InvalidTraceError
            `trace.wrong_type`, `trace.integer_overflow`.
        """
        value = self.fields.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            value = _number(value)
        if isinstance(value, Decimal) and value.adjusted() < _MAX_POWER and value % 1 == 0:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(key, "an integer")
        if not -(1 << 63) <= value < 1 << 63:
            self._refuse_size(key)
        return value

    def name(self, key: str) -> int | str:
        """Return the value under a key that names a process, thread or stream, for dictionaries.

        Python hashes integers modulo 2^61 - 1: integers beyond 64 bits may have equal hashes, and a
        dictionary of n such keys takes n² steps to build.

        Raises
        ------
        InvalidTraceError
            `trace.integer_overflow`.
        """
        value = self.fields.get(key)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            self._refuse_size(key)
        return value if isinstance(value, int | str) else str(value)

    def optional_identifier(self, key: str) -> int | None:
        """Return the 64-bit identifier under a key as a signed integer; None if it is missing.

        Recorders write identifiers with a sign or without it.

        Raises
        ------
        InvalidTraceError
            `trace.wrong_type`, `trace.integer_overflow`.
        """
        value = self.fields.get(key)
        if isinstance(value, int) and 1 << 63 <= value < 1 << 64:
            return value - (1 << 64)
        return self.optional_integer(key)

    def duration_ns(self, key: str, scale: int) -> int:
        """Return the duration under a key in ns, rounded, and clipped to `MAX_TIME_NS`.

        Clipping is needed because profilers now and then record durations of centuries; such an
        operation is no reason to refuse the recording.
        """
        value = self.fields.get(key)
        if isinstance(value, Decimal) and value and value.adjusted() >= _MAX_POWER:
            return MAX_TIME_NS if value > 0 else -MAX_TIME_NS
        return max(-MAX_TIME_NS, min(MAX_TIME_NS, self._nanoseconds(key, scale)))

    def nanoseconds(self, key: str, scale: int) -> int:
        """Return the time under a key in ns, rounded to the nearest integer.

        Parameters
        ----------
        scale : int
            Nanoseconds in the unit of the recording.

        Raises
        ------
        InvalidTraceError
            `trace.missing_key`, `trace.wrong_type`, `trace.not_finite`, `trace.time_overflow`.
        """
        nanoseconds = self._nanoseconds(key, scale)
        if abs(nanoseconds) > MAX_TIME_NS:
            self._refuse_time(key)
        return nanoseconds

    def _nanoseconds(self, key: str, scale: int) -> int:
        value = self.fields.get(key)
        if value is None:
            self._refuse_missing(key)
        if isinstance(value, str):
            value = _number(value)
        if isinstance(value, float):
            message = f"the {key} of event {self.index} is {value}"
            refuse([Fault("not_finite", message, row=self.index, column=key)])
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            self._refuse(key, "a time")
        if isinstance(value, Decimal):
            # The test for zero comes first because a zero may have any exponent.
            if value and value.adjusted() >= _MAX_POWER:
                self._refuse_time(key)
            return round(value * scale) if value.adjusted() > -_MAX_POWER else 0
        return value * scale

    def _refuse_missing(self, key: str) -> NoReturn:
        message = f"event {self.index} has no {key}"
        refuse([Fault("missing_key", message, row=self.index, column=key)])

    def _refuse(self, key: str, expected: str) -> NoReturn:
        message = f"the {key} of event {self.index} is not {expected}"
        refuse([Fault("wrong_type", message, row=self.index, column=key)])

    def _refuse_size(self, key: str) -> NoReturn:
        message = f"the {key} of event {self.index} does not fit in 64 bits"
        refuse([Fault("integer_overflow", message, row=self.index, column=key)])

    def _refuse_time(self, key: str) -> NoReturn:
        message = f"the {key} of event {self.index} is beyond all times"
        refuse([Fault("time_overflow", message, row=self.index, column=key)])


def _number(text: str) -> int | Decimal | str:
    """Return the number in a text, or the text itself if it is not a number.

    Exporters write 64-bit integers as text.
    """
    if len(text) > _MAX_POWER or not text.isascii():
        return text
    body = text.removeprefix("-")
    if body.isdecimal():
        return int(text)
    whole, _, fraction = body.partition(".")
    return Decimal(text) if whole.isdecimal() and fraction.isdecimal() else text


def event_of(index: int, value: object) -> Event:
    """Return an array item as an event.

    Raises
    ------
    InvalidTraceError
        `trace.bad_event`: the item is no object.
    """
    if not isinstance(value, dict):
        refuse([Fault("bad_event", f"event {index} is no object", row=index)])
    return Event(index, value)
