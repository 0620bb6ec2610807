"""Workers without a database log one line each, and continue to try."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

# Workers of analyses, of waiting tasks, of chunks and of pulses.
WORKERS = 4
NO_HEARTBEAT = "heartbeat not written"


def test_workers_without_a_database_say_one_line_each(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = os.environ | {
        "PACELINE_DATABASE_URL": "postgresql://unknown@127.0.0.1:1/nothing",
        "PACELINE_DATA_DIR": str(tmp_path / "data"),
        "PACELINE_SWEEP_INTERVAL_S": "0.2",
        "PACELINE_HEARTBEAT_INTERVAL_S": "0.2",
    }
    with log.open("wb") as words:
        worker = subprocess.Popen(
            [sys.executable, "-m", "app.cli.main", "worker"],
            env=environment,
            stdout=words,
            stderr=words,
        )
    try:
        wait_for(lambda: log.read_text().count(NO_HEARTBEAT) >= WORKERS, "all workers")
    finally:
        worker.terminate()
        assert worker.wait(LIMIT_S) == 0
    said = log.read_text()
    assert "Traceback" not in said
    for what, processes in ((NO_HEARTBEAT, WORKERS), ("the sweeper's pass failed", 1)):
        lines = [line for line in said.splitlines() if what in line]
        assert len(lines) == processes
        assert all("Connection refused" in line for line in lines)
