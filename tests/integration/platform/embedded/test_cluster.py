"""The server's data directory: created completely, and reused by the next start."""

from __future__ import annotations

import subprocess
from pathlib import Path

from app.platform.embedded.server import EmbeddedPostgres
from app.platform.processes import launch_command
from tests.support.embedded import connect, server_of


def test_the_process_id_in_stale_files_is_left_alone(open_dir: Path) -> None:
    data_dir = open_dir / "data"
    with EmbeddedPostgres(data_dir, durable=False):
        pass
    _, account = server_of(data_dir)
    # PostgreSQL itself would mistake this process for a server of the same directory.
    sleep = launch_command(["/bin/sleep", "600"], account=account)
    stranger = subprocess.Popen(sleep)  # noqa: S603 - the test's own
    try:
        stale = f"{stranger.pid}\n{data_dir}/postgresql\n1\n5432\n{data_dir}/run\n\n0 0\nready\n"
        (data_dir / "postgresql" / "postmaster.pid").write_text(stale)
        (data_dir / "run" / ".s.PGSQL.5432.lock").write_text(stale)
        with EmbeddedPostgres(data_dir, durable=False) as postgres, connect(postgres) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_interrupted_initialization_is_done_again(open_dir: Path) -> None:
    half_done = open_dir / "data" / "postgresql.new"
    half_done.mkdir(parents=True)
    (half_done / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(open_dir / "data", durable=False) as postgres:
        assert postgres.poll() is None
    assert not half_done.exists()


def test_text_is_unicode_and_sorts_alike_on_every_machine(open_dir: Path) -> None:
    with (
        EmbeddedPostgres(open_dir / "data", durable=False) as postgres,
        connect(postgres) as connection,
    ):
        row = connection.execute("SELECT lower('ÄÖ'), 'Z' < 'a', 'z' < 'ä'").fetchone()
        assert row == ("äö", True, True)
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
