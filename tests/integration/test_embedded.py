"""The embedded database, with a real server: started, refused, killed and started again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from app.db.embedded import EmbeddedPostgres
from app.db.postgres_binaries import Binaries, bundled, inspect, readable_copy
from app.errors import InstanceRunningError, StartupError
from app.processes import Account, launch_command
from tests.support import plain_user
from tests.support.processes import alive, descendants, ps, wait_until_gone
from tests.support.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.plain_user import User

POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")
REQUIRE_ALL = os.environ.get("PACELINE_REQUIRE_ALL") == "1"
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
        """End what a failed test left running."""
        for parent in self._parents:
            if parent.process.poll() is None:
                parent.kill()
            for stream in (parent.process.stdin, parent.process.stdout):
                if stream is not None:
                    stream.close()
        wait_until_free(self.data_dir)


@pytest.fixture
def user_runner(user: User) -> Iterator[Runner]:
    runner = Runner(user)
    try:
        yield runner
    finally:
        runner.close()


@pytest.fixture(params=["PostgreSQL of the wheel", "PostgreSQL 15"])
def runner(request: pytest.FixtureRequest, user_runner: Runner) -> Runner:
    if request.param == "PostgreSQL 15":
        user_runner.bin_dir = postgres_15()
    return user_runner


def postgres_15() -> Path:
    if not (POSTGRES_15 / "postgres").exists():
        reason = f"PostgreSQL 15 is not in {POSTGRES_15}"
        (pytest.fail if REQUIRE_ALL else pytest.skip)(reason)
    return POSTGRES_15


def connect(postgres: EmbeddedPostgres) -> psycopg.Connection:
    return psycopg.connect(
        postgres.url.replace("postgresql+psycopg:", "postgresql:"), autocommit=True
    )


def wait_until_free(data_dir: Path) -> None:
    """Wait until no process of a server holds the lock that all of them inherit."""
    with contextlib.suppress(FileNotFoundError), (data_dir / "server.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def modes(path: Path) -> dict[Path, int]:
    return {each: stat.S_IMODE(each.stat().st_mode) for each in (path, *path.parents)}


# -- life and death, for each account and each PostgreSQL ------------------------------------------


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


def test_the_server_never_runs_as_root_and_listens_on_no_port(user_runner: Runner) -> None:
    parent = user_runner.start()
    owners = ps("uid", of=descendants(parent.server_pid))
    assert len(owners) > 5  # PostgreSQL is several processes
    assert ["0"] not in owners
    assert parent.sql("SHOW listen_addresses") == [[""]]
    assert parent.stop() == 0


# -- refusals --------------------------------------------------------------------------------------


def test_a_second_instance_on_the_same_directory_is_refused_in_words(open_dir: Path) -> None:
    with EmbeddedPostgres(open_dir / "data", durable=False) as postgres:
        with pytest.raises(InstanceRunningError, match="already running on"):
            EmbeddedPostgres(open_dir / "data").start()
        with connect(postgres) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_data_of_another_major_version_are_refused_in_words(open_dir: Path) -> None:
    cluster = open_dir / "data" / "postgresql"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("9\n")
    if IS_ROOT:
        owner = plain_user.account()
        os.chown(cluster, owner.pw_uid, owner.pw_gid)
    with pytest.raises(StartupError, match="written by PostgreSQL 9"):
        EmbeddedPostgres(open_dir / "data").start()


def test_given_binaries_refuse_data_of_the_wheel(open_dir: Path) -> None:
    bin_dir = postgres_15()
    with EmbeddedPostgres(open_dir / "data", durable=False):
        pass
    with pytest.raises(StartupError, match=r"written by PostgreSQL \d+; .* holds 15"):
        EmbeddedPostgres(open_dir / "data", bin_dir=bin_dir).start()


def test_a_directory_without_postgresql_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="There is no PostgreSQL in"):
        EmbeddedPostgres(tmp_path / "data", bin_dir=tmp_path).start()


@only_root
def test_a_directory_closed_to_the_servers_account_is_refused_in_words(open_dir: Path) -> None:
    closed = open_dir / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(StartupError, match=r"cannot enter .* Choose a data directory"):
        EmbeddedPostgres(closed / "data").start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@only_root
def test_other_accounts_are_not_let_in(open_dir: Path, plain_python: Path) -> None:
    # The account that runs the server may reach the socket; the map of users keeps it out.
    with EmbeddedPostgres(open_dir / "data", durable=False) as postgres:
        server = pwd.getpwuid((open_dir / "data" / "postgresql").stat().st_uid)
        url = postgres.url.replace("postgresql+psycopg:", "postgresql:")
        attempt = plain_user.User(plain_python, open_dir, server).popen(
            "-c", f"import psycopg; psycopg.connect({url!r})", stderr=subprocess.PIPE
        )
        _, words = attempt.communicate(timeout=LIMIT_S)
    assert "Peer authentication failed" in words


# -- what an earlier run left ----------------------------------------------------------------------


def test_a_server_left_over_is_stopped_before_the_start(open_dir: Path) -> None:
    data_dir = open_dir / "data"
    with EmbeddedPostgres(data_dir, durable=False) as postgres, connect(postgres) as connection:
        connection.execute("CREATE TABLE kept (value int)")
    # As where the kernel has no parent-death signal: only the lock tells of it.
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


def server_of(data_dir: Path) -> tuple[Binaries, Account | None]:
    if not IS_ROOT:
        return bundled(), None
    owner = pwd.getpwuid((data_dir / "postgresql").stat().st_uid)
    return readable_copy(bundled()), Account(owner.pw_name, owner.pw_uid, owner.pw_gid)


def test_the_process_id_in_stale_files_is_left_alone(open_dir: Path) -> None:
    data_dir = open_dir / "data"
    with EmbeddedPostgres(data_dir, durable=False):
        pass
    _, account = server_of(data_dir)
    # PostgreSQL itself would take this process for a server of the same directory.
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


# -- paths and modes -------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "name", ["with space", "with,comma", "with%percent", "mit-ü-und-✓", "q'\"q"]
)
def test_a_directory_may_have_any_name(open_dir: Path, name: str) -> None:
    with (
        EmbeddedPostgres(open_dir / name, durable=False) as postgres,
        connect(postgres) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)


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


@only_root
def test_programs_are_copied_once_to_where_every_account_can_run_them(open_dir: Path) -> None:
    install_dir = open_dir / "programs"
    copied = readable_copy(bundled(), install_dir)
    assert inspect(copied.bin_dir).major == copied.major == bundled().major
    unreadable = [
        path
        for path in install_dir.rglob("*")
        if path.stat().st_uid != 0 or not path.stat().st_mode & stat.S_IROTH
    ]
    assert unreadable == []
    written = copied.program("postgres").stat().st_mtime_ns
    assert readable_copy(bundled(), install_dir) == copied
    assert copied.program("postgres").stat().st_mtime_ns == written


# -- the database ----------------------------------------------------------------------------------


def test_text_is_unicode_and_sorts_alike_on_every_machine(open_dir: Path) -> None:
    with (
        EmbeddedPostgres(open_dir / "data", durable=False) as postgres,
        connect(postgres) as connection,
    ):
        row = connection.execute("SELECT lower('ÄÖ'), 'Z' < 'a', 'z' < 'ä'").fetchone()
        assert row == ("äö", True, True)
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)


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
