"""How the installation as a whole is doing: its queue and its workers."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from app.db.models.installation import WorkerHeartbeat
from app.db.models.sessions import Session
from app.db.models.tasks import TaskRun
from app.db.states import SessionState, TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from app.db.unit_of_work import Reads
    from app.settings import Settings

# A worker that has missed this many heartbeats in a row is taken for gone.
MISSED_HEARTBEATS: Final = 3


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker process and how long ago it was seen."""

    id: uuid.UUID
    host: str
    pid: int
    queues: str
    seen_age_s: float
    alive: bool


@dataclass(frozen=True, slots=True)
class InstallationStatus:
    """Counts by state; states without rows are there with 0."""

    sessions: Mapping[SessionState, int]
    tasks: Mapping[TaskState, int]
    oldest_queued_s: float | None
    workers: tuple[WorkerStatus, ...]


def installation_status(tx: Reads, settings: Settings) -> InstallationStatus:
    """Return counts of sessions and task runs, and the workers that were seen.

    Raises
    ------
    SQLAlchemyError
        If the database does not answer.
    """
    sessions = tx.session.execute(select(Session.state, func.count()).group_by(Session.state)).all()
    tasks = tx.session.execute(
        select(TaskRun.state, func.count(), func.min(TaskRun.created_at)).group_by(TaskRun.state)
    ).all()
    oldest = next((row[2] for row in tasks if row[0] == TaskState.QUEUED), None)
    workers = tx.session.execute(
        select(WorkerHeartbeat).order_by(WorkerHeartbeat.host, WorkerHeartbeat.pid)
    ).scalars()
    return InstallationStatus(
        sessions=dict.fromkeys(SessionState, 0) | {row[0]: row[1] for row in sessions},
        tasks=dict.fromkeys(TaskState, 0) | {row[0]: row[1] for row in tasks},
        oldest_queued_s=None if oldest is None else _age_s(oldest, tx.now),
        workers=tuple(_worker_status(worker, tx.now, settings) for worker in workers),
    )


def _worker_status(worker: WorkerHeartbeat, now: datetime, settings: Settings) -> WorkerStatus:
    age_s = _age_s(worker.seen_at, now)
    return WorkerStatus(
        id=worker.id,
        host=worker.host,
        pid=worker.pid,
        queues=worker.queues,
        seen_age_s=age_s,
        alive=age_s <= MISSED_HEARTBEATS * settings.heartbeat_interval_s,
    )


def _age_s(time: datetime, now: datetime) -> float:
    # A heartbeat that commits during the reading transaction is later than its `now`.
    return max(0.0, (now - time).total_seconds())
