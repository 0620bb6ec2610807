"""The version before goes on next to this one, on a database that is migrated under its feet.

Its code is taken from the history of this repository.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest
from sqlalchemy import func, select, text

from app.access.models import DEFAULT_PROJECT_ID
from app.bootstrap import build as build_program
from app.platform.database import migrate
from app.platform.settings import Settings
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.sessions.models.tables import Session
from tests.conftest import skip_or_fail
from tests.integration.api import bodies
from tests.support.served import client_of, served
from tests.support.sessions import small_trace, store
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container

pytestmark = pytest.mark.slow

REPOSITORY: Final = Path(__file__).parents[3]
SESSIONS: Final = 10_000
# The last commit of the version before, and the revision of its schema.
COMMIT: Final = "7bed98e0df"
SCHEMA: Final = "0001"
# That each producer brings home after the migration.
AFTERWARDS: Final = 10

# What lists say of a verdict.
TOLD: Final = ("slowdown", "slowdown_ci95", "waste", "gpu_hours_lost", "discrepancy", "headline")

MANY_SESSIONS: Final = """
    INSERT INTO session (project_id, id, job_id, attempt, number, state, meta, dp, pp, tp, cp, vpp,
        world, trace_format, body_bytes, operations, steps, received_at, discrepancy, headline)
    SELECT 1, gen_random_uuid(), (SELECT min(id) FROM job), 1, n, 'no_verdict', '{}', 1, 1, 1, 1, 1,
        1, 'ndjson', 100, 7, 1, now() - n * interval '1 minute', 0.07, jsonb_build_object(
            'sentence', 'None', 'level', 'none', 'causes', CAST('[]' AS jsonb),
            'top_optype', 'forward-compute', 'worst', jsonb_build_object(
                'dp', 0, 'pp', 0, 'rank', 0, 'host', NULL, 'slowdown', 1
            ), 'm_w', NULL, 'm_s', NULL, 'fb_correlation', NULL, 'sizes', jsonb_build_object(
                'dp', 1, 'pp', 1, 'tp', 1, 'cp', 1, 'vpp', 1, 'world', 1
            )
        )
    FROM generate_series(1, :many) AS n
    """
EXECUTE: Final = """
import sys, uuid
from app.bootstrap import build
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.platform.settings import Settings
container = build(Settings(), application_name="before")
assert execute(container, LeaseKeeper(container), uuid.UUID(sys.argv[1]))
container.close()
"""


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Return the program of the version before."""
    taken = subprocess.run(  # noqa: S603 - our own arguments
        ["git", "archive", COMMIT, "app", "workers", "migrations", "frontend"],  # noqa: S607
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
def old(before: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server of the version before, on a database of its own schema."""
    url = environment["PACELINE_DATABASE_URL"]
    migrate.upgrade(url, SCHEMA)
    log = tmp_path / "before.log"
    with log.open("wb") as words:
        server = subprocess.Popen(
            [sys.executable, "-m", "app.cli.main", "serve", "--port", "0"],
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
    with served(container) as address:
        yield address


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
        with client_of(self._server) as client:
            while not self.stop.is_set():
                path = f"/api/v1/jobs/{self._name}-{len(self.taken)}/sessions"
                answer = client.post(path, content=bodies.parquet(), params=bodies.SIZES)
                if answer.status_code in (200, 202):
                    self.taken.append(answer.json()["session"])
                else:
                    self.refusals.append(answer.status_code)


def test_both_versions_serve_while_the_schema_changes(
    old: str,
    new: str,
    container: Container,
    before: Path,
    environment: dict[str, str],
) -> None:
    with container.engine.begin() as connection:
        connection.execute(text("INSERT INTO job (project_id, name) VALUES (1, 'old')"))
        connection.execute(text(MANY_SESSIONS), {"many": SESSIONS})
        # As autovacuum does within a minute.
        connection.execute(text("ANALYZE"))
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
        for path in ("/", "/jobs/old", "/report", "/hosts", f"/sessions/{by_new.session}"):
            answer = httpx.get(f"{server}{path}", trust_env=False, timeout=LIMIT_S)
            assert answer.status_code == 200
    # What lists say of a session does not tell which version analyzed it, nor which one is asked.
    told = [
        httpx.get(f"{server}/api/v1/sessions/{stored.session}", trust_env=False).json()
        for server in (old, new)
        for stored in (by_old, by_new)
    ]
    # But for the GPU, the guess and where the time goes, which the version before does not know.
    for one in told:
        one["headline"]["worst"].pop("guessed", None)
        one["headline"].pop("shares", None)
        for cause in one["headline"]["causes"]:
            cause.pop("gpus", None)
    first, *others = [
        json.loads(re.sub(r" GPU \d+", "", json.dumps({name: one[name] for name in TOLD})))
        for one in told
    ]
    assert first["headline"]["slowdown"] > 1
    assert others == [first] * 3
    for server in (old, new):
        report = httpx.get(f"{server}/api/v1/fleet/report", trust_env=False).json()
        assert report["coverage"]["counted_sessions"] == 2


def _expect_all_that_was_taken(container: Container, producers: list[Producer]) -> None:
    taken = [session for producer in producers for session in producer.taken]
    with container.reading() as tx:
        there = set(map(str, tx.session.execute(select(Session.id)).scalars()))
        count = tx.session.execute(select(func.count()).select_from(Session)).scalar_one()
    assert set(taken) <= there
    # One whose answer was lost with a connection may be there as well.
    assert SESSIONS + len(taken) <= count <= SESSIONS + len(taken) + len(producers)
