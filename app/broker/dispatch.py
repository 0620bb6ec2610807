"""Nudges to workers, sent from one background thread.

A refused Redis blocks a publish for seconds, so nothing that a person or a training job waits for
may publish itself. What this thread drops is harmless: the row is in the database and the sweeper
publishes it again.

The circuit breaker is two lines: with a single thread that sends, "open" is a point in time before
which messages are dropped, and "half open" is the first message after it. The libraries that were
looked at (pybreaker, purgatory) solve the harder case of many callers.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

# After a failure nothing is tried for this long. Without it every message of a burst would wait
# for its own connection timeout, and the first ones after the broker's return would queue behind.
BREAK_S: Final = 2.0

# Messages waiting for the thread. More than this means the broker is slower than what comes in, and
# memory would grow with it; the sweeper finds the rest.
WAITING: Final = 1_000

# To publish takes a millisecond of the interpreter, for which the answer to the request that caused
# it would wait: that goes first. What else is to be published by then goes along.
ANSWERED_S: Final = 0.002

# How long `close` waits for messages that are under way; longer would show as a slow Ctrl-C.
CLOSE_S: Final = 2.0

_log = structlog.get_logger(__name__)


class Dispatcher:
    """Publishes ids of task runs without ever blocking or failing its caller.

    Parameters
    ----------
    send : callable
        Takes the id of a task run and its kind, and puts a message on the broker; may block and
        may raise. Called in the dispatcher's thread only.
    """

    def __init__(self, send: Callable[[uuid.UUID, str], None]) -> None:
        self._send = send
        self._waiting: queue.Queue[tuple[uuid.UUID, str] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._closing = threading.Event()
        self._open_until_s = 0.0
        self._healthy = True

    @property
    def healthy(self) -> bool:
        """Return whether the last message went out; true before the first one."""
        return self._healthy

    @property
    def waiting(self) -> int:
        """Return how many messages wait for the thread."""
        return self._waiting.qsize()

    def publish(self, run_id: uuid.UUID, kind: str) -> None:
        """Hand a message to the thread; drop it where there is no room."""
        with self._start:
            # Not in the constructor: a process may fork after it has built its container, and
            # threads do not survive that.
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="paceline-dispatch", daemon=True
                )
                self._thread.start()
        try:
            self._waiting.put_nowait((run_id, kind))
        except queue.Full:
            _log.warning("nudge dropped", run=str(run_id), why="too many waiting")

    def close(self) -> None:
        """Send what is waiting, for at most `CLOSE_S`, and end the thread."""
        with self._start:
            self._closing.set()
        if self._thread is None:
            return
        # The thread looks at the flag after every message; full, it needs nothing to wake it.
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (message := self._next()) is not None:
            self._try(*message)
            if self._closing.is_set() and self._waiting.empty():
                return

    def _next(self) -> tuple[uuid.UUID, str] | None:
        with contextlib.suppress(queue.Empty):
            return self._waiting.get_nowait()
        message = self._waiting.get()
        self._closing.wait(ANSWERED_S)
        return message

    def _try(self, run_id: uuid.UUID, kind: str) -> None:
        if time.monotonic() < self._open_until_s:
            _log.debug("nudge dropped", run=str(run_id), why="broker failed a moment ago")
            return
        try:
            self._send(run_id, kind)
        except Exception as error:  # noqa: BLE001 - a broker's client may raise anything, and this thread must live
            self._open_until_s = time.monotonic() + BREAK_S
            if self._healthy:
                _log.warning("broker unreachable", error=str(error), sweeper="will publish again")
            self._healthy = False
        else:
            if not self._healthy:
                _log.info("broker reachable again")
            self._healthy = True
