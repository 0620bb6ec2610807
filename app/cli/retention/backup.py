"""`paceline backup` and `restore`, on the database that the settings name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from app.cli.retention.installation import database, opened
from app.db.backup import back_up, restore
from app.db.migrate import require_tables
from app.services.retention.objects import References, references
from app.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

# A dump holds the secrets of channels as they are stored: encrypted.
KEYS: str = "The keys of channels' secrets are not in it: back up {where} separately.\n"


def make_backup(target: Path) -> None:
    """Write the database into a file; the installation may run meanwhile."""
    settings = Settings()
    with database(settings, also_running=True) as url:
        # One of an older schema too: a backup comes before the migration.
        with opened(
            settings.model_copy(update={"database_url": url}), "backup", migrated=False
        ) as container:
            require_tables(container.engine)
        back_up(url, target)
        outside = _references(settings, url)
    sys.stderr.write(f"{target}: {target.stat().st_size:,} bytes\n")
    if outside.blobs:
        sys.stderr.write(
            f"{outside.blobs} blobs of {outside.bytes:,} bytes are in the object store and not in "
            "it: keep the bucket as well.\n"
        )
    where = "PACELINE_SECRET_KEYS" if settings.secret_keys else settings.key_file
    sys.stderr.write(KEYS.format(where=where))


def restore_backup(source: Path) -> None:
    """Fill an empty database from a file; the embedded one must not be served meanwhile."""
    settings = Settings()
    with database(settings, also_running=False) as url:
        restore(url, source)
        outside = _references(settings, url, ask_store=True)
    sys.stderr.write("restored, and at the schema of this version\n")
    if outside.lost is None and outside.blobs:
        sys.stderr.write(
            f"{outside.blobs} blobs are in an object store: set PACELINE_BLOB_URL before it is "
            "served.\n"
        )
    elif outside.lost:
        sys.stderr.write(f"{outside.lost} blobs are not in the object store any more.\n")


def _references(settings: Settings, url: str, *, ask_store: bool = False) -> References:
    changed = {"database_url": url} if ask_store else {"database_url": url, "blob_url": None}
    with opened(settings.model_copy(update=changed), "backup", migrated=False) as container:
        return references(container)
