"""A whole installation, run by its command: started, stopped, killed and restarted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from app.analysis.trace.encode import to_ndjson_gz
from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres
from tests.support.nightly import every_night
from tests.support.plain_user import User
from tests.support.processes import alive, descendants, ps, wait_until_gone
from tests.support.sessions import small_trace
from tests.support.waiting import LIMIT_S, wait_for

ANSWERED = ("analyzed", "no_verdict", "discarded", "failed")


class Installation:
    """`paceline serve`, in a process that tests stop and kill."""

    def __init__(self, user: User, *, port: int = 0, **settings: str) -> None:
        self.user = user
        self._words = user.home / f"words-{uuid.uuid4()}"
        self._name = str(uuid.uuid4())
        settings["instance_name"] = self._name
        environment = {f"PACELINE_{name.upper()}": value for name, value in settings.items()}
        with self._words.open("wb") as words:
            self.process = user.popen(
                *("-m", "app.cli.main", "serve", "--port", str(port)),
                *("--data-dir", str(user.home / "data")),
                environment=environment,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
            )
        self.url = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            running = descendants(self.process.pid)
            self.process.kill()
            self.process.wait(LIMIT_S)
            wait_until_gone(running)
        if failure[0] is not None:
            sys.stderr.write(self.words())

    def words(self) -> str:
        return self._words.read_text()

    def wait_until_ready(self) -> Self:
        """Wait until the server answers and workers take messages."""

        def announced() -> str:
            assert self.process.poll() is None, self.words()
            lines = [line for line in self.words().splitlines() if "is ready: " in line]
            return lines[-1].rpartition(" ")[2] if lines else ""

        self.url = wait_for(announced, "announcement")
        # Another process may have taken the port meanwhile.
        assert httpx.get(f"{self.url}healthz").json()["instance"] == self._name
        wait_for(lambda: httpx.get(f"{self.url}readyz").status_code == 200, "readiness")
        return self

    def analyze(self, body: bytes, job: str = "llm") -> dict[str, Any]:
        """Send a session and return its final document."""
        received = httpx.post(
            f"{self.url}api/v1/jobs/{job}/sessions",
            content=body,
            headers={"content-type": "application/x-ndjson"},
        )
        assert received.status_code == 202, received.text
        session = f"{self.url}api/v1/sessions/{received.json()['session']}"

        def answered() -> dict[str, Any]:
            state: dict[str, Any] = httpx.get(session).json()
            return state if state["state"] in ANSWERED else {}

        return wait_for(answered, "report")

    def workers(self, queue: str) -> set[int]:
        """Return the processes of a queue's worker, including its forks."""
        commands = {int(row[0]): row[1:] for row in ps("pid", "args")}
        return {
            pid for pid in descendants(self.process.pid) if _works_on(commands.get(pid, []), queue)
        }

    def stop(self, request: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(request)
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)


@pytest.fixture
def present_user(open_dir: Path) -> User:
    return User(Path(sys.executable), open_dir, None)


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    """Yield the data directory of an installation that was started and stopped before."""
    with tempfile.TemporaryDirectory(prefix="paceline-test-") as path:
        # The account that runs PostgreSQL must be able to traverse this directory.
        Path(path).chmod(0o755)
        data = Path(path) / "data"
        with EmbeddedPostgres(data) as postgres:
            migrate.upgrade(postgres.url)
        yield data


@pytest.fixture
def prepared_user(present_user: User, prepared: Path) -> User:
    """Return the present user, with a prepared data directory."""
    copy = ["cp", "--recursive", "--preserve=all", str(prepared), str(present_user.home)]
    subprocess.run(copy, check=True)  # noqa: S603 - our own argument list
    return present_user


@pytest.fixture(scope="module")
def running() -> Iterator[Installation]:
    """Yield an installation that several tests read, and none stops."""
    with tempfile.TemporaryDirectory(prefix="paceline-test-") as path:
        Path(path).chmod(0o755)
        with Installation(User(Path(sys.executable), Path(path), None)) as installation:
            yield installation.wait_until_ready()
            assert installation.stop() == 0


@pytest.fixture(scope="module")
def body() -> bytes:
    return to_ndjson_gz(small_trace())


# -- life and death --------------------------------------------------------------------------------


def test_one_command_analyzes_sessions_and_leaves_nothing_behind(user: User, body: bytes) -> None:
    with Installation(user) as installation:
        installation.wait_until_ready()
        assert installation.analyze(body)["state"] == "analyzed"
        started = descendants(installation.process.pid)
        assert installation.stop() == 0
        assert alive(started) == set()


def test_a_killed_installation_dies_whole_and_starts_again(
    prepared_user: User, body: bytes
) -> None:
    with Installation(prepared_user) as first:
        session = first.wait_until_ready().analyze(body)
        started = descendants(first.process.pid)
        first.kill()
        wait_until_gone(started)
    with Installation(prepared_user) as second:
        second.wait_until_ready()
        again = httpx.get(f"{second.url}api/v1/sessions/{session['id']}").json()
        assert again["state"] == "analyzed"
        assert second.stop() == 0


@pytest.mark.parametrize("request_", [signal.SIGINT, *every_night(signal.SIGHUP)])
def test_other_signals_that_end_programs_stop_it_and_its_event_streams_in_order(
    prepared_user: User, request_: signal.Signals, request: pytest.FixtureRequest
) -> None:
    if signal.getsignal(request_) is signal.SIG_IGN:
        # Under nohup, the test process and its children would ignore SIGHUP.
        signal.signal(request_, signal.SIG_DFL)
        request.addfinalizer(lambda: signal.signal(request_, signal.SIG_IGN))
    with Installation(prepared_user) as installation:
        installation.wait_until_ready()
        started = descendants(installation.process.pid)
        with httpx.stream("GET", f"{installation.url}api/v1/events", timeout=LIMIT_S) as stream:
            lines = stream.iter_lines()
            next(lines)
            installation.process.send_signal(request_)
            list(lines)  # raises if the stream is cut in the middle
        assert installation.process.wait(LIMIT_S) == 0
        assert alive(started) == set()
        assert "Cancel" not in installation.words()


def test_a_stop_during_the_start_leaves_nothing_behind(present_user: User) -> None:
    with Installation(present_user) as installation:
        lock = present_user.home / "data" / "server.lock"
        wait_for(
            lambda: lock.exists() or installation.process.poll() is not None,
            "start of the database",
        )
        started = descendants(installation.process.pid)
        assert installation.stop() == 0
        wait_until_gone(started)
        assert "is ready" not in installation.words()


# -- parts that die --------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["analysis", *every_night("io")])
def test_a_killed_worker_is_replaced_with_all_that_it_forked(
    running: Installation, body: bytes, queue: str
) -> None:
    def consumers() -> list[int]:
        # A list that is read while the worker starts may not contain it yet.
        workers = parents(running.workers(queue))
        return [pid for pid, parent in workers if parent == running.process.pid]

    [consumer] = wait_for(consumers, "worker")
    before = running.workers(queue)
    os.kill(consumer, signal.SIGKILL)
    wait_until_gone(before)
    wait_for(lambda: running.workers(queue), "new worker")
    assert running.analyze(body, job=f"after {queue}")["state"] == "analyzed"


def _works_on(command: list[str], queue: str) -> bool:
    return command[-1:] == ["--lifeline"] and ("--queue", queue) in pairwise(command)


def parents(pids: set[int]) -> list[tuple[int, int]]:
    return [(int(pid), int(parent)) for pid, parent in ps("pid", "ppid", of=pids)]


def test_the_end_of_the_database_ends_everything_in_words(prepared_user: User) -> None:
    with Installation(prepared_user) as installation:
        installation.wait_until_ready()
        started = descendants(installation.process.pid)
        pid_file = prepared_user.home / "data" / "postgresql" / "postmaster.pid"
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGQUIT)
        assert installation.process.wait(LIMIT_S) == 1
        assert alive(started) == set()
        assert "The embedded database ended by itself" in installation.words()


# -- refusals --------------------------------------------------------------------------------------


def test_a_second_instance_on_the_same_directory_is_refused_in_words(
    running: Installation,
) -> None:
    with Installation(running.user) as second:
        assert second.process.wait(LIMIT_S) == 1
        assert "already running on" in second.words()
    assert httpx.get(f"{running.url}healthz").status_code == 200


def test_a_taken_port_is_refused_in_words(prepared_user: User) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        Installation(prepared_user, port=other.getsockname()[1]) as installation,
    ):
        assert installation.process.wait(LIMIT_S) == 1
        assert "Address already in use" in installation.words()
        assert "PACELINE_PORT" in installation.words()


def test_listening_for_other_machines_is_refused_where_no_user_could_sign_in(
    prepared_user: User,
) -> None:
    with Installation(prepared_user, host="0.0.0.0") as installation:  # noqa: S104 - refused
        assert installation.process.wait(LIMIT_S) == 1
        assert "PACELINE_ADMIN_TOKEN_FILE" in installation.words()


# -- workers on their own --------------------------------------------------------------------------


def test_workers_serve_an_api_process_over_a_database_of_their_own(
    present_user: User, database_url: str, body: bytes
) -> None:
    words = present_user.home / "worker-words"
    with (
        words.open("wb") as output,
        Installation(present_user, database_url=database_url) as api,
        present_user.popen(
            *("-m", "app.cli.main", "worker"),
            environment={
                "PACELINE_DATABASE_URL": database_url,
                "PACELINE_DATA_DIR": str(present_user.home / "data"),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        ) as workers,
    ):
        try:
            api.wait_until_ready()
            readers = descendants(api.process.pid) - {api.process.pid}
            for pid in readers:
                assert b"app.platform.killable" in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert api.analyze(body)["state"] == "analyzed"
            started = descendants(workers.pid)
            workers.terminate()
            assert workers.wait(LIMIT_S) == 0
            assert alive(started) == set()
            readers |= descendants(api.process.pid) - {api.process.pid}
            assert api.stop() == 0
            wait_for(lambda: not alive(readers), "end of the reading processes")
        finally:
            workers.kill()


def test_workers_without_a_database_are_refused_in_words(present_user: User) -> None:
    with present_user.popen("-m", "app.cli.main", "worker", stderr=subprocess.PIPE) as workers:
        _, words = workers.communicate(timeout=LIMIT_S)
    assert workers.returncode == 1
    assert "PACELINE_DATABASE_URL" in words
