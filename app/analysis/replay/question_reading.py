"""Read questions: as JSON types, and as the command line writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from app.analysis.replay.questions import TYPE_NAMES, Base, Change, Question, Selection
from app.errors import Fault, InvalidQuestionError

# Each change is one more pass over all operations while the answer holds a slot of the server;
# without a limit one question keeps everybody else from asking for minutes.
MOST_CHANGES: Final = 100
# What takes a thousand times as long hangs; far beyond that a step's time is no finite number.
MOST_SCALE: Final = 1000.0

_FACTOR: Final = f"a number from 0 to {MOST_SCALE:.0f}"
_COUNT: Final = "a whole number of 0 or more"


def parse_question(document: Mapping[str, Any]) -> Question:
    """Read a question from JSON types.

    ``{"base": "recorded", "changes": [{"select": {"op_types": [], "steps": [], "stages": [],
    "dp_ranks": [], "workers": [[0, 0]]}, "duration": "ideal", "scale": 1.0}]}``

    Raises
    ------
    InvalidQuestionError
        With every fault and its path.
    """
    faults: list[Fault] = []
    base = _one_of(document.get("base", "recorded"), "base", faults)
    parsed = [
        _change(entry, f"changes[{i}]", faults)
        for i, entry in enumerate(_changes(document.get("changes", []), faults))
    ]
    unknown = set(document) - {"base", "changes"}
    faults += [Fault("unknown_key", f"There is no {key!r}", column=key) for key in sorted(unknown)]
    if faults:
        raise InvalidQuestionError(faults[0].message, faults=tuple(faults))
    return Question(base, tuple(parsed))


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
    """Read the factor of a scaled selection.

    Raises
    ------
    InvalidQuestionError
        It is no number, or out of bounds.
    """
    try:
        factor = float(text)
    except ValueError as error:
        _refuse("scale", f"{text!r} is no factor: {_FACTOR}", text, error)
    if not _is_scale(factor):
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


def _changes(value: object, faults: list[Fault]) -> list[object]:
    if not isinstance(value, list) or not value:
        faults.append(Fault("no_changes", "There has to be a list of changes", column="changes"))
        return []
    if len(value) > MOST_CHANGES:
        message = f"There are {len(value)} changes; a question has at most {MOST_CHANGES}"
        faults.append(Fault("too_many_changes", message, column="changes"))
        return []
    return value


def _change(entry: object, path: str, faults: list[Fault]) -> Change:
    if not isinstance(entry, dict):
        faults.append(Fault("type", f"{path} has to be an object", column=path))
        return Change(Selection(), Base.IDEAL)
    unknown = set(entry) - {"select", "duration", "scale"}
    faults += [
        Fault("unknown_key", f"There is no {key!r}", column=f"{path}.{key}")
        for key in sorted(map(str, unknown))
    ]
    select = entry.get("select", {})
    if not isinstance(select, dict):
        faults.append(Fault("type", f"{path}.select has to be an object", column=f"{path}.select"))
        select = {}
    scale = entry.get("scale", 1.0)
    if not _is_scale(scale):
        faults.append(Fault("scale", f"A factor is {_FACTOR}", column=f"{path}.scale"))
        scale = 1.0
    return Change(
        _selection(select, f"{path}.select", faults),
        _one_of(entry.get("duration", "ideal"), f"{path}.duration", faults),
        float(scale),
    )


def _is_scale(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= MOST_SCALE


def _one_of(value: object, path: str, faults: list[Fault]) -> Base:
    if isinstance(value, str) and value in set(Base):
        return Base(value)
    faults.append(Fault("choice", f"{path} has to be recorded or ideal", column=path))
    return Base.RECORDED


@dataclass(slots=True)
class _Reader:
    """Reads the lists of a selection, collecting what is wrong with them."""

    document: Mapping[str, Any]
    path: str
    faults: list[Fault] = field(default_factory=list)

    def entries(self, key: str, fits: Callable[[Any], bool], what: str) -> list[Any]:
        values = self.document.get(key, [])
        if isinstance(values, list) and all(fits(value) for value in values):
            return values
        message = f"{self.path}.{key} has to be a list of {what}"
        self.faults.append(Fault("type", message, column=f"{self.path}.{key}"))
        return []


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _selection(document: Mapping[str, Any], path: str, faults: list[Fault]) -> Selection:
    reader = _Reader(document, path, faults)
    known = {"op_types", "steps", "stages", "dp_ranks", "workers"}
    faults += [
        Fault("unknown_key", f"There is no {key!r}", column=f"{path}.{key}")
        for key in sorted(set(map(str, document)) - known)
    ]
    names = reader.entries(
        "op_types", lambda v: isinstance(v, str) and v in TYPE_NAMES, f"{', '.join(TYPE_NAMES)}"
    )
    workers = reader.entries(
        "workers",
        lambda v: isinstance(v, list) and len(v) == 2 and all(map(_is_count, v)),  # noqa: PLR2004
        "[DP rank, stage]",
    )
    return Selection(
        op_types=tuple(names),
        steps=tuple(reader.entries("steps", _is_count, "steps")),
        stages=tuple(reader.entries("stages", _is_count, "stages")),
        dp_ranks=tuple(reader.entries("dp_ranks", _is_count, "DP ranks")),
        workers=tuple((dp, pp) for dp, pp in workers),
    )
