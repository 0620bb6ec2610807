"""A revision's backfill runs before its upgrade, in batches that are transactions."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import text

from app.platform.database import migrate
from tests.support.migrations import BATCH, LATER, with_later_revision
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection, Engine

UPGRADE: Final = """
import sys
from pathlib import Path
from app.platform.database import migrate
migrate.files = lambda _: Path(sys.argv[2])
migrate.upgrade(sys.argv[1])
"""
JOBS: Final = 2 * BATCH + 200


@pytest.mark.parametrize("killed", [False, True], ids=["held up", "killed"])
def test_rows_are_filled_in_batches(engine: Engine, tmp_path: Path, *, killed: bool) -> None:
    """A blocked or killed backfill keeps its completed batches, and continues from there."""
    migrate.upgrade(engine.url)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO job (name, project_id) SELECT n, 1 FROM generate_series(1, :n) AS n"),
            {"n": JOBS},
        )
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", UPGRADE, url, str(with_later_revision(tmp_path))]
    watching = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as writer, watching.connect() as watcher:
        # Another transaction has locked a row of the last of three batches.
        writer.execute(text("UPDATE job SET archived_at = now() WHERE name = :n"), {"n": str(JOBS)})
        upgrade = subprocess.Popen(command)  # noqa: S603 - ours
        wait_for(lambda: _filled(watcher) == 2 * BATCH, "two batches")
        assert migrate.current_revision(engine) == migrate.expected_revision()
        if killed:
            upgrade.kill()
            upgrade.wait(LIMIT_S)
        writer.commit()
    if killed:
        upgrade = subprocess.Popen(command)  # noqa: S603 - ours
    assert upgrade.wait(LIMIT_S) == 0
    assert migrate.current_revision(engine) == LATER
    with engine.connect() as connection:
        assert _filled(connection) == JOBS


def _filled(connection: Connection) -> int:
    count: int = connection.execute(text("SELECT count(finished_at) FROM job")).scalar_one()
    return count
