"""Whether the installation is ready: its database, its schema, its broker and its workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from app.broker.celery import make_celery
from app.db.migrate import current_revision, expected_revision, is_behind
from app.services.installation.status import installation_status

if TYPE_CHECKING:
    from app.services.container import Container

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
class Part:
    """One thing that the server needs, and in words why it is not ready."""

    name: str
    ready: bool
    detail: str


class ReadinessProbe:
    """Finds out whether the database, its schema, the broker and the workers do their work.

    Each is given a budget: probes of orchestrators give up after a second or more, and a part that
    hangs must be named by then. While it hangs it is not asked again.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._looks: dict[str, Future[tuple[Part, ...]]] = {}

    def now(self, budget_s: float = BUDGET_S) -> tuple[Part, ...]:
        """Return the parts; never raises for one that is down: saying so is its purpose."""
        begun = {
            "database": self._look("database", _database_and_workers),
            "broker": self._look("broker", _broker_alone),
        }
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
            # Only a database that takes writes gives one.
            connection.execute(select(func.pg_current_xact_id()))
    except SQLAlchemyError as error:
        _log.warning("not ready", part="database", error=str(error).splitlines()[0])
        return (Part("database", ready=False, detail=NO_WRITES),)
    database = Part("database", ready=True, detail="answers")
    if not is_behind(current):
        # The version before keeps working while it is replaced.
        later = "" if current == expected else ", of a later version"
        return database, Part("schema", ready=True, detail=f"revision {current}{later}")
    detail = f"revision {current}, this code needs {expected}: run `paceline migrate`"
    return database, Part("schema", ready=False, detail=detail)


def broker_part(container: Container, *, quietly: bool = False) -> Part:
    """Return whether the broker answers and takes messages; the log says why not.

    Parameters
    ----------
    quietly : bool
        Say it as what is looked at often.
    """
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
        say = _log.debug if quietly else _log.warning
        say("not ready", part="broker", error=str(error) or type(error).__name__)
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
