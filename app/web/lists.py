"""Lists declared once: a dataclass of rows determines SQL, order, API fields and CSV columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, get_type_hints

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    DateTime,
    Select,
    String,
    Subquery,
    Text,
    case,
    cast,
    func,
    inspect,
    literal,
    select,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import InstrumentedAttribute

from app.platform.database.unit_of_work import Reads

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
        """Return the number of pages."""
        return pages_of(self.total, self.size)

    @property
    def first(self) -> int:
        """Return the rank of the page's first row in the whole list, counted from 1."""
        return self.size * (self.number - 1) + 1

    @property
    def last(self) -> int:
        """Return the rank of the page's last row in the whole list, counted from 1."""
        return self.first + len(self.rows) - 1


def pages_of(total: int, size: int) -> int:
    """Return the number of pages for a number of rows; at least 1."""
    return max(1, -(-total // size))


def last_page(number: int, total: int, size: int) -> int:
    """Return a page number, limited to the number of the last page."""
    return min(max(number, 1), pages_of(total, size))


Expression = ColumnElement[Any] | InstrumentedAttribute[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column of a list: ``steps: Annotated[int, Column(sort="-steps")]``.

    The column has the name and the type of the field. After it, Pydantic's `Field` may describe the
    field in the API (``description``), or exclude it from the API and so from files (``exclude``).
    """

    # The SQL expression of the column. Without it, the attribute of the same name of the list's
    # model, or, if there is no model, nothing: the service then sets the value itself.
    expression: Expression | None = None
    # Name in addresses of the order by this column, with a leading minus sign if descending order
    # is the default; empty if lists cannot be sorted by the column.
    sort: str = ""
    # The SQL expression to sort by, if it is not `expression`.
    by: Expression | None = None
    # Name of the column in CSV files, if it differs or if the API excludes the field; None if only
    # files exclude it.
    csv: str | None = ""


def columns_of(row: type[Any]) -> Mapping[str, Column]:
    """Return the columns that a dataclass of rows declares, by field name.

    Examples
    --------
    >>> from typing import Annotated
    >>> @dataclass
    ... class Row:
    ...     host: str
    ...     cost: Annotated[float, Column(sort="-cost", csv="cost_gpu_hours")]
    >>> columns_of(Row)["cost"].sort
    '-cost'
    """
    hints = get_type_hints(row, include_extras=True)
    return {field.name: _column(hints[field.name]) for field in fields(row)}


def in_files(row: type[Any]) -> Mapping[str, str]:
    """Return the columns of CSV files for a row class: field names by column name."""
    hints = get_type_hints(row, include_extras=True)
    return {
        column.csv or name: name
        for name, column in columns_of(row).items()
        if column.csv or (column.csv is not None and not _excluded(hints[name]))
    }


def _column(hint: object) -> Column:
    said = (item for item in _metadata(hint) if isinstance(item, Column))
    return next(said, Column())


def _excluded(hint: object) -> bool:
    return any(isinstance(item, FieldInfo) and item.exclude for item in _metadata(hint))


def _metadata(hint: object) -> Sequence[object]:
    return getattr(hint, "__metadata__", ())


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page of a list: order, page number and page size."""

    sort: str = ""
    page: int = 1
    size: int = 50


@dataclass(frozen=True)
class Listing(Generic[R]):
    """A list: its row class, SQL source and orders."""

    row: type[R]  # a dataclass; its fields are the columns, see `app.web.lists.Column`
    # Adds the joins that the columns read from to their query.
    source: Callable[[Select[Any]], Select[Any]] | None = None
    # Expressions that sort rows with equal sort values, and all rows if no column sorts the list
    ties: Sequence[ColumnElement[Any]] = ()
    default_sort: str = ""  # the order where none is asked for, or one that there is not
    # A column without an expression is this model's attribute of the same name.
    model: type[object] | None = None
    # Orders by values that are no columns of the rows.
    others: Mapping[str, Column] = field(default_factory=dict)
    # The key of a row, if rows are slow to read: a page's keys are selected before its rows are
    # read.
    key: ColumnElement[Any] | None = None

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """Return all columns by name."""
        columns = dict(columns_of(self.row))
        for name, column in columns.items():
            if column.expression is None and hasattr(self.model, name):
                columns[name] = replace(column, expression=getattr(self.model, name))
        return {**columns, **self.others}

    @cached_property
    def sorts(self) -> Mapping[str, str]:
        """Return the orders: their names in addresses, each with the name of its column."""
        return {
            column.sort.removeprefix("-"): name
            for name, column in self.columns.items()
            if column.sort
        }

    @cached_property
    def _adapter(self) -> TypeAdapter[list[R]]:
        return TypeAdapter(list[self.row])  # type: ignore[name-defined]

    def sort(self, requested: str) -> str:
        """Return the requested order if the list has it, else the default order."""
        is_order = requested.removeprefix("-") in self.sorts
        return requested if is_order else self.default_sort

    def query(self) -> Select[Any]:
        """Return the query of all columns, each labeled with its name."""
        query = select(
            *(
                column.expression.label(name)
                for name, column in self.columns.items()
                if column.expression is not None
            )
        )
        return query if self.source is None else self.source(query)

    def order(self, requested: str) -> list[ColumnElement[Any]]:
        """Return the SQL expressions of an order, in which rows without a value come last."""
        sort = self.sort(requested)
        name = self.sorts.get(sort.removeprefix("-"))
        if name is None:
            return [*self.ties]
        column = self.columns[name]
        by = column.expression if column.by is None else column.by
        if by is None:
            raise ValueError(f"{self.row.__name__}.{name} says nothing to sort by")
        first = by.desc() if sort.startswith("-") else by.asc()
        return [first if self._is_there(by.expression) else first.nulls_last(), *self.ties]

    def _is_there(self, by: Any) -> bool:  # noqa: ANN401 - an expression, or a column of a table
        """Return whether the column is never null; no index serves an order that moves nulls."""
        of_model = (
            self.model is not None and getattr(by, "table", None) is inspect(self.model).local_table
        )
        return of_model and not by.nullable

    def rows(self, mappings: Iterable[Mapping[Any, Any]]) -> list[R]:
        """Return database rows as dataclasses; JSON values are validated by the fields' types."""
        return self._adapter.validate_python([dict(mapping) for mapping in mappings])


def read(
    tx: Reads,
    listing: Listing[R],
    *where: ColumnElement[bool],
    sort: str = "",
    limit: int | None = None,
    offset: int = 0,
) -> list[R]:
    """Return the rows of a list that meet the conditions.

    Parameters
    ----------
    *where : SQLAlchemy conditions
        Only rows that meet all of them.
    sort : str
        The name of an order, with a minus sign for descending order.
    limit, offset : int
        At most `limit` rows, after `offset`.
    """
    order = listing.order(sort)
    query = listing.query()
    if limit is None or listing.key is None:
        query = query.where(*where).order_by(*order).limit(limit).offset(offset)
    else:
        few = query.with_only_columns(listing.key).where(*where).order_by(*order)
        few = few.limit(limit).offset(offset).correlate(None)
        query = query.where(listing.key.in_(few)).order_by(*order)
    return listing.rows(tx.session.execute(query).mappings())


def read_page(
    tx: Reads, listing: Listing[R], request: PageRequest, *where: ColumnElement[bool], total: int
) -> Page[R]:
    """Return a page of a list; the last page if the page number is too large.

    Parameters
    ----------
    *where : SQLAlchemy conditions
    total : int
        Number of rows on all pages together.
    """
    number = last_page(request.page, total, request.size)
    first = request.size * (number - 1)
    rows = read(tx, listing, *where, sort=request.sort, limit=request.size, offset=first)
    return Page(rows, number, total, request.size)


# First characters of a cell that a spreadsheet would interpret as a formula.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
# Pattern of the characters because of which a cell is quoted.
_SPECIAL: Final = '[",\n\r]'
_ISO: Final = 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'


def csv_lines(
    query: Select[*tuple[Any, ...]], columns: Sequence[str], order: Sequence[str], most: int
) -> Select[*tuple[str | None]]:
    r"""Return a query of one text: a CSV line for each row, without a final line feed.

    Spreadsheets read no cell as a formula; null is empty, times are ISO 8601 in UTC, and the items
    of an array are separated by spaces.

    Parameters
    ----------
    query : Select
        Selects the rows, with at least the columns below.
    columns : sequence of str
        Names of the columns in a line.
    order : sequence of str
        Columns to sort by, with a minus sign for descending order; rows without a value come last.
    most : int
        Maximum number of rows, the first in this order.

    Examples
    --------
    >>> query = select(literal("=1").label("host"), literal(True).label("blamed"))
    >>> [column.name for column in csv_lines(query, ["host"], ["host"], 9).selected_columns]
    ['lines']
    """
    selected = query.subquery("found")
    first = select(selected).order_by(*_by(selected, order)).limit(most).subquery("first")
    cells = [func.coalesce(_cell(first.c[name]), "") for name in columns]
    line = func.concat_ws(",", *cells)
    in_order = aggregate_order_by(literal("\n"), *_by(first, order))
    return select(func.string_agg(line, in_order).label("lines"))


def _by(rows: Subquery, order: Sequence[str]) -> list[ColumnElement[Any]]:
    columns = [(rows.c[name.removeprefix("-")], name.startswith("-")) for name in order]
    return [(column.desc() if falls else column.asc()).nulls_last() for column, falls in columns]


def _cell(value: ColumnElement[Any]) -> ColumnElement[str]:
    """Return the SQL expression of a value as text in a CSV line."""
    kind = value.type
    if isinstance(kind, DateTime):
        return func.to_char(func.timezone("UTC", value), _ISO)
    if isinstance(kind, ARRAY):
        return _words(func.array_to_string(value, " "))
    return _words(value) if isinstance(kind, String) else cast(value, Text)


def _words(text: ColumnElement[str]) -> ColumnElement[str]:
    """Return the SQL expression of a text, quoted if needed, that is no spreadsheet formula."""
    # CSV readers end a line at a carriage return as well as at a line feed.
    plain = func.replace(text, "\r", "\n")
    safe = case((func.left(plain, 1).in_(FORMULA), func.concat("'", plain)), else_=plain)
    quoted = func.concat('"', func.replace(safe, '"', '""'), '"')
    return case((safe.op("~")(_SPECIAL), quoted), else_=safe)
