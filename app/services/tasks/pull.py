"""What waits of a queue, asked of the database itself: the broker is only a nudge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.db.models.tasks import TaskRun
from app.db.states import TaskState
from app.services.access.projects import is_there

if TYPE_CHECKING:
    import uuid

    from app.services.container import Container

# Looked for at once.
HEAD: Final = 16


def next_runs(container: Container, queue: str) -> list[uuid.UUID]:
    """Return the task runs of a queue that have waited longest.

    Who executes them claims each: those that do the same do not meet.
    """
    kinds = [kind.name for kind in container.kinds.values() if kind.queue == queue]
    with container.everywhere().reading() as tx:
        return list(
            tx.session.execute(
                select(TaskRun.id)
                .where(
                    TaskRun.state == TaskState.QUEUED,
                    TaskRun.kind.in_(kinds),
                    is_there(TaskRun.project_id),
                )
                .order_by(TaskRun.created_at)
                .limit(HEAD)
            ).scalars()
        )
