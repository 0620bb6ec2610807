"""Reading of documents that others wrote: every fault is kept with its path, nothing is guessed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.errors import Fault

MOST_FAULTS: Final = 100


class Reader:
    """Collects the faults of a document; a value with a fault reads as None."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def fault(self, path: str, code: str, message: str) -> None:
        """Keep a fault."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(Fault(code, message, column=path))

    def mapping(
        self, path: str, value: object, known: Iterable[str], required: Iterable[str] = ()
    ) -> Mapping[str, Any] | None:
        """Return a mapping with known keys only."""
        if not isinstance(value, Mapping):
            self.fault(path, "bad_type", f"{path or 'the specification'} must be a mapping")
            return None
        known = list(known)
        for key in value:
            if key not in known:
                self.fault(join(path, key), "unknown_key", f"{join(path, key)} is not known here")
        for key in required:
            if key not in value:
                self.fault(join(path, key), "missing", f"{join(path, key)} is missing")
        return value

    def items(self, path: str, value: object, most: int) -> list[tuple[str, Any]]:
        """Return the items of a list with their paths; none where it is no list or too long."""
        if not isinstance(value, Sequence) or isinstance(value, str):
            self.fault(path, "bad_type", f"{path} must be a list")
            return []
        if not 1 <= len(value) <= most:
            self.fault(path, "bad_length", f"{path} must have 1 to {most} items")
            return []
        return [(f"{path}[{i}]", item) for i, item in enumerate(value)]

    def number(
        self,
        path: str,
        value: object,
        *,
        low: float = 0.0,
        high: float = 1e18,
        above: bool = False,
    ) -> float | None:
        """Return a number from `low` to `high`; `above`: greater than `low`."""
        number = _as_float(value)
        if number is None:
            self.fault(path, "bad_type", f"{path} must be a number")
            return None
        if not low <= number <= high or (above and number == low):
            sign = ">" if above else "≥"
            self.fault(path, "out_of_range", f"{path} must be {sign} {low:g} and ≤ {high:g}")
            return None
        return number

    def whole(self, path: str, value: object, *, low: int, high: int) -> int | None:
        """Return a whole number from `low` to `high`."""
        number = self.number(path, value, low=low, high=high)
        if number is None:
            return None
        if not number.is_integer():
            self.fault(path, "bad_type", f"{path} must be a whole number")
            return None
        return int(number)

    def text(self, path: str, value: object, choices: Iterable[str] = ()) -> str | None:
        """Return a short text, one of `choices` where there are any."""
        choices = list(choices)
        # YAML reads an unquoted 4090 as a number
        if isinstance(value, int) and not isinstance(value, bool) and not choices:
            value = str(value)
        if not isinstance(value, str) or not value or len(value) > 100 or not value.isprintable():  # noqa: PLR2004 - said in the message
            self.fault(path, "bad_type", f"{path} must be a text of 1 to 100 characters")
            return None
        if choices and value not in choices:
            self.fault(path, "unknown_value", f"{path} must be one of {', '.join(choices)}")
            return None
        return value

    def flag(self, path: str, value: object) -> bool | None:
        """Return true or false."""
        if not isinstance(value, bool):
            self.fault(path, "bad_type", f"{path} must be true or false")
            return None
        return value


def join(path: str, key: object) -> str:
    """Return the path of a key."""
    return f"{path}.{key}" if path else str(key)


def _as_float(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        # YAML 1.1 reads 1e9 as a text
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
