"""Servers and workers, killed while they store: acknowledged data are whole, and stored once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx
import pytest
from sqlalchemy import func, select

from app.analysis.trace.encode import to_parquet
from app.installation.sweep import sweep
from app.platform.blobs import BlobObject, BlobPart
from app.platform.settings import Settings
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.retention.objects import references
from app.sessions.models.tables import Session
from app.sessions.read import report_json
from app.sessions.replays import stored_trace
from tests.integration.platform.tasks.test_chunks import SERVE
from tests.support.command import paceline
from tests.support.project import build
from tests.support.reads import read
from tests.support.s3 import BUCKET, with_store
from tests.support.sessions import (
    count_reports,
    session_row,
    small_trace,
    store,
    task_row,
)
from tests.support.waiting import LIMIT_S, wait_for
from tests.support.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Container
    from tests.support.s3 import Proxy, S3Server

# The beginning of a single request that writes an object.
SENDS = f"PUT /{BUCKET}".encode()
SIZES = {"dp": 2, "pp": 2}


@contextlib.contextmanager
def serving(settings: Settings) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a server in a separate process, and the address for a job's sessions."""
    environment = os.environ | settings.environment() | {"PACELINE_PORT": "0"}
    with subprocess.Popen(  # noqa: S603 - the test's own
        [sys.executable, "-c", SERVE], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, f"{process.stdout.readline().strip()}/api/v1/jobs/llm/sessions"
        finally:
            process.kill()


def send(url: str) -> httpx.Response:
    return httpx.post(
        url, content=to_parquet(small_trace()), params=SIZES, trust_env=False, timeout=LIMIT_S
    )


class Sender(threading.Thread):
    """A thread that sends a session; `answer` is None without an answer."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.answer: httpx.Response | None = None

    def run(self) -> None:
        with contextlib.suppress(httpx.TransportError):
            self.answer = send(self._url)


def sessions(container: Container) -> int:
    with container.everywhere().reading() as tx:
        return tx.session.execute(select(func.count()).select_from(Session)).scalar_one()


def analyzed(container: Container) -> None:
    with container.everywhere().uow() as tx:
        (session,) = tx.session.execute(select(Session.id)).scalars()
    with container.uow() as tx:
        run = tx.enqueue("analyze_session", session)
    assert execute(container, LeaseKeeper(container), run)
    assert read(container, report_json, session)
    assert len(read(container, stored_trace, session).unpack()) == len(small_trace())


def test_a_server_killed_while_it_stores_has_acknowledged_nothing(
    installation: Container, stored_settings: Settings, proxy: Proxy, s3: S3Server
) -> None:
    proxy.notice = SENDS
    with serving(stored_settings) as (process, url):
        proxy.hold.clear()
        sender = Sender(url)
        sender.start()
        assert proxy.seen.wait(LIMIT_S)
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        sender.join(LIMIT_S)
    proxy.break_all()
    proxy.hold.set()
    assert sender.answer is None
    assert sessions(installation) == 0
    # The sender repeats the request twice: it is one session.
    with serving(stored_settings) as (_, url):
        assert [send(url).status_code for _ in range(2)] == [202, 200]
    assert sessions(installation) == 1
    analyzed(installation)
    assert count_reports(installation) == 1
    found = references(installation)
    # Trace, report and heatmaps, and possibly the killed server's object.
    assert (found.blobs, found.lost) == (3, 0)
    assert len(s3.objects()) in (3, 4)


def test_a_session_is_answered_for_only_once_its_bytes_are_there(
    installation: Container, stored_settings: Settings, proxy: Proxy, s3: S3Server
) -> None:
    proxy.notice = SENDS
    with serving(stored_settings) as (_, url):
        proxy.hold.clear()
        sender = Sender(url)
        sender.start()
        assert proxy.seen.wait(LIMIT_S)
        # The server does not answer before the store has.
        assert sender.answer is None
        assert (sessions(installation), s3.objects()) == (0, {})
        proxy.hold.set()
        sender.join(LIMIT_S)
        assert sender.answer is not None
        assert sender.answer.status_code == HTTPStatus.ACCEPTED, sender.answer.text
        assert len(s3.objects()) == 1
        proxy.refuse = True
        proxy.break_all()
        refused = httpx.post(
            url, content=to_parquet(small_trace()), params=SIZES | {"tp": 2}, trust_env=False
        )
        assert refused.json()["code"] == "blobs.unavailable", refused.text
        assert refused.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert int(refused.headers["Retry-After"]) >= 5
    assert sessions(installation) == 1
    with installation.everywhere().reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(BlobPart)).scalar() == 0
        assert tx.session.execute(select(func.count()).select_from(BlobObject)).scalar() == 1


@pytest.fixture
def hasty(database_url: str, tmp_path: Path, proxy: Proxy) -> Iterator[Container]:
    built = build(
        with_store(
            Settings(database_url=database_url, data_dir=tmp_path / "data"),
            proxy.url,
            lease_s=4.0,
            alert_attempt_limit_s=3.0,
            lease_renew_s=0.5,
            republish_after_s=1.0,
            heartbeat_interval_s=0.2,
        )
    )
    yield built
    built.close()


def test_a_worker_killed_while_it_stores_leaves_one_report(
    hasty: Container, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.notice = SENDS
    proxy.hold.clear()
    with WorkerProcess(hasty, tmp_path / "log").wait_until_ready() as worker:
        stored = store(hasty, small_trace())
        assert proxy.seen.wait(LIMIT_S)
        worker.kill()
    proxy.break_all()
    proxy.hold.set()
    assert count_reports(hasty) == 0
    wait_for(lambda: sweep(hasty).expired, "lease that ran out")
    # On a busy machine heartbeats may be late by more than the short lease, so this worker has a
    # longer one.
    patient = build(hasty.settings.model_copy(update={"lease_s": 2 * LIMIT_S}))
    with WorkerProcess(patient, tmp_path / "log"):

        def through() -> bool:
            sweep(patient)
            return session_row(patient, stored).state == "analyzed"

        wait_for(through, "analysis")
    patient.close()
    assert task_row(hasty, stored).attempt == 2
    assert count_reports(hasty) == 1
    assert references(hasty).lost == 0
    assert read(hasty, report_json, stored.session)


def test_a_store_that_is_away_costs_no_attempt(installation: Container, proxy: Proxy) -> None:
    stored = store(installation, small_trace())
    proxy.refuse = True
    for _ in range(installation.settings.max_attempts + 1):
        assert not execute(installation, LeaseKeeper(installation), stored.run)
    assert (session_row(installation, stored).state, task_row(installation, stored).state) == (
        "queued",
        "queued",
    )
    proxy.refuse = False
    assert execute(installation, LeaseKeeper(installation), stored.run)
    assert session_row(installation, stored).state == "analyzed"


def test_the_command_line_moves_checks_and_backs_up(  # noqa: PLR0917 - fixtures
    container: Container,
    stored_settings: Settings,
    s3: S3Server,
    empty_database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = store(container, small_trace())
    assert execute(container, LeaseKeeper(container), stored.run)
    report = read(container, report_json, stored.session)
    monkeypatch.setenv("PACELINE_DATABASE_URL", str(stored_settings.database_url))
    done = paceline("blobs", "move")
    assert (done.returncode, "PACELINE_BLOB_URL" in done.stderr) == (1, True)
    for name, value in stored_settings.environment().items():
        if name.startswith("PACELINE_BLOB"):
            monkeypatch.setenv(name, value)
    done = paceline("blobs", "move")
    assert (done.returncode, "3 blobs moved" in done.stderr) == (0, True), done.stderr
    assert paceline("blobs", "check").stdout.startswith("3 blobs, ")
    done = paceline("backup", tmp_path / "dump")
    assert "3 blobs of" in done.stderr
    # Restore into a new installation with the same bucket.
    monkeypatch.setenv("PACELINE_DATABASE_URL", empty_database_url)
    done = paceline("restore", tmp_path / "dump")
    assert (done.returncode, "not in the object store" in done.stderr) == (0, False), done.stderr
    restored = build(stored_settings.model_copy(update={"database_url": empty_database_url}))
    assert read(restored, report_json, stored.session) == report
    restored.close()
    with monkeypatch.context() as without:
        without.delenv("PACELINE_BLOB_URL")
        done = paceline("blobs", "check")
        assert (done.returncode, "set PACELINE_BLOB_URL" in done.stdout) == (1, True)
    done = paceline("blobs", "move", "--to", "database")
    assert (done.returncode, "3 blobs moved" in done.stderr) == (0, True), done.stderr
    done = paceline("blobs", "check")
    assert (done.returncode, done.stdout) == (0, "0 blobs, 0 bytes in the object store\n")
    # The first installation still has all objects; then a lost object is reported.
    monkeypatch.setenv("PACELINE_DATABASE_URL", str(stored_settings.database_url))
    key = next(iter(s3.objects()))
    assert build(stored_settings).objects is not None
    build(stored_settings).objects.store.delete([key])  # type: ignore[union-attr]
    done = paceline("blobs", "check")
    assert (done.returncode, "1 of them" in done.stdout) == (1, True)
