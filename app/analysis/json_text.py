"""The only writer of JSON documents that are dataclasses: reports and plans.

Fields are keys, in their order. If a field's name would be a keyword of Python, it ends with an
underscore, which the key does not have. A field marked with `OMITTED` has no key if it has its
default; any other None is written as ``null``.
"""

from __future__ import annotations

import json
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

# Metadata of a field whose key is left out if the field has its default.
OMITTED: Final = MappingProxyType({"omitted": True})

_COMPACT: Final = (",", ":")


def to_json(value: object, *, compact: bool = False) -> str:
    """Return a document as JSON text in ASCII.

    Parameters
    ----------
    value : object
        A dataclass, or mappings, sequences and scalars, with dataclasses anywhere in them.
    compact : bool
        Whether to write no spaces, as documents are stored.

    Raises
    ------
    ValueError
        A number is NaN or infinite, which JSON cannot represent.
    TypeError
        The value contains an object of another type.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Link:
    ...     from_: int
    ...     to: int
    >>> to_json([Link(0, 1)])
    '[{"from": 0, "to": 1}]'
    """
    separators = _COMPACT if compact else None
    return json.dumps(value, default=_members, allow_nan=False, separators=separators)


def plain(value: object) -> object:
    """Return a document as `json.loads` would return its text: as dicts, lists and scalars."""
    if is_dataclass(value) and not isinstance(value, type):
        return members(value)
    if isinstance(value, dict):
        return {str(key): plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    return value


def members(value: object) -> dict[str, object]:
    """Return the members of a dataclass by key, each converted by `plain`."""
    return {key: plain(member) for key, member in _members(value).items()}


def json_name(name: str) -> str:
    """Return the JSON key of a field."""
    return name.rstrip("_")


def _members(value: object) -> dict[str, object]:
    plain_members = {}
    for item, key in _keys(type(value)):  # type: ignore[arg-type]
        member = getattr(value, item.name)
        if "omitted" not in item.metadata or member != item.default:
            plain_members[key] = member
    return plain_members


@cache
def _keys(kind: type) -> tuple[tuple[Field[object], str], ...]:
    """Return each field of a dataclass with its JSON key."""
    if not is_dataclass(kind):
        message = f"a {kind.__name__} is not JSON"
        raise TypeError(message)
    return tuple((item, json_name(item.name)) for item in fields(kind))
