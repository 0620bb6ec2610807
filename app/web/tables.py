"""Tables on pages: columns declared once, rendered by templates and written as CSV.

Spreadsheets read no cell of a CSV file as a formula.
"""

from __future__ import annotations

import csv
import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from fastapi.responses import StreamingResponse
from markupsafe import Markup, escape

from app.errors import NotFoundError
from app.web.forms import Heading
from app.web.links import Address
from app.web.lists import FORMULA, Listing, Page, in_files

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Shown(Generic[R]):
    """A column of a table on a page."""

    label: str  # its heading: text, or markup
    # Returns the cell of a row: text, or parts from `app.web.html`.
    cell: Callable[[R], object]
    column: str = ""  # the column of the list that rows are sorted by where its heading is chosen
    # CSS classes of the heading and the cells: ``num`` for numbers, ``opt`` for columns that narrow
    # screens hide.
    classes: str = ""
    hint: str = ""  # what the heading says more of itself
    of_cells: str = ""  # classes of its cells alone
    # Returns the tooltip of a row's cell.
    title: Callable[[R], str] | None = None
    span: int = 1  # columns that its cells take
    heads_row: bool = False  # whether each of its cells is the heading of its row


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell; `content` is text or markup."""

    content: object
    classes: str = ""
    title: str = ""
    span: int = 1
    heads_row: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A table row; `attributes` are the HTML attributes of the row."""

    cells: Sequence[Cell]
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def drawn(self) -> Markup:
        """Return the row as markup, built without a template, which would be much slower."""
        own = "".join(f' {name}="{escape(value)}"' for name, value in self.attributes.items())
        cells = "".join(
            f"<{'th' if cell.heads_row else 'td'}{_given('scope', 'row' if cell.heads_row else '')}"
            f"{_given('class', cell.classes)}{_given('title', cell.title)}"
            f"{_given('colspan', str(cell.span)) if cell.span > 1 else ''}>"
            f"{escape(cell.content)}</{'th' if cell.heads_row else 'td'}>"
            for cell in self.cells
        )
        return Markup(f"<tr{own}>{cells}</tr>")  # noqa: S704 - escaped here


def _given(name: str, value: str) -> str:
    return f' {name}="{escape(value)}"' if value else ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A table in the form that `tables.html` renders."""

    csv: str  # where its file is
    classes: str
    headings: Sequence[Heading]
    lines: Sequence[Line]
    # previous_url, next_url: addresses of the neighboring pages; empty if there is none
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
    """Return a table in the form that `tables.html` renders.

    Parameters
    ----------
    headings : sequence of Heading, optional
        See `sorted_by`; without them no heading is a link.
    pager : pair of str
        See `pager`.
    attributes : callable, optional
        Returns the HTML attributes of a row.
    """
    if headings is None:
        headings = [Heading(column.label, column.classes, column.hint) for column in shown]
    return Drawn(
        csv, classes, headings, [Line(cells(shown, row), attributes(row)) for row in rows], *pager
    )


def cells(shown: Sequence[Shown[R]], row: R) -> list[Cell]:
    """Return the cells of a row."""
    return [
        Cell(
            column.cell(row),
            " ".join(filter(None, (column.classes, column.of_cells))),
            "" if column.title is None else column.title(row),
            column.span,
            column.heads_row,
        )
        for column in shown
    ]


def sorted_by(listing: Listing[Any], shown: Sequence[Shown[R]], address: Address) -> list[Heading]:
    """Return column headings that link to their orders; the current order links to its reverse."""
    in_force = listing.sort(address.parameters.get("sort", ""))
    headings = []
    for column in shown:
        first = listing.columns[column.column].sort if column.column else ""
        name = first.removeprefix("-")
        if not name or in_force.removeprefix("-") != name:
            turned, order = first, ""
        else:
            falls = in_force.startswith("-")
            turned, order = name if falls else f"-{name}", "descending" if falls else "ascending"
        sort = None if turned == listing.default_sort else turned
        url = address.but(sort=sort, page=None) if name else ""
        headings.append(Heading(column.label, column.classes, column.hint, url, order))
    return headings


def pager(page: Page[R], address: Address, name: str = "page", place: str = "") -> tuple[str, str]:
    """Return the addresses of the previous and the next page, at an anchor of the page."""
    before, after = page.number - 1, page.number + 1
    return (
        address.but(**{name: before if before > 1 else None}) + place if before else "",
        address.but(**{name: after}) + place if after <= page.pages else "",
    )


_Made = TypeVar("_Made")

_NUMBERS: Final = frozenset((int, float))
# Number of characters that are sent at a time.
_PIECE: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Table:
    r"""Rows and column names, written as CSV while the file is sent.

    Parameters
    ----------
    header : sequence of str
    rows : iterable of sequence
        Cells of each row: numbers are written as they are, None as an empty cell, times as ISO
        8601, and durations in seconds.

    Examples
    --------
    >>> Table(("what", "change"), [("=1+1", -0.5), ("node-7", None)]).text()
    "what,change\n'=1+1,-0.5\nnode-7,\n"
    """

    header: Sequence[str]
    rows: Iterable[Sequence[object]]

    @classmethod
    def of(cls, kind: type[object], rows: Iterable[object], *names: str) -> Table:
        """Return a table with the columns of a row class.

        Parameters
        ----------
        kind : type
            The dataclass of the rows; see `app.web.lists.in_files`.
        *names : str
            Names of columns or other attributes to write; by default all columns.
        """
        columns = in_files(kind)
        header = names or tuple(columns)
        attributes = [columns.get(name, name) for name in header]
        return cls(header, ([getattr(row, name) for name in attributes] for row in rows))

    def pieces(self) -> Iterator[str]:
        """Yield the text of the CSV file, a piece at a time."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        for row in self.rows:
            writer.writerow([_plain(cell) for cell in row])
            if out.tell() >= _PIECE:
                yield out.getvalue()
                out.seek(0)
                out.truncate()
        yield out.getvalue()

    def text(self) -> str:
        """Return the whole text of the CSV file."""
        return "".join(self.pieces())


@dataclass(frozen=True, slots=True)
class Written:
    """A table whose CSV lines the database wrote; see `app.web.lists`."""

    header: Sequence[str]
    lines: str

    def pieces(self) -> Iterator[str]:
        """Yield the text of the CSV file, a piece at a time."""
        yield ",".join(self.header) + "\n"
        if self.lines:
            yield self.lines
            yield "\n"


@dataclass(frozen=True)  # with slots, Python 3.11 cannot call `Listed[Row](…)`
class Listed(Generic[R]):
    """Records that a page shows as a table, and that the table's CSV file contains."""

    kind: type[R]  # the dataclass of the records, which names the columns of the file
    rows: Sequence[R]
    shown: Sequence[Shown[R]]

    def drawn(self, csv: str, classes: str) -> Drawn:
        """Return the table of the page."""
        return drawn(self.shown, self.rows, csv=csv, classes=classes)

    @property
    def table(self) -> Table:
        """Return the table of the CSV file."""
        return Table.of(self.kind, self.rows)


def csv_file(name: str, table: Table | Written) -> StreamingResponse:
    """Return a table as a CSV download that is not cached.

    Errors in the first rows are raised here, so that the answer still gets an error status.
    """
    pieces = table.pieces()
    first = next(pieces)
    return StreamingResponse(
        chain([first], pieces),
        media_type="text/csv; charset=utf-8",
        headers={
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="{name}"',
        },
    )


def one_of(exports: Mapping[str, _Made], name: str) -> _Made:
    """Return the function that makes the file of a name.

    Raises
    ------
    NotFoundError
        If there is no file of that name.
    """
    made = exports.get(name)
    if made is None:
        raise NotFoundError(f"There is no {name}.csv here.")
    return made


def _plain(cell: object) -> object:
    """Return a cell's text, escaped so that a spreadsheet does not read it as a formula."""
    # Fast path: most cells are numbers, empty or plain text, and files have many cells.
    if cell is None or type(cell) in _NUMBERS:
        return cell
    value = cell if type(cell) is str else _value(cell)
    if not isinstance(value, str):
        return value
    # The CSV writer quotes only line feeds, but readers end a line at a carriage return too.
    text = value.replace("\r", "\n")
    return f"'{text}" if value.startswith(FORMULA) else text


def _value(cell: object) -> object:
    """Return a cell's value as a number or as text."""
    text: object = cell
    match cell:
        # Members of string enumerations are included: their value is written, not their name.
        case str() | uuid.UUID():
            text = str(cell)
        case bool():
            text = str(cell).lower()
        case datetime():
            text = cell.isoformat()
        case timedelta():
            text = cell.total_seconds()
        case Mapping():
            text = " ".join(f"{name}={_value(value)}" for name, value in cell.items())
        case frozenset():
            text = " ".join(sorted(str(_value(member)) for member in cell))
        case Sequence():
            text = " ".join(str(_value(item)) for item in cell)
    return text
