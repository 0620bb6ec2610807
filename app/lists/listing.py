"""A list, declared once: what its rows are, where they come from, and which orders they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import inspect, select

from app.lists.columns import Column, columns_of
from app.lists.pages import Page, last_page

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select

    from app.db.unit_of_work import Reads

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a page of a list is asked for by: its order, its number and its size."""

    sort: str = ""
    page: int = 1
    size: int = 50


@dataclass(frozen=True)
class Listing(Generic[R]):
    """A list."""

    row: type[R]  # a dataclass; its fields are the columns, see `app.lists.columns.Column`
    # Takes the query of the columns and joins what they are read from.
    source: Callable[[Select[Any]], Select[Any]] | None = None
    # the order of rows that are equal by what they are sorted
    # by, and of a list that is sorted by none of its columns
    ties: Sequence[ColumnElement[Any]] = ()
    default_sort: str = ""  # the order where none is asked for, or one that there is not
    # Columns that say no expression are this model's attributes of their names.
    model: type[object] | None = None
    # What rows are sorted by and do not have themselves.
    others: Mapping[str, Column] = field(default_factory=dict)
    # Which row is which, where rows hold what takes long to read: those of a page are found first.
    key: ColumnElement[Any] | None = None

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """Return the columns by name."""
        found = dict(columns_of(self.row))
        for name, column in found.items():
            if column.expression is None and hasattr(self.model, name):
                found[name] = replace(column, expression=getattr(self.model, name))
        return {**found, **self.others}

    @cached_property
    def sorts(self) -> Mapping[str, str]:
        """Return the orders: what addresses call each, and the name of its column."""
        return {
            column.sort.removeprefix("-"): name
            for name, column in self.columns.items()
            if column.sort
        }

    @cached_property
    def _adapter(self) -> TypeAdapter[list[R]]:
        return TypeAdapter(list[self.row])  # type: ignore[name-defined]

    def sort(self, requested: str) -> str:
        """Return the order that is in force."""
        known = requested.removeprefix("-") in self.sorts
        return requested if known else self.default_sort

    def query(self) -> Select[Any]:
        """Return the query of the columns, labeled with their names."""
        query = select(
            *(
                column.expression.label(name)
                for name, column in self.columns.items()
                if column.expression is not None
            )
        )
        return query if self.source is None else self.source(query)

    def order(self, requested: str) -> list[ColumnElement[Any]]:
        """Return the expressions of an order; rows without a value come last in each."""
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
        """Return whether rows always have a value: an index serves no order that moves nulls."""
        of_model = (
            self.model is not None and getattr(by, "table", None) is inspect(self.model).local_table
        )
        return of_model and not by.nullable

    def rows(self, found: Iterable[Mapping[Any, Any]]) -> list[R]:
        """Return rows of what the database returned, by name; JSON becomes what fields say."""
        return self._adapter.validate_python([dict(one) for one in found])


def read(
    tx: Reads,
    listing: Listing[R],
    *where: ColumnElement[bool],
    sort: str = "",
    limit: int | None = None,
    offset: int = 0,
) -> list[R]:
    """Return rows of a list.

    Parameters
    ----------
    *where : SQLAlchemy conditions
        Only rows that meet all of them.
    sort : str
        The name of an order, with a minus sign for the largest first.
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
    """Return a page of a list; the last one where there are not that many.

    Parameters
    ----------
    *where : SQLAlchemy conditions
    total : int
        Rows on all pages together.
    """
    number = last_page(request.page, total, request.size)
    first = request.size * (number - 1)
    rows = read(tx, listing, *where, sort=request.sort, limit=request.size, offset=first)
    return Page(rows, number, total, request.size)
