"""The account that the server runs as: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from app.errors import StartupError
from app.system.processes import Account

if TYPE_CHECKING:
    from pathlib import Path

# Tried in this order when root starts the server. An operator who wants an account that nothing
# else uses creates the first.
SERVICE_ACCOUNTS = ("paceline", "nobody")


def is_root() -> bool:
    """Return whether root starts the server."""
    return os.geteuid() == 0


def choose_account(cluster: Path) -> Account | None:
    """Return who runs the server of the data in `cluster`; None: the present user.

    Raises
    ------
    StartupError
        There is no such account on this system.
    """
    if not is_root():
        return None
    if cluster.exists():
        owner = cluster.stat().st_uid
        try:
            return _account(pwd.getpwuid(owner))
        except KeyError:
            raise StartupError(
                f"{cluster} belongs to the user id {owner}, which has no account here."
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


def make_server_dir(path: Path, account: Account | None) -> None:
    """Create a directory that only the server may enter."""
    path.mkdir(mode=0o700)
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
