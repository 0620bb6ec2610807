"""The directory of the server's socket: open to the server alone, and short enough for a socket."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from app.db.embedded.account import make_server_dir
from app.errors import StartupError

if TYPE_CHECKING:
    from app.system.processes import Account

_SOCKET_NAME = ".s.PGSQL.5432"
# sockaddr_un.sun_path without its terminating zero.
_MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103


def make_socket_dir(data_dir: Path, account: Account | None) -> Path:
    """Return a new directory for the socket, short enough and open to the server.

    Raises
    ------
    StartupError
        No place is short enough.
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
    """Return where the socket of a server that runs is; None where there is none."""
    link = data_dir / "socket"
    directory = link.readlink() if link.is_symlink() else data_dir / "run"
    return directory if (directory / _SOCKET_NAME).exists() else None


def remove_socket_dir(data_dir: Path) -> None:
    """Remove the private socket directory of this or of a killed instance, if there is one."""
    link = data_dir / "socket"
    if not link.is_symlink():
        return
    private = link.readlink()
    _remove_socket(private)
    if private.is_dir():
        private.rmdir()
    link.unlink()


def _fits(directory: Path) -> bool:
    # libpq reads a comma in the host as a list of hosts.
    path = os.fsencode(directory / _SOCKET_NAME)
    return len(path) <= _MAX_SOCKET_PATH_BYTES and b"," not in path


def _remove_socket(directory: Path) -> None:
    # The caller holds the server lock, so they are stale.
    for name in (_SOCKET_NAME, f"{_SOCKET_NAME}.lock"):
        (directory / name).unlink(missing_ok=True)
