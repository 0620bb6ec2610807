"""The change of a session's state, the same for every caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import update

from app.db.models.sessions import Session

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork


def move_session(tx: UnitOfWork, session_id: uuid.UUID, **values: Any) -> None:  # noqa: ANN401 - columns differ in type
    """Set columns of a session that changes its state, and tell listeners on commit."""
    tx.session.execute(
        update(Session).where(Session.id == session_id).values(state_changed_at=tx.now, **values)
    )
    tx.notify_session(session_id)
