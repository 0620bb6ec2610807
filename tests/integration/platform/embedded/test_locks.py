"""The locks of a data directory."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from app.errors import InstanceRunningError
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.processes import launch_command
from tests.support.embedded import connect, server_of
from tests.support.waiting import LIMIT_S


def test_a_second_instance_on_the_same_directory_is_refused_in_words(open_dir: Path) -> None:
    with EmbeddedPostgres(open_dir / "data", durable=False) as postgres:
        with pytest.raises(InstanceRunningError, match="already running on"):
            EmbeddedPostgres(open_dir / "data").start()
        with connect(postgres) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_server_left_over_is_stopped_before_the_start(open_dir: Path) -> None:
    data_dir = open_dir / "data"
    with EmbeddedPostgres(data_dir, durable=False) as postgres, connect(postgres) as connection:
        connection.execute("CREATE TABLE kept (value int)")
    # As on a kernel without a parent-death signal, where only the lock shows the parent's end.
    binaries, account = server_of(data_dir)
    with (data_dir / "server.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        left_over = subprocess.Popen(  # noqa: S603 - the test's own
            launch_command(
                [
                    *(binaries.program("postgres"), "-D", data_dir / "postgresql"),
                    *("-c", "listen_addresses=", "-c", f"unix_socket_directories={data_dir}/run"),
                ],
                account=account,
            ),
            start_new_session=True,
            pass_fds=(lock.fileno(),),
            stderr=subprocess.DEVNULL,
        )
    with EmbeddedPostgres(data_dir, durable=False) as postgres:
        assert left_over.wait(LIMIT_S) == 0
        with connect(postgres) as connection:
            assert connection.execute("SELECT to_regclass('kept') IS NOT NULL").fetchone() == (
                True,
            )
