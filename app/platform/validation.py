"""Pydantic's errors as faults with stable codes and paths; types of values in documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from app.errors import Fault

MOST_FAULTS: Final = 100

# All error types of pydantic; users see our texts in place of pydantic's.
PYDANTICS: Final = frozenset(get_args(ErrorType))
# Text of pydantic's error types that `WORDS` lacks, because none of our fields can cause them.
OTHERWISE: Final = "is not valid"
# Text of an empty value where a text or a list needs at least one element.
EMPTY: Final = "must not be empty"
# Text of each pydantic error type, with placeholders named as in the error's context.
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
    "json_type": "must be JSON",
    "invalid_key": "must have texts as keys",
    "none_required": "must be null",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_unicode": "must be a text in UTF-8",
    "string_not_ascii": "must have ASCII characters only",
    "mapping_type": "must be an object",
    "dataclass_exact_type": "must be an object",
    "iterable_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "frozen_set_type": "must be a list",
    "is_instance_of": "is of the wrong kind",
    "union_tag_invalid": "must have one of {expected_tags} as {discriminator}",
    "union_tag_not_found": "must have {discriminator}",
    "missing_argument": "is missing",
    "missing_keyword_only_argument": "is missing",
    "missing_positional_only_argument": "is missing",
    "unexpected_keyword_argument": "is not known here",
    "unexpected_positional_argument": "is not known here",
    "uuid_version": "must be an id of version {expected_version}",
    "datetime_object_invalid": "must be a time, as 2026-11-25T02:10:00Z",
    "datetime_past": "must be in the past",
    "datetime_future": "must be in the future",
    "timezone_naive": "must not say an offset",
    "timezone_offset": "must have the offset {tz_expected} s",
    "date_type": "must be a date, as 2026-11-25",
    "date_parsing": "must be a date, as 2026-11-25",
    "date_from_datetime_parsing": "must be a date, as 2026-11-25",
    "date_from_datetime_inexact": "must be a date, as 2026-11-25",
    "date_past": "must be in the past",
    "date_future": "must be in the future",
    "time_type": "must be a time of day, as 02:10",
    "time_parsing": "must be a time of day, as 02:10",
    "time_delta_type": "must be a number of seconds",
    "time_delta_parsing": "must be a number of seconds",
    "bytes_type": "must be a text",
    "bytes_too_short": "needs at least {min_length} bytes",
    "bytes_too_long": "must have at most {max_length} bytes",
    "url_type": "must be an address, as https://paceline.example",
    "url_parsing": "must be an address, as https://paceline.example",
    "url_syntax_violation": "must be an address, as https://paceline.example",
    "url_too_long": "must have at most {max_length} characters",
    "url_scheme": "must begin with {expected_schemes}",
    "decimal_type": "must be a number",
    "decimal_parsing": "must be a number",
    # Errors of our own validators, which are whole texts.
    "value_error": "{error}",
    "assertion_error": "{error}",
}


def faults_of(
    error: ValidationError,
    codes: Mapping[str, str],
    otherwise: str,
    *,
    root: str,
    inner: str = "",
) -> list[Fault]:
    """Return the first faults of a document, each with code, path and text.

    Parameters
    ----------
    inner : str
        Key whose elements have paths of their own.
    """
    faults = []
    for item in error.errors(include_url=False)[:MOST_FAULTS]:
        place = item["loc"]
        if place[:1] == (inner,) and (place[1:] or item["type"] != "missing"):
            place = place[1:]
        path = path_of(place)
        message = _message(item, path or root)
        faults.append(Fault(codes.get(item["type"], otherwise), message, column=path))
    return faults


def field_faults(errors: Iterable[ErrorDetails], *within: str, skip: int = 0) -> tuple[Fault, ...]:
    """Return the faults of a body's fields, with pydantic's error types as codes.

    A fault omits the faulty value, which may be a secret.

    Parameters
    ----------
    within : str
        Keys under which the body contains the fields: ``config``.
    skip : int
        Number of leading parts of a location to omit.
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
    """Return the fault of a value as a predicate of its name: ``must be at least 1``.

    Errors of our own validators contain their text, some as a whole sentence.
    """
    kind, context = item["type"], item.get("ctx", {})
    if kind not in PYDANTICS:
        return item["msg"]
    if kind in {"string_too_short", "too_short", "bytes_too_short"} and context["min_length"] == 1:
        return EMPTY
    shown = {
        name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()
    }
    return WORDS.get(kind, OTHERWISE).format_map(shown)


def _sentence(item: ErrorDetails) -> str:
    words = predicate(item)
    # Sentences of our own validators may begin with the name of a field, so they are not
    # capitalized.
    return words if item["type"] == "value_error" else f"{words[:1].upper()}{words[1:]}"


def _message(item: ErrorDetails, name: str) -> str:
    words = predicate(item)
    return f"{name} {words}" if words.startswith(("must ", "is ", "needs ")) else f"{name}: {words}"


def path_of(place: Sequence[str | int]) -> str:
    """Return the path of a fault in its document: ``model.layers[3].forward_ms``."""
    path = ""
    for part in place:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("["):  # pydantic's mark of a key, ours of a choice
            path += f".{part}" if path else part
    return path


# A double holds every integer below this value exactly.
EXACT_BELOW: Final = 2.0**53
MOST_NAME_CHARS: Final = 100
# Valid years. PostgreSQL stores some times outside of them that Python cannot read, and pages with
# such a time would fail.
YEARS: Final = range(1970, 3000)
# Largest number of keys of a mapping: one for each of a thousand layers, and one for all others.
MOST_KEYS: Final = 1001


def few(value: object) -> object:
    """Refuse a mapping with too many keys: listing its faults would take seconds."""
    if isinstance(value, Mapping) and len(value) > MOST_KEYS:
        raise PydanticCustomError("too_many_keys", f"must have at most {MOST_KEYS} keys")
    return value


class Written(BaseModel):
    """A mapping in a user's document; unknown keys are faults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    _few = model_validator(mode="before")(few)


def _numeric(value: object) -> object:
    """Return the number of a text such as 1e9, which YAML 1.1 does not read as a number."""
    if isinstance(value, bool):
        raise PydanticCustomError("bad_type", "must be a number")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _name(value: object) -> object:
    """Return a name as a text, also if YAML reads it as a number, such as an unquoted 4090."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def word(value: object) -> object:
    """Refuse a value that is not a text."""
    if not isinstance(value, str):
        raise PydanticCustomError("bad_type", "must be a text")
    return value


def printable(value: str) -> str:
    """Refuse a text with characters that cannot be printed."""
    if not value.isprintable():
        raise PydanticCustomError("bad_type", "must have printable characters only")
    return value


def _of_our_time(value: datetime) -> datetime:
    if value.year not in YEARS:
        raise PydanticCustomError(
            "bad_time", f"must be of the years {YEARS.start} to {YEARS.stop - 1}"
        )
    return value


# A time in a query, and a time of an event, past or planned, that is stored. Every parameter of a
# query that holds a time has this type: times near the years 1 and 9999 overflow in computations.
Moment = Annotated[AwareDatetime, AfterValidator(_of_our_time)]
# Written after a number's bounds in `Annotated`, so that it runs first and the bounds apply to the
# parsed number.
FromYaml: Final = BeforeValidator(_numeric)
NotNegative = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False), FromYaml]
Positive = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False), FromYaml]
Whole = Annotated[int, FromYaml]
Flag = Annotated[bool, Strict()]
Name = Annotated[
    str,
    Field(min_length=1, max_length=MOST_NAME_CHARS),
    BeforeValidator(_name),
    AfterValidator(printable),
]


def as_json(value: object) -> object:
    """Return a value as all JSON writers agree on it: text keys, whole numbers without a point.

    Browsers write 2e8 as 200000000 and Python writes 200000000.0: both are the same document.
    """
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_BELOW:
        return int(value)
    return value
