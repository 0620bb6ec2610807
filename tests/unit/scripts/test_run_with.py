"""Two commands at once: whose times matter, and what makes way for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "run_with.py"
SPEAKS = "import os; print('policy', os.sched_getscheduler(0))"


def run_with(first: str, second: str) -> subprocess.CompletedProcess[str]:
    python = sys.executable
    return subprocess.run(  # noqa: S603 - our own arguments
        [python, str(SCRIPT), python, "-c", first, "---", python, "-c", second],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="of Linux")
def test_the_second_makes_way_and_the_first_speaks_last() -> None:
    done = run_with(SPEAKS, SPEAKS)
    second, first = (int(line.split()[1]) for line in done.stdout.splitlines())
    assert first == os.sched_getscheduler(0)
    assert second == os.SCHED_IDLE
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("first", "second"), [("", "raise SystemExit(3)"), ("raise SystemExit(3)", "")]
)
def test_either_one_fails_the_run(first: str, second: str) -> None:
    assert run_with(first, second).returncode == 3
