"""A server on a free port, with functions to send to it and to inspect its data."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.platform.container import Container
from app.platform.settings import Settings
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.sessions.chunks.absorb import absorb
from app.sessions.chunks.inbox import LOOK_EVERY_S
from tests.integration.api import bodies
from tests.support.project import build
from tests.support.served import client_of, served

TABLES = ("job", "session", "task_run", "blob_part", "report", "inbox")


@dataclass(frozen=True, slots=True)
class Installation:
    """A server, its container, and a client of it."""

    url: str
    container: Container
    client: httpx.Client

    def post(self, body: bytes | None = None, job: str = "job", **options: Any) -> httpx.Response:  # noqa: ANN401 - options of httpx
        """Send the sample session, or `body` in its place."""
        if body is None:
            body = bodies.parquet()
        options.setdefault("params", bodies.SIZES)
        return self.client.post(f"/api/v1/jobs/{job}/sessions", content=body, **options)

    def metric(self, name: str, **labels: str) -> float:
        """Return the current value of a metric."""
        wanted = name
        if labels:
            inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
            wanted = f"{name}{{{inner}}}"
        for line in self.client.get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample == wanted:
                return float(value)
        raise AssertionError(f"there is no metric {wanted}")

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        with self.container.engine.connect() as connection:
            return {
                table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()  # noqa: S608 - names of this module
                for table in TABLES
            }

    def absorb_all(self) -> None:
        """Decode all chunks in the inbox, in place of a worker."""
        while absorb(self.container):
            pass

    def look_again(self) -> None:
        """Wait until the server reads the state of the inbox again."""
        time.sleep(LOOK_EVERY_S)

    def analyze_all(self) -> None:
        """Run all queued analyses in this process, in place of a worker."""
        self.absorb_all()
        keeper = LeaseKeeper(self.container)
        for run_id in self.queued():
            assert execute(self.container, keeper, run_id)

    def queued(self) -> list[uuid.UUID]:
        """Return the queued task runs."""
        with self.container.engine.connect() as connection:
            runs = connection.execute(
                text("SELECT id FROM task_run WHERE state = 'queued' ORDER BY created_at")
            ).scalars()
            return list(runs)


Install = Callable[..., AbstractContextManager[Installation]]


@contextlib.contextmanager
def serving(settings: Settings, **changes: object) -> Iterator[Installation]:
    """Serve with changed settings, until the end of the context."""
    container = build(settings.model_copy(update=changes))
    try:
        with served(container) as url, client_of(url) as client:
            yield Installation(url, container, client)
    finally:
        container.close()


@pytest.fixture
def install(settings: Settings) -> Install:
    """Return a context manager that serves with changed settings."""

    def with_changes(**changes: object) -> AbstractContextManager[Installation]:
        return serving(settings, **changes)

    return with_changes


@pytest.fixture
def installation(settings: Settings) -> Iterator[Installation]:
    """Yield a running server with default settings."""
    with serving(settings) as installed:
        yield installed


@pytest.fixture
def client(installation: Installation) -> httpx.Client:
    return installation.client
