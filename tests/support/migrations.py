"""A revision after the head, as a later version would add it."""

from __future__ import annotations

import shutil
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Final

from app.platform.database import migrate

if TYPE_CHECKING:
    from pathlib import Path

LATER: Final = "9000"
BATCH: Final = 500

REVISION: Final = """
import sqlalchemy as sa

revision = "LATER"
down_revision = "HEAD"


def backfill(connection, after):
    return connection.scalar(
        sa.text(
            "WITH filled AS (UPDATE job SET finished_at = now() WHERE id IN (SELECT id FROM job"
            " WHERE id > :after ORDER BY id LIMIT BATCH) RETURNING id)"
            " SELECT CAST(max(id) AS text) FROM filled"
        ),
        {"after": int(after or 0)},
    )


def upgrade():
    pass
"""


def with_later_revision(folder: Path) -> Path:
    """Copy the migrations, add a revision that fills `job.finished_at` in batches; return the copy.

    Tests use the copy in place of `app.platform.database.migrate.files("migrations")`.
    """
    copy = folder / "migrations"
    revision = REVISION.replace("HEAD", str(migrate.expected_revision()))
    revision = revision.replace("LATER", LATER).replace("BATCH", str(BATCH))
    with as_file(files("migrations")) as own:
        shutil.copytree(own, copy)
    (copy / "versions" / f"{LATER}_later.py").write_text(revision)
    return copy
