"""The change of a plan's state, the same for every caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, update

from app.db.models.plans import Plan

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork


def move_plan(tx: UnitOfWork, plan_id: uuid.UUID, **values: Any) -> None:  # noqa: ANN401 - columns differ in type
    """Set columns of a plan that changes its state."""
    tx.session.execute(
        update(Plan).where(Plan.id == plan_id).values(state_changed_at=func.now(), **values)
    )
