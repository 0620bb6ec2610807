"""What pydantic finds wrong with a document, as faults with stable codes and paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from app.errors import Fault

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MOST_FAULTS: Final = 100


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
    """Return the faults of the fields of a body, with pydantic's own types and messages.

    A fault leaves out the value that is wrong, which may be a secret.

    Parameters
    ----------
    within : str
        The keys under which the fields stand in the body: ``config``.
    skip : int
        How many first parts of a location are left out.
    """
    return tuple(
        Fault(item["type"], item["msg"], column=".".join((*within, *map(str, item["loc"][skip:]))))
        for item in errors
    )


def _message(item: ErrorDetails, name: str) -> str:
    said = item["msg"]
    if item["type"] == "missing":
        return f"{name} is missing"
    if item["type"] == "extra_forbidden":
        return f"{name} is not known here"
    return name + said.removeprefix("Input") if said.startswith("Input ") else f"{name}: {said}"


def path_of(place: Sequence[str | int]) -> str:
    """Return where a fault is: ``model.layers[3].forward_ms``."""
    path = ""
    for part in place:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("["):  # pydantic's mark of a key, ours of a choice
            path += f".{part}" if path else part
    return path
