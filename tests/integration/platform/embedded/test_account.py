"""The account that runs the server, and the accounts that are refused."""

from __future__ import annotations

import pwd
import stat
import subprocess
from pathlib import Path

import pytest

from app.errors import StartupError
from app.platform.embedded.server import EmbeddedPostgres
from tests.support import plain_user
from tests.support.embedded import Runner, only_root
from tests.support.processes import descendants, ps
from tests.support.waiting import LIMIT_S


def test_the_server_never_runs_as_root_and_listens_on_no_port(user_runner: Runner) -> None:
    parent = user_runner.start()
    owners = ps("uid", of=descendants(parent.server_pid))
    assert len(owners) > 5  # PostgreSQL is several processes
    assert ["0"] not in owners
    assert parent.sql("SHOW listen_addresses") == [[""]]
    assert parent.stop() == 0


@only_root
def test_a_directory_closed_to_the_servers_account_is_refused_in_words(open_dir: Path) -> None:
    closed = open_dir / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(StartupError, match=r"cannot enter .* Choose a data directory"):
        EmbeddedPostgres(closed / "data").start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@only_root
def test_other_accounts_are_not_let_in(open_dir: Path, plain_python: Path) -> None:
    # The server's account can reach the socket, but PostgreSQL's user map refuses it.
    with EmbeddedPostgres(open_dir / "data", durable=False) as postgres:
        server = pwd.getpwuid((open_dir / "data" / "postgresql").stat().st_uid)
        url = postgres.url.replace("postgresql+psycopg:", "postgresql:")
        attempt = plain_user.User(plain_python, open_dir, server).popen(
            "-c", f"import psycopg; psycopg.connect({url!r})", stderr=subprocess.PIPE
        )
        _, words = attempt.communicate(timeout=LIMIT_S)
    assert "Peer authentication failed" in words
