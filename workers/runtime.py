"""The state that the tasks of a process share: the container and the leases."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from app.bootstrap import build
from app.platform import telemetry
from app.platform.container import Container
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper

if TYPE_CHECKING:
    import uuid

    from app.platform.settings import Settings


class Runtime:
    """State of a process that runs tasks, built in the process itself after a fork.

    Connections and threads do not survive a fork.

    Parameters
    ----------
    settings : Settings
    queue : str
        The queue that the process works on.
    """

    def __init__(self, settings: Settings, queue: str) -> None:
        self._settings = settings
        self._queue = queue
        self._container: Container | None = None
        self._keeper: LeaseKeeper | None = None
        self._building = threading.Lock()

    def start(self) -> tuple[Container, LeaseKeeper]:
        """Build the container and the leases, unless they exist."""
        with self._building:
            if self._container is None or self._keeper is None:
                telemetry.start(f"worker {self._queue}")
                self._container = build(
                    self._settings, application_name=f"paceline worker {self._queue}"
                )
                self._keeper = LeaseKeeper(self._container)
            return self._container, self._keeper

    def execute(self, run_id: uuid.UUID) -> None:
        """Run a task; if this process is stopping, leave the task queued."""
        container, keeper = self.start()
        if not keeper.stopping:
            execute(container, keeper, run_id)

    def stop(self) -> None:
        """Stop taking tasks, return all leases, close connections; can be called repeatedly."""
        if self._keeper is not None and self._container is not None:
            self._keeper.stop()
            self._container.close()
            telemetry.stop()
