"""Workers that take from the database while the broker brings nothing: away, or full.

Those that wait for the broker are idle then, so what they have of memory and processors is free.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

from app.services.installation.readiness import broker_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.services.container import Container
    from app.system.processes import SupervisedChild

# A broker that restarts is back by then, and the sweeper publishes again what was lost.
AWAY_S: Final = 30.0
LOOK_S: Final = 5.0
STOP_S: Final = 5.0

_log = structlog.get_logger(__name__)


class Standby:
    """Looks after the broker in a thread of its own; `tend` does what follows.

    Parameters
    ----------
    container : Container
    workers : sequence of SupervisedChild
        That need no broker, one a queue.
    away_s : float
        How long the broker may take no message before they are started.
    """

    def __init__(
        self, container: Container, workers: Sequence[SupervisedChild], away_s: float = AWAY_S
    ) -> None:
        self._container = container
        self._workers = workers
        self._away_s = away_s
        self._away = threading.Event()
        self._stop = threading.Event()
        self._started = False
        self._thread = threading.Thread(target=self._look, name="paceline-standby", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def tend(self) -> None:
        """Start the workers, look after them, or stop them; call it often, in the main thread."""
        if self._away.is_set():
            if not self._started:
                _log.warning("the broker takes no messages: workers take from the database")
            self._started = True
            for worker in self._workers:
                worker.tend()
        elif self._started:
            _log.info("the broker is back")
            self._end()

    def stop(self) -> None:
        """End the thread and the workers."""
        self._stop.set()
        self._end()

    def _end(self) -> None:
        for worker in self._workers:
            worker.ask_to_stop()
        deadline_s = time.monotonic() + STOP_S
        for worker in self._workers:
            worker.wait_or_kill(deadline_s)
        self._started = False

    def _look(self) -> None:
        answered_s = time.monotonic()
        while not self._stop.wait(min(LOOK_S, self._away_s)):
            if broker_part(self._container, quietly=True).ready:
                answered_s = time.monotonic()
                self._away.clear()
            elif time.monotonic() - answered_s > self._away_s:
                self._away.set()
