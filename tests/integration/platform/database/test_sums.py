"""Sums do not depend on the order of rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Double, column, func, select, values

from app.platform.database.columns import total

if TYPE_CHECKING:
    from app.platform.container import Container

COST = column("cost", Double)


def _sums(container: Container, costs: list[float]) -> tuple[float, float, float]:
    rows = values(COST, name="costs").data([(cost,) for cost in costs])
    with container.engine.connect() as connection:
        found = connection.execute(
            select(total(rows.c.cost), total(rows.c.cost, rows.c.cost > 1), func.sum(rows.c.cost))
        ).one()
    return found[0], found[1], found[2]


def test_the_order_of_rows_does_not_move_a_sum(container: Container) -> None:
    drawn = random.Random(1)  # noqa: S311 - the same in every run
    costs = [drawn.lognormvariate(0, 4) for _ in range(300)]
    found = set()
    for _ in range(5):
        drawn.shuffle(costs)
        found.add(_sums(container, costs)[:2])

    ((all_of_them, some),) = found
    assert all_of_them == pytest.approx(sum(costs), rel=1e-12)
    assert some == pytest.approx(sum(cost for cost in costs if cost > 1), rel=1e-12)


def test_nothing_sums_up_to_null(container: Container) -> None:
    assert _sums(container, [0.5])[1] is None
