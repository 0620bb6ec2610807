"""Run a command whose times matter, and at the same time another one at lower priority.

``python -m scripts.run_with FIRST... --- SECOND...``. The first command is mostly idle but must not
wait for a processor; the second one gets the remaining processor time. The output of the first is
printed after that of the second; the exit status is that of the first of them that failed. Tests
that failed in either are repeated after both have ended (``scripts.run_tests``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import run_tests

BETWEEN = "---"

# The lowest priority of an unprivileged process, without an idle scheduling class.
NICENESS = 19


def main(arguments: list[str]) -> int:
    """Return the exit status of both commands: 0 if both, and the repeated tests, succeeded."""
    between = arguments.index(BETWEEN)
    with tempfile.TemporaryDirectory() as directory:
        later = Path(directory) / "failed"
        later.touch()
        environment = {**os.environ, run_tests.REPEATED_LATER: str(later)}
        status = at_once(arguments[:between], arguments[between + 1 :], environment)
        failed = sorted(set(later.read_text().splitlines()))
    if status or not failed:
        return status
    return run_tests.repeat(failed)


def at_once(first: list[str], second: list[str], environment: dict[str, str]) -> int:
    """Run both commands and return the exit status of the first of them that failed, or 0."""
    with tempfile.TemporaryFile() as words:
        preferred = subprocess.Popen(  # noqa: S603 - our own arguments
            first, stdin=subprocess.DEVNULL, stdout=words, stderr=words, env=environment
        )
        try:
            status = subprocess.run(  # noqa: S603 - our own arguments
                second, check=False, env=environment, preexec_fn=make_way
            ).returncode
            return preferred.wait() or status
        finally:
            # After an interrupt, no process must be left.
            if preferred.poll() is None:
                preferred.terminate()
                preferred.wait()
            words.seek(0)
            sys.stdout.write(words.read().decode(errors="replace"))
            sys.stdout.flush()


def make_way() -> None:
    """Let this process and its children run only when a processor is idle."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(NICENESS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
