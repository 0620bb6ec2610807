"""Child processes and their forks: none survives its supervisor, or is left by a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from app.platform.processes import SupervisedChild
from tests.support.processes import alive, descendants, wait_until_gone
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

# A child that forks a process and writes its id, before it runs the test's code.
FORKING = """
import os, pathlib, signal, sys, tempfile, time
from app.platform.processes import follow_lifeline
if "ignore" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
follow_lifeline()
if os.fork() == 0:
    time.sleep(600)
if "litter" in sys.argv:
    tempfile.mkdtemp()
said = pathlib.Path(sys.argv[1])
said.with_suffix(".new").write_text(str(os.getpid()))
said.with_suffix(".new").rename(said)
time.sleep(600)
"""


def child(tmp_path: Path, *arguments: str) -> SupervisedChild:
    command = [sys.executable, "-c", FORKING, str(tmp_path / "said"), *arguments]
    return SupervisedChild("test", command, os.environ)


def started(supervised: SupervisedChild, tmp_path: Path) -> set[int]:
    """Start the child and return its processes, once it has forked."""
    supervised.tend()
    wait_for((tmp_path / "said").exists, "fork")
    return descendants(int((tmp_path / "said").read_text()))


def until(look: Callable[[], bool], supervised: SupervisedChild) -> None:
    def tended() -> bool:
        supervised.tend()
        return look()

    wait_for(tended, "turn of the child")


def test_a_child_that_dies_takes_along_what_it_forked_and_is_started_again(tmp_path: Path) -> None:
    supervised = child(tmp_path)
    try:
        first = started(supervised, tmp_path)
        os.kill(int((tmp_path / "said").read_text()), signal.SIGKILL)
        (tmp_path / "said").unlink()
        until(lambda: not alive(first), supervised)
        until((tmp_path / "said").exists, supervised)
    finally:
        supervised.wait_or_kill(time.monotonic())


def test_a_child_that_does_not_stop_is_killed_with_what_it_forked(tmp_path: Path) -> None:
    supervised = child(tmp_path, "ignore")
    running = started(supervised, tmp_path)
    supervised.ask_to_stop()
    supervised.wait_or_kill(time.monotonic())
    wait_until_gone(running)


def test_temporary_files_of_a_killed_child_go_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    supervised = child(tmp_path, "litter")
    started(supervised, tmp_path)
    [directory] = tmp_path.glob("paceline-child-*")
    assert len(list(directory.iterdir())) == 1
    supervised.wait_or_kill(time.monotonic())
    assert not directory.exists()


def test_stopping_what_was_never_started_does_nothing(tmp_path: Path) -> None:
    supervised = child(tmp_path)
    supervised.ask_to_stop()
    supervised.wait_or_kill(time.monotonic())
    assert not (tmp_path / "said").exists()


def test_the_end_of_the_lifeline_ends_a_process_and_what_it_forked(tmp_path: Path) -> None:
    # Without a parent-death signal, as on systems that have none.
    said = tmp_path / "said"
    with subprocess.Popen(  # noqa: S603 - the test's own
        [sys.executable, "-c", FORKING, str(said)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        wait_for(said.exists, "fork")
        running = descendants(process.pid)
        assert len(running) == 2
        assert process.stdin is not None
        process.stdin.close()
        process.wait(LIMIT_S)
        wait_until_gone(running)


def test_a_process_that_only_its_forker_knows_ends_with_the_lifeline_too(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with subprocess.Popen(  # noqa: S603 - the test's own
        [sys.executable, "-c", FORKING, str(said)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        wait_for(said.exists, "fork")
        [orphan] = descendants(process.pid) - {process.pid}
        process.kill()
        process.wait(LIMIT_S)
        assert alive({orphan}) == {orphan}
        assert process.stdin is not None
        process.stdin.close()
        wait_until_gone({orphan})
