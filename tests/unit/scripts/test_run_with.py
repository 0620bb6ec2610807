"""Two commands at the same time: a timed one, and one with lower priority."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN_WITH = [sys.executable, "-m", "scripts.run_with"]
RUN_TESTS = [sys.executable, "-m", "scripts.run_tests", "test_some.py"]
SPEAKS = "import os; print('policy', os.sched_getscheduler(0))"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the variables of a run next to timed jobs, in which these tests may run themselves."""
    monkeypatch.delenv("TESTS_REPEATED_LATER", raising=False)


def run_with(first: str, second: str) -> subprocess.CompletedProcess[str]:
    python = sys.executable
    return subprocess.run(  # noqa: S603 - our own arguments
        [*RUN_WITH, python, "-c", first, "---", python, "-c", second],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="of Linux")
def test_the_second_yields_and_the_first_prints_last() -> None:
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


FAILS_NEXT_TO_ANOTHER = """
import os

def test_late():
    assert "TESTS_REPEATED_LATER" not in os.environ
"""


def run_both(directory: Path, content: str, *second: str) -> subprocess.CompletedProcess[str]:
    """Run tests with this content, and the second command at the same time."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_some.py").write_text(content)
    return subprocess.run(  # noqa: S603 - our own arguments
        [*RUN_WITH, *RUN_TESTS, "---", *second],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_failures_of_either_are_repeated_once_both_have_ended(tmp_path: Path) -> None:
    done = run_both(tmp_path, FAILS_NEXT_TO_ANOTHER, *RUN_TESTS)

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("1 failed") == 2
    assert done.stdout.count("Repeated alone") == 1
    assert done.stdout.splitlines()[-1].split(" in ")[0].strip("= ") == "1 passed"


@pytest.mark.slow
def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    done = run_both(tmp_path, "def test_wrong():\n    assert False\n", sys.executable, "-c", "")

    assert done.returncode == 1
    assert done.stdout.count("1 failed") == 2
