"""Values of JSON in statements: rows of a query as one, and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

if TYPE_CHECKING:
    from sqlalchemy import ScalarSelect, Select


def as_json(query: Select[*tuple[Any, ...]]) -> ScalarSelect[Any]:
    """Return the rows of a query as a JSON array, in its order; null without any.

    Several queries in one statement see one ledger and go at once.
    """
    rows = query.subquery()
    return select(func.jsonb_agg(func.to_jsonb(rows.table_valued()))).scalar_subquery()


def has_label(labels: Any, asked: str) -> Any:  # noqa: ANN401 - a column of JSON, and a condition
    """Return whether labels have one: ``name=value``, or the name of a label of any value."""
    name, has_value, value = asked.partition("=")
    found = labels[name.strip()].astext
    return found == value.strip() if has_value else found.is_not(None)
