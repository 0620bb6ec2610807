"""The embedded database: a real PostgreSQL, run as our own child in the data directory.

Two locks hold the picture together. ``instance.lock`` belongs to this process: a second instance
on the same directory is refused. ``server.lock`` is inherited by the server and everything that it
forks: whoever gets it knows that no server of an earlier instance lives, so no process id read from
a file ever has to be believed.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import psycopg

from app.db import postgres_binaries
from app.errors import InstanceRunningError, StartupError
from app.launch import EXIT_DIRECTORY_CLOSED
from app.processes import Account, launch_command, spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from app.db.postgres_binaries import Binaries

DATABASE = "paceline"
ROLE = "paceline"
# Tried in this order when root starts the server, which PostgreSQL refuses to run as. An operator
# who wants an account that nothing else uses creates the first.
SERVICE_ACCOUNTS = ("paceline", "nobody")
# The first release with the builtin locale provider, which sorts alike on every machine.
_FIRST_WITH_BUILTIN_LOCALES = 17

_SOCKET_NAME = ".s.PGSQL.5432"
# sockaddr_un.sun_path without its terminating zero.
_MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103

_READY_LIMIT_S = 300.0  # crash recovery replays at most a few GB of log
_ORPHAN_LIMIT_S = 5.0  # a server whose parent died ends by itself
_FAST_STOP_LIMIT_S = 30.0
_IMMEDIATE_STOP_LIMIT_S = 10.0
_POLL_S = 0.02


class EmbeddedPostgres:
    """A PostgreSQL server in a directory, for as long as the context lasts.

    Start it from the main thread: on Linux the server ends with the thread that started it.

    Parameters
    ----------
    data_dir : Path
        Holds everything of this instance; created where it is missing. The modes of existing
        directories are never changed.
    bin_dir : Path, optional
        The programs of another PostgreSQL (15 or later); the wheel's without.
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
        self._account: Account | None = None  # None: the server runs as the present user
        self._binaries: Binaries | None = None
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
        """The server's process id; 0 while it does not run."""
        return 0 if self._server is None else self._server.pid

    def poll(self) -> int | None:
        """Return the server's exit status, or None while it runs."""
        return 0 if self._server is None else self._server.poll()

    def start(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Start the server and wait until it answers.

        Parameters
        ----------
        give_up : callable
            Asked while the server recovers from a crash, which may take minutes.

        Raises
        ------
        InstanceRunningError
            Another process serves this directory.
        StartupError
            The server cannot run here; the message says why.
        """
        try:
            postgres_binaries.make_directories(self.data_dir, 0o711 if _is_root() else 0o700)
        except OSError as error:
            raise StartupError(f"Cannot create the data directory: {error}") from error
        self._instance_lock = self._take_instance_lock()
        try:
            self._account = self._choose_account()
            self._binaries = self._choose_binaries()
            server_lock = self._take_server_lock()
            try:
                self._remove_stale_pid_file()
                self._create_cluster(server_lock)
                self._socket_dir = self._make_socket_dir()
                self._write_access_rules()
                self._server = self._launch(server_lock)
            finally:
                os.close(server_lock)
            self._wait_until_ready(give_up)
            self.url = self._create_database()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server: fast, then immediately, then by force. Stopping twice is harmless."""
        self.url = ""
        if self._server is not None:
            for request, limit_s in (
                (signal.SIGINT, _FAST_STOP_LIMIT_S),
                (signal.SIGQUIT, _IMMEDIATE_STOP_LIMIT_S),
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
            self._remove_socket_dir()
            self._socket_dir = None
        if self._instance_lock is not None:
            os.close(self._instance_lock)
            self._instance_lock = None

    # -- who, what, where ------------------------------------------------------------------------

    def _choose_account(self) -> Account | None:
        if not _is_root():
            return None
        if self._cluster.exists():
            owner = self._cluster.stat().st_uid
            try:
                return _account(pwd.getpwuid(owner))
            except KeyError:
                raise StartupError(
                    f"{self._cluster} belongs to the user id {owner}, which has no account here."
                ) from None
        for name in SERVICE_ACCOUNTS:
            try:
                return _account(pwd.getpwnam(name))
            except KeyError:
                continue
        raise StartupError(
            "PostgreSQL does not run as root, and this system has no account "
            f"{' or '.join(SERVICE_ACCOUNTS)}. Create one (useradd --system paceline), or start "
            "Paceline as a plain user."
        )

    def _choose_binaries(self) -> Binaries:
        major = self._written_by()
        if self._given_bin_dir is None:
            binaries = postgres_binaries.bundled(major)
            return binaries if self._account is None else postgres_binaries.readable_copy(binaries)
        binaries = postgres_binaries.inspect(self._given_bin_dir)
        if major not in (None, binaries.major):
            raise StartupError(
                f"The data in {self.data_dir} were written by PostgreSQL {major}; "
                f"{self._given_bin_dir} holds {binaries.major}."
            )
        return binaries

    def _written_by(self) -> int | None:
        """Return the major version of the data, or None where there are none yet."""
        try:
            return int((self._cluster / "PG_VERSION").read_text().strip())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StartupError(f"{self._cluster} is not readable: {error}") from error

    def _program(self, name: str) -> Path:
        assert self._binaries is not None  # noqa: S101 - chosen before anything runs
        return self._binaries.program(name)

    # -- locks -----------------------------------------------------------------------------------

    def _open_lock(self, name: str) -> int:
        path = self.data_dir / name
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StartupError(f"Cannot use the data directory: {error}") from error

    def _take_instance_lock(self) -> int:
        lock = self._open_lock("instance.lock")
        if not _try_lock(lock):
            os.close(lock)
            raise InstanceRunningError(
                f"Paceline is already running on {self.data_dir}. Stop it first, or give this one "
                "a directory of its own with PACELINE_DATA_DIR."
            )
        return lock

    def _take_server_lock(self) -> int:
        """Return the lock that every process of the server inherits, once the old ones are gone."""
        lock = self._open_lock("server.lock")
        if _wait_for_lock(lock, _ORPHAN_LIMIT_S):
            return lock
        for mode, limit_s in (
            ("fast", _FAST_STOP_LIMIT_S),
            ("immediate", _IMMEDIATE_STOP_LIMIT_S),
        ):
            # Only a live server of this very directory holds the lock: pg_ctl finds the right one.
            self._run("pg_ctl", "stop", "-D", self._cluster, "-m", mode, "-t", f"{limit_s:.0f}")
            if _wait_for_lock(lock, limit_s):
                return lock
        os.close(lock)
        raise StartupError(
            f"A database server that an earlier run left over in {self.data_dir} does not stop."
        )

    def _remove_stale_pid_file(self) -> None:
        # The server lock is ours, so the file is stale. PostgreSQL would refuse to start if its
        # process id had passed to another process of the same user meanwhile.
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    # -- preparing -------------------------------------------------------------------------------

    def _create_cluster(self, server_lock: int) -> None:
        assert self._binaries is not None  # noqa: S101 - chosen before anything runs
        if self._cluster.exists():
            return
        # Made elsewhere and renamed when complete: an interrupted initdb leaves nothing half done.
        scratch = self.data_dir / "postgresql.new"
        if scratch.exists():
            shutil.rmtree(scratch)
        self._make_server_dir(scratch)
        locale = ["--locale=C", "--encoding=UTF8"]
        if self._binaries.major >= _FIRST_WITH_BUILTIN_LOCALES:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        durability = [] if self._durable else ["--no-sync"]
        result = self._run(
            "initdb",
            "-D",
            scratch,
            f"--username={ROLE}",
            "--auth-local=peer",
            "--auth-host=reject",
            "--data-checksums",
            "--no-instructions",
            *locale,
            *durability,
            pass_fds=(server_lock,),
        )
        if result.returncode != 0:
            shutil.rmtree(scratch)
            raise StartupError(self._explain(result, "initdb"))
        scratch.rename(self._cluster)

    def _make_server_dir(self, path: Path) -> None:
        path.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    def _make_socket_dir(self) -> Path:
        """Return a new directory for the socket, short enough and open to the server."""
        link = self.data_dir / "socket"
        self._remove_socket_dir()
        direct = self.data_dir / "run"
        if _fits(direct):
            if not direct.exists():
                self._make_server_dir(direct)
            _remove_socket(direct)
            return direct
        for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108 - mkdtemp below
            if not _fits(Path(parent) / "paceline-12345678"):
                continue
            private = Path(tempfile.mkdtemp(prefix="paceline-", dir=parent))
            if self._account is not None:
                os.chown(private, self._account.uid, self._account.gid)
            link.symlink_to(private)
            return private
        raise StartupError(
            f"The path of the data directory is too long for a socket, and so is "
            f"{tempfile.gettempdir()}. Set PACELINE_DATA_DIR or TMPDIR to a shorter one."
        )

    def _remove_socket_dir(self) -> None:
        """Remove the private socket directory of this or of a killed instance, if there is one."""
        link = self.data_dir / "socket"
        if not link.is_symlink():
            return
        private = link.readlink()
        _remove_socket(private)
        if private.is_dir():
            private.rmdir()
        link.unlink()

    def _write_access_rules(self) -> None:
        # Kept outside of the cluster: root never writes where the server's account could plant a
        # link, and the server cannot change who may connect.
        try:
            client = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            raise StartupError(
                f"The user id {os.geteuid()} has no account on this system; PostgreSQL needs its "
                "name. Start Paceline as a user with an account, or set PACELINE_DATABASE_URL."
            ) from None
        name = client.replace('"', '""')
        _write(self._access_file("pg_hba"), "local all all peer map=paceline\n")
        _write(self._access_file("pg_ident"), f'paceline "{name}" {ROLE}\n')

    def _access_file(self, name: str) -> Path:
        return self.data_dir / f"{name}.conf"

    # -- running ---------------------------------------------------------------------------------

    def _launch(self, server_lock: int) -> subprocess.Popen[bytes]:
        assert self._socket_dir is not None  # noqa: S101 - made before the server starts
        options = {
            "listen_addresses": "",
            "unix_socket_directories": '"' + str(self._socket_dir).replace('"', '""') + '"',
            "unix_socket_permissions": "0700",
            "hba_file": str(self._access_file("pg_hba")),
            "ident_file": str(self._access_file("pg_ident")),
            # Nothing replicates from here, and bulk loads then write less log.
            "wal_level": "minimal",
            "max_wal_senders": "0",
        }
        if not self._durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        command: list[str | Path] = [self._program("postgres"), "-D", self._cluster]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        if self._log.exists():
            self._log.replace(self._log.with_suffix(".log.1"))
        # Not for everybody: it quotes statements.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._log, flags, 0o600), "wb") as log:
            return spawn(
                command,
                account=self._account,
                directory=self.data_dir,
                parent_death=signal.SIGINT,  # "fast shutdown": data are written, clients cut
                environment=_server_environment(),
                output=log,
                pass_fds=(server_lock,),
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
                    raise StartupError(
                        f"The database did not start: {self._last_words()}"
                    ) from error
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
            found = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)
            ).fetchone()
            if found is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")
        host = quote(str(self._socket_dir), safe="")
        return f"postgresql+psycopg://{ROLE}@/{DATABASE}?host={host}&port=5432"

    def _run(
        self, program: str, *arguments: str | Path, pass_fds: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own argument list
            launch_command(
                [self._program(program), *arguments],
                account=self._account,
                directory=self.data_dir,
                parent_death=signal.SIGKILL,
            ),
            capture_output=True,
            text=True,
            env=_server_environment(),
            start_new_session=True,  # a Ctrl-C in the terminal is for us alone
            pass_fds=pass_fds,
            check=False,
        )

    def _explain(self, result: subprocess.CompletedProcess[str], program: str) -> str:
        if result.returncode == EXIT_DIRECTORY_CLOSED and self._account is not None:
            return (
                f"PostgreSQL does not run as root; the account {self._account.name} runs it and "
                f"cannot enter {self.data_dir} ({result.stderr.strip()}). Choose a data directory "
                "that other users can enter, such as /var/lib/paceline/data."
            )
        return f"{program} failed ({result.returncode}): {result.stderr.strip()}"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return " / ".join(lines[-5:]) or f"no word in {self._log}"


def _is_root() -> bool:
    return os.geteuid() == 0


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(descriptor: int, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not _try_lock(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _fits(directory: Path) -> bool:
    # libpq reads a comma in the host as a list of hosts.
    path = os.fsencode(directory / _SOCKET_NAME)
    return len(path) <= _MAX_SOCKET_PATH_BYTES and b"," not in path


def _remove_socket(directory: Path) -> None:
    # Stale for the reason given for the file with the process id.
    for name in (_SOCKET_NAME, f"{_SOCKET_NAME}.lock"):
        (directory / name).unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def _server_environment() -> dict[str, str]:
    # Nothing of the caller's secrets, locale, time zone or PG* variables reaches the server; only
    # what an interpreter in an unusual place may need to start the launcher.
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}
