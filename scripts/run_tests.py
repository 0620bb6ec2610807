"""Run pytest, and repeat failed tests once, alone.

``python -m scripts.run_tests [PYTEST ARGUMENTS]``. Thousands of tests start servers, browsers and
processes on as few as two cores, where one of them is sometimes late. At most sixteen tests are
repeated, in one process, and printed; a test that fails again has failed. Random examples are the
same in every run, so a failure that depends on them is repeated.

If another command runs at the same time, ``scripts.run_with`` names a file in the environment: the
failed tests are written into it, and ``scripts.run_with`` repeats them after both have ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# With more failures than this, no test is repeated.
REPEATED_AT_MOST = 16

TESTS_FAILED = 1

# Environment variable that names the file of failed tests, one a line, for another process to
# repeat.
REPEATED_LATER = "TESTS_REPEATED_LATER"


def main(arguments: list[str]) -> int:
    """Return pytest's exit status: of the repetition if there was one, otherwise of the run."""
    with tempfile.TemporaryDirectory() as directory:
        # An empty cache, so that failures of an earlier run are not repeated.
        cache = ["--override-ini", f"cache_dir={directory}"]
        status = _pytest(*cache, *arguments)
        failed = _failed(Path(directory)) if status == TESTS_FAILED else []
    if not 0 < len(failed) <= REPEATED_AT_MOST:
        return status
    if later := os.environ.get(REPEATED_LATER):
        with Path(later).open("a") as file:
            file.writelines(f"{test}\n" for test in failed)
    elif status := repeat(failed):
        return status
    if not any(argument.startswith("--cov") for argument in arguments):
        return 0
    # The coverage of the first run, whose check the test failures have prevented.
    return subprocess.run([sys.executable, "-m", "coverage", "report"], check=False).returncode


def repeat(failed: list[str]) -> int:
    """Run these tests alone and return pytest's exit status."""
    print(
        f"Repeated alone, because they failed among the others: {', '.join(failed)}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as directory:
        return _pytest("--override-ini", f"cache_dir={directory}", "-rA", *failed)


def _pytest(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own arguments


def _failed(cache: Path) -> list[str]:
    recorded = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(recorded.read_text())) if recorded.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
