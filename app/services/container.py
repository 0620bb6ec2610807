"""What a use case needs from the outside, handed to it as one value, and the kinds of work.

`app.bootstrap` builds it; nothing below knows how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping

    from sqlalchemy import Engine

    from app.broker.dispatch import Dispatcher
    from app.db.states import TaskState
    from app.db.unit_of_work import UnitOfWork
    from app.settings import Settings


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why a task run is dead.

    Parameters
    ----------
    code : str
        Stable and machine-readable.
    sentence : str
        For a person.
    """

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A kind of durable work.

    Parameters
    ----------
    name : str
        What `task_run.kind` holds.
    queue : str
        The broker's queue, and with it the worker child that runs it.
    run : callable
        Does the work of a claim and calls `finish` in the transaction that stores the result.
    follow : callable
        Takes a transaction, the subject's id, the task run's new state (queued, running or dead)
        and the error of a dead one; brings the subject into the state that belongs to it.
    """

    name: str
    queue: str
    run: Callable[[Container, Claim], None]
    follow: Callable[[UnitOfWork, uuid.UUID, TaskState, TaskError | None], None]


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a task, as long as its lease is renewed.

    `attempt` counts from 1.
    """

    run_id: uuid.UUID
    token: uuid.UUID
    kind: str
    subject_id: uuid.UUID
    attempt: int


@dataclass(frozen=True, slots=True)
class Container:
    """The adapters of one process.

    Parameters
    ----------
    settings : Settings
    engine : Engine
        Connections to the database; use cases go through `uow`.
    uow : callable
        Returns a new unit of work: ``with container.uow() as tx: …``
    dispatcher : Dispatcher
        Nudges workers; `uow` does so by itself after its commit.
    kinds : mapping of str to TaskKind
        The work that there is, by name.
    """

    settings: Settings
    engine: Engine
    uow: Callable[[], UnitOfWork]
    dispatcher: Dispatcher
    kinds: Mapping[str, TaskKind]

    def close(self) -> None:
        """Send what waits for the broker, and close the connections to the database."""
        self.dispatcher.close()
        self.engine.dispose()
