"""Tables as CSV: one way to write them, in which no cell is a formula of a spreadsheet."""

from __future__ import annotations

import csv
import io
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Final, TypeVar

from fastapi.responses import StreamingResponse

from app.errors import NotFoundError
from app.lists.columns import in_files
from app.lists.csv_lines import FORMULA

_Made = TypeVar("_Made")

_NUMBERS: Final = frozenset((int, float))
# Characters that are sent at once.
_PIECE: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Table:
    r"""A table that is written as CSV while it is sent.

    Parameters
    ----------
    header : sequence of str
    rows : iterable of sequence
        Numbers stay as they are; None is empty; times are ISO 8601, and lengths of time seconds.

    Examples
    --------
    >>> Table(("what", "change"), [("=1+1", -0.5), ("node-7", None)]).text()
    "what,change\n'=1+1,-0.5\nnode-7,\n"
    """

    header: Sequence[str]
    rows: Iterable[Sequence[object]]

    @classmethod
    def of(cls, kind: type[object], rows: Iterable[object], *names: str) -> Table:
        """Return a table with the columns of a list.

        Parameters
        ----------
        kind : type
            Of the rows, a dataclass; see `app.lists.columns.in_files`.
        *names : str
            Of these columns, or of other attributes, where not every column is meant.
        """
        columns = in_files(kind)
        header = names or tuple(columns)
        attributes = [columns.get(name, name) for name in header]
        return cls(header, ([getattr(row, name) for name in attributes] for row in rows))

    def pieces(self) -> Iterator[str]:
        """Return the text of the table, a piece at a time."""
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
        """Return the whole text."""
        return "".join(self.pieces())


@dataclass(frozen=True, slots=True)
class Written:
    """A table whose lines the database wrote, see `app.lists.csv_lines`."""

    header: Sequence[str]
    lines: str

    def pieces(self) -> Iterator[str]:
        """Return the text of the table, a piece at a time."""
        yield ",".join(self.header) + "\n"
        if self.lines:
            yield self.lines
            yield "\n"


def csv_file(name: str, table: Table | Written) -> StreamingResponse:
    """Return a table to download; it is of this moment.

    What is wrong with its first rows is raised here, where it still is a status of the answer.
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
    """Return what makes a file.

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
    """Return a cell that a spreadsheet takes for text, not for a formula."""
    # Most cells are a number, nothing or plain text, and files have many.
    if cell is None or type(cell) in _NUMBERS:
        return cell
    found = cell if type(cell) is str else _value(cell)
    if not isinstance(found, str):
        return found
    # The writer quotes line feeds alone; readers end a line at either.
    text = found.replace("\r", "\n")
    return f"'{text}" if found.startswith(FORMULA) else text


def _value(cell: object) -> object:
    """Return a value as a number or as text."""
    found: object = cell
    match cell:
        # Also of an enumeration, whose name is not what is meant.
        case str() | uuid.UUID():
            found = str(cell)
        case bool():
            found = str(cell).lower()
        case datetime():
            found = cell.isoformat()
        case timedelta():
            found = cell.total_seconds()
        case Mapping():
            found = " ".join(f"{name}={_value(value)}" for name, value in cell.items())
        case frozenset():
            found = " ".join(sorted(str(_value(one)) for one in cell))
        case Sequence():
            found = " ".join(str(_value(one)) for one in cell)
    return found
