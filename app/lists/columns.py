"""What a row of a list says of each of its columns, in the type of its field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import InstrumentedAttribute

    Expression = ColumnElement[Any] | InstrumentedAttribute[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column of a list: ``steps: Annotated[int, Column(sort="-steps")]``.

    Its name and its type are those of the field. Pydantic's `Field` stands after it where the API
    describes it (``description``) or does not have it (``exclude``); then files do not have it
    either.
    """

    # What the database reads it from; without it, the attribute of that name of the list's model,
    # or nothing: the service fills it in itself.
    expression: Expression | None = None
    # What addresses call the order by it, with a minus sign where the largest comes first unless
    # the other order is asked for; empty where no order is by it.
    sort: str = ""
    # What the order is by, where that is not `expression`.
    by: Expression | None = None
    # Its name in files where that differs, or where the API does not have it; None where only
    # files leave it out.
    csv: str | None = ""


def columns_of(row: type[Any]) -> Mapping[str, Column]:
    """Return the columns of what rows are, a dataclass, by name.

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
    """Return the columns that files of such rows have, by the names that they have there."""
    hints = get_type_hints(row, include_extras=True)
    return {
        column.csv or name: name
        for name, column in columns_of(row).items()
        if column.csv or (column.csv is not None and not _excluded(hints[name]))
    }


def _column(hint: object) -> Column:
    said = (one for one in _metadata(hint) if isinstance(one, Column))
    return next(said, Column())


def _excluded(hint: object) -> bool:
    return any(isinstance(one, FieldInfo) and one.exclude for one in _metadata(hint))


def _metadata(hint: object) -> Sequence[object]:
    return getattr(hint, "__metadata__", ())
