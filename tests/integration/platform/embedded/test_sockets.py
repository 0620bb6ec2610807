"""The place of the socket, for any path of the data directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.platform.embedded.server import EmbeddedPostgres
from tests.support.embedded import Runner, connect


def test_a_path_too_long_for_a_socket_gets_a_short_one(user_runner: Runner) -> None:
    deep = user_runner.root / ("d" * 60) / ("e" * 60)
    parent = user_runner.start(deep)
    [[socket_dir]] = parent.sql("SHOW unix_socket_directories")
    private = Path(socket_dir.strip('"'))
    assert len(os.fsencode(private / ".s.PGSQL.5432")) <= 107
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    parent.kill()

    again = user_runner.start(deep)
    assert not private.exists()
    [[socket_dir]] = again.sql("SHOW unix_socket_directories")
    assert again.stop() == 0
    assert not Path(socket_dir.strip('"')).exists()


# With a comma in the path the socket is elsewhere, because libpq reads a list of hosts.
@pytest.mark.parametrize("name", ["with,comma", "space %percent ü ✓ q'\"q"])
def test_a_directory_may_have_any_name(open_dir: Path, name: str) -> None:
    with (
        EmbeddedPostgres(open_dir / name, durable=False) as postgres,
        connect(postgres) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)
