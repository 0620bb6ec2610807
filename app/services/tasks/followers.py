"""How the subject of a task run follows the run from state to state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping

    from app.db.states import TaskState
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import TaskError


def follower(
    move: Callable[..., None],
    states: Mapping[TaskState, str],
    **cleared: None,
) -> Callable[[UnitOfWork, uuid.UUID, TaskState, TaskError | None], None]:
    """Return what brings a subject into the state that belongs to its task run's.

    Parameters
    ----------
    move : callable
        Takes a transaction, the subject's id and the columns to set.
    states : mapping
        The subject's state for each of the run's.
    **cleared : None
        Further columns to clear.
    """

    def follow(
        tx: UnitOfWork, subject_id: uuid.UUID, state: TaskState, error: TaskError | None
    ) -> None:
        columns: dict[str, Any] = {
            "state": states[state],
            "reason_code": error.code if error else None,
            "reason": error.sentence if error else None,
            "reason_detail": None,
        }
        move(tx, subject_id, **columns, **cleared)

    return follow
