"""Every log line of workers with JSON logs is a JSON object, also when they are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from app.installation.models import WorkerHeartbeat
from tests.support.command import paceline_process
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from app.platform.container import Container


def test_every_line_is_json(container: Container, tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = container.settings.environment_of_child(os.environ) | {
        "PACELINE_LOG_JSON": "true",
        "PACELINE_LOG_LEVEL": "debug",
    }
    with log.open("wb") as words:
        worker = subprocess.Popen(
            [sys.executable, "-m", "app.cli.main", "worker"],
            env=environment,
            stdout=words,
            stderr=words,
        )

    def heard() -> dict[str, int]:
        with container.reading() as tx:
            rows = tx.session.execute(select(WorkerHeartbeat.queues, WorkerHeartbeat.pid))
            return {row[0]: row[1] for row in rows}

    try:
        wait_for(lambda: "analysis" in heard(), "the worker of analyses")
        # The killed fork logs nothing; the worker logs its end.
        (forked, *_) = _children(heard()["analysis"])
        os.kill(forked, signal.SIGKILL)
        wait_for(lambda: "exited with" in log.read_text(), "the word of the killed process")
    finally:
        worker.terminate()
        assert worker.wait(LIMIT_S) == 0

    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"worker stopped"} <= {event["event"] for event in events}
    assert all({"event", "level", "timestamp"} <= event.keys() for event in events)


@pytest.mark.parametrize(
    "command", [("worker",), ("serve", "--port", "0")], ids=["worker", "serve"]
)
def test_a_start_that_is_refused_is_json_too(
    command: tuple[str, ...], empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", empty_database_url)
    monkeypatch.setenv("PACELINE_LOG_JSON", "true")

    done = paceline_process(*command)

    assert (done.returncode, done.stdout) == (1, "")
    [event] = [json.loads(line) for line in done.stderr.splitlines()]
    assert (event["level"], event["code"]) == ("critical", "database.not_migrated")
    assert event["event"] == "The database was never migrated: run `paceline migrate`."


def _children(pid: int) -> list[int]:
    found = subprocess.run(  # noqa: S603 - our own argument list
        ["pgrep", "-P", str(pid)],  # noqa: S607 - wherever it is
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in found.stdout.split()]
