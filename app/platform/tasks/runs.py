"""Task runs: durable tasks that workers claim with a lease.

A row of `task_run` goes ``queued → running → done``, or ends ``dead``. Only the row counts;
messages of the broker only make a worker read it. Every step below is one conditional UPDATE; a
step that lost a race updates no row:

enqueue
    `UnitOfWork.enqueue` inserts ``queued``, attempt 0, in the transaction of the fact that causes
    the work, so that neither exists without the other.
claim
    WHERE id AND state = queued AND the project exists → running, attempt + 1, a new random
    token, a lease. Commits alone: no transaction stays open during the computation. No row: another
    worker has claimed the task, or it has ended, as after a message that came twice or late.
renew
    WHERE id AND token AND state = running → a later lease. No row: the lease expired and
    another worker may run the task; this worker may continue, but `finish` will refuse its result.
finish
    The same condition → done, *in the transaction that stores the result*. No row:
    `LostClaimError`, and the result is rolled back. So one result of any number of runs is stored.
give back
    The same condition → queued, attempt - 1: the worker stops, which is no failure of the task.
fail
    The same condition → dead: the work itself failed, and would fail again.
retry
    The same condition → queued: another worker may have the memory that this worker lacked.
interrupt
    The same condition → queued, attempt - 1: the database failed, not the work.
leave
    The same condition → queued, attempt - 1, and a higher `needs`: a later version stored the data.
expire
    By the sweeper: WHERE id AND the token that it read AND state = running AND the lease expired →
    queued, or dead after `max_attempts`. This recovers the tasks of killed workers, and stops a
    task that kills every worker. A lease that was last renewed before the database was started
    expires only after the database has run for the duration of a lease, and the attempt does not
    count: the cause that stopped the database may have stopped the worker as well.

The subject (a session) changes in the same transaction, after the task run's row: because all steps
keep this order, no two of them can deadlock. Leases use only the database's time; a worker whose
clock is wrong can neither hold a task forever nor lose it early.

Bodies that wait in the inbox have leases of their own, by batch: chunks of a session
(`app.sessions.chunks.absorb`) and pulses of an attempt (`app.pulse.advance`). As task runs, one for
each session, chunks took 48 lines more, since a sender has to keep the session's run from ending
before the sender's commit; 1,024 senders of one session were served as fast (752 instead of 875
chunks/s, 782 instead of 733 a processor-second), but only one worker at a time could absorb a
session. A pulse advances every two seconds, which would be 43,000 task runs a day for each job.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, cast

import structlog
from sqlalchemy import ColumnElement, CursorResult, Update, case, func, select, update
from sqlalchemy.exc import SQLAlchemyError

from app.analysis.generation import READS, WRITES
from app.errors import LostClaimError
from app.platform.container import Claim, Container, TaskError
from app.platform.database.engine import said
from app.platform.database.projects import is_there
from app.platform.database.states import TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.database.unit_of_work import UnitOfWork

_WAITING: Final[Mapping[str, Any]] = {
    "state": TaskState.QUEUED,
    "claim_token": None,
    "lease_until": None,
}


def claim(container: Container, run_id: uuid.UUID) -> Claim | None:
    """Claim a queued task run; return None if it is no longer queued."""
    token = uuid.uuid4()
    with container.everywhere().uow() as tx:
        row = tx.session.execute(
            update(TaskRun)
            .where(
                TaskRun.id == run_id,
                TaskRun.state == TaskState.QUEUED,
                # During a rolling deployment, tasks of a newer version wait for workers of that
                # version.
                TaskRun.kind.in_(container.kinds),
                TaskRun.needs <= READS,
                is_there(TaskRun.project_id),
            )
            .values(
                state=TaskState.RUNNING,
                attempt=TaskRun.attempt + 1,
                claim_token=token,
                lease_until=_lease_end(container, tx),
                # This worker may store data of its own generation, also if it does not finish.
                needs=func.greatest(TaskRun.needs, WRITES),
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
    """Extend the lease of a claim; return False if the claim is lost."""
    with container.everywhere().uow() as tx:
        return _moved(tx, _held(held).values(lease_until=_lease_end(container, tx)))


def finish(tx: UnitOfWork, held: Claim) -> None:
    """End a task run in the transaction that stores its result; call before storing the result.

    Raises
    ------
    LostClaimError
        If another worker owns the task now: leave the transaction, which rolls back.
    """
    if not _moved(tx, _held(held).values(state=TaskState.DONE, **_over(tx.now))):
        raise LostClaimError(f"task run {held.run_id} is no longer held by attempt {held.attempt}")


def give_back(container: Container, held: Claim) -> bool:
    """Queue the task again because this worker stops; return False if the claim is lost."""
    with container.everywhere().uow() as tx:
        moved = _unharmed(container, tx, _held(held).values(published_at=None), held)
        if moved:
            tx.publish_after_commit(held.run_id, held.kind)
    return moved


def interrupt(container: Container, held: Claim) -> bool:
    """Queue a task again after a failure of a store; return False if the claim is lost.

    The sweeper publishes the task after a while; an immediate attempt would meet the same fault.
    """
    with container.everywhere().uow() as tx:
        return _unharmed(container, tx, _held(held).values(published_at=tx.now), held)


def leave(container: Container, held: Claim, generation: int) -> bool:
    """Queue a task again for a worker that reads a generation; return False if the claim is lost.

    The attempt does not count.
    """
    with container.everywhere().uow() as tx:
        needs = func.greatest(TaskRun.needs, generation)
        return _unharmed(container, tx, _held(held).values(published_at=tx.now, needs=needs), held)


def take_from_older(container: Container, tx: UnitOfWork, kind: str, subject_id: uuid.UUID) -> None:
    """Take a subject's open task from workers that do not read what this transaction stores.

    A worker of an earlier version that has claimed the task loses its claim. Call this function
    before the transaction changes the subject, as task runs are locked first.
    """
    running = case((TaskRun.state == TaskState.RUNNING, 1), else_=0)
    moved = tx.session.execute(
        update(TaskRun)
        .where(
            TaskRun.kind == kind,
            TaskRun.subject_id == subject_id,
            TaskRun.state.in_(TaskState.OPEN),
            TaskRun.needs < WRITES,
        )
        .values(needs=WRITES, attempt=TaskRun.attempt - running, **_WAITING)
        .returning(TaskRun.id)
    ).scalar()
    if moved is not None:
        container.kinds[kind].follow(tx, subject_id, TaskState.QUEUED, None)


def retry(container: Container, held: Claim) -> bool:
    """Queue a task again, for another worker to try; return False if the claim is lost.

    The attempt counts. The sweeper publishes the task after a while, when this worker may be busy
    with another task.
    """
    with container.everywhere().uow() as tx:
        return _queue(container, tx, _held(held).values(published_at=tx.now), held)


def fail(container: Container, held: Claim, error: TaskError) -> bool:
    """Mark a task as dead after its work failed; return False if the claim is lost."""
    with container.everywhere().uow() as tx:
        return _kill(container, tx, _held(held), held, error)


def lease_is_over(tx: UnitOfWork, lease_s: float) -> ColumnElement[bool]:
    """Return the condition that a lease has expired."""
    lease = timedelta(seconds=lease_s)
    had_time = func.pg_postmaster_start_time() < tx.now - lease
    return (TaskRun.lease_until < tx.now) & (was_seen(lease_s) | had_time)


def was_seen(lease_s: float) -> ColumnElement[bool]:
    """Return the condition that a lease was renewed since the database's last start."""
    return TaskRun.lease_until - timedelta(seconds=lease_s) >= func.pg_postmaster_start_time()


def expire(
    container: Container, tx: UnitOfWork, seen: Claim, error: TaskError, *, counts: bool
) -> TaskState | None:
    """End a claim whose lease has expired: queue the task again, or mark it as dead.

    Parameters
    ----------
    error : TaskError
        Error to store if this was the last attempt and the task is dead.
    counts : bool
        Whether the attempt counts: false if the database was restarted during the lease.

    Returns
    -------
    TaskState or None
        Queued or dead; None if the worker renewed, finished or gave back the claim first.
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
    """Queue a task run again as if no worker had claimed it."""
    return _queue(container, tx, where.values(attempt=TaskRun.attempt - 1), held)


def _queue(container: Container, tx: UnitOfWork, where: Update, held: Claim) -> bool:
    moved = _moved(tx, where.values(**_WAITING))
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
    """Run an UPDATE of a row by id, and return whether this transaction changed the row."""
    return cast("CursorResult[Any]", tx.session.execute(statement)).rowcount == 1


def _lease_end(container: Container, tx: UnitOfWork) -> datetime:
    return tx.now + timedelta(seconds=container.settings.lease_s)


def _over(now: datetime) -> dict[str, Any]:
    return {"claim_token": None, "lease_until": None, "finished_at": now}


# ---- Leases of a process's claims: renewed while work runs, given back when the process stops ----


# Pause after a failed renewal. A restarting database refuses connections for a few seconds; with a
# pause of a whole renewal interval only one try would fit into the rest of the lease.
RETRY_S: Final = 1.0

_log = structlog.get_logger(__name__)


class LeaseKeeper:
    """A thread that renews the leases of all claims that this process holds.

    A thread runs while the work is inside of numpy; a signal handler in Python would not, since
    handlers run between two byte codes of the main thread.

    Parameters
    ----------
    container : Container
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._held: dict[Claim, None] = {}
        # Claims without a working thread that could not be given back because the database did not
        # answer.
        self._owed: dict[Claim, None] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        # Set when the thread should check its claims at once: after a change, or to stop.
        self._look = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stopping(self) -> bool:
        """Return whether the process is stopping and takes no further claims."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Give back every claim, and return once that is done; stopping twice is harmless.

        Threads that work on the claims continue, but their results are refused.
        """
        self._stop.set()
        self._look.set()
        if self._thread is not None:
            self._thread.join()
        for claim in self._snapshot():
            self._give_back(claim)
        self._settle_debts()

    @contextlib.contextmanager
    def hold(self, claim: Claim) -> Iterator[None]:
        """Renew the lease of a claim while the context is open.

        Raises
        ------
        LostClaimError
            If the process stopped before the claim was held; the claim is given back.
        """
        with self._lock:
            late = self._stop.is_set()
            if not late:
                self._held[claim] = None
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="paceline-leases", daemon=True
                    )
                    self._thread.start()
        if late:
            give_back(self._container, claim)
            raise LostClaimError("this worker is stopping")
        try:
            yield
        except (SystemExit, KeyboardInterrupt):
            # This process received its own stop signal: a service manager may signal every process.
            self._give_back(claim)
            raise
        finally:
            with self._lock:
                self._held.pop(claim, None)

    def owe(self, claim: Claim) -> None:
        """Give back a claim as soon as the database answers again."""
        with self._lock:
            self._owed[claim] = None
        self._look.set()

    def _run(self) -> None:
        pause_s = self._container.settings.lease_renew_s
        while not self._stop.is_set():
            if self._look.wait(pause_s):
                self._look.clear()
                pause_s = RETRY_S
                continue
            pause_s = self._container.settings.lease_renew_s
            if not self._settle_debts():
                pause_s = min(pause_s, RETRY_S)
            for claim in self._snapshot():
                try:
                    kept = renew(self._container, claim)
                except SQLAlchemyError as error:
                    _log.warning("lease not renewed", run=str(claim.run_id), error=said(error))
                    pause_s = min(pause_s, RETRY_S)
                    continue
                if not kept and claim in self._snapshot():
                    # Another worker may run the task now. This process's result will be refused at
                    # the end; interrupting the work would save time only in a case that should not
                    # occur.
                    _log.error("lease lost", run=str(claim.run_id), attempt=claim.attempt)
                    with self._lock:
                        self._held.pop(claim, None)

    def _settle_debts(self) -> bool:
        """Give back the interrupted claims; return whether all have been given back."""
        with self._lock:
            owed = list(self._owed)
        for claim in owed:
            try:
                interrupt(self._container, claim)
            except SQLAlchemyError as error:
                _log.warning("claim not given back", run=str(claim.run_id), error=said(error))
                return False
            with self._lock:
                del self._owed[claim]
        return True

    def _give_back(self, claim: Claim) -> None:
        try:
            given = give_back(self._container, claim)
        except SQLAlchemyError as error:
            # The lease expires by itself; the attempt then counts as one whose worker was killed.
            _log.warning("lease not given back", run=str(claim.run_id), error=said(error))
            return
        # If nothing was given back, the work had just finished or the claim was lost before.
        if given:
            _log.info("lease given back", run=str(claim.run_id))

    def _snapshot(self) -> list[Claim]:
        with self._lock:
            return list(self._held)


# ---- Queued runs, read from the database itself: the broker only wakes workers -----------------


# Queued runs that one query returns.
HEAD: Final = 16


def next_runs(container: Container, queue: str) -> list[uuid.UUID]:
    """Return the ids of the oldest queued task runs of a queue.

    A worker claims each run before executing it, so that no two workers execute the same run.
    """
    kinds = [kind.name for kind in container.kinds.values() if kind.queue == queue]
    with container.everywhere().reading() as tx:
        return list(
            tx.session.execute(
                select(TaskRun.id)
                .where(
                    TaskRun.state == TaskState.QUEUED,
                    TaskRun.kind.in_(kinds),
                    TaskRun.needs <= READS,
                    is_there(TaskRun.project_id),
                )
                .order_by(TaskRun.created_at)
                .limit(HEAD)
            ).scalars()
        )


# ---- State changes of a subject that follow from state changes of its task run -----------------


def follower(
    move: Callable[..., None],
    states: Mapping[TaskState, str],
    **cleared: None,
) -> Callable[[UnitOfWork, uuid.UUID, TaskState, TaskError | None], None]:
    """Return a function that sets a subject to the state that corresponds to its task run's.

    Parameters
    ----------
    move : callable
        Takes a transaction, the subject's id and the columns to set.
    states : mapping
        State of the subject for each state of the task run.
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
