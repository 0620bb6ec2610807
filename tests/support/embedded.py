"""Embedded databases in separate processes, and ways to inspect them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from app.platform.embedded.binaries import Binaries, bundled, readable_copy
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.processes import Account
from tests.support.waiting import LIMIT_S

if TYPE_CHECKING:
    from tests.support.plain_user import User


IS_ROOT = os.geteuid() == 0

only_root = pytest.mark.skipif(not IS_ROOT, reason="takes root to have two accounts")


class Parent:
    """A process that runs the embedded database."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.server_pid = 0

    def wait_until_ready(self) -> None:
        self.server_pid = self._answer()["pid"]

    def sql(self, statement: str) -> list[list[Any]]:
        assert self.process.stdin is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        rows: list[list[Any]] = self._answer()
        return rows

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def _answer(self) -> Any:  # noqa: ANN401 - whatever JSON it says
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the parent ended; its words are in the captured standard error"
        return json.loads(line)


class Runner:
    """Starts parents as one user, on one PostgreSQL."""

    def __init__(self, user: User) -> None:
        self.root = user.home
        self.data_dir = user.home / "data"
        self.bin_dir: Path | None = None
        self._user = user
        self._parents: list[Parent] = []

    def start(self, data_dir: Path | None = None, *, durable: bool = False) -> Parent:
        arguments = ["-m", "tests.support.embedded_parent", str(data_dir or self.data_dir)]
        if self.bin_dir is not None:
            arguments += ["--bin-dir", str(self.bin_dir)]
        if durable:
            arguments.append("--durable")
        parent = Parent(self._user.popen(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        self._parents.append(parent)
        parent.wait_until_ready()
        return parent

    def close(self) -> None:
        """End the processes that a failed test left running."""
        for parent in self._parents:
            if parent.process.poll() is None:
                parent.kill()
            for stream in (parent.process.stdin, parent.process.stdout):
                if stream is not None:
                    stream.close()
        wait_until_free(self.data_dir)


def connect(postgres: EmbeddedPostgres) -> psycopg.Connection:
    return psycopg.connect(
        postgres.url.replace("postgresql+psycopg:", "postgresql:"), autocommit=True
    )


def wait_until_free(data_dir: Path) -> None:
    """Wait until no process of a server holds the lock that all of them inherit."""
    with contextlib.suppress(FileNotFoundError), (data_dir / "server.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def server_of(data_dir: Path) -> tuple[Binaries, Account | None]:
    if not IS_ROOT:
        return bundled(), None
    owner = pwd.getpwuid((data_dir / "postgresql").stat().st_uid)
    return readable_copy(bundled()), Account(owner.pw_name, owner.pw_uid, owner.pw_gid)
