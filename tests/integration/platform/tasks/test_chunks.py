"""Chunks and their merge survive killed processes and lost claims."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from sqlalchemy import func, select, update

from app.analysis.trace.encode import to_parquet
from app.platform.blobs import BlobPart
from app.platform.database.task_runs import TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.sessions.body import Body
from app.sessions.chunks.absorb import (
    LEASE,
    MAX_TRIES,
    _claim,
    _decoded,
    _store,
    absorb,
    absorb_all,
)
from app.sessions.chunks.inbox import ChunkPath, refused_chunks
from app.sessions.chunks.intake import seal_session
from app.sessions.chunks.merge import merge_session
from app.sessions.chunks.receive import receive_chunk
from app.sessions.models.tables import Chunk, InboxItem, Intake, Session
from tests import factories
from tests.support.sessions import count_blobs, count_reports, refused_trace, small_trace
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.analysis.trace.model import Trace
    from app.platform.container import Container


def send(container: Container, trace: Trace, tmp_path: Path) -> uuid.UUID:
    """Send a session as a chunk of each rank, and seal it."""
    for rank in np.unique(trace.rank).tolist():
        content = to_parquet(factories.select(trace, trace.rank == rank))
        file = tmp_path / "body"
        file.write_bytes(content)
        digest = rank.to_bytes(32, "big")
        body = Body(file, len(content), digest, None, trace.meta)
        receipt = receive_chunk(
            container, ChunkPath("llm", 1, 1, f"rank-{rank}", 0), body, final=False
        )
    seal_session(container, "llm", 1, 1)
    return receipt.session


def analyze(container: Container) -> None:
    with container.uow() as tx:
        run = tx.session.execute(select(TaskRun.id).where(TaskRun.state == "queued")).scalar_one()
    keeper = LeaseKeeper(container)
    assert execute(container, keeper, run)
    keeper.stop()


def test_merging_replaces_the_chunks_and_happens_once(container: Container, tmp_path: Path) -> None:
    session = send(container, small_trace(), tmp_path)
    assert absorb(container) == 3
    assert count_blobs(container) == 4
    merge_session(container, session)
    with container.uow() as tx:
        blob = tx.session.execute(select(Session.trace_blob)).scalar_one()
        assert tx.session.execute(select(func.count(Chunk.blob))).scalar_one() == 0
    assert blob is not None
    merge_session(container, session)
    with container.uow() as tx:
        assert set(tx.session.execute(select(BlobPart.blob_id)).scalars()) == {blob}
    analyze(container)
    with container.uow() as tx:
        row = tx.session.execute(select(Session)).scalar_one()
    assert (row.state, row.operations, row.steps) == ("analyzed", len(small_trace()), 12)


def test_workers_that_merge_at_the_same_time_leave_one_trace(
    container: Container, tmp_path: Path
) -> None:
    session = send(container, small_trace(), tmp_path)
    together = threading.Barrier(4)
    failures: list[Exception] = []

    def merge() -> None:
        together.wait()
        try:
            merge_session(container, session)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    workers = [threading.Thread(target=merge) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    assert count_blobs(container) == 1


def test_merged_chunks_are_kept_if_the_analysis_fails(container: Container, tmp_path: Path) -> None:
    send(container, refused_trace(), tmp_path)
    analyze(container)
    with container.uow() as tx:
        row = tx.session.execute(select(Session)).scalar_one()
        merged = tx.session.execute(select(Intake.merged)).scalar_one()
    assert (row.state, row.reason_code) == ("discarded", "trace.no_complete_step")
    assert row.trace_blob is not None
    assert merged is not None
    assert merged.chunks == 4
    assert (count_reports(container), count_blobs(container)) == (0, 1)


@pytest.fixture
def serving(container: Container, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a server in a separate process, and its address."""
    database = container.settings.database_url
    assert database is not None
    environment = {
        **os.environ,
        "PACELINE_DATABASE_URL": database,
        "PACELINE_DATA_DIR": str(tmp_path / "data"),
        "PACELINE_PORT": "0",
    }
    with subprocess.Popen(  # noqa: S603 - the test's own
        [sys.executable, "-c", SERVE], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


SERVE = """
import time
from app.bootstrap import build
from app.run.http import HttpServer, address_of, listen
from app.run.application import create_app
from app.platform.settings import Settings
container = build(Settings()).within(1)
listener = listen(container.settings)
HttpServer(create_app(container), listener).start(lambda: False)
print(address_of(listener).rstrip("/"), flush=True)
time.sleep(600)
"""


def test_a_chunk_that_was_answered_for_outlives_its_server(
    container: Container, serving: tuple[subprocess.Popen[str], str]
) -> None:
    process, url = serving
    trace = small_trace()
    body = to_parquet(trace)
    sizes = {"dp": 2, "pp": 2}
    path = f"{url}/api/v1/jobs/llm/attempts/2/sessions/1/chunks"
    answer = httpx.put(f"{path}/a/0", content=body, params=sizes, trust_env=False)
    assert answer.status_code == 202, answer.text
    # The server is killed while the second chunk waits for a transaction that seals the session.
    with container.uow() as tx:
        tx.session.execute(select(Intake.session_id).with_for_update())
        sender = threading.Thread(target=_put, args=(f"{path}/b/0", to_parquet(trace), sizes))
        sender.start()
        wait_for(lambda: _waits(container), "waiting chunk")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
        sender.join(LIMIT_S)
    with container.uow() as tx:
        (row,) = tx.session.execute(select(Chunk)).scalars()
        stored = set(tx.session.execute(select(BlobPart.blob_id)).scalars())
        assert tx.session.execute(select(func.count(InboxItem.id))).scalar_one() == 0
    assert (row.producer, row.operations, stored) == ("a", len(trace), {row.blob})
    assert seal_session(container, "llm", 2, 1).sealed
    analyze(container)
    assert count_reports(container) == 1


def open_session(container: Container, tmp_path: Path) -> tuple[uuid.UUID, Trace]:
    """Return a session with the first rank's chunk, and with the others in the inbox."""
    trace = small_trace()
    ranks = np.unique(trace.rank).tolist()
    for rank in ranks:
        content = to_parquet(factories.select(trace, trace.rank == rank))
        file = tmp_path / "body"
        file.write_bytes(content)
        body = Body(file, len(content), rank.to_bytes(32, "big"), None, trace.meta)
        path = ChunkPath("llm", 1, 1, f"rank-{rank}", 0)
        receipt = receive_chunk(container, path, body, final=False)
    return receipt.session, trace


def test_a_worker_that_was_killed_while_it_decoded_leaves_all_to_the_next(
    container: Container, tmp_path: Path
) -> None:
    session, trace = open_session(container, tmp_path)
    with container.everywhere().uow() as tx:
        # The state after a worker was killed within the first batch, and its lease has expired.
        tx.session.execute(
            update(InboxItem).values(
                claim_token=uuid.uuid4(), lease_until=tx.now - LEASE, tries=InboxItem.tries + 1
            )
        )
    # The first chunk may have killed the worker, so it is processed alone.
    assert [absorb(container) for _ in range(4)] == [1, 1, 1, 0]
    with container.uow() as tx:
        assert tx.session.get_one(Session, session).operations == len(trace)


def test_a_worker_whose_lease_ran_out_stores_nothing(container: Container, tmp_path: Path) -> None:
    session, trace = open_session(container, tmp_path)
    slow = _claim(container, None)
    assert slow is not None
    assert absorb(container) == 0
    with container.everywhere().uow() as tx:
        tx.session.execute(update(InboxItem).values(lease_until=tx.now - LEASE))
    absorb_all(container, session)
    _store(container, slow, *_decoded(container, slow)[:2])
    with container.uow() as tx:
        found = tx.session.get_one(Session, session)
        assert found.operations == len(trace)
        assert tx.session.execute(select(func.count()).select_from(Chunk)).scalar_one() == 4


def test_a_body_that_kills_every_worker_is_refused_and_costs_itself_alone(
    container: Container, tmp_path: Path
) -> None:
    session, _ = open_session(container, tmp_path)
    with container.everywhere().uow() as tx:
        tx.session.execute(
            update(InboxItem).where(InboxItem.producer == "rank-2").values(tries=MAX_TRIES)
        )
    while absorb(container):
        pass
    with container.uow() as tx:
        (refused,) = refused_chunks(tx, session)
        sent = set(tx.session.execute(select(Chunk.producer)).scalars())
    assert (refused.producer, refused.code) == ("rank-2", "chunk.worker_killed")
    assert sent == {"rank-0", "rank-1", "rank-3"}


def _waits(container: Container) -> bool:
    """Return whether a connection to the test's database waits for a lock."""
    with container.engine.connect() as connection:
        waiting = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).scalar_one()
    return bool(waiting)


def _put(url: str, body: bytes, params: dict[str, int]) -> None:
    with contextlib.suppress(httpx.TransportError):
        httpx.put(url, content=body, params=params, trust_env=False, timeout=LIMIT_S)
