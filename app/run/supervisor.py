"""The processes of an installation that `serve` runs; workers start in `app.run.workers`.

The main thread starts and watches child processes and handles signals; HTTP and the sweeper have
threads. However the run ends, its parts are stopped in reverse order of their start: HTTP with its
streams, the sweeper, the workers, PostgreSQL.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import structlog

from app.access.admission import make_first_token
from app.access.people import can_be_administered
from app.bootstrap import build
from app.errors import StartupError
from app.platform import killable, telemetry
from app.platform.container import Container
from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.logs import configure_logging
from app.platform.processes import SupervisedChild, allow_open_files
from app.platform.resources import Place, Scratch, answering
from app.platform.settings import Settings
from app.run.application import create_app
from app.run.http import HttpServer, address_of, listen, reachable_by_others
from app.run.workers import (
    TEND_INTERVAL_S,
    refusals_in_the_log,
    require_schema,
    start_sweeper,
    stop_signals,
    stop_workers,
    workers_of,
)
from app.sessions.body import PREPARATION, read_body

NO_ADMINISTRATOR: Final = (
    "Sign-in is required on {host}, and no one can sign in: there is no administrator yet. Make a "
    "token with `paceline token create NAME --scope admin`, or name a file for it in "
    "PACELINE_ADMIN_TOKEN_FILE, which `paceline migrate` fills; or listen on 127.0.0.1 alone."
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """A context that is entered once the server answers requests, and left before it stops."""

    # Returns the context for the server's URL and its settings, which contain the database's
    # address.
    begin: Callable[[str, Settings], AbstractContextManager[None]]
    # The sweeper waits for this event, because it would find incomplete data before.
    done: threading.Event = field(default_factory=threading.Event)


def serve(settings: Settings, *, meanwhile: Meanwhile | None = None, processes: int = 1) -> None:
    """Serve the API and the dashboard until SIGINT or SIGTERM.

    Without a database URL this process runs the whole installation: the embedded database with its
    schema and the workers are its child processes and end with it. With a database URL it runs only
    the HTTP server.

    Parameters
    ----------
    meanwhile : Meanwhile, optional
        A context that is open while the server answers requests.
    processes : int
        Number of processes that answer requests at the same address, including this process. With
        the embedded database it is also the number of concurrent analyses.

    Raises
    ------
    InstanceRunningError
        If another process serves this data directory.
    StartupError
        If a part does not start, or ended unexpectedly.
    """
    configure_logging(json=settings.log_json, level=settings.log_level)
    allow_open_files()
    if meanwhile is None:
        meanwhile = Meanwhile(lambda _url, _settings: contextlib.nullcontext())
        meanwhile.done.set()
    with refusals_in_the_log(settings), stop_signals() as stop, contextlib.ExitStack() as running:
        try:
            _serve(settings, running, stop, meanwhile, processes)
        except StartupError:
            # A start that a signal interrupts is treated as a normal stop.
            if not stop.is_set():
                raise


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
        require_schema(settings)
    settings = require_sign_in_if_exposed(settings)
    listener = running.enter_context(listen(settings))

    workers: Sequence[SupervisedChild] = ()
    if postgres is not None:
        migrate.upgrade(postgres.url)
        workers = workers_of(settings, running, processes)
    telemetry.start("serve")
    running.callback(telemetry.stop)
    container = build(settings, application_name="paceline serve")
    running.callback(container.close)
    if postgres is not None:
        make_first_token(container)
        start_sweeper(container, running, meanwhile.done)
    require_administrator(container)

    place = _place(running, processes)
    http = HttpServer(create_app(container, place), listener)
    running.callback(http.stop)
    workers = [*workers, *_replicas(settings, running, place, listener)]
    for worker in workers:
        worker.tend()
    http.start(stop.is_set)
    killable.start(read_body, PREPARATION)
    answering()
    if not stop.is_set():
        url = address_of(listener)
        sys.stderr.write(f"Paceline is ready: {url}\n")
        sys.stderr.flush()
        running.enter_context(meanwhile.begin(url, settings))
    while not stop.wait(TEND_INTERVAL_S):
        for worker in workers:
            worker.tend()
        if postgres is not None and postgres.poll() is not None:
            raise StartupError("The embedded database ended by itself; its log says why.")
        if not http.alive:
            raise StartupError("The HTTP server ended by itself; the log says why.")


def _place(running: contextlib.ExitStack, processes: int) -> Place | None:
    """Return this process's place among the server's processes; None for a single process."""
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
    """Return the server's other processes, not started yet; they are stopped together."""
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
    running.callback(stop_workers, replicas)
    return replicas


def require_sign_in_if_exposed(settings: Settings) -> Settings:
    """Return settings that require sign-in if other machines can reach the server."""
    required = settings.require_sign_in or reachable_by_others(settings)
    return settings.model_copy(update={"require_sign_in": required})


def require_administrator(container: Container) -> None:
    """Refuse to start if sign-in is required but no user can sign in.

    Warns if cookies are sent over plain HTTP.

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
