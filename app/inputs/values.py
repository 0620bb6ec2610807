"""Values as people write them in YAML and JSON, and the mappings that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    model_validator,
)
from pydantic_core import PydanticCustomError

# Floats hold every whole number below this.
EXACT_BELOW: Final = 2.0**53
MOST_NAME_CHARS: Final = 100
# Of times beyond, PostgreSQL takes some that Python cannot read again: their pages would fail.
YEARS: Final = range(1970, 3000)
# A table has a row for each of a thousand layers, and one for all others.
MOST_KEYS: Final = 1001


def few(value: object) -> object:
    """Refuse a mapping so large that naming its faults would take seconds."""
    if isinstance(value, Mapping) and len(value) > MOST_KEYS:
        raise PydanticCustomError("too_many_keys", f"must have at most {MOST_KEYS} keys")
    return value


class Written(BaseModel):
    """A mapping that a user wrote: a key that means nothing here is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    _few = model_validator(mode="before")(few)


def _numeric(value: object) -> object:
    """Return a number that YAML 1.1 reads as a text, as 1e9; flags are no numbers."""
    if isinstance(value, bool):
        raise PydanticCustomError("bad_type", "must be a number")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _name(value: object) -> object:
    """Return a name that YAML reads as a number, as an unquoted 4090."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def word(value: object) -> object:
    """Refuse what can be none of some words."""
    if not isinstance(value, str):
        raise PydanticCustomError("bad_type", "must be a text")
    return value


def printable(value: str) -> str:
    """Refuse a text with characters that no page shows."""
    if not value.isprintable():
        raise PydanticCustomError("bad_type", "must have printable characters only")
    return value


def _of_our_time(value: datetime) -> datetime:
    if value.year not in YEARS:
        raise PydanticCustomError(
            "bad_time", f"must be of the years {YEARS.start} to {YEARS.stop - 1}"
        )
    return value


# When something was, or will be, that is kept.
Moment = Annotated[AwareDatetime, AfterValidator(_of_our_time)]
# Stands behind the bounds of a number, which are of what a text is read as.
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
    """Return the same as every writer of JSON would: keys as texts, whole numbers without a point.

    Browsers write 2e8 as 200000000, Python as 200000000.0: it is one document.
    """
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_BELOW:
        return int(value)
    return value
