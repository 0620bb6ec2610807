"""The adapters of a process (settings, database, broker, blobs), handed to use cases as one value.

`app.bootstrap` builds the container; the modules that use it do not know how.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

from sqlalchemy import Engine

from app.platform.blobs import Staged, stage
from app.platform.broker import Dispatcher
from app.platform.database.states import TaskState
from app.platform.database.tenant_scope import EVERY_PROJECT, Scope
from app.platform.database.unit_of_work import Publish, Reads, UnitOfWork, reading
from app.platform.identity import INSTALLATION, Principal, Refusals
from app.platform.object_store import Objects
from app.platform.settings import Settings


@dataclass(frozen=True, slots=True)
class TaskError:
    """Error with which a task run died."""

    code: str  # stable and machine-readable
    sentence: str  # for a person


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A kind of durable task."""

    name: str  # what `task_run.kind` holds
    queue: str  # the broker's queue, and with it the worker child that runs it
    # Does the work of a claimed task, and calls `finish` in the transaction that stores the result.
    run: Callable[[Container, Claim], None]
    # Moves the subject to the state that matches its task run. Arguments: a transaction, the
    # subject's id, the run's new state (queued, running or dead) and the error of a dead run.
    follow: Callable[[UnitOfWork, uuid.UUID, TaskState, TaskError | None], None]


@dataclass(frozen=True, slots=True)
class Claim:
    """The exclusive right of a worker to run a task until the lease expires.

    `attempt` counts the attempts of the task from 1.
    """

    run_id: uuid.UUID
    token: uuid.UUID
    kind: str
    subject_id: uuid.UUID
    attempt: int
    project_id: int
    traceparent: str | None = None  # of the span that caused the task


@dataclass(frozen=True, slots=True)
class Container:
    """The adapters of one process."""

    settings: Settings
    engine: Engine
    """Pool of connections to the database; use cases open transactions with `uow`."""
    dispatcher: Dispatcher
    """Publishes ids of task runs to the broker from a thread of its own."""
    publish: Publish
    """Passes the id of a task run to the dispatcher; `uow` calls it after a commit."""
    kinds: Mapping[str, TaskKind]
    """The kinds of durable tasks, by name."""
    scope: Scope | None = None
    """Projects whose rows the transactions may read and write. The container of a process has no
    scope and opens no transaction, so that a forgotten `within` cannot expose another project.
    """
    principal: Principal = INSTALLATION
    """The user or program on whose behalf the transactions run."""
    pages_at: str = ""
    """Prefix of the paths of pages: ``/p/research``, or empty."""
    refusals: Refusals = field(default_factory=Refusals)
    """Refused requests of this process that are not in the audit log yet."""
    objects: Objects | None = None
    """Object store of large blobs; None: the database stores all blobs."""
    moment: datetime | None = None
    """Fixed time of the transactions; None: the database's clock."""

    def within(self, project_id: int, principal: Principal = INSTALLATION) -> Self:
        """Return this container, limited to one project."""
        return replace(self, scope=Scope(project_id), principal=principal)

    def everywhere(self) -> Self:
        """Return this container with access to all projects."""
        return replace(self, scope=EVERY_PROJECT)

    def at(self, moment: datetime) -> Self:
        """Return this container with a fixed time as `now` of its transactions.

        Only the demo's history uses a fixed time. Leases and task runs that workers share need the
        database's time, and therefore a container without a fixed time.
        """
        return replace(self, moment=moment)

    def named(self, principal: Principal) -> Self:
        """Return this container with another principal."""
        return replace(self, principal=principal)

    def uow(self) -> UnitOfWork:
        """Return a new unit of work: ``with container.uow() as tx: …``."""
        return UnitOfWork(
            self.engine, self.publish, self._required(), self.objects, now=self.moment
        )

    def reading(self) -> AbstractContextManager[Reads]:
        """Return a new read-only transaction: ``with container.reading() as tx: …``."""
        return reading(self.engine, self._required(), self.objects, now=self.moment)

    def stage(self, pieces: Iterable[bytes]) -> Staged:
        """Write large bytes to the object store, before the transaction that stores their row.

        Raises
        ------
        ObjectStoreError
            If the store has not confirmed all bytes.
        """
        return stage(self.objects, self.project_id, pieces)

    @property
    def project_id(self) -> int:
        """Return the id of this container's project."""
        project_id = self._required().project_id
        if project_id is None:
            raise RuntimeError("this container is of all projects")
        return project_id

    def _required(self) -> Scope:
        if self.scope is None:
            raise RuntimeError("this container is of no project: take `within` or `everywhere`")
        return self.scope

    def close(self) -> None:
        """Publish waiting messages and close the connections to the database."""
        self.dispatcher.close()
        self.engine.dispose()
