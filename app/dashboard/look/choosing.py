"""What a page lets choose: the order of a table by its columns, and one of several values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column.

    Parameters
    ----------
    label, classes : str
    hint : str
        What it says more of itself.
    url : str
        The page in its order; empty where rows are not sorted by it.
    order : str
        ``ascending`` or ``descending`` where the rows are sorted by it, else empty.
    """

    label: str
    classes: str
    hint: str = ""
    url: str = ""
    order: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of what may be chosen; `url` is the page with it, where it is a link."""

    value: str
    label: str
    chosen: bool
    url: str = ""
