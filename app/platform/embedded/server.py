"""The embedded database: a PostgreSQL server as a child process, with its data in `data_dir`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg

from app.errors import StartupError
from app.platform.embedded import binaries
from app.platform.embedded.binaries import Programs, choose_account, is_root
from app.platform.embedded.cluster import (
    FAST_STOP_LIMIT_S,
    IMMEDIATE_STOP_LIMIT_S,
    ROLE,
    access_file,
    create_cluster,
    make_socket_dir,
    remove_socket_dir,
    remove_stale_pid_file,
    socket_dir_of,
    take_instance_lock,
    take_server_lock,
    write_access_rules,
    written_by,
)
from app.platform.processes import Account

DATABASE = "paceline"

_READY_LIMIT_S = 300.0  # crash recovery replays at most a few GB of log
_POLL_S = 0.02


class EmbeddedPostgres:
    """A PostgreSQL server on a data directory; it runs while the context is open.

    Start it from the main thread: on Linux the server ends with the thread that started it.

    Parameters
    ----------
    data_dir : Path
        Directory of all files of this instance; created if it is missing. The modes of existing
        directories are never changed.
    bin_dir : Path, optional
        Programs of another PostgreSQL (15 or later); default: the programs of the wheel.
    durable : bool
        False gives up safety against power loss for speed: for tests.

    Attributes
    ----------
    url : str
        SQLAlchemy URL of the application's database, valid while the server runs.
    """

    def __init__(
        self, data_dir: Path, *, bin_dir: Path | None = None, durable: bool = True
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.url = ""
        self._given_bin_dir = bin_dir
        self._durable = durable
        self._cluster = self.data_dir / "postgresql"
        self._log = self.data_dir / "postgresql.log"
        self._socket_dir: Path | None = None
        self._instance_lock: int | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the server's process id; 0 if the server does not run."""
        return 0 if self._server is None else self._server.pid

    def poll(self) -> int | None:
        """Return the server's exit status, or None while it runs."""
        return 0 if self._server is None else self._server.poll()

    def start(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Start the server and wait until it accepts connections.

        Parameters
        ----------
        give_up : callable
            Called repeatedly while the server recovers from a crash, which may take minutes.

        Raises
        ------
        InstanceRunningError
            Another process serves this directory.
        StartupError
            The server cannot run here; the message names the reason.
        """
        try:
            binaries.make_directories(self.data_dir, 0o711 if is_root() else 0o700)
        except OSError as error:
            raise StartupError(f"Cannot create the data directory: {error}") from error
        self._instance_lock = take_instance_lock(self.data_dir)
        try:
            account = choose_account(self._cluster)
            programs = Programs(self._choose_binaries(account), account, self.data_dir)
            server_lock = take_server_lock(self.data_dir, self._cluster, programs)
            try:
                remove_stale_pid_file(self._cluster)
                create_cluster(self._cluster, programs, server_lock, durable=self._durable)
                self._socket_dir = make_socket_dir(self.data_dir, account)
                write_access_rules(self.data_dir)
                self._server = self._launch(programs, server_lock)
            finally:
                os.close(server_lock)
            self._wait_until_ready(give_up)
            self.url = self._create_database()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server: a fast shutdown, then an immediate one, then SIGKILL; repeatable."""
        self.url = ""
        if self._server is not None:
            for request, limit_s in (
                (signal.SIGINT, FAST_STOP_LIMIT_S),
                (signal.SIGQUIT, IMMEDIATE_STOP_LIMIT_S),
                (signal.SIGKILL, None),
            ):
                self._server.send_signal(request)
                try:
                    self._server.wait(limit_s)
                    break
                except subprocess.TimeoutExpired:
                    continue
            self._server = None
        if self._socket_dir is not None:
            remove_socket_dir(self.data_dir)
            self._socket_dir = None
        if self._instance_lock is not None:
            os.close(self._instance_lock)
            self._instance_lock = None

    def _choose_binaries(self, account: Account | None) -> binaries.Binaries:
        major = written_by(self._cluster)
        if self._given_bin_dir is None:
            bundled = binaries.bundled(major)
            return bundled if account is None else binaries.readable_copy(bundled)
        given = binaries.inspect(self._given_bin_dir)
        if major not in (None, given.major):
            raise StartupError(
                f"The data in {self.data_dir} were written by PostgreSQL {major}; "
                f"{self._given_bin_dir} holds {given.major}."
            )
        return given

    def _launch(self, programs: Programs, server_lock: int) -> subprocess.Popen[bytes]:
        assert self._socket_dir is not None  # noqa: S101 - made before the server starts
        options = {
            "listen_addresses": "",
            "unix_socket_directories": '"' + str(self._socket_dir).replace('"', '""') + '"',
            "unix_socket_permissions": "0700",
            "hba_file": str(access_file(self.data_dir, "pg_hba")),
            "ident_file": str(access_file(self.data_dir, "pg_ident")),
            # The server has no replicas, and with this level bulk loads write less to the log.
            "wal_level": "minimal",
            "max_wal_senders": "0",
        }
        if not self._durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        if self._log.exists():
            self._log.replace(self._log.with_suffix(".log.1"))
        # Readable only by the server's account: the log quotes statements.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._log, flags, 0o600), "wb") as log:
            return programs.start_server(
                "-D", self._cluster, *settings, output=log, pass_fds=(server_lock,)
            )

    def _wait_until_ready(self, give_up: Callable[[], bool]) -> None:
        assert self._server is not None  # noqa: S101 - called after the launch
        deadline = time.monotonic() + _READY_LIMIT_S
        while True:
            try:
                self._connect("postgres").close()
            except psycopg.OperationalError as error:
                status = self._server.poll()
                if status is not None:
                    lines = self._log.read_text(errors="replace").splitlines()
                    reason = " / ".join(lines[-5:]) or f"no word in {self._log}"
                    raise StartupError(f"The database did not start: {reason}") from error
                if give_up():
                    raise StartupError("The start of the database was interrupted.") from error
                if time.monotonic() > deadline:
                    raise StartupError(
                        f"The database does not answer after {_READY_LIMIT_S:.0f} s: {error}"
                    ) from error
                time.sleep(_POLL_S)
            else:
                return

    def _connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self._socket_dir), port=5432, user=ROLE, dbname=database, autocommit=True
        )

    def _create_database(self) -> str:
        with self._connect("postgres") as connection:
            exists = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)
            ).fetchone()
            if exists is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")
        assert self._socket_dir is not None  # noqa: S101 - made before the server starts
        return _url_at(self._socket_dir)


def running_url(data_dir: Path) -> str | None:
    """Return the URL of the database that another process of this user runs; None if none runs."""
    directory = socket_dir_of(data_dir)
    return None if directory is None else _url_at(directory)


def _url_at(socket_dir: Path) -> str:
    host = quote(str(socket_dir), safe="")
    return f"postgresql+psycopg://{ROLE}@/{DATABASE}?host={host}&port=5432"
