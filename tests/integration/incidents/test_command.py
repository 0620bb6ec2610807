"""`paceline alerts`, run as by a user, with a whole installation."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.support.receiver import Reply
from tests.support.receiver import Receiver
from tests.support.redis import RedisServer
from tests.support.waiting import LIMIT_S, wait_for


def _paceline(*arguments: str, server: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - this interpreter and our own module
        [sys.executable, "-m", "app.cli.main", "alerts", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PACELINE_SERVER": server},
    )


@pytest.fixture(params=["embedded", "production"])
def server(request: pytest.FixtureRequest, open_dir: Path) -> Iterator[str]:
    """Yield the address of `paceline serve`, which ends with the test."""
    name = str(uuid.uuid4())
    environment = os.environ | {
        "PACELINE_ALERT_ALLOWED_NETWORKS": "127.0.0.1/32",
        "PACELINE_INSTANCE_NAME": name,
    }
    if request.param == "production":
        redis: RedisServer = request.getfixturevalue("redis_server")
        environment |= {
            "PACELINE_DATABASE_URL": request.getfixturevalue("database_url"),
            "PACELINE_BROKER_URL": redis.url,
        }
    words = open_dir / "words"
    command = (sys.executable, "-m", "app.cli.main", "serve", "--port", "0")
    with words.open("wb") as output:
        running = subprocess.Popen(  # noqa: S603 - as above
            [*command, "--data-dir", str(open_dir / "data")],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    def address() -> str:
        assert running.poll() is None, words.read_text()
        lines = [line for line in words.read_text().splitlines() if "is ready: " in line]
        return lines[-1].rpartition(" ")[2] if lines else ""

    try:
        announced = wait_for(address, "announcement")
        # Another process may have taken the port meanwhile.
        assert httpx.get(f"{announced}healthz").json()["instance"] == name
        yield announced
    finally:
        running.terminate()
        running.wait(LIMIT_S)


def test_it_prints_the_receivers_answer_and_fails_with_the_receiver(
    server: str, receiver: Receiver
) -> None:
    channel = {"name": "on call", "kind": "webhook", "config": {"url": receiver.url}}
    httpx.post(f"{server}api/v1/channels", json=channel).raise_for_status()

    receiver.answer = lambda _: Reply(202, b"thanks")
    done = _paceline("test", "on call", server=server)
    assert (done.returncode, done.stdout, done.stderr) == (0, "delivered: 202 thanks\n", "")
    assert receiver.got[0].json["alerts"][0]["labels"]["test"] == "true"

    receiver.answer = lambda _: Reply(403, b"wrong workspace")
    done = _paceline("test", "on call", server=server)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "paceline: The receiver answered 403. Its answer: 403 wrong workspace [http.status]\n"
    )

    done = _paceline("test", "unknown", server=server)
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no channel unknown." in done.stderr

    done = _paceline("reseal", server=server)
    assert (done.returncode, done.stdout) == (0, "channels encrypted with the newest key: 1\n")


def test_a_server_that_is_not_there_is_named() -> None:
    done = _paceline("test", "x", server="http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "The server at http://127.0.0.1:9 cannot be reached" in done.stderr
    assert "[server.unreachable]" in done.stderr
