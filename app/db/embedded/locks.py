"""The two locks of a data directory.

``instance.lock`` belongs to this process: a second instance on the same directory is refused.
``server.lock`` is inherited by the server and everything that it forks: whoever gets it knows that
no server of an earlier instance lives, so no process id read from a file ever has to be believed.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING, Final

from app.errors import InstanceRunningError, StartupError

if TYPE_CHECKING:
    from pathlib import Path

    from app.db.embedded.programs import Programs

_INSTANCE: Final = "instance.lock"
_SERVER: Final = "server.lock"
# Files of these names stay: another process may wait for them.
LOCKS: Final = (_INSTANCE, _SERVER)

# How long a server gets for a fast and for an immediate shutdown.
FAST_STOP_LIMIT_S = 30.0
IMMEDIATE_STOP_LIMIT_S = 10.0

_ORPHAN_LIMIT_S = 5.0  # a server whose parent died ends by itself
_POLL_S = 0.02


def take_instance_lock(data_dir: Path) -> int:
    """Return the lock of this process.

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
    """Return the lock that every process of the server inherits, once the old ones are gone.

    Raises
    ------
    StartupError
        They do not go, or the directory cannot be used.
    """
    lock = _open_lock(data_dir, _SERVER)
    if _wait_for_lock(lock, _ORPHAN_LIMIT_S):
        return lock
    for mode, limit_s in (("fast", FAST_STOP_LIMIT_S), ("immediate", IMMEDIATE_STOP_LIMIT_S)):
        # Only a live server of this very directory holds the lock: pg_ctl finds the right one.
        programs.run("pg_ctl", "stop", "-D", cluster, "-m", mode, "-t", f"{limit_s:.0f}")
        if _wait_for_lock(lock, limit_s):
            return lock
    os.close(lock)
    raise StartupError(
        f"A database server that an earlier run left over in {data_dir} does not stop."
    )


def wait_for_server(data_dir: Path) -> None:
    """Wait until no server of an earlier run lives.

    Raises
    ------
    StartupError
        One does.
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
