"""The broker: a Celery application, a thread that publishes messages, a transport by files.

Every message is the id of a row of `task_run`; a message that is lost, doubled or late delays its
task until the sweeper's next pass at most. A refused connection to Redis blocks a publish for
seconds, so requests do not publish: a single background thread does, and a message that it drops is
harmless for the same reason. The thread has a circuit breaker: after a failure ("open") it drops
messages for `BREAK_S`, and the first message afterwards tests the broker ("half open").
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any, Final

import structlog
from celery import Celery
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

from app.platform.settings import Settings

TASK_NAME: Final = "paceline.run"
ANALYSIS_QUEUE: Final = "analysis"
IO_QUEUE: Final = "io"
QUEUES: Final = (ANALYSIS_QUEUE, IO_QUEUE)

FILES_SCHEME: Final = "paceline-files"
FILES_URL: Final = f"{FILES_SCHEME}://localhost/"

# Interval at which a worker lists the message directory, seconds. A user perceives 0.1 s as
# immediate; listing an empty directory ten times a second costs nothing.
FILES_POLLING_INTERVAL_S: Final = 0.1

# Limit of a connection attempt to the broker. Without it an unreachable broker would block the only
# publishing thread, and with it the exit of the process, for the minutes of TCP's own timeout.
CONNECT_TIMEOUT_S: Final = 3.0

# Redis redelivers an unacknowledged message after this time. If it were shorter than an analysis,
# every long analysis would be redelivered repeatedly; the claim makes that harmless, but it costs
# work.
REDIS_VISIBILITY_TIMEOUT_S: Final = 3600


def make_celery(settings: Settings) -> Celery:
    """Return the Celery application; modes differ only in the address of the broker.

    Parameters
    ----------
    settings : Settings
        `broker_url` is the broker's address; None: files in `data_dir`.
    """
    celery = Celery("paceline", set_as_current=False)
    celery.conf.update(
        task_queues=[
            # The default exchange needs no bindings: two workers that start at the same time would
            # overwrite each other's bindings in the broker of files.
            Queue(name, exchange="", routing_key=name)
            for name in QUEUES
        ],
        task_default_queue=ANALYSIS_QUEUE,
        task_default_exchange="",
        task_default_routing_key=ANALYSIS_QUEUE,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        # The message of a killed worker is redelivered to another worker.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        # A prefetched message would wait behind a long analysis while other workers are idle.
        worker_prefetch_multiplier=1,
        # No retries: the caller has a circuit breaker, and the sweeper republishes.
        task_publish_retry=False,
        broker_connection_timeout=CONNECT_TIMEOUT_S,
        # A worker waits for its broker without limit; the sweeper works without a broker.
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        **_transport(settings),
    )
    return celery


def _transport(settings: Settings) -> dict[str, Any]:
    if settings.broker_url is not None:
        return {
            "broker_url": settings.broker_url,
            "broker_transport_options": {
                "visibility_timeout": REDIS_VISIBILITY_TIMEOUT_S,
                "socket_connect_timeout": CONNECT_TIMEOUT_S,
                "socket_timeout": CONNECT_TIMEOUT_S,
                # Publishing fails at once, without waiting, if Redis does not answer.
                "retry_on_timeout": False,
            },
        }
    TRANSPORT_ALIASES[FILES_SCHEME] = "app.platform.broker:Transport"
    folder = settings.data_dir / "broker"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "broker_url": FILES_URL,
        "broker_transport_options": {
            "data_folder_in": str(folder),
            "data_folder_out": str(folder),
            "control_folder": str(folder / "control"),
            "polling_interval": FILES_POLLING_INTERVAL_S,
        },
    }


# Pause of publishing after a failure. Without it every message of a burst would wait for its own
# connection timeout, and delay the first messages after the broker's return.
BREAK_S: Final = 2.0

# Largest number of messages that wait for the publishing thread. A longer queue means that the
# broker is slower than the incoming work, and memory would grow; the sweeper publishes the rest.
WAITING: Final = 1_000

# Delay between a message's arrival in the empty queue and its publication. Publishing holds the
# interpreter for a millisecond, which would delay the answer to the request that caused the
# message; messages that arrive meanwhile are published together.
ANSWERED_S: Final = 0.002

# Time limit of `close` for unsent messages; a longer wait would be noticed as a slow Ctrl-C.
CLOSE_S: Final = 2.0

_log = structlog.get_logger(__name__)


class Dispatcher:
    """Publishes ids of task runs in a thread; `publish` never blocks and never raises.

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
        """Return whether the last message was sent; true before the first message."""
        return self._healthy

    @property
    def waiting(self) -> int:
        """Return the number of unsent messages."""
        return self._waiting.qsize()

    def publish(self, run_id: uuid.UUID, kind: str) -> None:
        """Queue a message for the thread; drop it if the queue is full."""
        with self._start:
            # Started here and not in the constructor: a process may fork after it has built its
            # container, and threads do not survive a fork.
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
        """Send the waiting messages, for at most `CLOSE_S`, and end the thread."""
        with self._start:
            self._closing.set()
        if self._thread is None:
            return
        # The thread checks the flag after every message, so a full queue needs no extra message to
        # wake the thread.
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


# kombu's own file transport writes a message in place, where a consumer may read half of it and
# crash, and moves messages through the shared temporary directory of the system. This transport
# publishes and takes a message by a rename within the broker's directory.


SUFFIX: Final = ".msg"


class Channel(filesystem.Channel):
    """A channel whose messages are files ``<time>_<uuid>.<queue>.msg`` in ``data_folder_in``."""

    def _put(self, queue: str, payload: dict[str, Any], **_: object) -> None:  # type: ignore[override]  # the stubs name it in two ways
        # Consumers take messages in the order of file names, which begin with the time of
        # publication.
        name = f"{time.time_ns():020d}_{uuid.uuid4()}.{queue}"
        written = Path(self.data_folder_in) / f"{name}.new"
        written.write_bytes(dumps(payload).encode())
        written.rename(written.with_name(name + SUFFIX))

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002 - kombu's signature
        for waiting in sorted(Path(self.data_folder_in).glob(f"*.{queue}{SUFFIX}")):
            taken = waiting.with_suffix(".taken")
            try:
                waiting.rename(taken)
            except FileNotFoundError:
                continue  # Another worker was faster.
            message = loads(taken.read_bytes())
            taken.unlink()
            return message
        raise Empty


class Transport(filesystem.Transport):
    """The transport that handles `app.platform.broker.FILES_URL`."""

    Channel = Channel
