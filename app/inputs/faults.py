"""What pydantic finds wrong with a document, as faults with stable codes and paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from app.errors import Fault

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MOST_FAULTS: Final = 100

# What precedes the predicate in messages about values.
OF_VALUES: Final = "Input should "
# By pydantic's types of errors, with the names of their contexts.
WORDS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "string_too_short": "needs at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_type": "must be a text",
    "string_pattern_mismatch": "must match {pattern}",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "enum": "must be one of {expected}",
    "literal_error": "must be one of {expected}",
    "list_type": "must be a list",
    "too_short": "needs at least {min_length} items, not {actual_length}",
    "too_long": "must have at most {max_length} items",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dataclass_type": "must be an object",
    "uuid_parsing": "must be an id, as 5f0c1a52-…",
    "uuid_type": "must be an id, as 5f0c1a52-…",
    "datetime_parsing": "must be a time, as 2026-11-25T02:10:00Z",
    "datetime_from_date_parsing": "must be a time, as 2026-11-25T02:10:00Z",
    "datetime_type": "must be a time, as 2026-11-25T02:10:00Z",
    "timezone_aware": "must say its offset, as 2026-11-25T02:10:00Z",
    "json_invalid": "is not JSON: {error}",
    # A sentence of ours.
    "value_error": "{error}",
}


def faults_of(
    error: ValidationError,
    codes: Mapping[str, str],
    otherwise: str,
    *,
    root: str,
    inner: str = "",
) -> list[Fault]:
    """Return the first faults of a document.

    Parameters
    ----------
    inner : str
        A key whose parts have paths of their own.
    """
    found = []
    for item in error.errors(include_url=False)[:MOST_FAULTS]:
        place = item["loc"]
        if place[:1] == (inner,) and (place[1:] or item["type"] != "missing"):
            place = place[1:]
        path = path_of(place)
        message = _message(item, path or root)
        found.append(Fault(codes.get(item["type"], otherwise), message, column=path))
    return found


def field_faults(errors: Iterable[ErrorDetails], *within: str, skip: int = 0) -> tuple[Fault, ...]:
    """Return the faults of the fields of a body, with pydantic's own types.

    A fault leaves out the value that is wrong, which may be a secret.

    Parameters
    ----------
    within : str
        The keys under which the fields stand in the body: ``config``.
    skip : int
        How many first parts of a location are left out.
    """
    return tuple(
        Fault(
            item["type"],
            _sentence(item),
            column=".".join((*within, *map(str, item["loc"][skip:]))),
        )
        for item in errors
    )


def predicate(item: ErrorDetails) -> str:
    """Return what is wrong with a value, as it follows its name: ``must be at least 1``.

    Where there are no words of ours, those of whoever checked it, which may be a whole sentence.
    """
    said, context = item["msg"], item.get("ctx", {})
    if item["type"] == "string_too_short" and context.get("min_length") == 1:
        return "must not be empty"
    words = WORDS.get(item["type"])
    if words is not None:
        shown = {
            name: f"{value:g}" if isinstance(value, float) else value
            for name, value in context.items()
        }
        return words.format_map(shown)
    return f"must {said.removeprefix(OF_VALUES)}" if said.startswith(OF_VALUES) else said


def _sentence(item: ErrorDetails) -> str:
    words = predicate(item)
    # A sentence of ours may begin with the name of a field.
    return words if item["type"] == "value_error" else f"{words[:1].upper()}{words[1:]}"


def _message(item: ErrorDetails, name: str) -> str:
    words = predicate(item)
    return f"{name} {words}" if words.startswith(("must ", "is ", "needs ")) else f"{name}: {words}"


def path_of(place: Sequence[str | int]) -> str:
    """Return where a fault is: ``model.layers[3].forward_ms``."""
    path = ""
    for part in place:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("["):  # pydantic's mark of a key, ours of a choice
            path += f".{part}" if path else part
    return path
