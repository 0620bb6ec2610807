"""Run a command whose times matter, and at the same time one of lower priority.

``python scripts/run_with.py FIRST... --- SECOND...``. The first one waits most of the time, but
must not wait for a processor: the second one gets what is left of them. What the first one says is
printed after the second one's words; the status is that of the first of them that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

BETWEEN = "---"

# The lowest priority of an unprivileged process, without an idle scheduling class.
NICENESS = 19


def main(arguments: list[str]) -> int:
    """Return the exit status of both: 0 where both succeeded."""
    between = arguments.index(BETWEEN)
    with tempfile.TemporaryFile() as words:
        first = subprocess.Popen(  # noqa: S603 - our own arguments
            arguments[:between], stdin=subprocess.DEVNULL, stdout=words, stderr=words
        )
        try:
            make_way()
            second = subprocess.run(arguments[between + 1 :], check=False)  # noqa: S603 - our own
            status = first.wait()
        finally:
            # Interrupted: no process is left.
            if first.poll() is None:
                first.terminate()
                first.wait()
            words.seek(0)
            sys.stdout.write(words.read().decode(errors="replace"))
            sys.stdout.flush()
    return status or second.returncode


def make_way() -> None:
    """Run this process and its children only when a processor is idle."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(NICENESS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
