"""The rules that a new installation has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from app.incidents.models.rules import DEFAULT_RULES, RULE
from app.incidents.models.tables import AlertRule

if TYPE_CHECKING:
    from app.platform.container import Container


def test_a_new_database_has_the_rules_that_come_with_the_product(container: Container) -> None:
    with container.uow() as tx:
        rows = tx.session.execute(select(AlertRule).order_by(AlertRule.id)).scalars().all()
    stored = [
        RULE.validate_python({"id": row.id, "name": row.name, **row.document}) for row in rows
    ]
    assert stored == list(DEFAULT_RULES)
