"""Tables of pages: which columns a list shows, declared once, and what templates draw of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from markupsafe import Markup, escape

from app.dashboard.ui.choosing import Heading

if TYPE_CHECKING:
    from app.dashboard.ui.address import Address
    from app.lists.listing import Listing
    from app.lists.pages import Page

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Shown(Generic[R]):
    """A column that a page shows of a list."""

    label: str  # its heading: text, or markup
    # Takes a row and returns its cell: text, or parts of `app.dashboard.ui.html`.
    cell: Callable[[R], object]
    column: str = ""  # the column of the list that rows are sorted by where its heading is chosen
    # Of its heading and its cells: ``num`` is a number, ``opt`` is left out on narrow pages.
    classes: str = ""
    hint: str = ""  # what the heading says more of itself
    of_cells: str = ""  # classes of its cells alone
    # Takes a row and returns what its cell says more of itself.
    title: Callable[[R], str] | None = None
    span: int = 1  # columns that its cells take


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell; `content` is text or markup."""

    content: object
    classes: str = ""
    title: str = ""
    span: int = 1


@dataclass(frozen=True, slots=True)
class Line:
    """A row; `attributes` are its own in HTML."""

    cells: Sequence[Cell]
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def drawn(self) -> Markup:
        """Return the row; a template takes several times as long, and tables have many."""
        own = "".join(f' {name}="{escape(value)}"' for name, value in self.attributes.items())
        cells = "".join(
            f"<td{_given('class', cell.classes)}{_given('title', cell.title)}"
            f"{_given('colspan', str(cell.span)) if cell.span > 1 else ''}>"
            f"{escape(cell.content)}</td>"
            for cell in self.cells
        )
        return Markup(f"<tr{own}>{cells}</tr>")  # noqa: S704 - escaped here


def _given(name: str, value: str) -> str:
    return f' {name}="{escape(value)}"' if value else ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A table as `tables.html` draws it."""

    csv: str  # where its file is
    classes: str
    headings: Sequence[Heading]
    lines: Sequence[Line]
    # previous_url, next_url: the neighboring pages; empty where there is none
    previous_url: str = ""
    next_url: str = ""


def drawn(  # noqa: PLR0913 - everything that a table has
    shown: Sequence[Shown[R]],
    rows: Iterable[R],
    *,
    csv: str,
    classes: str = "plain",
    headings: Sequence[Heading] | None = None,
    pager: tuple[str, str] = ("", ""),
    attributes: Callable[[R], Mapping[str, str]] = lambda _: {},
) -> Drawn:
    """Return a table.

    Parameters
    ----------
    headings : sequence of Heading, optional
        See `sorted_by`; without them no heading is a link.
    pager : pair of str
        See `pager`.
    attributes : callable, optional
        Takes a row and returns the attributes of its own.
    """
    if headings is None:
        headings = [Heading(one.label, one.classes, one.hint) for one in shown]
    return Drawn(
        csv, classes, headings, [Line(cells(shown, row), attributes(row)) for row in rows], *pager
    )


def cells(shown: Sequence[Shown[R]], row: R) -> list[Cell]:
    """Return the cells of a row."""
    return [
        Cell(
            one.cell(row),
            " ".join(filter(None, (one.classes, one.of_cells))),
            "" if one.title is None else one.title(row),
            one.span,
        )
        for one in shown
    ]


def sorted_by(listing: Listing[Any], shown: Sequence[Shown[R]], address: Address) -> list[Heading]:
    """Return headings that link to the list in their orders; that in force turns round."""
    in_force = listing.sort(address.parameters.get("sort", ""))
    found = []
    for one in shown:
        first = listing.columns[one.column].sort if one.column else ""
        name = first.removeprefix("-")
        if not name or in_force.removeprefix("-") != name:
            turned, order = first, ""
        else:
            falls = in_force.startswith("-")
            turned, order = name if falls else f"-{name}", "descending" if falls else "ascending"
        sort = None if turned == listing.default_sort else turned
        url = address.but(sort=sort, page=None) if name else ""
        found.append(Heading(one.label, one.classes, one.hint, url, order))
    return found


def pager(page: Page[R], address: Address, name: str = "page", place: str = "") -> tuple[str, str]:
    """Return the addresses of the pages before and after one, at a place of the page."""
    before, after = page.number - 1, page.number + 1
    return (
        address.but(**{name: before if before > 1 else None}) + place if before else "",
        address.but(**{name: after}) + place if after <= page.pages else "",
    )
