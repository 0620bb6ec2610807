"""The kinds of durable tasks, without the code that executes them.

Processes that only publish or sweep tasks (the API, the sweeper) need no more than this. The code
of a task is imported when the task runs: a process that never plans does not load the compiler.
"""

from __future__ import annotations

import random
import uuid
from typing import Final

from sqlalchemy import delete, func, update

from app.actions.models import ActionState, MachineAction
from app.hangs.models import HangUpload, HangUploadPart
from app.incidents.batching import waiting_when_dead
from app.incidents.models.tables import AlertDelivery
from app.jobs.models import WeeklySummary
from app.plans.requests import move_plan
from app.platform.broker import ANALYSIS_QUEUE, IO_QUEUE
from app.platform.container import Claim, Container, TaskError, TaskKind
from app.platform.database.states import PlanState, SessionState, TaskState, UploadState
from app.platform.database.task_runs import (
    ACT_ON_MACHINE,
    ANALYZE_SESSION,
    DELIVER_ALERT,
    PLAN_TEMPLATE,
    READ_HANG,
    READ_SCHEDULER,
    REQUEST_RECORDING,
    SEND_SUMMARY,
)
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.outbound import delay_before
from app.platform.resources import limited_memory
from app.platform.tasks.runs import follower
from app.sessions.chunks.intake import move_session

# An action whose workers were killed is attempted again after the delay of the attempt with this
# number: the shorter delays before it have not helped.
DELAY: Final = 3


def _run(container: Container, claim: Claim) -> None:
    # Imported here, because most processes execute no actions.
    from app.actions.perform import perform  # noqa: PLC0415 - see above

    perform(container, claim)


def _follow(tx: UnitOfWork, action: uuid.UUID, state: TaskState, error: TaskError | None) -> None:
    """Schedule another attempt of an action whose workers were killed; actions are idempotent."""
    if state is not TaskState.DEAD or error is None:
        return
    delay = delay_before(DELAY, random.random())  # noqa: S311 - spreads load
    tx.session.execute(
        update(MachineAction)
        .where(MachineAction.id == action, MachineAction.state.in_(ActionState.UNDERWAY))
        .values(next_attempt_at=func.now() + delay, error_code=error.code, error=error.sentence)
    )


ACTING: Final = TaskKind(name=ACT_ON_MACHINE, queue=IO_QUEUE, run=_run, follow=_follow)


def _read_scheduler(container: Container, claim: Claim) -> None:
    # Most processes read none.
    from app.actions.scheduled import read_scheduler  # noqa: PLC0415 - see above

    read_scheduler(container, claim)


def _no_follow(tx: UnitOfWork, subject: uuid.UUID, state: TaskState, error: object) -> None:
    """Leave the subject as it is: a later pass, or a later session, starts such a task again."""
    del tx, subject, state, error


INVENTORY: Final = TaskKind(
    name=READ_SCHEDULER, queue=IO_QUEUE, run=_read_scheduler, follow=_no_follow
)


def _request_recording(container: Container, claim: Claim) -> None:
    # Imported here, because most processes request none.
    from app.pulse.recordings import request_every_rank  # noqa: PLC0415 - see above

    request_every_rank(container, claim)


REQUEST: Final = TaskKind(
    name=REQUEST_RECORDING, queue=IO_QUEUE, run=_request_recording, follow=_no_follow
)


def _deliver(container: Container, claim: Claim) -> None:
    # Imported here: a process that never delivers does not load HTTP, mail and pictures.
    from app.actions.listed import pending_actions  # noqa: PLC0415 - see above
    from app.incidents.deliver import deliver  # noqa: PLC0415 - see above

    deliver(container, claim, pending_actions)


DELIVERY: Final = TaskKind(
    name=DELIVER_ALERT, queue=IO_QUEUE, run=_deliver, follow=waiting_when_dead(AlertDelivery)
)


def _plan(container: Container, claim: Claim) -> None:
    # Imported here: a process that never plans does not load the compiler.
    from app.plans.run import run_plan  # noqa: PLC0415 - see above

    run_plan(container, claim)


PLANNING: Final = TaskKind(
    name=PLAN_TEMPLATE,
    queue=ANALYSIS_QUEUE,
    run=_plan,
    follow=follower(
        move_plan,
        {
            TaskState.QUEUED: PlanState.QUEUED,
            TaskState.RUNNING: PlanState.PLANNING,
            TaskState.DEAD: PlanState.FAILED,
        },
        gap=None,
    ),
)


def _analyze(container: Container, claim: Claim) -> None:
    # Imported here: a process that never analyzes does not load numpy, pyarrow and their threads.
    from app.sessions.analyze import analyze_session  # noqa: PLC0415 - see above
    from app.sessions.receive import give_back, over_limit  # noqa: PLC0415

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
    run=_analyze,
    follow=follower(
        move_session,
        {
            TaskState.QUEUED: SessionState.QUEUED,
            TaskState.RUNNING: SessionState.ANALYZING,
            TaskState.DEAD: SessionState.FAILED,
        },
    ),
)


_STATES: Final = {
    TaskState.QUEUED: UploadState.QUEUED,
    TaskState.RUNNING: UploadState.READING,
    TaskState.DEAD: UploadState.FAILED,
}


def _read_hang(container: Container, claim: Claim) -> None:
    # Imported here, because most processes read no archives.
    from app.hangs.uploads import read_upload  # noqa: PLC0415 - see above

    read_upload(container, claim)


def _follow_upload(
    tx: UnitOfWork, upload: uuid.UUID, state: TaskState, error: TaskError | None
) -> None:
    tx.session.execute(
        update(HangUpload)
        .where(HangUpload.id == upload)
        .values(
            state=_STATES[state],
            reason_code=error.code if error else None,
            reason=error.sentence if error else None,
        )
    )
    if state is TaskState.DEAD:
        # The same archive, received again, is read again.
        tx.session.execute(delete(HangUploadPart).where(HangUploadPart.upload_id == upload))


READING: Final = TaskKind(
    name=READ_HANG, queue=ANALYSIS_QUEUE, run=_read_hang, follow=_follow_upload
)


def _send_summary(container: Container, claim: Claim) -> None:
    # Imported here: a process that never delivers does not load HTTP, mail and pictures.
    from app.jobs.weekly import deliver_summary  # noqa: PLC0415 - see above

    deliver_summary(container, claim)


SUMMARY: Final = TaskKind(
    name=SEND_SUMMARY, queue=IO_QUEUE, run=_send_summary, follow=waiting_when_dead(WeeklySummary)
)
