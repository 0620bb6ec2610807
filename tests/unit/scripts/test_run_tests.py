from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.run_tests import REPEATED_AT_MOST

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

# A test that fails in its first run in this folder only.
LATE_ONCE = """
import pathlib

def test_late():
    seen = pathlib.Path("seen")
    there = seen.exists()
    seen.touch()
    assert there
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the variables of a run next to timed jobs, in which these tests may run themselves."""
    monkeypatch.delenv("TESTS_REPEATED_LATER", raising=False)


def run_tests(directory: Path, content: str) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_some.py").write_text(content)
    return subprocess.run(
        [sys.executable, "-m", "scripts.run_tests", "test_some.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        # Importing pytest's installed plugins takes longer than the tests.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
    )


def test_a_test_that_fails_among_others_only_is_repeated_and_named(tmp_path: Path) -> None:
    done = run_tests(tmp_path, LATE_ONCE + "\ndef test_other():\n    pass\n")

    assert done.returncode == 0, done.stdout
    assert "they failed among the others: test_some.py::test_late\n" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert done.stdout.splitlines()[-1].split(" in ")[0].strip("= ") == "1 passed"


def test_a_test_that_fails_twice_has_failed(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "def test_wrong():\n    assert False\n")

    assert done.returncode == 1
    assert done.stdout.count("1 failed") == 2


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    wrong = "\n".join(f"def test_{n}():\n    assert False\n" for n in range(REPEATED_AT_MOST + 1))

    done = run_tests(tmp_path, wrong)

    assert done.returncode == 1
    assert done.stdout.count(f"{REPEATED_AT_MOST + 1} failed") == 1
    assert "Repeated" not in done.stdout


def test_without_a_failure_nothing_is_repeated(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "def test_right():\n    pass\n")

    assert done.returncode == 0
    assert done.stdout.count("passed in") == 1
