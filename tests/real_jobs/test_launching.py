from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.real_jobs import launching
from tests.real_jobs.jobs import JOBS, Framework
from tests.real_jobs.launching import LaunchError, end_all, launch, missing
from tests.support.processes import descendants, wait_until_gone

FORKS = """
import os, sys, time
for _ in range(3):
    if not os.fork():
        time.sleep(600)
print("forked", flush=True)
"""


def test_a_launch_that_fails_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(LaunchError, match=r"hwC failed[^$]*(No module named|KeyError)"):
        launch(JOBS["hwC"], ["no-such-fault"])
    assert not list(tmp_path.iterdir())


def test_processes_that_do_not_end_are_ended_with_all_that_they_started(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS + "time.sleep(600)"]
    with launching._processes(command, tmp_path / "log") as process:
        started = _started(process, tmp_path / "log")
    wait_until_gone(started)
    assert process.returncode != 0


def test_children_of_a_process_that_failed_are_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS + "time.sleep(1); sys.exit(3)"]
    with launching._processes(command, tmp_path / "log") as process:
        started = _started(process, tmp_path / "log")
        assert process.wait() == 3
    wait_until_gone(started)


def test_an_interrupted_run_ends_its_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS + "time.sleep(600)"]
    with launching._processes(command, tmp_path / "log") as process:
        started = _started(process, tmp_path / "log")
        end_all()
        wait_until_gone(started)


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("/bin/false", "megatron is not installed for /bin/false"),
        ("/nowhere/python", "PACELINE_TORCH_PYTHON=/nowhere/python: No such file"),
    ],
)
def test_an_interpreter_that_cannot_run_a_framework_is_named(
    monkeypatch: pytest.MonkeyPatch, python: str, reason: str
) -> None:
    monkeypatch.setenv(launching.TORCH_PYTHON, python)
    missing.cache_clear()
    told = missing(Framework.MEGATRON)
    missing.cache_clear()
    assert told is not None
    assert reason in told


def _started(process: subprocess.Popen[bytes], log: Path) -> set[int]:
    """Return the process and its three children, once they exist."""
    while b"forked" not in log.read_bytes():
        assert process.poll() is None
    started = descendants(process.pid)
    assert len(started) == 4
    return started
