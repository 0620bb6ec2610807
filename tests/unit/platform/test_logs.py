"""Logs go to standard error, one line an event, without the values of local variables."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import logging, sys
import structlog
from app.platform.logs import configure_logging
early = structlog.get_logger("early")
configure_logging(json=sys.argv[1] == "json", level="info")
early.info("made before", answer=42)
logging.getLogger("library").warning("of %s", "a library")
logging.getLogger("library").debug("too much")
def divide(password):
    return 1 / 0
try:
    divide("hunter2")
except ZeroDivisionError:
    early.exception("went wrong")
"""


def _run(form: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own argument list
        [sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, check=True
    )


def test_json_is_one_object_an_event() -> None:
    done = _run("json")
    assert done.stdout == ""
    events: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events] == ["made before", "of a library", "went wrong"]
    assert events[0]["answer"] == 42
    assert (events[1]["logger"], events[1]["level"]) == ("library", "warning")
    assert "ZeroDivisionError" in events[2]["exception"]
    assert all(event["timestamp"].endswith("Z") for event in events)


UNFORESEEN = """
import threading, warnings
from billiard.util import get_logger
from app.platform.logs import configure_logging
configure_logging(json=True, level="info")
get_logger().error("Process %r exited", "ForkPoolWorker-1")
warnings.warn("soon gone")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise LookupError("nowhere")
"""


def test_what_python_and_the_pool_of_processes_say_is_json_too() -> None:
    done = subprocess.run(  # noqa: S603 - our own argument list
        [sys.executable, "-c", UNFORESEEN], capture_output=True, text=True, check=False
    )
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert [event["event"] for event in events if event["logger"] != "py.warnings"] == [
        "Process 'ForkPoolWorker-1' exited",
        "unhandled error",
        "unhandled error",
    ]
    assert "soon gone" in next(e["event"] for e in events if e["logger"] == "py.warnings")
    assert "ZeroDivisionError" in events[-2]["exception"]
    assert "LookupError: nowhere" in events[-1]["exception"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_local_variables_are_not_logged(form: str) -> None:
    done = _run(form)
    assert done.stdout == ""
    assert "ZeroDivisionError" in done.stderr
    assert "password=" not in done.stderr
    assert "'hunter2'" not in done.stderr
