"""The version before goes on beside this one, on a database that is migrated under its feet.

Its code is taken from the history of this repository.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest
from sqlalchemy import func, select, text

from app.bootstrap import build as build_program
from app.db import migrate
from app.db.models.access import DEFAULT_PROJECT_ID
from app.db.models.sessions import Session
from app.db.models.tasks import TaskRun
from app.run.http import HttpServer, address_of, listen
from app.services.tasks.execute import execute
from app.services.tasks.leases import LeaseKeeper
from app.settings import Settings
from app.web import create_app
from tests.conftest import skip_or_fail
from tests.integration.api import bodies
from tests.support.sessions import small_trace, store
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from app.services.container import Container

pytestmark = pytest.mark.slow

REPOSITORY: Final = Path(__file__).parents[3]
SESSIONS: Final = 10_000
# That each producer brings home after the migration.
AFTERWARDS: Final = 10

MANY_SESSIONS: Final = """
    INSERT INTO session (id, job_id, attempt, number, state, meta, dp, pp, tp, cp, vpp,
        world, trace_format, body_bytes, operations, steps, received_at {column})
    SELECT gen_random_uuid(), (SELECT min(id) FROM job), 1, n, 'analyzed', '{{}}',
        1, 1, 1, 1, 1, 1, 'ndjson', 100, 7, 1, now() - n * interval '1 minute' {value}
    FROM generate_series(1, :many) AS n
    """
EXECUTE: Final = """
import sys, uuid
from app.bootstrap import build
from app.services.tasks.execute import execute
from app.services.tasks.leases import LeaseKeeper
from app.settings import Settings
container = build(Settings(), application_name="before")
assert execute(container, LeaseKeeper(container), uuid.UUID(sys.argv[1]))
container.close()
"""


@dataclass(frozen=True, slots=True)
class Version:
    """A version before: its last commit, the revision of its schema, and where its command is."""

    name: str
    commit: str
    schema: str
    command: str

    def fill(self, connection: Connection) -> None:
        """Put very many sessions of one job into a database of its schema."""
        of_projects = self.schema >= "0011"
        column, value = (", project_id", ", 1") if of_projects else ("", "")
        connection.execute(text(f"INSERT INTO job (name {column}) SELECT 'old' {value}"))
        many = MANY_SESSIONS.format(column=column, value=value)
        connection.execute(text(many), {"many": SESSIONS})


FIRST: Final = Version("0.1.0", "5ef83ce630", "0004", "app.cli")
BEFORE: Final = Version("before retention", "2dbe297583", "0013", "app.cli.main")


@pytest.fixture(params=[BEFORE], ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> Version:
    found: Version = request.param
    return found


@pytest.fixture
def before(version: Version, tmp_path: Path) -> Path:
    """Return the program of the version before."""
    taken = subprocess.run(  # noqa: S603 - our own arguments
        ["git", "archive", version.commit, "app", "workers", "migrations", "frontend"],  # noqa: S607
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    if taken.returncode != 0:
        skip_or_fail("the history of this repository is not there")
    folder = tmp_path / "program"
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(taken.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def environment(before: Path, empty_database_url: str, tmp_path: Path) -> dict[str, str]:
    """Return the environment in which the version before runs."""
    return os.environ | {
        "PYTHONPATH": str(before),
        "PACELINE_DATABASE_URL": empty_database_url,
        "PACELINE_DATA_DIR": str(tmp_path / "before"),
    }


@pytest.fixture
def old(
    before: Path, version: Version, environment: dict[str, str], tmp_path: Path
) -> Iterator[str]:
    """Yield the address of a server of the version before, on a database of its own schema."""
    url = environment["PACELINE_DATABASE_URL"]
    migrate.upgrade(url, version.schema)
    log = tmp_path / "before.log"
    with log.open("wb") as words:
        server = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-m", version.command, "serve", "--port", "0"],
            cwd=before,
            env=environment,
            stdout=words,
            stderr=words,
        )
    ready = "Paceline is ready: "
    try:
        wait_for(lambda: ready in log.read_text(), "server of the version before")
        yield log.read_text().partition(ready)[2].splitlines()[0].rstrip("/")
    finally:
        server.terminate()
        server.wait(LIMIT_S)


@pytest.fixture
def container(empty_database_url: str, tmp_path: Path) -> Iterator[Container]:
    built = build_program(
        Settings(database_url=empty_database_url, data_dir=tmp_path / "data", port=0)
    )
    yield built.within(DEFAULT_PROJECT_ID)
    built.close()


@pytest.fixture
def new(container: Container) -> Iterator[str]:
    """Yield the address of a server of this version; it may be asked once it is migrated."""
    listener = listen(container.settings)
    server = HttpServer(create_app(container), listener)
    server.start(lambda: False)
    yield address_of(listener).rstrip("/")
    server.stop()


class Producer(threading.Thread):
    """Sends session after session, each until it was taken."""

    def __init__(self, server: str, name: str) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._name = name
        self.taken: list[str] = []
        self.refusals: list[int] = []
        self.stop = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._server, trust_env=False, timeout=30) as client:
            while not self.stop.is_set():
                path = f"/api/v1/jobs/{self._name}-{len(self.taken)}/sessions"
                answer = client.post(path, content=bodies.parquet(), params=bodies.SIZES)
                if answer.status_code in (200, 202):
                    self.taken.append(answer.json()["session"])
                else:
                    self.refusals.append(answer.status_code)


def test_both_versions_serve_while_the_schema_changes(  # noqa: PLR0917 - one of each
    old: str,
    new: str,
    container: Container,
    version: Version,
    before: Path,
    environment: dict[str, str],
) -> None:
    with container.engine.begin() as connection:
        version.fill(connection)
    producers = [Producer(old, "first"), Producer(old, "second")]
    for producer in producers:
        producer.start()
    wait_for(lambda: all(producer.taken for producer in producers), "sessions before")

    migrate.upgrade(container.engine.url)

    producers.append(Producer(new, "third"))
    producers[-1].start()
    so_far = [len(producer.taken) for producer in producers]
    wait_for(
        lambda: all(
            len(producer.taken) >= count + AFTERWARDS
            for producer, count in zip(producers, so_far, strict=True)
        ),
        "sessions after",
    )
    for producer in producers:
        producer.stop.set()
        producer.join(LIMIT_S)

    # Senders were asked to come again at worst, and everything that was taken is there.
    assert {status for producer in producers for status in producer.refusals} <= {429, 503}
    _expect_all_that_was_taken(container, producers)

    # Each analyzes what the other one took, and reads what the other one found.
    by_old, by_new = store(container, small_trace()), store(container, small_trace())
    subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", EXECUTE, str(by_old.run)], cwd=before, env=environment, check=True
    )
    assert execute(container, LeaseKeeper(container), by_new.run)
    for server in (old, new):
        for stored in (by_old, by_new):
            answer = httpx.get(f"{server}/api/v1/sessions/{stored.session}/report", trust_env=False)
            assert answer.json()["verdict"]["level"] == "slow"
        for path in ("/", "/jobs/old", f"/sessions/{by_new.session}"):
            assert httpx.get(f"{server}{path}", trust_env=False).status_code == 200


@pytest.mark.parametrize("version", [FIRST], ids=lambda version: version.name, indirect=True)
def test_the_first_version_takes_sessions_until_it_is_replaced(
    old: str, new: str, container: Container, version: Version
) -> None:
    """Its workers and its pages of alerts cannot read this version's built-in rule."""
    with container.engine.begin() as connection:
        version.fill(connection)
    producers = [Producer(old, "first"), Producer(old, "second")]
    for producer in producers:
        producer.start()
    wait_for(lambda: all(producer.taken for producer in producers), "sessions before")

    migrate.upgrade(container.engine.url)

    producers.append(Producer(new, "third"))
    producers[-1].start()
    so_far = [len(producer.taken) for producer in producers]
    wait_for(
        lambda: all(
            len(producer.taken) >= count + AFTERWARDS
            for producer, count in zip(producers, so_far, strict=True)
        ),
        "sessions after",
    )
    for producer in producers:
        producer.stop.set()
        producer.join(LIMIT_S)
    # Senders were asked to come again at worst.
    assert {status for producer in producers for status in producer.refusals} <= {429, 503}
    _expect_all_that_was_taken(container, producers)

    # A worker of this version analyzes what it took after the migration, and both tell of it.
    taken = producers[0].taken[-1]
    with container.reading() as tx:
        run = tx.session.execute(
            select(TaskRun.id).where(TaskRun.subject_id == uuid.UUID(taken))
        ).scalar_one()
    assert execute(container, LeaseKeeper(container), run)
    for server in (old, new):
        answer = httpx.get(f"{server}/api/v1/sessions/{taken}/report", trust_env=False)
        assert answer.json()["session"] == taken
        assert httpx.get(f"{server}/jobs/old", trust_env=False).status_code == 200


def _expect_all_that_was_taken(container: Container, producers: list[Producer]) -> None:
    taken = [session for producer in producers for session in producer.taken]
    with container.reading() as tx:
        there = set(map(str, tx.session.execute(select(Session.id)).scalars()))
        count = tx.session.execute(select(func.count()).select_from(Session)).scalar_one()
    assert set(taken) <= there
    # One whose answer was lost with a connection may be there besides.
    assert SESSIONS + len(taken) <= count <= SESSIONS + len(taken) + len(producers)
