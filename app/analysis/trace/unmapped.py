"""What a recording holds that is no operation of ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Things of one kind that a decoder could make nothing of.

    Parameters
    ----------
    what : str
        Their kind, in the plural, for a person.
    count : int
    remedy : str or None
        The setting of the recorder that would record what is missing; None where nothing is
        missing.
    """

    what: str
    count: int
    remedy: str | None = None


def total(found: Iterable[Unmapped]) -> tuple[Unmapped, ...]:
    """Return the sums over several bodies, the most frequent kind first."""
    counts: dict[tuple[str, str | None], int] = {}
    for one in found:
        key = (one.what, one.remedy)
        counts[key] = counts.get(key, 0) + one.count
    sums = (Unmapped(what, count, remedy) for (what, remedy), count in counts.items() if count)
    return tuple(sorted(sums, key=lambda one: (-one.count, one.what)))
