"""Task runs: durable work, claimed with a lease.

A row of `task_run` goes ``queued → running → done``, or ends ``dead``. It is the truth; messages
of the broker only make a worker look at it. Every step below is one conditional UPDATE, and every
race shows as "rows updated != 1":

enqueue
    `UnitOfWork.enqueue` inserts ``queued``, attempt 0, in the transaction of the fact that causes
    the work. A fact without its work, or work without its fact, cannot be.
claim
    WHERE id AND state = queued AND the project is there → running, attempt + 1, a new random
    token, a lease. Commits alone: no transaction stays open while computing. Not 1 row: another
    worker has it, or it is over. A message that comes twice, late, or after a restart ends here.
renew
    WHERE id AND token AND state = running → a later lease. Not 1 row: the lease ran out and
    another worker may be at work by now; nothing is lost yet, but finish will refuse.
finish
    The same condition → done, *in the transaction that stores the result*. Not 1 row:
    `LostClaimError`, and the result is rolled back. So of any number of runs one is stored.
give back
    The same condition → queued, attempt - 1: to be stopped is not the task's fault.
fail
    The same condition → dead: the work itself failed, and would fail again.
retry
    The same condition → queued: another worker may have the memory that this one lacked.
interrupt
    The same condition → queued, attempt - 1: the database failed, not the work.
expire
    By the sweeper: WHERE id AND the token that it saw AND state = running AND the lease is over →
    queued, or dead after `max_attempts`. A worker that was killed cannot say so; this says it for
    it, and stops a task that kills every worker. A lease that was last renewed before the database
    was started is over only when its worker had the time of a whole lease since then, and the
    attempt does not count: what ended the database may have ended the worker as well.

The subject (a session) follows in the same transaction, after the task run's row: with that order
kept everywhere no two of these steps can deadlock. Leases are the database's time only; a worker
whose clock is wrong can neither hold a task forever nor lose it early.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import CursorResult, Update, func, update

from app.db.models.tasks import TaskRun
from app.db.states import TaskState
from app.errors import LostClaimError
from app.services.access.projects import is_there
from app.services.container import Claim, Container, TaskError

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import UnitOfWork


def claim(container: Container, run_id: uuid.UUID) -> Claim | None:
    """Take a queued task run, or return None where there is nothing to take."""
    token = uuid.uuid4()
    with container.everywhere().uow() as tx:
        row = tx.session.execute(
            update(TaskRun)
            .where(
                TaskRun.id == run_id,
                TaskRun.state == TaskState.QUEUED,
                # A newer version's work, during a rolling deployment, waits for its workers.
                TaskRun.kind.in_(container.kinds),
                is_there(TaskRun.project_id),
            )
            .values(
                state=TaskState.RUNNING,
                attempt=TaskRun.attempt + 1,
                claim_token=token,
                lease_until=_lease_end(container, tx),
            )
            .returning(
                *(TaskRun.kind, TaskRun.subject_id, TaskRun.attempt, TaskRun.project_id),
                TaskRun.traceparent,
            )
        ).one_or_none()
        if row is None:
            return None
        taken = Claim(run_id, token, *row)
        _follow(container, tx, taken, TaskState.RUNNING, None)
    return taken


def renew(container: Container, held: Claim) -> bool:
    """Move the end of the lease; return False where the claim is lost."""
    with container.everywhere().uow() as tx:
        return _moved(tx, _held(held).values(lease_until=_lease_end(container, tx)))


def finish(tx: UnitOfWork, held: Claim) -> None:
    """End a task run in the transaction that stores its result; call it before storing.

    Raises
    ------
    LostClaimError
        If another worker owns the task by now: leave the transaction, which rolls back.
    """
    if not _moved(tx, _held(held).values(state=TaskState.DONE, **_over(tx.now))):
        raise LostClaimError(f"task run {held.run_id} is no longer held by attempt {held.attempt}")


def give_back(container: Container, held: Claim) -> bool:
    """Let another worker start over, because this one is to stop; False where it is lost."""
    with container.everywhere().uow() as tx:
        moved = _unharmed(container, tx, _held(held).values(published_at=None), held)
        if moved:
            tx.publish_after_commit(held.run_id, held.kind)
    return moved


def interrupt(container: Container, held: Claim) -> bool:
    """Queue a task run again that the database failed; False where the claim is lost.

    The sweeper publishes it after a while; at once would meet the same fault again.
    """
    with container.everywhere().uow() as tx:
        return _unharmed(container, tx, _held(held).values(published_at=tx.now), held)


def retry(container: Container, held: Claim) -> bool:
    """Queue a task run again that may succeed elsewhere; False where the claim is lost.

    The attempt counts. The sweeper publishes it after a while, when this worker may be busy with
    something else.
    """
    with container.everywhere().uow() as tx:
        return _queue(container, tx, _held(held).values(published_at=tx.now), held)


def fail(container: Container, held: Claim, error: TaskError) -> bool:
    """End a task run whose work failed; False where the claim is lost."""
    with container.everywhere().uow() as tx:
        return _kill(container, tx, _held(held), held, error)


def lease_is_over(tx: UnitOfWork, lease_s: float) -> ColumnElement[bool]:
    """Return whether the owner of a lease cannot be expected to renew it any more."""
    lease = timedelta(seconds=lease_s)
    had_time = func.pg_postmaster_start_time() < tx.now - lease
    return (TaskRun.lease_until < tx.now) & (was_seen(lease_s) | had_time)


def was_seen(lease_s: float) -> ColumnElement[bool]:
    """Return whether a lease was renewed since the database was started."""
    return TaskRun.lease_until - timedelta(seconds=lease_s) >= func.pg_postmaster_start_time()


def expire(
    container: Container, tx: UnitOfWork, seen: Claim, error: TaskError, *, counts: bool
) -> TaskState | None:
    """Take a task run from a worker whose lease is over.

    Parameters
    ----------
    error : TaskError
        Why the task is dead, if this was its last attempt.
    counts : bool
        Whether the attempt counts: the database was there all the time.

    Returns
    -------
    TaskState or None
        Queued or dead; None where the worker was faster and renewed, finished or gave back.
    """
    over = _held(seen).where(lease_is_over(tx, container.settings.lease_s))
    if not counts:
        moved = _unharmed(container, tx, over.values(published_at=tx.now), seen)
        return TaskState.QUEUED if moved else None
    if seen.attempt >= container.settings.max_attempts:
        return TaskState.DEAD if _kill(container, tx, over, seen, error) else None
    moved = _queue(container, tx, over.values(published_at=tx.now), seen)
    return TaskState.QUEUED if moved else None


def _unharmed(container: Container, tx: UnitOfWork, where: Update, held: Claim) -> bool:
    """Queue a task run again as if it had not been claimed."""
    return _queue(container, tx, where.values(attempt=TaskRun.attempt - 1), held)


def _queue(container: Container, tx: UnitOfWork, where: Update, held: Claim) -> bool:
    waiting = {"state": TaskState.QUEUED, "claim_token": None, "lease_until": None}
    moved = _moved(tx, where.values(**waiting))
    if moved:
        _follow(container, tx, held, TaskState.QUEUED, None)
    return moved


def _kill(
    container: Container, tx: UnitOfWork, where: Update, held: Claim, error: TaskError
) -> bool:
    moved = _moved(
        tx,
        where.values(
            state=TaskState.DEAD, error_code=error.code, error=error.sentence, **_over(tx.now)
        ),
    )
    if moved:
        _follow(container, tx, held, TaskState.DEAD, error)
    return moved


def _follow(
    container: Container,
    tx: UnitOfWork,
    held: Claim,
    state: TaskState,
    error: TaskError | None,
) -> None:
    container.kinds[held.kind].follow(tx, held.subject_id, state, error)


def _held(held: Claim) -> Update:
    return update(TaskRun).where(
        TaskRun.id == held.run_id,
        TaskRun.claim_token == held.token,
        TaskRun.state == TaskState.RUNNING,
    )


def _moved(tx: UnitOfWork, statement: Update) -> bool:
    """Run an UPDATE by id and return whether it was this transaction that moved the row."""
    return cast("CursorResult[Any]", tx.session.execute(statement)).rowcount == 1


def _lease_end(container: Container, tx: UnitOfWork) -> datetime:
    return tx.now + timedelta(seconds=container.settings.lease_s)


def _over(now: datetime) -> dict[str, Any]:
    return {"claim_token": None, "lease_until": None, "finished_at": now}
