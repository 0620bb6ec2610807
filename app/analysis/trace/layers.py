"""What the metadata of a session say of the layers of its pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def layers_per_stage(extra: Mapping[str, Any], stages: int) -> tuple[int, ...] | None:
    """Return the layers of each stage from a session's metadata, None where it does not say.

    ``layers`` is a list with a number for each stage, or with a list of one number, its chunk's.
    """
    found = layers_per_chunk(extra, stages, 1)
    return None if found is None else tuple(count for (count,) in found)


def layers_per_chunk(
    extra: Mapping[str, Any], stages: int, chunks: int
) -> tuple[tuple[int, ...], ...] | None:
    """Return the layers of each chunk of each stage, None where the metadata do not say.

    ``layers`` is a list with a list for each stage, of the layers of each of its chunks, or with
    their number, which its chunks share evenly.

    Examples
    --------
    >>> layers_per_chunk({"layers": [8, [3, 5]]}, 2, 2)
    ((4, 4), (3, 5))
    """
    given = extra.get("layers")
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != stages:
        return None
    found = [_chunks(item, chunks) for item in given]
    return None if any(item is None for item in found) else tuple(item for item in found if item)


def _chunks(item: object, chunks: int) -> tuple[int, ...] | None:
    """Return the layers of a stage's chunks, None where they are no numbers of layers."""
    if _is_count(item):
        assert isinstance(item, int)  # noqa: S101 - for the type checker
        return None if item % chunks else (item // chunks,) * chunks
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != chunks:
        return None
    return tuple(item) if all(_is_count(count) for count in item) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
