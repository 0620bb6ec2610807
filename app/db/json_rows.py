"""Rows of a query as one value: several queries in one statement see one ledger and go at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

if TYPE_CHECKING:
    from sqlalchemy import ScalarSelect, Select


def as_json(query: Select[*tuple[Any, ...]]) -> ScalarSelect[Any]:
    """Return the rows of a query as a JSON array, in its order; null without any."""
    rows = query.subquery()
    return select(func.jsonb_agg(func.to_jsonb(rows.table_valued()))).scalar_subquery()
