"""Lines of CSV that the database writes itself: for files of thousands of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ARRAY, DateTime, String, Text, case, cast, func, literal, select
from sqlalchemy.dialects.postgresql import aggregate_order_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Select, Subquery

# What spreadsheets take for the beginning of a formula.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
# What a cell is in quotation marks for.
_SPECIAL: Final = '[",\n\r]'
_ISO: Final = 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'


def csv_lines(
    query: Select[*tuple[Any, ...]], columns: Sequence[str], order: Sequence[str], most: int
) -> Select[*tuple[str | None]]:
    r"""Return a statement of one text: a line for each row, without a line feed after the last.

    No cell is a formula of a spreadsheet; null is empty, times are ISO 8601 in UTC, and the items
    of an array stand apart by spaces.

    Parameters
    ----------
    query : Select
        What the rows are, with the columns below.
    columns : sequence of str
        What a line holds.
    order : sequence of str
        Columns that rows are in order by, with a minus sign for the largest first; rows without a
        value come last.
    most : int
        Only the first rows.

    Examples
    --------
    >>> query = select(literal("=1").label("host"), literal(True).label("blamed"))
    >>> [column.name for column in csv_lines(query, ["host"], ["host"], 9).selected_columns]
    ['lines']
    """
    found = query.subquery("found")
    first = select(found).order_by(*_by(found, order)).limit(most).subquery("first")
    cells = [func.coalesce(_cell(first.c[name]), "") for name in columns]
    line = func.concat_ws(",", *cells)
    in_order = aggregate_order_by(literal("\n"), *_by(first, order))
    return select(func.string_agg(line, in_order).label("lines"))


def _by(rows: Subquery, order: Sequence[str]) -> list[ColumnElement[Any]]:
    columns = [(rows.c[name.removeprefix("-")], name.startswith("-")) for name in order]
    return [(one.desc() if falls else one.asc()).nulls_last() for one, falls in columns]


def _cell(value: ColumnElement[Any]) -> ColumnElement[str]:
    """Return a value as it stands in a line."""
    kind = value.type
    if isinstance(kind, DateTime):
        return func.to_char(func.timezone("UTC", value), _ISO)
    if isinstance(kind, ARRAY):
        return _words(func.array_to_string(value, " "))
    return _words(value) if isinstance(kind, String) else cast(value, Text)


def _words(text: ColumnElement[str]) -> ColumnElement[str]:
    """Return text that a spreadsheet takes for text, in quotation marks where it must be."""
    # Readers end a line at either.
    plain = func.replace(text, "\r", "\n")
    safe = case((func.left(plain, 1).in_(FORMULA), func.concat("'", plain)), else_=plain)
    quoted = func.concat('"', func.replace(safe, '"', '""'), '"')
    return case((safe.op("~")(_SPECIAL), quoted), else_=safe)
