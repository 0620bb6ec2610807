"""A rank is killed while a window is recorded: its complete steps count, and it is named."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import func, select

from app.sessions.chunks.absorb import absorb
from app.sessions.models.tables import Chunk, Session
from paceline_client import Recorder, RetryPolicy, Share, Spool
from tests.integration.client.conftest import Train, environment, fall_silent
from tests.support.project import build
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.settings import Settings
    from tests.integration.api.conftest import Installation

# The window has steps 2 to 21; the last rank is killed in step 14.
_WINDOW: Final = ("--record", "2:20", "--steps", "24", "--pause-s", "0.1")
_KILLED: Final = (*_WINDOW, "--fault", "kill", "--fault-at", "14", "--chunk-every-s", "0.2")


def the_session(installation: Installation) -> dict[str, Any]:
    installation.absorb_all()
    (session,) = installation.client.get("/api/v1/sessions").json()["sessions"]
    found: dict[str, Any] = installation.client.get(f"/api/v1/sessions/{session['id']}").json()
    return found


def operations_of(installation: Installation, producer: str) -> int:
    """Return the number of a producer's received operations; 0 before its session exists."""
    installation.absorb_all()
    sessions = installation.client.get("/api/v1/sessions").json()["sessions"]
    if not sessions:
        return 0
    producers = the_session(installation)["intake"]["producers"]
    return sum(one["operations"] for one in producers if one["producer"] == producer)


def test_a_rank_that_is_killed_costs_its_own_last_steps_and_is_named(
    installation: Installation, train: Train
) -> None:
    trained = train("--kind", "ddp", "--ranks", "2", "--url", installation.url, *_KILLED)

    assert trained.code != 0
    assert trained.spool.waiting() == []
    session = the_session(installation)
    assert session["state"] == "open"
    assert fall_silent(installation) == 1
    installation.analyze_all()
    session = the_session(installation)
    assert session["state"] in {"analyzed", "no_verdict"}, session["reason"]
    address = f"/api/v1/sessions/{session['id']}/report"
    report = installation.client.get(address).json()
    (early,) = report["coverage"]["chunks"]["ended_early"]
    assert early["producer"] == "rank-1"
    # The rank sent a chunk every 0.2 s, of steps of 0.1 s, so the last steps are missing.
    last = early["last_step"]
    assert 8 <= last <= 14
    # The last sent step may be incomplete.
    steps = report["steps"]
    assert steps["analyzed"] in (list(range(2, last + 1)), list(range(2, last))), steps
    assert report["coverage"]["chunks"]["sealed_by"] == "silence"
    page = installation.client.get(f"/sessions/{session['id']}").text
    assert f"rank-1 after step {early['last_step']}" in page


# A program that records steps until it is killed.
_RECORDER: Final = """
import sys, time
from paceline_client import Recorder, Share, Spool
meta = {"dp": 2, "pp": 1, "tp": 1, "cp": 1, "vpp": 1, "world": 2}
rank = int(sys.argv[2])
to = Recorder(sys.argv[1], "job", meta, share=Share(1, f"host-{rank}"), spool=Spool(),
              chunk_every_s=0.0)
for step in range(int(sys.argv[3])):
    start_ns = 10**18 + step * 30_000_000
    for op, mb in (("forward-compute", 0), ("backward-compute", 0),
                   ("grads-reduce-scatter", None), ("optimizer", None)):
        to.op(rank, op, start_ns, 5_000_000, step=step, dp=rank, pp=0, mb=mb)
        start_ns += 5_000_000
    time.sleep(0.02)
if rank == 1:
    print("recorded", flush=True)
    time.sleep(600)
to.finish()
to.wait()
"""


def test_chunks_of_a_killed_process_are_analyzed_with_the_others(
    installation: Installation, tmp_path: Path
) -> None:
    spool = {"PACELINE_SPOOL": str(tmp_path / "spool")}

    def start(server: str, rank: int, steps: int) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-c", _RECORDER, server, str(rank), str(steps)],
            env=environment() | spool,
            stdout=subprocess.PIPE,
            text=True,
        )

    first = start(installation.url, 1, 10)
    assert first.stdout is not None
    with first:
        assert first.stdout.readline() == "recorded\n"
        # All steps but the last, which has not ended. (The spool is empty between chunks as well.)
        wait_for(lambda: operations_of(installation, "host-1") == 9 * 4, "delivery of the chunks")
        os.kill(first.pid, signal.SIGKILL)
    with start(installation.url, 0, 12) as second:
        assert second.wait() == 0

    assert the_session(installation)["state"] == "open"
    assert fall_silent(installation) == 1
    installation.analyze_all()
    session = the_session(installation)
    assert session["state"] == "analyzed", session["reason"]
    report = installation.client.get(f"/api/v1/sessions/{session['id']}/report").json()
    assert report["coverage"]["chunks"]["ended_early"] == [{"producer": "host-1", "last_step": 8}]
    assert report["steps"]["analyzed"] == list(range(9))


def test_the_report_names_what_a_killed_producer_did_not_send(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    meta = {"dp": 2, "pp": 1, "world": 2}
    for rank, every_s in ((0, None), (1, 0.0)):
        share = Share(1, f"rank-{rank}")
        spool = Spool(tmp_path)
        recorder = Recorder(
            installation.url, "job", meta, share=share, spool=spool, chunk_every_s=every_s
        )
        for step in range(3 * rank, 3 * rank + 3):
            for op, mb in (("forward-compute", 0), ("backward-compute", 0)):
                recorder.op(rank, op, 10**18 + step, 1, step=step, dp=rank, pp=0, mb=mb)
        if rank == 0:
            recorder.finish()
            assert recorder.wait(60) is not None
    # The other producer does not finish, so its last step is incomplete.
    wait_for(
        lambda: the_session(installation)["intake"]["chunks"] == 2, "chunk of the killed producer"
    )
    assert fall_silent(installation) == 1
    installation.analyze_all()
    session = the_session(installation)
    assert (session["state"], session["reason_code"]) == ("discarded", "trace.no_complete_step")
    page = installation.client.get(f"/sessions/{session['id']}").text
    assert "The recording ended early: rank-1 after step 4" in page


_SERVER: Final = """
import time
from app.bootstrap import build
from app.run.http import HttpServer, listen
from app.run.application import create_app
from app.platform.settings import Settings
container = build(Settings()).within(1)
HttpServer(create_app(container), listen(container.settings)).start(lambda: False)
print("serving", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def server(settings: Settings, port: int) -> Iterator[subprocess.Popen[str]]:
    """Serve in a separate process, which is killed at the end."""
    environment = os.environ | {
        "PACELINE_DATABASE_URL": str(settings.database_url),
        "PACELINE_DATA_DIR": str(settings.data_dir),
        "PACELINE_PORT": str(port),
    }
    with subprocess.Popen(  # noqa: S603 - the test's own
        [sys.executable, "-c", _SERVER], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "serving\n"
            yield process
        finally:
            process.kill()


def test_a_server_that_is_killed_meanwhile_has_every_chunk_once(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spool = Spool(tmp_path / "spool")
    container = build(settings)

    def arrived() -> int:
        with container.uow() as tx:
            return tx.session.execute(select(func.count()).select_from(Chunk)).scalar_one()

    def record(steps: range) -> None:
        for step in steps:
            recorder.op(0, "forward-compute", 10**18 + step, 1, step=step, dp=0, pp=0, mb=0)

    recorder = Recorder(
        f"http://127.0.0.1:{port}",
        "job",
        {"dp": 1, "pp": 1, "world": 1},
        share=Share(1, "rank-0"),
        spool=spool,
        chunk_every_s=0.0,
        retry=RetryPolicy(first_wait_s=0.1, longest_wait_s=0.5),
    )
    with contextlib.closing(container):
        with server(settings, port):
            record(range(3))
            wait_for(arrived, "chunk at the first server")
        record(range(3, 6))
        wait_for(spool.waiting, "chunk that waits")
        recorder.finish()
        with server(settings, port):
            outcome = recorder.wait(60)
        assert outcome is not None
        assert outcome.error is None
        assert spool.waiting() == []
        while absorb(container):
            pass
        with container.uow() as tx:
            (session,) = tx.session.execute(select(Session)).scalars()
            assert (session.operations, session.state) == (6, "queued")
