"""What a page lets choose: the order of a table by its columns, and one of several values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column."""

    label: str
    classes: str
    hint: str = ""  # what it says more of itself
    url: str = ""  # the page in its order; empty where rows are not sorted by it
    order: str = ""  # ``ascending`` or ``descending`` where the rows are sorted by it, else empty


@dataclass(frozen=True, slots=True)
class Choice:
    """One of what may be chosen; `url` is the page with it, where it is a link."""

    value: str
    label: str
    chosen: bool
    url: str = ""
