"""The processes of one installation: `serve` runs everything, `run_workers` the workers.

The main thread starts and watches child processes and handles signals; HTTP and the sweeper have
threads. What is started is stopped in the opposite order, whatever ends the run: HTTP with its
streams, the sweeper, the workers, PostgreSQL.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from app.bootstrap import build
from app.broker.celery import ANALYSIS_QUEUE, QUEUES
from app.db import migrate
from app.db.embedded.server import EmbeddedPostgres
from app.db.faults import said
from app.errors import PacelineError, StartupError
from app.run.http import HttpServer, address_of, listen, reachable_by_others
from app.run.standby import Standby
from app.services.access.administrators import can_be_administered
from app.services.access.first_token import make_first_token
from app.services.installation.sweep import sweep
from app.system import scratch
from app.system.logs import configure_logging
from app.system.processes import SupervisedChild
from app.system.scratch import Scratch
from app.system.shared import Place
from app.web import create_app

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import FrameType

    from app.bootstrap import Container
    from app.settings import Settings

# A worker gives back its leases in this time; what it forked is killed with it afterwards.
WORKER_STOP_LIMIT_S: Final = 5.0
_SWEEPER_STOP_LIMIT_S: Final = 5.0
_TEND_INTERVAL_S: Final = 0.2

NO_ADMINISTRATOR: Final = (
    "Sign-in is required on {host}, and no one can sign in: there is no administrator yet. Make a "
    "token with `paceline token create NAME --scope admin`, or name a file for it in "
    "PACELINE_ADMIN_TOKEN_FILE, which `paceline migrate` fills; or listen on 127.0.0.1 alone."
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What begins once requests are answered, and is over before anything is stopped."""

    # Takes the server's URL and its settings, with the database's address.
    begin: Callable[[str, Settings], AbstractContextManager[None]]
    # The sweeper waits for it: it would look at what is not there whole.
    done: threading.Event = field(default_factory=threading.Event)


def serve(settings: Settings, *, meanwhile: Meanwhile | None = None, processes: int = 1) -> None:
    """Serve the API and the dashboard until SIGINT or SIGTERM.

    Without a database URL this is the whole installation: the embedded database, its schema and the
    workers run as children of this process and end with it. With one it is the HTTP server alone.

    Parameters
    ----------
    meanwhile : Meanwhile, optional
        What else goes on; nothing without.
    processes : int
        That answer requests, all at one address; this one is the first of them. With the embedded
        database there are as many analyses at once.

    Raises
    ------
    InstanceRunningError
        Another process serves this data directory.
    StartupError
        Something does not start, or ended without being asked to.
    """
    configure_logging(json=settings.log_json, level=settings.log_level)
    _raise_open_files_limit()
    with _refusals_in_the_log(settings), _stop_signals() as stop, contextlib.ExitStack() as running:
        try:
            _serve(settings, running, stop, meanwhile or _nothing(), processes)
        except StartupError:
            # A start that a signal cut short is a stop like any other.
            if not stop.is_set():
                raise


def run_workers(settings: Settings, processes: int = 1) -> None:
    """Run the workers and the sweeper until SIGINT or SIGTERM; serves no requests.

    Parameters
    ----------
    settings : Settings
        `database_url` must be set.
    processes : int
        Analyses at once, each in a process; as many decode what the inbox holds.

    Raises
    ------
    StartupError
        There is no database URL, or the database lacks the schema of this version.
    """
    if settings.database_url is None:
        raise StartupError(
            "Workers of the embedded database run within `paceline serve`. "
            "Set PACELINE_DATABASE_URL for workers of their own."
        )
    configure_logging(json=settings.log_json, level=settings.log_level)
    with _refusals_in_the_log(settings), _stop_signals() as stop, contextlib.ExitStack() as running:
        _require_schema(settings)
        workers = _workers(settings, running, processes)
        container = build(settings, application_name="paceline sweeper")
        running.callback(container.close)
        _start_sweeper(container, running)
        standby = _standby(container, running)
        while not stop.wait(_TEND_INTERVAL_S):
            for worker in workers:
                worker.tend()
            standby.tend()


@contextlib.contextmanager
def _refusals_in_the_log(settings: Settings) -> Iterator[None]:
    """With JSON logs, make what ends the command a line of them, and not one for a person."""
    try:
        yield
    except PacelineError as error:
        if not settings.log_json:
            raise
        _log.critical(error.message, code=error.stable_code)
        raise SystemExit(1) from error


def _serve(
    settings: Settings,
    running: contextlib.ExitStack,
    stop: threading.Event,
    meanwhile: Meanwhile,
    processes: int,
) -> None:
    postgres: EmbeddedPostgres | None = None
    if settings.database_url is None:
        postgres = EmbeddedPostgres(settings.data_dir)
        running.callback(postgres.stop)
        postgres.start(stop.is_set)
        settings = settings.model_copy(update={"database_url": postgres.url})
    else:
        _require_schema(settings)
    settings = _asking_others_who_they_are(settings)
    listener = running.enter_context(listen(settings))

    workers: Sequence[SupervisedChild] = ()
    if postgres is not None:
        migrate.upgrade(postgres.url)
        workers = _workers(settings, running, processes)
    container = build(settings, application_name="paceline serve")
    running.callback(container.close)
    if postgres is not None:
        make_first_token(container)
        _start_sweeper(container, running, meanwhile.done)
    require_administrator(container)

    place = _place(running, processes)
    http = HttpServer(create_app(container, place), listener)
    running.callback(http.stop)
    workers = [*workers, *_replicas(settings, running, place, listener)]
    for worker in workers:
        worker.tend()
    http.start(stop.is_set)
    if not stop.is_set():
        url = _announce(address_of(listener))
        running.enter_context(meanwhile.begin(url, settings))
    while not stop.wait(_TEND_INTERVAL_S):
        for worker in workers:
            worker.tend()
        if postgres is not None and postgres.poll() is not None:
            raise StartupError("The embedded database ended by itself; its log says why.")
        if not http.alive:
            raise StartupError("The HTTP server ended by itself; the log says why.")


def _place(running: contextlib.ExitStack, processes: int) -> Place | None:
    """Return this process's place among those of a server; None where it is the only one."""
    if processes == 1:
        return None
    shared = Scratch()
    running.callback(shared.remove)
    return Place(shared.path, 0, processes)


def _replicas(
    settings: Settings,
    running: contextlib.ExitStack,
    place: Place | None,
    listener: socket.socket,
) -> list[SupervisedChild]:
    """Return the other processes of a server, not yet started; they are stopped together."""
    if place is None:
        return []
    replicas = [
        SupervisedChild(
            f"server {number}",
            [
                *(sys.executable, "-m", "app.run.replica", "--lifeline"),
                *("--socket", str(listener.fileno()), "--directory", str(place.directory)),
                *("--number", str(number), "--of", str(place.of)),
            ],
            settings.environment_of_child(os.environ),
            pass_fds=[listener.fileno()],
        )
        for number in range(1, place.of)
    ]
    running.callback(_stop_workers, replicas)
    return replicas


def _require_schema(settings: Settings) -> None:
    """Refuse a database without the schema of this version; one that is away may come back.

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


def _asking_others_who_they_are(settings: Settings) -> Settings:
    """Return the settings, in which everybody signs in where others can reach the server."""
    required = settings.require_sign_in or reachable_by_others(settings)
    return settings.model_copy(update={"require_sign_in": required})


def require_administrator(container: Container) -> None:
    """Refuse to start where sign-in is required and no one can sign in.

    Warns where cookies go over plain HTTP.

    Raises
    ------
    StartupError
    """
    settings = container.settings
    if not settings.require_sign_in:
        return
    if not can_be_administered(container):
        raise StartupError(NO_ADMINISTRATOR.format(host=settings.host))
    if not settings.served_over_tls:
        _log.warning(
            "cookies are not kept to TLS: set PACELINE_EXTERNAL_URL to the https address of the "
            "proxy in front"
        )


def _nothing() -> Meanwhile:
    """Return that nothing else goes on."""
    nothing = Meanwhile(lambda _url, _settings: contextlib.nullcontext())
    nothing.done.set()
    return nothing


def _announce(url: str) -> str:
    sys.stderr.write(f"Paceline is ready: {url}\n")
    sys.stderr.flush()
    return url


def _workers(
    settings: Settings, running: contextlib.ExitStack, processes: int = 1
) -> list[SupervisedChild]:
    """Return the workers, not yet started: one a queue, and those that decode the inbox.

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
    # One takes the pulses of a thousand hosts; more of them run where more of these workers do.
    workers.append(_worker(settings, "worker pulse", "workers.inbox", "--queue", "pulse"))
    running.callback(_stop_workers, workers)
    return workers


def _standby(container: Container, running: contextlib.ExitStack) -> Standby:
    """Return what looks after the broker, started."""
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


def _worker(settings: Settings, name: str, module: str, *options: str) -> SupervisedChild:
    return SupervisedChild(
        name,
        [sys.executable, "-m", module, *options, "--lifeline"],
        settings.environment_of_child(os.environ),
    )


def _stop_workers(workers: Sequence[SupervisedChild]) -> None:
    for worker in workers:
        worker.ask_to_stop()
    deadline_s = time.monotonic() + WORKER_STOP_LIMIT_S
    for worker in workers:
        worker.wait_or_kill(deadline_s)


def _start_sweeper(
    container: Container, running: contextlib.ExitStack, after: threading.Event | None = None
) -> None:
    """Start the thread that finds the work that was lost or left.

    Parameters
    ----------
    after : Event, optional
        What the first pass waits for; without it the pass is at once.
    """
    done = threading.Event()

    def sweep_until_done() -> None:
        failing = False
        while after is not None and not after.wait(_TEND_INTERVAL_S):
            if done.is_set():
                return
        while True:
            try:
                sweep(container)
                if failing:
                    _log.info("the sweeper's passes go on")
                failing = False
            except SQLAlchemyError as error:
                # Once: the log of a night without a database is a line then.
                if not failing:
                    _log.warning("the sweeper's pass failed, trying on", error=said(error))
                failing = True
            # Not even a bug of ours may end this thread: no one would notice, and nothing else
            # finds lost messages. No class names unforeseen errors; the log has its trace, and
            # the next pass tries again.
            except Exception:  # noqa: BLE001 - as above
                _log.exception("the sweeper's pass failed")
            if done.wait(container.settings.sweep_interval_s):
                return

    thread = threading.Thread(target=sweep_until_done, name="sweeper", daemon=True)
    thread.start()
    running.callback(thread.join, _SWEEPER_STOP_LIMIT_S)
    running.callback(done.set)


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Turn the signals that ask a program to end into an event, also while it is stopping."""
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


def _raise_open_files_limit() -> None:
    """Allow as many open files as the system lets us: every producer holds a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says "infinity" and refuses it.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
