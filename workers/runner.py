"""One worker: a Celery consumer for one queue, in this process, until SIGTERM.

SIGTERM ends the worker within a second or two, even during an analysis: it returns its leases, and
another worker starts the tasks again. A deployment does not wait for minutes, and no lease has to
expire.

Tasks of the queue ``analysis`` run in forked child processes, so that a crash, a time limit or
memory that is not freed affects one child only. Tasks of the queue ``io`` run in threads, because
they wait for other machines.
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Final

import structlog
from celery import signals
from celery.exceptions import SecurityWarning

from app.platform.broker import ANALYSIS_QUEUE
from workers.app import make_celery
from workers.handover import Handover
from workers.heartbeat import Heartbeat
from workers.pool import quick_pool
from workers.runtime import Runtime

if TYPE_CHECKING:
    from app.platform.settings import Settings


# Number of threads for deliveries, which mostly wait for receivers, without a connection to the
# database. The number is large enough that several channels without an answer, with a few attempts
# each, do not block the others.
IO_THREADS: Final = 16

_log = structlog.get_logger(__name__)

# Default number of processes: an analysis uses one core, and embedded mode shares its machine with
# the database and the pages.
ANALYSIS_PROCESSES: Final = 1


def run_worker(settings: Settings, queue: str, *, concurrency: int | None = None) -> int:
    """Work on a queue until SIGTERM.

    Call it in the main thread of a process that has done nothing else: it installs signal handlers
    and forks.

    Parameters
    ----------
    queue : str
        One of `app.platform.broker.QUEUES`.
    concurrency : int, optional
        Number of processes for ``analysis`` (default 1), or of threads for ``io`` (default 16).

    Returns
    -------
    int
        The exit status.
    """
    forks = queue == ANALYSIS_QUEUE
    runtime = Runtime(settings, queue)
    heartbeat = Heartbeat(settings, queue)
    handover = Handover()

    def on_logging(**_: object) -> None:
        # Logging is configured already; without a receiver of this signal, Celery would configure
        # it.
        pass

    def on_fork(**_: object) -> None:
        runtime.start()
        handover.watch(runtime.stop)
        _load_analysis()

    def on_term(**_: object) -> None:
        # Called at the signal, not when Celery stops its pool, so that another worker takes over
        # sooner.
        if forks:
            handover.pull()
        else:
            threading.Thread(target=runtime.stop, name="paceline-stop").start()

    def on_ready(**_: object) -> None:
        heartbeat.start()

    def on_end(**_: object) -> None:
        heartbeat.stop()
        runtime.stop()
        _log.info("worker stopped", queue=queue)

    # Signals hold weak references to their receivers, which live as long as this function runs.
    signals.setup_logging.connect(on_logging)
    signals.worker_process_init.connect(on_fork)
    signals.worker_shutting_down.connect(on_term)
    signals.worker_ready.connect(on_ready)
    signals.worker_shutdown.connect(on_end)

    # Run as root, Celery warns that messages could execute code, but our messages are JSON with an
    # id.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = make_celery(settings, runtime).Worker(
        hostname=f"{queue}-{os.getpid()}@{socket.gethostname()}",
        queues=[queue],
        pool_cls=quick_pool(handover) if forks else "threads",
        concurrency=concurrency or (ANALYSIS_PROCESSES if forks else IO_THREADS),
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def _load_analysis() -> None:
    """Load the analysis and its compiled loops before the first task.

    After the fork: numpy's threads must not be forked.
    """
    from app.analysis.warm_up import warm_up  # noqa: PLC0415 - see above

    warm_up()
