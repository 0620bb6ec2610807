"""Selections and factors as the command line writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from app.analysis.replay.questions import MOST_SCALE, TYPE_NAMES, Selection
from app.errors import Fault, InvalidQuestionError

_FACTOR: Final = f"a number from 0 to {MOST_SCALE:.0f}"
_COUNT: Final = "a whole number of 0 or more"


def parse_selection(text: str) -> Selection:
    """Read a selection as the command line writes it: ``stage=3,op=forward-compute|optimizer``.

    Keys are ``op``, ``step``, ``stage``, ``dp`` and ``worker`` (``DP:STAGE``), each at most once;
    several values of a key are separated by ``|``.

    Raises
    ------
    InvalidQuestionError
        With the part that cannot be read.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for part in text.split(","):
        key, _, values = (piece.strip() for piece in part.partition("="))
        if key not in _KEYS or not values:
            keys = "op=, step=, stage=, dp=, worker=DP:STAGE"
            message = (
                f"{part!r} is not one of" if part else "A selection is missing, one or more of"
            )
            _refuse("selection", f"{message} {keys}", part)
        name, read, what = _KEYS[key]
        if name in found:
            message = f"{text!r} has {key}= twice; several values are separated by |"
            _refuse("selection", message, part)
        try:
            found[name] = tuple(read(value.strip()) for value in values.split("|"))
        except ValueError as error:
            _refuse("selection", f"{part!r} does not name {what}", part, error)
    return Selection(**found)


def parse_factor(text: str) -> float:
    """Read the factor of a scaled selection."""
    try:
        factor = float(text)
    except ValueError as error:
        _refuse("scale", f"{text!r} is no factor: {_FACTOR}", text, error)
    if not 0 <= factor <= MOST_SCALE:
        _refuse("scale", f"{text!r} is no factor: {_FACTOR}", text)
    return factor


def _refuse(code: str, message: str, column: str, cause: ValueError | None = None) -> NoReturn:
    raise InvalidQuestionError(message, faults=(Fault(code, message, column=column),)) from cause


def _type_name(text: str) -> str:
    if text not in TYPE_NAMES:
        raise ValueError(text)
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def _worker(text: str) -> tuple[int, int]:
    dp, pp = map(_count, text.split(":"))
    return dp, pp


# Of each key of the command line: the field, what reads a value, and what a value is.
_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any], str]]] = {
    "op": ("op_types", _type_name, f"one of the types {', '.join(TYPE_NAMES)}"),
    "step": ("steps", _count, f"a step, {_COUNT}"),
    "stage": ("stages", _count, f"a stage, {_COUNT}"),
    "dp": ("dp_ranks", _count, f"a DP rank, {_COUNT}"),
    "worker": ("workers", _worker, "a worker as DP:STAGE, such as worker=0:3"),
}
