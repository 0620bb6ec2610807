"""What a use case needs from the outside, handed to it as one value.

`app.bootstrap` builds it; nothing below knows how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Engine

    from app.db.unit_of_work import UnitOfWork
    from app.services.tasks.dispatch import Dispatcher
    from app.services.tasks.task_runs import TaskKind
    from app.settings import Settings


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
