"""The work on a session as a kind of task, without the analysis itself.

Processes that only publish or sweep (the API, the sweeper) need to know this much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.broker.celery import ANALYSIS_QUEUE
from app.db.models.sessions import ANALYZE_SESSION
from app.services.container import Claim, SubjectState, TaskError, TaskKind
from app.services.sessions.transition import move_session

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

_SESSION_STATE: Final[dict[SubjectState, str]] = {
    "queued": "queued",
    "running": "analyzing",
    "dead": "failed",
}


def follow_task(
    tx: UnitOfWork, session_id: uuid.UUID, state: SubjectState, error: TaskError | None
) -> None:
    """Bring a session into the state that belongs to its task run's."""
    move_session(
        tx,
        session_id,
        state=_SESSION_STATE[state],
        reason_code=error.code if error else None,
        reason=error.sentence if error else None,
        reason_detail=None,
    )


def _run(container: Container, claim: Claim) -> None:
    # A process that never analyzes should not pay for numpy, pyarrow and their threads.
    from app.services.sessions.analyze import analyze_session  # noqa: PLC0415 - see above

    analyze_session(container, claim)


ANALYSIS: Final = TaskKind(name=ANALYZE_SESSION, queue=ANALYSIS_QUEUE, run=_run, follow=follow_task)
