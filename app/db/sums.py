"""Sums of floating-point columns that do not depend on the order of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Double, Numeric, cast, func

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.sql.elements import SQLCoreOperations


def total(
    values: SQLCoreOperations[float], where: ColumnElement[bool] | None = None
) -> ColumnElement[float]:
    """Return the sum of an expression, of the rows that match; null without any.

    PostgreSQL adds floating-point numbers as it meets them, and a restored database has its rows in
    another order: the last digits would differ. Decimals of 15 digits are added without rounding.
    """
    added = func.sum(cast(values, Numeric))
    return cast(added if where is None else added.filter(where), Double)
