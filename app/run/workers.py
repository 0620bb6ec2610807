"""The workers of an installation, the sweeper, and standby workers for a missing broker.

The main thread starts and watches child processes and handles signals; the sweeper has a thread.
No code of the web server is imported here, so that workers start without it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Final

import structlog
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from app.bootstrap import build
from app.errors import PacelineError, StartupError
from app.installation.readiness import broker_part
from app.installation.sweep import sweep
from app.platform import resources as scratch
from app.platform import telemetry
from app.platform.broker import ANALYSIS_QUEUE, QUEUES
from app.platform.container import Container
from app.platform.database import migrate
from app.platform.database.engine import said
from app.platform.logs import configure_logging
from app.platform.processes import SupervisedChild, allow_open_files
from app.platform.settings import Settings

# Standby workers run while the broker is unavailable: the workers that wait for the broker are idle
# meanwhile, so their memory and processors are free.


# A broker that restarts is available again within this time in seconds, and the sweeper publishes
# lost messages again.
AWAY_S: Final = 30.0
LOOK_S: Final = 5.0
STOP_S: Final = 5.0

_log = structlog.get_logger(__name__)


class Standby:
    """Watches the broker in its own thread; `tend` starts and stops the standby workers.

    Parameters
    ----------
    container : Container
    workers : sequence of SupervisedChild
        Workers that need no broker, one for each queue; not started yet.
    away_s : float
        Time in seconds of an unavailable broker after which the workers are started.
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
        """Start the thread."""
        self._thread.start()

    def tend(self) -> None:
        """Start, supervise or stop the standby workers; call it often, in the main thread."""
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
        """End the thread and the standby workers."""
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


# Time in seconds for a worker to return its leases; afterwards it is killed with its forked
# processes.
WORKER_STOP_LIMIT_S: Final = 5.0
_SWEEPER_STOP_LIMIT_S: Final = 5.0
TEND_INTERVAL_S: Final = 0.2


def run_workers(settings: Settings, processes: int = 1) -> None:
    """Run the workers and the sweeper until SIGINT or SIGTERM; serves no requests.

    Parameters
    ----------
    settings : Settings
        `database_url` must be set.
    processes : int
        Number of concurrent analyses, each in a process, and number of processes that decode the
        inbox.

    Raises
    ------
    StartupError
        If there is no database URL, or the database lacks the schema of this version.
    """
    if settings.database_url is None:
        raise StartupError(
            "Workers of the embedded database run within `paceline serve`. "
            "Set PACELINE_DATABASE_URL for workers of their own."
        )
    configure_logging(json=settings.log_json, level=settings.log_level)
    allow_open_files()
    with refusals_in_the_log(settings), stop_signals() as stop, contextlib.ExitStack() as running:
        require_schema(settings)
        workers = workers_of(settings, running, processes)
        telemetry.start("sweeper")
        running.callback(telemetry.stop)
        container = build(settings, application_name="paceline sweeper")
        running.callback(container.close)
        start_sweeper(container, running)
        standby = _standby(container, running)
        while not stop.wait(TEND_INTERVAL_S):
            for worker in workers:
                worker.tend()
            standby.tend()


@contextlib.contextmanager
def refusals_in_the_log(settings: Settings) -> Iterator[None]:
    """With JSON logs, write the error that ends the command as a log line."""
    try:
        yield
    except PacelineError as error:
        if not settings.log_json:
            raise
        _log.critical(error.message, code=error.stable_code)
        raise SystemExit(1) from error


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Set an event on signals that request the program to end, also while it is stopping."""
    stop = threading.Event()

    def request(_signum: int, _frame: FrameType | None) -> None:
        stop.set()

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup keeps it ignored
        wanted.append(signal.SIGHUP)
    before = {signum: signal.signal(signum, request) for signum in wanted}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def require_schema(settings: Settings) -> None:
    """Refuse a database without this version's schema; an unavailable database is accepted.

    Raises
    ------
    NotMigratedError
    """
    container = build(settings, application_name="paceline start")
    try:
        migrate.require_schema(container.engine)
    except OperationalError as error:
        _log.warning("schema not known, the database is away", error=said(error))
    finally:
        container.close()


def workers_of(
    settings: Settings, running: contextlib.ExitStack, processes: int = 1
) -> list[SupervisedChild]:
    """Return workers, not started yet: one for each queue, and those that decode the inbox.

    They are stopped together.
    """
    scratch.sweep()
    workers = []
    for queue in QUEUES:
        options = ["--queue", queue]
        if queue == ANALYSIS_QUEUE:
            options += ["--concurrency", str(processes)]
        workers.append(_worker(settings, f"worker {queue}", "workers.child", *options))
    workers += [
        _worker(settings, f"worker inbox {number}", "workers.inbox") for number in range(processes)
    ]
    # A single process decodes the pulses of a thousand hosts; an installation with more of these
    # workers has more such processes.
    workers.append(_worker(settings, "worker pulse", "workers.inbox", "--queue", "pulse"))
    running.callback(stop_workers, workers)
    return workers


def _worker(settings: Settings, name: str, module: str, *options: str) -> SupervisedChild:
    return SupervisedChild(
        name,
        [sys.executable, "-m", module, *options, "--lifeline"],
        settings.environment_of_child(os.environ),
    )


def stop_workers(workers: Sequence[SupervisedChild]) -> None:
    """Stop processes, and kill those that still run after some seconds."""
    for worker in workers:
        worker.ask_to_stop()
    deadline_s = time.monotonic() + WORKER_STOP_LIMIT_S
    for worker in workers:
        worker.wait_or_kill(deadline_s)


def _standby(container: Container, running: contextlib.ExitStack) -> Standby:
    """Start and return the thread that watches the broker."""
    settings = container.settings
    standby = Standby(
        container,
        [
            _worker(settings, f"worker {queue} without broker", "workers.pull", "--queue", queue)
            for queue in QUEUES
        ],
    )
    running.callback(standby.stop)
    standby.start()
    return standby


def start_sweeper(
    container: Container, running: contextlib.ExitStack, after: threading.Event | None = None
) -> None:
    """Start the sweeper's thread.

    Parameters
    ----------
    after : Event, optional
        Event that the first pass waits for; without it the first pass starts at once.
    """
    done = threading.Event()

    def sweep_until_done() -> None:
        failing = False
        while after is not None and not after.wait(TEND_INTERVAL_S):
            if done.is_set():
                return
        while True:
            try:
                sweep(container)
                if failing:
                    _log.info("the sweeper's passes go on")
                failing = False
            except SQLAlchemyError as error:
                # Log the first failure only, so that a night without a database adds a single line.
                if not failing:
                    _log.warning("the sweeper's pass failed, trying on", error=said(error))
                failing = True
            # No error may end this thread, not even a bug: no one would notice, and nothing else
            # finds lost messages. Unexpected errors have no common class; the log gets the trace,
            # and the next pass tries again.
            except Exception:  # noqa: BLE001 - as above
                _log.exception("the sweeper's pass failed")
            if done.wait(container.settings.sweep_interval_s):
                return

    thread = threading.Thread(target=sweep_until_done, name="sweeper", daemon=True)
    thread.start()
    running.callback(thread.join, _SWEEPER_STOP_LIMIT_S)
    running.callback(done.set)
