"""How the installation as a whole is doing: its queue, its workers, and whether it is ready."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from app.broker.celery import make_celery
from app.db.migrate import current_revision, expected_revision
from app.db.models.installation import WorkerHeartbeat
from app.db.models.sessions import Session
from app.db.models.tasks import TaskRun
from app.db.states import SessionState, TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from app.db.unit_of_work import Reads
    from app.services.container import Container
    from app.settings import Settings

# A worker that has missed this many heartbeats in a row is taken for gone.
MISSED_HEARTBEATS: Final = 3

# Drivers name hosts, ports and accounts: that is for the log.
NO_ANSWER: Final = "does not answer; the log says why"
NO_WRITES: Final = "takes no writes; the log says why"
# How redis-py calls that: at maxmemory, on a replica, and where its disk is full.
REFUSES_WRITES: Final = frozenset({"OutOfMemoryError", "ReadOnlyError", "ResponseError"})

# Of an answer about everything; orchestrators' probes wait for one second and more.
BUDGET_S: Final = 0.8
WRITTEN_KEY: Final = "paceline-ready"
WRITTEN_FOR_S: Final = 60

_log = structlog.get_logger(__name__)


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


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that the server needs, and in words why it is not ready."""

    name: str
    ready: bool
    detail: str


def installation_status(tx: Reads, settings: Settings) -> InstallationStatus:
    """Return counts of sessions and task runs, and the workers that were seen.

    Raises
    ------
    SQLAlchemyError
        If the database does not answer.
    """
    sessions = tx.session.execute(select(Session.state, func.count()).group_by(Session.state)).all()
    tasks = tx.session.execute(select(TaskRun.state, func.count()).group_by(TaskRun.state)).all()
    oldest = tx.session.execute(
        select(func.min(TaskRun.created_at)).where(TaskRun.state == TaskState.QUEUED)
    ).scalar()
    workers = tx.session.execute(
        select(WorkerHeartbeat).order_by(WorkerHeartbeat.host, WorkerHeartbeat.pid)
    ).scalars()
    return InstallationStatus(
        sessions=dict.fromkeys(SessionState, 0) | {row[0]: row[1] for row in sessions},
        tasks=dict.fromkeys(TaskState, 0) | {row[0]: row[1] for row in tasks},
        oldest_queued_s=None if oldest is None else _age_s(oldest, tx.now),
        workers=tuple(_worker_status(worker, tx.now, settings) for worker in workers),
    )


class Readiness:
    """Finds out whether the database, its schema, the broker and the workers do their work.

    Each is given a budget: probes of orchestrators give up after a second or more, and a part that
    hangs must be named by then. While it hangs it is not asked again.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._looks: dict[str, Future[tuple[Part, ...]]] = {}

    def now(self, budget_s: float = BUDGET_S) -> tuple[Part, ...]:
        """Return the parts; never raises for one that is down: saying so is its purpose."""
        begun = {"database": self._look("database", _stored), "broker": self._look("broker", _sent)}
        wait(begun.values(), timeout=budget_s)
        found: list[Part] = []
        for name, look in begun.items():
            if look.done():
                found += look.result()
            else:
                _log.warning("not ready", part=name, error="hangs")
                found.append(Part(name, ready=False, detail=f"no answer within {budget_s:g} s"))
        return tuple(found)

    def _look(
        self, name: str, look: Callable[[Container], tuple[Part, ...]]
    ) -> Future[tuple[Part, ...]]:
        under_way = self._looks.get(name)
        if under_way is None or under_way.done():
            under_way = self._looks[name] = Future()
            Thread(target=_finish, args=(under_way, look, self._container), daemon=True).start()
        return under_way


def _finish(
    answer: Future[tuple[Part, ...]],
    look: Callable[[Container], tuple[Part, ...]],
    container: Container,
) -> None:
    try:
        answer.set_result(look(container))
    except BaseException as error:  # noqa: BLE001 - raised again by whoever asks
        answer.set_exception(error)


def _stored(container: Container) -> tuple[Part, ...]:
    database = _database(container)
    return (*database, _workers(container)) if database[0].ready else database


def _sent(container: Container) -> tuple[Part, ...]:
    return (_broker(container),)


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


def _database(container: Container) -> tuple[Part, ...]:
    expected = expected_revision()
    try:
        current = current_revision(container.engine)
    except SQLAlchemyError as error:
        _log.warning("not ready", part="database", error=str(error).splitlines()[0])
        return (Part("database", ready=False, detail=NO_ANSWER),)
    try:
        with container.engine.connect() as connection:
            # Only a database that takes writes gives one.
            connection.execute(select(func.pg_current_xact_id()))
    except SQLAlchemyError as error:
        _log.warning("not ready", part="database", error=str(error).splitlines()[0])
        return (Part("database", ready=False, detail=NO_WRITES),)
    database = Part("database", ready=True, detail="answers")
    if current == expected:
        return database, Part("schema", ready=True, detail=f"revision {current}")
    detail = f"revision {current}, this code needs {expected}: run `paceline migrate`"
    return database, Part("schema", ready=False, detail=detail)


def _broker(container: Container) -> Part:
    settings = container.settings
    if settings.broker_url is None:
        # Files: there is nothing to connect to, only a directory to write to.
        ready = os.access(settings.data_dir / "broker", os.W_OK)
        return Part("broker", ready=ready, detail="files" if ready else "directory not writable")
    try:
        with make_celery(settings).connection_for_write() as connection:
            connection.connect()
            if connection.transport.driver_type == "redis":
                # It answers also where it takes no message: at its maxmemory, or read-only.
                channel = cast("Any", connection.default_channel)
                channel.client.set(WRITTEN_KEY, "1", ex=WRITTEN_FOR_S)
    except Exception as error:  # noqa: BLE001 - each transport raises errors of its own
        _log.warning("not ready", part="broker", error=str(error) or type(error).__name__)
        detail = NO_WRITES if type(error).__name__ in REFUSES_WRITES else NO_ANSWER
        return Part("broker", ready=False, detail=detail)
    return Part("broker", ready=True, detail="answers")


def _workers(container: Container) -> Part:
    try:
        with container.everywhere().reading() as tx:
            workers = installation_status(tx, container.settings).workers
    except SQLAlchemyError as error:
        _log.warning("not ready", part="workers", error=str(error).splitlines()[0])
        return Part("workers", ready=False, detail="not known: the database does not answer")
    alive = [worker for worker in workers if worker.alive]
    queues = {queue for worker in alive for queue in worker.queues.split(",")}
    if "analysis" not in queues:
        return Part("workers", ready=False, detail="no live worker takes analyses")
    return Part("workers", ready=True, detail=f"{len(alive)} alive")
