"""Tables as CSV: one way to write them, in which no cell is a formula of a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

from fastapi.responses import Response

Cell = str | int | float | None

# What spreadsheets take for the beginning of a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return a table as CSV.

    Parameters
    ----------
    header : sequence of str
    rows : iterable of sequence
        Numbers stay as they are; None is empty.

    Examples
    --------
    >>> csv_text(("what", "change"), [("=1+1", -0.5), ("node-7", None)])
    "what,change\n'=1+1,-0.5\nnode-7,\n"
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_plain(cell) for cell in row] for row in rows)
    return out.getvalue()


def csv_file(name: str, text: str) -> Response:
    """Return a table to download; it is of this moment."""
    return Response(
        text,
        media_type="text/csv; charset=utf-8",
        headers={
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="{name}"',
        },
    )


def _plain(cell: object) -> object:
    """Return a cell that a spreadsheet takes for text, not for a formula."""
    if not isinstance(cell, str):
        return cell
    # The writer quotes line feeds alone; readers end a line at either.
    text = cell.replace("\r", "\n")
    return f"'{text}" if cell.startswith(_FORMULA) else text
