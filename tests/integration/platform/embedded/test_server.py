"""The embedded database with a real server: started, refused, killed and restarted."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import psycopg
import pytest

from app.errors import StartupError
from app.platform.embedded.server import EmbeddedPostgres
from tests.support import plain_user
from tests.support.embedded import IS_ROOT, Runner, connect
from tests.support.processes import alive, descendants, wait_until_gone


def modes(path: Path) -> dict[Path, int]:
    return {each: stat.S_IMODE(each.stat().st_mode) for each in (path, *path.parents)}


def test_data_outlive_a_stop_and_no_process_does(runner: Runner) -> None:
    first = runner.start()
    first.sql("CREATE TABLE kept (value text)")
    first.sql("INSERT INTO kept VALUES ('from before')")
    started = descendants(first.process.pid)
    assert len(started) > 5  # PostgreSQL is several processes
    assert first.stop() == 0
    assert alive(started) == set()

    second = runner.start()
    assert second.sql("SELECT value FROM kept") == [["from before"]]
    assert second.stop() == 0


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's death"
)
def test_a_killed_parent_takes_the_server_along(runner: Runner) -> None:
    first = runner.start()
    first.sql("CREATE TABLE kept (value text)")
    first.sql("INSERT INTO kept VALUES ('from before')")
    started = descendants(first.process.pid)
    first.kill()
    wait_until_gone(started)

    second = runner.start()
    assert second.sql("SELECT value FROM kept") == [["from before"]]
    assert second.stop() == 0


def test_a_start_right_after_the_kill_of_the_parent_finds_the_data(user_runner: Runner) -> None:
    first = user_runner.start()
    first.sql("CREATE TABLE kept (value text)")
    first.sql("INSERT INTO kept VALUES ('from before')")
    first.kill()
    second = user_runner.start()
    assert second.sql("SELECT value FROM kept") == [["from before"]]
    assert second.stop() == 0


def test_a_crash_of_the_server_loses_nothing(user_runner: Runner) -> None:
    first = user_runner.start(durable=True)
    first.sql("CREATE TABLE kept (value text)")
    first.sql("INSERT INTO kept VALUES ('from before')")
    started = descendants(first.server_pid)
    os.kill(first.server_pid, signal.SIGKILL)
    wait_until_gone(started)
    first.kill()
    second = user_runner.start()
    assert second.sql("SELECT value FROM kept") == [["from before"]]
    assert second.stop() == 0


def test_instances_with_directories_of_their_own_run_side_by_side(user_runner: Runner) -> None:
    one = user_runner.start(user_runner.root / "one")
    other = user_runner.start(user_runner.root / "other")
    one.sql("CREATE TABLE here (value int)")
    assert one.sql("SELECT to_regclass('here') IS NOT NULL") == [[True]]
    assert other.sql("SELECT to_regclass('here') IS NOT NULL") == [[False]]
    assert one.stop() == 0
    assert other.sql("SELECT 1") == [[1]]
    assert other.stop() == 0


def test_data_of_another_major_version_are_refused_in_words(open_dir: Path) -> None:
    cluster = open_dir / "data" / "postgresql"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("9\n")
    if IS_ROOT:
        owner = plain_user.account()
        os.chown(cluster, owner.pw_uid, owner.pw_gid)
    with pytest.raises(StartupError, match="written by PostgreSQL 9"):
        EmbeddedPostgres(open_dir / "data").start()


def test_given_binaries_refuse_data_of_the_wheel(open_dir: Path, postgres_15: Path) -> None:
    with EmbeddedPostgres(open_dir / "data", durable=False):
        pass
    with pytest.raises(StartupError, match=r"written by PostgreSQL \d+; .* holds 15"):
        EmbeddedPostgres(open_dir / "data", bin_dir=postgres_15).start()


def test_modes_of_existing_directories_stay(open_dir: Path) -> None:
    parent = open_dir / "parent"
    data_dir = parent / "data"
    data_dir.mkdir(parents=True)
    parent.chmod(0o2751)
    data_dir.chmod(0o755)
    before = modes(data_dir)
    with EmbeddedPostgres(data_dir, durable=False):
        assert modes(data_dir) == before
    assert modes(data_dir) == before


def test_new_directories_are_usable_under_a_strict_umask(open_dir: Path) -> None:
    before = os.umask(0o077)
    try:
        with EmbeddedPostgres(open_dir / "new" / "data", durable=False) as postgres:
            assert postgres.poll() is None
    finally:
        os.umask(before)


def test_stopping_cuts_clients_that_stay_connected(open_dir: Path) -> None:
    with (
        EmbeddedPostgres(open_dir / "data", durable=False) as postgres,
        connect(postgres) as connection,
    ):
        connection.execute("SELECT 1")
        started = descendants(postgres.pid)
        postgres.stop()
        postgres.stop()
        assert alive(started) == set()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
