"""Readiness of the installation: database, schema, broker, workers, object store, open work."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Thread
from typing import Any, Final, cast

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from app.analysis.generation import READS
from app.errors import PacelineError
from app.incidents.models.tables import AlertDelivery, AlertIncident, DeliveryState, IncidentState
from app.installation.models import WorkerHeartbeat
from app.platform.blobs import BlobObject, BlobPart
from app.platform.broker import make_celery
from app.platform.container import Container, TaskKind
from app.platform.database.migrate import current_revision, expected_revision, is_behind
from app.platform.database.projects import is_there
from app.platform.database.states import SessionState, TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.database.unit_of_work import Reads
from app.platform.object_store import Objects, ObjectStore
from app.platform.settings import Settings
from app.sessions.models.tables import InboxItem, Session

# A worker counts as dead after this number of missed heartbeats in a row.
MISSED_HEARTBEATS: Final = 3


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker process and the age of its last heartbeat."""

    id: uuid.UUID
    host: str
    pid: int
    queues: str
    seen_age_s: float
    alive: bool


@dataclass(frozen=True, slots=True)
class InstallationStatus:
    """Numbers of sessions and task runs by state, including zeros, and the workers."""

    sessions: Mapping[SessionState, int]
    tasks: Mapping[TaskState, int]
    oldest_queued_s: float | None
    workers: tuple[WorkerStatus, ...]


def installation_status(tx: Reads, settings: Settings) -> InstallationStatus:
    """Return the numbers of sessions and task runs by state, and the workers with heartbeats.

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


# Error messages of drivers contain hosts, ports and accounts, which only the log may show.
NO_ANSWER: Final = "does not answer; the log says why"
NO_WRITES: Final = "takes no writes; the log says why"
# Errors of redis-py for a refused write: at maxmemory, on a replica, and with a full disk.
REFUSES_WRITES: Final = frozenset({"OutOfMemoryError", "ReadOnlyError", "ResponseError"})

# Time limit of a readiness check of all components: probes of orchestrators wait 1 s or more.
BUDGET_S: Final = 0.8
WRITTEN_KEY: Final = "paceline-ready"
WRITTEN_FOR_S: Final = 60

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """A component that the server needs, and the reason if it is not ready."""

    name: str
    ready: bool
    detail: str


class ReadinessProbe:
    """Checks the database, its schema, the broker and the workers.

    Each check has a time limit: probes of orchestrators give up after a second or more, and the
    answer must name a hanging component before. While a check hangs, it is not started again.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._looks: dict[str, Future[tuple[Part, ...]]] = {}

    def now(self, budget_s: float = BUDGET_S) -> tuple[Part, ...]:
        """Return the checks of all components; a failed check does not raise."""
        begun = {
            "database": self._look("database", _database_and_workers),
            "broker": self._look("broker", _broker_alone),
        }
        wait(begun.values(), timeout=budget_s)
        parts: list[Part] = []
        for name, look in begun.items():
            if look.done():
                parts += look.result()
            else:
                _log.warning("not ready", part=name, error="hangs")
                parts.append(Part(name, ready=False, detail=f"no answer within {budget_s:g} s"))
        return tuple(parts)

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


def _database_and_workers(container: Container) -> tuple[Part, ...]:
    database = _database(container)
    return (*database, _workers(container)) if database[0].ready else database


def _broker_alone(container: Container) -> tuple[Part, ...]:
    return (broker_part(container),)


def _database(container: Container) -> tuple[Part, ...]:
    expected = expected_revision()
    try:
        current = current_revision(container.engine)
    except SQLAlchemyError as error:
        _log.warning("not ready", part="database", error=str(error).splitlines()[0])
        return (Part("database", ready=False, detail=NO_ANSWER),)
    try:
        with container.engine.connect() as connection:
            # Only a database that accepts writes assigns a transaction id.
            connection.execute(select(func.pg_current_xact_id()))
    except SQLAlchemyError as error:
        _log.warning("not ready", part="database", error=str(error).splitlines()[0])
        return (Part("database", ready=False, detail=NO_WRITES),)
    database = Part("database", ready=True, detail="answers")
    if not is_behind(current):
        # During an update the previous version keeps running on the new schema.
        later = "" if current == expected else ", of a later version"
        return database, Part("schema", ready=True, detail=f"revision {current}{later}")
    detail = f"revision {current}, this code needs {expected}: run `paceline migrate`"
    return database, Part("schema", ready=False, detail=detail)


def broker_part(container: Container, *, quietly: bool = False) -> Part:
    """Check that the broker answers and accepts messages; log the reason if it does not.

    Parameters
    ----------
    quietly : bool
        Whether to log the reason at a low level, for checks that are frequent.
    """
    settings = container.settings
    if settings.broker_url is None:
        # The broker is a directory: there is no connection to test, only write access.
        ready = os.access(settings.data_dir / "broker", os.W_OK)
        return Part("broker", ready=ready, detail="files" if ready else "directory not writable")
    try:
        with make_celery(settings).connection_for_write() as connection:
            connection.connect()
            if connection.transport.driver_type == "redis":
                # A Redis at its maxmemory or in read-only mode accepts connections but no messages:
                # test a write.
                channel = cast("Any", connection.default_channel)
                channel.client.set(WRITTEN_KEY, "1", ex=WRITTEN_FOR_S)
    except Exception as error:  # noqa: BLE001 - each transport raises errors of its own
        say = _log.debug if quietly else _log.warning
        say("not ready", part="broker", error=str(error) or type(error).__name__)
        detail = NO_WRITES if type(error).__name__ in REFUSES_WRITES else NO_ANSWER
        return Part("broker", ready=False, detail=detail)
    return Part("broker", ready=True, detail="answers")


def _workers(container: Container) -> Part:
    try:
        with container.everywhere().reading() as tx:
            workers = installation_status(tx, container.settings).workers
            stuck = stuck_work(tx, container.settings, container.kinds)
    except SQLAlchemyError as error:
        _log.warning("not ready", part="workers", error=str(error).splitlines()[0])
        return Part("workers", ready=False, detail="not known: the database does not answer")
    alive = [worker for worker in workers if worker.alive]
    queues = {queue for worker in alive for queue in worker.queues.split(",")}
    if "analysis" not in queues:
        return Part("workers", ready=False, detail="no live worker takes analyses")
    if stuck:
        _log.warning("not ready", part="workers", error="; ".join(stuck))
        return Part("workers", ready=False, detail="; ".join(stuck))
    return Part("workers", ready=True, detail=f"{len(alive)} alive")


def stuck_work(tx: Reads, settings: Settings, kinds: Mapping[str, TaskKind]) -> list[str]:
    """Return a sentence about each queue, and about the inbox, that workers do not move.

    A queue is stuck if one of its tasks has waited longer than the time limit of a task and none of
    its tasks has ended within this time: a process that takes tasks ends one within the limit.
    """
    limit = timedelta(seconds=settings.analysis_time_limit_s)
    waiting = Counter[str]()
    for kind, count in tx.session.execute(
        select(TaskRun.kind, func.count())
        .where(
            TaskRun.state == TaskState.QUEUED,
            TaskRun.created_at < tx.now - limit,
            is_there(TaskRun.project_id),
        )
        .group_by(TaskRun.kind)
    ):
        # Workers of another version take the kinds that this one does not have.
        if kind in kinds:
            waiting[kinds[kind].queue] += count
    stuck = []
    for queue, count in waiting.items():
        ended = select(TaskRun.id).where(
            TaskRun.kind.in_([kind.name for kind in kinds.values() if kind.queue == queue]),
            TaskRun.finished_at > tx.now - limit,
        )
        if tx.session.execute(ended.limit(1)).first() is None:
            stuck.append(
                f"no task of the queue {queue} has ended for {limit.total_seconds():.0f} s, and "
                f"{count} wait"
            )
    # The oldest items are decoded first.
    oldest = tx.session.execute(
        select(func.min(InboxItem.received_at)).where(
            InboxItem.code.is_(None), is_there(InboxItem.project_id)
        )
    ).scalar()
    if oldest is not None and oldest < tx.now - limit:
        stuck.append(f"the oldest item of the inbox waits for {_age_s(oldest, tx.now):.0f} s")
    return stuck


# The check of the object store writes and deletes an object, so it runs only when an operator
# requests it and is not part of `ReadinessProbe`.


NAME: Final = "object store"
PROBE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Placed:
    """Numbers of blobs in the database and in the object store."""

    in_database: int
    in_store: int


def placed(tx: Reads) -> Placed:
    """Count the blobs of all projects, by place of storage."""
    # Part 0 exists for every blob, so counting these parts counts blobs.
    in_database = select(func.count()).select_from(BlobPart).where(BlobPart.part == 0)
    in_store = select(func.count()).select_from(BlobObject)
    return Placed(
        tx.session.execute(in_database).scalar_one(), tx.session.execute(in_store).scalar_one()
    )


def store_part(objects: Objects | None, blobs: Placed | None) -> Part:
    """Check the object store by writing, reading, listing and deleting an object; never raises.

    Parameters
    ----------
    blobs : Placed or None
        Numbers of blobs; None if the database was not queried.
    """
    where = ""
    if blobs is not None:
        where = f"; blobs: {blobs.in_store:,} there, {blobs.in_database:,} in the database"
    if objects is None:
        if blobs is None or not blobs.in_store:
            return Part(NAME, ready=True, detail=f"not configured{where}")
        return Part(NAME, ready=False, detail=f"set PACELINE_BLOB_URL{where}")
    refused = _refused(objects.store)
    if refused is not None:
        return Part(NAME, ready=False, detail=f"{refused}{where}")
    return Part(NAME, ready=True, detail=f"writes, reads, lists and deletes{where}")


def _refused(store: ObjectStore) -> str | None:
    """Return the message for the first operation that the store refuses; None if all succeed."""
    # A listing that starts after this key begins with the probe's own key.
    before = f"probe-{uuid.uuid4()}"
    key, data = f"{before}.", os.urandom(PROBE_BYTES)

    def delete() -> bool:
        store.delete([key])
        return True

    steps: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("write", lambda: store.write(key, [data]) == len(data)),
        ("read", lambda: b"".join(store.read(key, len(data))) == data),
        ("list", lambda: any(listed.key == key for listed in next(store.pages(before), ()))),
        ("delete", delete),
    )
    for name, do in steps:
        try:
            done = do()
        except PacelineError as error:
            return f"cannot {name}: {error.message}"
        if not done:
            return f"cannot {name}: the object is not as it was written"
    return None


# Each statement reads an index of open rows, or of one day, so a long history does not slow a
# scrape.


FAILURES_OVER: Final = timedelta(days=1)
OPEN_TASKS: Final = tuple(state for state in TaskState if state in TaskState.OPEN)
OPEN_DELIVERIES: Final = tuple(state for state in DeliveryState if state in DeliveryState.UNDERWAY)
OPEN_INCIDENTS: Final = tuple(
    state for state in IncidentState if state is not IncidentState.RESOLVED
)


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Numbers of open task runs, deliveries and incidents, including zeros."""

    # number of task runs by kind, queue and state
    tasks: Mapping[tuple[str, str, TaskState], int]
    # number of queued task runs that need a later version than this one
    newer_tasks: int
    # number of unfinished deliveries by state
    deliveries: Mapping[DeliveryState, int]
    # deliveries given up, among those created within the last day
    failed_deliveries: int
    # number of unresolved incidents by state
    incidents: Mapping[IncidentState, int]


def open_work(tx: Reads, kinds: Mapping[str, TaskKind]) -> OpenWork:
    """Return the counts of open work.

    Raises
    ------
    SQLAlchemyError
        If the database does not answer.
    """
    tasks = tx.session.execute(
        select(
            TaskRun.kind,
            TaskRun.state,
            func.count(),
            func.count().filter(TaskRun.needs > READS).label("newer"),
        )
        .where(TaskRun.state.in_(OPEN_TASKS))
        .group_by(TaskRun.kind, TaskRun.state)
    ).all()
    deliveries = tx.session.execute(
        select(AlertDelivery.state, func.count())
        .where(AlertDelivery.state.in_(OPEN_DELIVERIES))
        .group_by(AlertDelivery.state)
    ).all()
    failed = tx.session.execute(
        select(func.count()).where(
            AlertDelivery.created_at >= tx.now - FAILURES_OVER,
            AlertDelivery.state == DeliveryState.FAILED,
        )
    ).scalar_one()
    incidents = tx.session.execute(
        select(AlertIncident.state, func.count())
        .where(AlertIncident.state.in_(OPEN_INCIDENTS))
        .group_by(AlertIncident.state)
    ).all()
    none = {(kind.name, kind.queue, state): 0 for kind in kinds.values() for state in OPEN_TASKS}
    return OpenWork(
        tasks=none
        | {
            # Task runs of a kind that only another version knows have no queue here and are left
            # out.
            (row[0], kinds[row[0]].queue, row[1]): row[2]
            for row in tasks
            if row[0] in kinds
        },
        newer_tasks=sum(row.newer for row in tasks),
        deliveries=dict.fromkeys(OPEN_DELIVERIES, 0) | {row[0]: row[1] for row in deliveries},
        failed_deliveries=failed,
        incidents=dict.fromkeys(OPEN_INCIDENTS, 0) | {row[0]: row[1] for row in incidents},
    )
