"""Two server processes behind one address, and two analyses at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from sqlalchemy import func, select

from app.access.guesses import OF_A_PEER_AT_A_NAME
from app.analysis.trace.encode import to_parquet
from app.platform.database.states import SessionState
from app.sessions.models.tables import Session
from tests import factories
from tests.support.processes import descendants, ps
from tests.support.sessions import count_reports, held_analyses, small_trace, store
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Container
    from tests.support.redis import RedisServer

SIZES = {"dp": 2, "pp": 2}


@contextlib.contextmanager
def running(environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of the program, and stop it at the end of the context."""
    with subprocess.Popen(  # noqa: S603 - our own argument list
        [sys.executable, "-c", "from app.cli.main import main; main()", *words],
        env=os.environ | environment,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def environment(container: Container, tmp_path: Path, redis_server: RedisServer) -> dict[str, str]:
    """Return the environment of servers and workers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return container.settings.environment() | {
        "PACELINE_BROKER_URL": redis_server.url,
        "PACELINE_DATA_DIR": str(tmp_path / "data"),
        "PACELINE_PORT": str(port),
        "PACELINE_INGEST_BUDGET_BYTES": "3000000",
        "PACELINE_MAX_BODY_BYTES": "2999999",
    }


@pytest.fixture
def workers(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the supervisor of two workers."""
    with running(environment, "worker", "--processes", "2") as process:
        yield process


@pytest.fixture
def servers(environment: dict[str, str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address of two server processes, and their parent."""
    with running(environment, "serve", "--workers", "2") as process:
        url = f"http://127.0.0.1:{environment['PACELINE_PORT']}"
        # The start of processes may be slow on a busy machine.
        wait_for(lambda: len(answering(url)) == 2, "two processes that answer", limit_s=240)
        yield url, process


def get(url: str) -> str:
    """Send a request on a new connection, which either process may answer."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False, timeout=30).text
    return ""


def answering(url: str) -> set[str]:
    """Return the answering processes, identified by their start times."""
    return {
        line
        for _ in range(8)
        for line in get(f"{url}/metrics").splitlines()
        if line.startswith("process_start_time_seconds ")
    }


def total(url: str, name: str) -> set[float]:
    """Return a metric's value, after checking that all processes give the same one."""
    return {
        float(line.rpartition(" ")[2])
        for _ in range(8)
        for line in get(f"{url}/metrics").splitlines()
        if line.rpartition(" ")[0] == name
    }


def put(url: str, session: int, rank: int, *, final: bool = True) -> httpx.Response:
    trace = small_trace()
    return httpx.put(
        f"{url}/api/v1/jobs/llm/attempts/1/sessions/{session}/chunks/rank-{rank}/0",
        content=to_parquet(factories.select(trace, trace.rank == rank)),
        params=SIZES | {"final": final},
        trust_env=False,
        timeout=60,
    )


def test_sessions_metrics_and_live_updates_are_right_across_two_and_two(
    container: Container,
    workers: subprocess.Popen[bytes],
    servers: tuple[str, subprocess.Popen[bytes]],
) -> None:
    url, _ = servers
    ranks = np.unique(small_trace().rank).tolist()
    with contextlib.ExitStack() as streams, httpx.Client(trust_env=False, timeout=60) as client:
        # With several connections, some streams belong to the process that receives no chunk.
        lines = [
            streams.enter_context(client.stream("GET", f"{url}/api/v1/events")).iter_lines()
            for _ in range(6)
        ]
        for stream in lines:
            assert next(stream) == ": open"
        with concurrent.futures.ThreadPoolExecutor(8) as senders:
            tasks = [
                senders.submit(put, url, session, rank) for session in (1, 2) for rank in ranks
            ]
            assert {task.result().status_code for task in tasks} == {202}
        wait_for(lambda: count_reports(container) == 2, "two reports")
        for stream in lines:
            assert any('"analyzed"' in line for line in stream)
    chunks = 'paceline_ingest_chunks_total{outcome="new"}'
    wait_for(lambda: total(url, chunks) == {8.0}, "the sum of both processes")
    programs = [
        words for words in ps("args", of=descendants(workers.pid)) if "--parent" not in words
    ]
    # Two workers take chunks, one takes pulses.
    assert sum("workers.inbox" in words for words in programs) == 3
    assert sum("pulse" in words for words in programs) == 1


def analyzing(container: Container) -> int:
    """Return the number of sessions that are being analyzed."""
    with container.reading() as tx:
        found = select(func.count()).where(Session.state == SessionState.ANALYZING)
        return tx.session.execute(found).scalar_one()


@pytest.mark.usefixtures("workers")
def test_as_many_sessions_are_analyzed_at_once_as_there_are_processes(
    container: Container,
) -> None:
    # The blocked analyses occupy both processes; the third session waits.
    for _ in range(3):
        store(container, small_trace())
    with held_analyses(container):
        wait_for(lambda: analyzing(container) == 2, "two analyses at once", limit_s=120)
    wait_for(lambda: count_reports(container) == 3, "three reports")


def test_the_budget_of_bodies_is_that_of_both_processes(
    servers: tuple[str, subprocess.Popen[bytes]],
) -> None:
    url, _ = servers
    port = int(url.rpartition(":")[2])
    with contextlib.ExitStack() as senders:
        sender = senders.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        sender.sendall(
            b"POST /api/v1/jobs/slow/sessions?dp=3&pp=2 HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 2999000\r\n\r\n" + b"PAR1" * 749_000
        )
        wait_for(
            lambda: total(url, "paceline_ingest_spooled_bytes") == {2_996_000.0}, "a spooled body"
        )
        answers = [put(url, 1, 0) for _ in range(8)]
        assert {answer.status_code for answer in answers} == {429}


def guess(url: str) -> int:
    """Try a password on a new connection, and return the status of the answer."""
    return httpx.post(
        f"{url}/sign-in",
        data={"name": "ada", "password": "wrong horse battery"},
        headers={"Origin": url},
        trust_env=False,
        timeout=60,
    ).status_code


def test_guesses_count_in_both_and_a_process_that_is_killed_is_replaced(
    servers: tuple[str, subprocess.Popen[bytes]],
) -> None:
    url, server = servers
    # The limit is that of one process, whichever process answers.
    answers = [guess(url) for _ in range(2 * OF_A_PEER_AT_A_NAME.at_once)]
    assert answers.count(401) in {OF_A_PEER_AT_A_NAME.at_once, OF_A_PEER_AT_A_NAME.at_once + 1}
    assert answers[-1] == 429
    (replica,) = [
        int(pid)
        for pid, *words in ps("pid", "args", of=descendants(server.pid))
        if "app.run.replica" in words
    ]
    before = answering(url)
    os.kill(replica, signal.SIGKILL)
    wait_for(lambda: len(answering(url) - before) == 1, "a new process that answers")
    assert put(url, 1, 0, final=False).status_code == 202
