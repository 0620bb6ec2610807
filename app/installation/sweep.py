"""Use case: recover task runs whose message or worker was lost.

A message may be lost, a worker killed, the broker unavailable: the rows contain all pending work. A
pass needs neither the broker (if its messages are lost again, the next pass is seconds away) nor a
free worker (it runs in the supervising parent).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

import structlog
from sqlalchemy import delete, func, select, update

from app.access.audit import prune_entries
from app.access.moves import prune_projects
from app.access.sign_ins import prune_sign_ins
from app.actions.perform import sweep_actions
from app.incidents.sweep import sweep_alerts
from app.installation.models import WorkerHeartbeat
from app.jobs.weekly import send_due
from app.platform.container import Claim, Container, TaskError
from app.platform.database.projects import is_there
from app.platform.database.states import TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.tasks.runs import expire, lease_is_over, was_seen
from app.pulse.keep import prune_pulses
from app.retention.objects import collect_objects
from app.retention.rules import keep_to_rules
from app.sessions.chunks.intake import seal_silent

# Advisory lock; an arbitrary number that nothing else in the database locks. Two sweepers at once
# would do no harm, but publish each message twice.
SWEEP_LOCK: Final = 0x7061_6365_7377

# Task runs published again per queue and pass, in the order in which workers would take them.
# Publishing all would send a thousand messages every 15 s for a backlog of a thousand sessions,
# while each session waits its turn.
HEAD: Final = 64

# Limit of the expired leases handled in one pass: each takes a few statements in the same
# transaction, which has to stay short.
EXPIRED: Final = 256

# Heartbeats older than this are deleted: otherwise the rows of every restart would stay forever.
HEARTBEAT_KEPT: Final = timedelta(hours=1)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Numbers of changes in one pass; all zero if another process was sweeping."""

    republished: int = 0  # queued task runs whose message may be lost
    expired: int = 0  # task runs of killed workers that are queued again
    dead: int = 0  # task runs of killed workers that had no attempt left
    forgotten: int = 0  # heartbeats that were deleted
    sealed: int = 0  # sessions of which no further chunk was heard


def sweep(container: Container) -> SweepResult:
    """Do one pass over task runs, alerts, actions, deleted projects, retention and objects."""
    result = _sweep_tasks(container)
    sweep_alerts(container)
    sweep_actions(container)
    send_due(container)
    prune_projects(container)
    keep_to_rules(container)
    collect_objects(container)
    return result


def _sweep_tasks(container: Container) -> SweepResult:
    """Do one pass over the task runs in one transaction, unless another process is doing a pass."""
    with container.everywhere().uow() as tx:
        if not tx.session.execute(select(func.pg_try_advisory_xact_lock(SWEEP_LOCK))).scalar_one():
            return SweepResult()
        expired, dead = _expire(container, tx)
        result = SweepResult(
            republished=_republish(container, tx),
            expired=expired,
            dead=dead,
            forgotten=_forget_workers(tx),
            sealed=seal_silent(tx, container.settings.session_silence_limit_s),
        )
        prune_entries(tx)
        prune_sign_ins(tx)
        prune_pulses(tx)
    if result != SweepResult():
        _log.info(
            "swept",
            republished=result.republished,
            expired=result.expired,
            dead=result.dead,
            forgotten=result.forgotten,
            sealed=result.sealed,
        )
    return result


def _expire(container: Container, tx: UnitOfWork) -> tuple[int, int]:
    lease_s = container.settings.lease_s
    # SKIP LOCKED: a locked row's task run is being finished, renewed or given back by its worker.
    rows = tx.session.execute(
        select(
            TaskRun.id,
            TaskRun.claim_token,
            TaskRun.kind,
            TaskRun.subject_id,
            TaskRun.attempt,
            TaskRun.project_id,
            was_seen(lease_s),
        )
        .where(
            TaskRun.state == TaskState.RUNNING,
            lease_is_over(tx, lease_s),
            TaskRun.kind.in_(container.kinds),
        )
        .order_by(TaskRun.lease_until)
        .limit(EXPIRED)
        .with_for_update(skip_locked=True)
    ).all()
    queued = dead = 0
    for run_id, token, kind, subject_id, attempt, project_id, counts in rows:
        # The cast is safe: by the constraint ck_task_run_claim a running task run has a token.
        seen = Claim(run_id, cast("uuid.UUID", token), kind, subject_id, attempt, project_id)
        state = expire(container, tx, seen, _killed(attempt), counts=counts)
        _log.warning("lease is over", run=str(run_id), attempt=attempt, counts=counts, state=state)
        if state is TaskState.DEAD:
            dead += 1
        elif state is TaskState.QUEUED:
            queued += 1
            tx.publish_after_commit(run_id, kind)
    return queued, dead


def _killed(attempts: int) -> TaskError:
    return TaskError(
        "task.worker_killed",
        f"The worker was killed or stopped answering in each of {attempts} attempts; most often "
        "that means that it ran out of memory.",
    )


def _republish(container: Container, tx: UnitOfWork) -> int:
    due = tx.now - timedelta(seconds=container.settings.republish_after_s)
    published = 0
    for kind in container.kinds:
        head = (
            select(TaskRun.id)
            .where(
                TaskRun.state == TaskState.QUEUED,
                TaskRun.kind == kind,
                is_there(TaskRun.project_id),
            )
            .order_by(TaskRun.created_at)
            .limit(HEAD)
        )
        rows = tx.session.execute(
            update(TaskRun)
            .where(
                TaskRun.id.in_(head),
                TaskRun.state == TaskState.QUEUED,
                func.coalesce(TaskRun.published_at, TaskRun.created_at) < due,
            )
            .values(published_at=tx.now)
            .returning(TaskRun.id)
        ).scalars()
        for run_id in rows:
            tx.publish_after_commit(run_id, kind)
            published += 1
    return published


def _forget_workers(tx: UnitOfWork) -> int:
    old = tx.session.execute(
        delete(WorkerHeartbeat)
        .where(WorkerHeartbeat.seen_at < tx.now - HEARTBEAT_KEPT)
        .returning(WorkerHeartbeat.id)
    )
    return len(old.all())
