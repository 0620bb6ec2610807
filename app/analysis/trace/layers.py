"""What the metadata of a session say of the layers of its pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def layers_per_stage(extra: Mapping[str, Any], stages: int) -> tuple[int, ...] | None:
    """Return the layers of each stage from a session's metadata, None where it does not say.

    ``layers`` is a list with a number for each stage, or with a list of one number, its chunk's.
    """
    given = extra.get("layers")
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != stages:
        return None
    numbers = [item[0] if isinstance(item, Sequence) and len(item) == 1 else item for item in given]
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in numbers):
        return None
    return tuple(numbers)
