"""One worker: a Celery consumer for one queue, in this process, until SIGTERM.

SIGTERM ends it within a second or two, also in the middle of an analysis: leases are given back and
somebody else starts over, rather than a deployment waiting for minutes or a lease running out.

Queue ``analysis`` works in forked children, so that a crash, a time limit or memory that is not
returned costs one child. Queue ``io`` works in threads: it waits for other machines.
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Final

from celery import signals
from celery.exceptions import SecurityWarning

from app.broker import ANALYSIS_QUEUE
from workers.app import make_celery
from workers.heartbeat import Heartbeat
from workers.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.settings import Settings

# Deliveries wait for receivers most of their time; more would only add connections.
IO_THREADS: Final = 8

# An analysis uses one core; embedded mode shares its machine with the database and the pages.
ANALYSIS_PROCESSES: Final = 1


def run_worker(settings: Settings, queue: str, *, concurrency: int | None = None) -> int:
    """Work on a queue until SIGTERM.

    Call it in the main thread of a process that has done nothing else: it installs signal handlers
    and forks.

    Parameters
    ----------
    settings : Settings
    queue : str
        One of `app.broker.QUEUES`.
    concurrency : int, optional
        Processes of ``analysis`` (1 without), threads of ``io`` (8 without).

    Returns
    -------
    int
        The exit status.
    """
    forks = queue == ANALYSIS_QUEUE
    runtime = Runtime(settings, queue)
    heartbeat = Heartbeat(settings, queue)
    stop = StopPipe()

    def on_logging(**_: object) -> None:
        # Logging is set up already; without a receiver Celery would do it its own way.
        pass

    def on_fork(**_: object) -> None:
        runtime.start()
        # Not a signal: billiard takes them all. And not an exception in the main thread: that
        # would wait until numpy returns.
        stop.watch(lambda: runtime.stop(lambda: os._exit(0)))
        _load_analysis()

    def on_term(**_: object) -> None:
        if forks:
            stop.pull()
        else:
            runtime.stop()

    def on_ready(**_: object) -> None:
        heartbeat.start()

    def on_end(**_: object) -> None:
        heartbeat.stop()
        runtime.close()

    # Signals hold their receivers weakly; these live as long as this function runs.
    signals.setup_logging.connect(on_logging)
    signals.worker_process_init.connect(on_fork)
    signals.worker_shutting_down.connect(on_term)
    signals.worker_ready.connect(on_ready)
    signals.worker_shutdown.connect(on_end)

    # As root it warns that messages could run code; ours are JSON and hold an id.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = make_celery(settings, runtime).Worker(
        hostname=f"{queue}-{os.getpid()}@{socket.gethostname()}",
        queues=[queue],
        pool_cls="prefork" if forks else "threads",
        concurrency=concurrency or (ANALYSIS_PROCESSES if forks else IO_THREADS),
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


class StopPipe:
    """Tells forked processes to stop: they see the end of a pipe that only their parent can write.

    It ends when the parent pulls it, and also when the parent dies.
    """

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def pull(self) -> None:
        """End the pipe; safe to call in a signal handler, and twice."""
        write_end, self._write_end = self._write_end, -1
        if write_end >= 0:
            os.close(write_end)

    def watch(self, then: Callable[[], None]) -> None:
        """Call `then` in a thread of this forked process when the pipe ends."""
        self.pull()  # our copy of the parent's end

        def wait() -> None:
            os.read(self._read_end, 1)
            then()

        threading.Thread(target=wait, name="paceline-stop", daemon=True).start()


def _load_analysis() -> None:
    """Import the analysis before the first task needs it, and after the fork."""
    from app.services import analyze_session  # noqa: F401, PLC0415 - numpy's threads must not be forked
