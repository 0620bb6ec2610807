"""The data directory of the embedded database: its files, locks and socket directory."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from app.errors import InstanceRunningError, StartupError
from app.platform.embedded.binaries import Programs, make_server_dir
from app.platform.launch import EXIT_DIRECTORY_CLOSED
from app.platform.processes import Account

ROLE = "paceline"

# The first PostgreSQL release with the builtin locale provider, which sorts equally on every
# machine.
_FIRST_WITH_BUILTIN_LOCALES = 17


def written_by(cluster: Path) -> int | None:
    """Return the PostgreSQL major version of a data directory, or None if it is empty.

    Raises
    ------
    StartupError
        The files of the data directory are not readable.
    """
    try:
        return int((cluster / "PG_VERSION").read_text().strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StartupError(f"{cluster} is not readable: {error}") from error


def create_cluster(cluster: Path, programs: Programs, server_lock: int, *, durable: bool) -> None:
    """Initialize the data directory if it is empty.

    Parameters
    ----------
    durable : bool
        False gives up safety against power loss for speed.

    Raises
    ------
    StartupError
        The data directory cannot be initialized; the message names the reason.
    """
    if cluster.exists():
        return
    # Initialized under another name and renamed when complete: an interrupted initdb leaves no
    # partial cluster.
    scratch = cluster.with_name(f"{cluster.name}.new")
    if scratch.exists():
        shutil.rmtree(scratch)
    make_server_dir(scratch, programs.account)
    locale = ["--locale=C", "--encoding=UTF8"]
    if programs.binaries.major >= _FIRST_WITH_BUILTIN_LOCALES:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    durability = [] if durable else ["--no-sync"]
    result = programs.run(
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
        raise StartupError(_explain(result, programs))
    scratch.rename(cluster)


def remove_stale_pid_file(cluster: Path) -> None:
    """Remove a stale pid file; call this function while holding the server lock.

    PostgreSQL would refuse to start if another process of the same user had this process id
    meanwhile.
    """
    (cluster / "postmaster.pid").unlink(missing_ok=True)


def write_access_rules(data_dir: Path) -> None:
    """Write the access rules: only the current user may connect, as the database's owner.

    Raises
    ------
    StartupError
        The current user has no name.
    """
    # The access files are outside of the cluster: root never writes into a directory where the
    # server's account could plant a link, and the server cannot change who may connect.
    try:
        client = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise StartupError(
            f"The user id {os.geteuid()} has no account on this system; PostgreSQL needs its "
            "name. Start Paceline as a user with an account, or set PACELINE_DATABASE_URL."
        ) from None
    name = client.replace('"', '""')
    _write(access_file(data_dir, "pg_hba"), "local all all peer map=paceline\n")
    _write(access_file(data_dir, "pg_ident"), f'paceline "{name}" {ROLE}\n')


def access_file(data_dir: Path, name: str) -> Path:
    """Return the path of the access file ``pg_hba`` or ``pg_ident``."""
    return data_dir / f"{name}.conf"


def _explain(result: subprocess.CompletedProcess[str], programs: Programs) -> str:
    if result.returncode == EXIT_DIRECTORY_CLOSED and programs.account is not None:
        return (
            f"PostgreSQL does not run as root; the account {programs.account.name} runs it and "
            f"cannot enter {programs.directory} ({result.stderr.strip()}). Choose a data directory "
            "that other users can enter, such as /var/lib/paceline/data."
        )
    return f"initdb failed ({result.returncode}): {result.stderr.strip()}"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


# This process holds ``instance.lock``: a second instance on the same directory is refused. The
# server and all its children inherit ``server.lock``: a process that gets this lock knows that no
# server of an earlier instance lives, without relying on a process id in a file.


_INSTANCE: Final = "instance.lock"
_SERVER: Final = "server.lock"
# Lock files are never deleted: another process may wait for them.
LOCKS: Final = (_INSTANCE, _SERVER)

# Time limits of a fast and of an immediate shutdown of the server.
FAST_STOP_LIMIT_S = 30.0
IMMEDIATE_STOP_LIMIT_S = 10.0

_ORPHAN_LIMIT_S = 5.0  # a server whose parent died ends by itself
_POLL_S = 0.02


def take_instance_lock(data_dir: Path) -> int:
    """Lock the data directory for this process and return the lock.

    Raises
    ------
    InstanceRunningError
        Another process serves this directory.
    StartupError
        The directory cannot be used.
    """
    lock = _open_lock(data_dir, _INSTANCE)
    if not _try_lock(lock):
        os.close(lock)
        raise InstanceRunningError(
            f"Paceline is already running on {data_dir}. Stop it first, or give this one "
            "a directory of its own with --data-dir."
        )
    return lock


def take_server_lock(data_dir: Path, cluster: Path, programs: Programs) -> int:
    """Wait for earlier servers to end, and return the lock that the server's processes inherit.

    Raises
    ------
    StartupError
        The earlier processes do not end, or the directory cannot be used.
    """
    lock = _open_lock(data_dir, _SERVER)
    if _wait_for_lock(lock, _ORPHAN_LIMIT_S):
        return lock
    for mode, limit_s in (("fast", FAST_STOP_LIMIT_S), ("immediate", IMMEDIATE_STOP_LIMIT_S)):
        # A process that holds the lock is a live server of this directory, so pg_ctl stops the
        # right server.
        programs.run("pg_ctl", "stop", "-D", cluster, "-m", mode, "-t", f"{limit_s:.0f}")
        if _wait_for_lock(lock, limit_s):
            return lock
    os.close(lock)
    raise StartupError(
        f"A database server that an earlier run left over in {data_dir} does not stop."
    )


def wait_for_server(data_dir: Path) -> None:
    """Wait until no server of an earlier instance lives.

    Raises
    ------
    StartupError
        A server of an earlier instance still runs.
    """
    lock = _open_lock(data_dir, _SERVER)
    try:
        if not _wait_for_lock(lock, _ORPHAN_LIMIT_S):
            raise StartupError(f"A database server of an earlier run still runs on {data_dir}.")
    finally:
        os.close(lock)


def _open_lock(data_dir: Path, name: str) -> int:
    path = data_dir / name
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartupError(f"Cannot use the data directory: {error}") from error


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


_SOCKET_NAME = ".s.PGSQL.5432"
# Longest path of a socket: the size of sockaddr_un.sun_path without its terminating zero.
_MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103


def make_socket_dir(data_dir: Path, account: Account | None) -> Path:
    """Return a new directory for the server's socket whose path is short enough.

    Raises
    ------
    StartupError
        Every possible path is too long.
    """
    link = data_dir / "socket"
    remove_socket_dir(data_dir)
    direct = data_dir / "run"
    if _fits(direct):
        if not direct.exists():
            make_server_dir(direct, account)
        _remove_socket(direct)
        return direct
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108 - mkdtemp below
        if not _fits(Path(parent) / "paceline-12345678"):
            continue
        private = Path(tempfile.mkdtemp(prefix="paceline-", dir=parent))
        if account is not None:
            os.chown(private, account.uid, account.gid)
        link.symlink_to(private)
        return private
    raise StartupError(
        f"The path of the data directory is too long for a socket, and so is "
        f"{tempfile.gettempdir()}. Set PACELINE_DATA_DIR or TMPDIR to a shorter one."
    )


def socket_dir_of(data_dir: Path) -> Path | None:
    """Return the socket directory of a running server; None without one."""
    link = data_dir / "socket"
    directory = link.readlink() if link.is_symlink() else data_dir / "run"
    return directory if (directory / _SOCKET_NAME).exists() else None


def remove_socket_dir(data_dir: Path) -> None:
    """Remove the private socket directory of this instance or of a killed one, if it exists."""
    link = data_dir / "socket"
    if not link.is_symlink():
        return
    private = link.readlink()
    _remove_socket(private)
    if private.is_dir():
        private.rmdir()
    link.unlink()


def _fits(directory: Path) -> bool:
    # libpq reads a comma in the host as a separator of hosts.
    path = os.fsencode(directory / _SOCKET_NAME)
    return len(path) <= _MAX_SOCKET_PATH_BYTES and b"," not in path


def _remove_socket(directory: Path) -> None:
    # The caller holds the server lock, so no server uses these files.
    for name in (_SOCKET_NAME, f"{_SOCKET_NAME}.lock"):
        (directory / name).unlink(missing_ok=True)


def has_cluster(data_dir: Path) -> bool:
    """Return whether a data directory has an embedded database, complete or not."""
    return (data_dir / "postgresql").exists()


def empty_instance(data_dir: Path, *, keep: Collection[str], first: Callable[[], None]) -> None:
    """Delete everything in a data directory except the named files and the lock files.

    Parameters
    ----------
    first : callable
        Called once no process serves the directory, before anything is deleted.

    Raises
    ------
    InstanceRunningError
        A process serves the directory.
    StartupError
        A database server still runs on the directory, or the directory cannot be emptied.
    """
    lock = take_instance_lock(data_dir)
    try:
        wait_for_server(data_dir)
        first()
        for path in data_dir.iterdir():
            if path.name in LOCKS or path.name in keep:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise StartupError(f"Cannot empty {data_dir}: {error}") from error
    finally:
        os.close(lock)
