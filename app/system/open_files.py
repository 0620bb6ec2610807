"""How many files a process may have open."""

from __future__ import annotations

import contextlib
import resource


def allow_open_files() -> None:
    """Allow as many open files as the system lets this process and its children have.

    Every producer holds a connection, and every file of an archive that is read is open: a job of
    a thousand ranks needs more than the 1,024 that most systems begin with.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says "infinity" and refuses it.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
