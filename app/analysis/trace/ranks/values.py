"""Values that metadata give: texts, mappings, and names by rank; each is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from app.analysis.trace.limits import MAX_FAULTS, MAX_WORLD
from app.errors import Fault, InvalidMetadataError

MAX_NAME_CHARS: Final = 255


def names_by_rank(document: Mapping[Any, Any], key: str, world: int) -> dict[int, str]:
    """Return the names of a job's ranks that a key of the metadata gives, by global rank.

    Raises
    ------
    InvalidMetadataError
        `metadata.bad_value`, `metadata.rank_out_of_range`.
    """
    names: dict[int, str] = {}
    for rank_key, value in mapping_of(document, key).items():
        text = str(rank_key)
        if isinstance(rank_key, bool) or not (text.isascii() and text.isdecimal()):
            refuse(f"{key} must be keyed by rank, not {shown(rank_key)}", "bad_value", column=key)
        # Over-long digits are no rank, and expensive to convert.
        rank = int(text) if len(text) <= len(str(MAX_WORLD)) else MAX_WORLD
        if rank >= world:
            message = f"{key} names rank {shown(rank_key)}, the job has {world} ranks"
            refuse(message, "rank_out_of_range", column=key)
        names[rank] = text_of(value, key)
    return dict(sorted(names.items()))


def mapping_of(document: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    """Return the mapping of a key, empty where it is missing."""
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        refuse(f"{key} must be a mapping, not {shown(value)}", "bad_value", column=key)
    return value


def text_of(value: object, key: str) -> str:
    """Return a name; a number is one too."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        refuse(f"{key} must hold text, not {shown(value)}", "bad_value", column=key)
    text = value if isinstance(value, str) else shown(value)
    if not is_name(text):
        message = f"{key} must hold printable text of at most {MAX_NAME_CHARS} characters"
        refuse(message, "bad_value", column=key)
    return text


def is_name(text: str) -> bool:
    """Return whether a text can be the name of something."""
    return len(text) <= MAX_NAME_CHARS and text.isprintable()


def shown(value: object) -> str:
    """Return a short text of an untrusted value (a huge int has no decimal form)."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else "a number"
    return text if len(text) <= 40 else f"{text[:37]}…"  # noqa: PLR2004 - a readable length


def refuse(
    message: str, code: str, *, line: int | None = None, column: str | None = None
) -> NoReturn:
    """Raise the error of one fault."""
    refuse_all([Fault(code, message, line=line, column=column)])


def refuse_all(faults: list[Fault]) -> NoReturn:
    """Raise the error of faults, with the code of the first."""
    first = faults[0]
    raise InvalidMetadataError(
        first.message, code=f"metadata.{first.code}", faults=tuple(faults[:MAX_FAULTS])
    )
