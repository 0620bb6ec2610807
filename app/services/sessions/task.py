"""The work on a session as a kind of task, without the analysis itself.

Processes that only publish or sweep (the API, the sweeper) need to know this much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.broker.celery import ANALYSIS_QUEUE
from app.db.models.tasks import ANALYZE_SESSION
from app.db.states import SessionState, TaskState
from app.services.container import Claim, TaskKind
from app.services.sessions.transition import move_session
from app.services.tasks.followers import follower
from app.system.memory import limited_memory

if TYPE_CHECKING:
    from app.services.container import Container


def _run(container: Container, claim: Claim) -> None:
    # A process that never analyzes should not pay for numpy, pyarrow and their threads.
    from app.services.sessions.analyze import analyze_session  # noqa: PLC0415 - see above
    from app.services.sessions.memory import give_back, over_limit  # noqa: PLC0415

    try:
        with limited_memory(container.settings.analysis_memory_limit_kib):
            analyze_session(container, claim)
    except MemoryError as error:
        give_back(above=0)
        raise over_limit(container, claim.subject_id) from error
    finally:
        give_back()


ANALYSIS: Final = TaskKind(
    name=ANALYZE_SESSION,
    queue=ANALYSIS_QUEUE,
    run=_run,
    follow=follower(
        move_session,
        {
            TaskState.QUEUED: SessionState.QUEUED,
            TaskState.RUNNING: SessionState.ANALYZING,
            TaskState.DEAD: SessionState.FAILED,
        },
    ),
)
