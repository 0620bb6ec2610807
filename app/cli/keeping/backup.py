"""`paceline backup` and `restore`, on the database that the settings name."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from app.db.backup import back_up, restore
from app.db.embedded.server import EmbeddedPostgres, running_url
from app.errors import InstanceRunningError
from app.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A dump holds the secrets of channels as they are stored: encrypted.
KEYS: str = (
    "The keys that open channels' secrets are not in it: keep {where} as well, in another place.\n"
)


def make_backup(target: Path) -> None:
    """Write the database into a file; the installation may run meanwhile.

    Raises
    ------
    BackupError
    """
    settings = Settings()
    with _database(settings, also_running=True) as url:
        back_up(url, target)
    sys.stderr.write(f"{target}: {target.stat().st_size:,} bytes\n")
    file = settings.secret_key_file or settings.data_dir / "secret.key"
    sys.stderr.write(KEYS.format(where="PACELINE_SECRET_KEYS" if settings.secret_keys else file))


def restore_backup(source: Path) -> None:
    """Fill an empty database from a file; the embedded one must not be served meanwhile.

    Raises
    ------
    BackupError
    """
    with _database(Settings(), also_running=False) as url:
        restore(url, source)
    sys.stderr.write("restored, and at the schema of this version\n")


@contextlib.contextmanager
def _database(settings: Settings, *, also_running: bool) -> Iterator[str]:
    if settings.database_url is not None:
        yield settings.database_url
        return
    try:
        postgres = EmbeddedPostgres(settings.data_dir)
        postgres.start()
    except InstanceRunningError:
        url = running_url(settings.data_dir) if also_running else None
        if url is None:
            raise
        yield url
        return
    try:
        yield postgres.url
    finally:
        postgres.stop()
