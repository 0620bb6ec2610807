"""A page of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """A page of a list."""

    rows: Sequence[R]
    number: int  # from 1
    total: int  # rows on all pages together
    size: int  # rows of a full page

    @property
    def pages(self) -> int:
        """Return how many pages there are."""
        return pages_of(self.total, self.size)

    @property
    def first(self) -> int:
        """Return the place of its first row in the whole list, from 1."""
        return self.size * (self.number - 1) + 1

    @property
    def last(self) -> int:
        """Return the place of its last row."""
        return self.first + len(self.rows) - 1


def pages_of(total: int, size: int) -> int:
    """Return how many pages rows take; where there are none one that is empty."""
    return max(1, -(-total // size))


def last_page(number: int, total: int, size: int) -> int:
    """Return the number of a page that there is: the last one where there are not that many."""
    return min(max(number, 1), pages_of(total, size))
