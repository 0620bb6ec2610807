"""Temporary directories of child processes, which are gone when the child is, however it ended.

Libraries make directories of their own where TMPDIR says, and remove them at exit: a killed process
never gets there. So whoever starts a child gives it a directory and removes that when it has
reaped the child; what a killed starter leaves, the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "paceline-child-"


class Scratch:
    """A new, locked directory below the temporary one: no other process deletes it.

    Attributes
    ----------
    path : Path
    """

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = _locked(self.path)
            # None where another process took it for left over before it was locked.
            if lock is not None:
                break
        self._lock = lock

    def remove(self) -> None:
        """Remove the directory with all that is in it; a second call does nothing."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock)


def sweep() -> None:
    """Remove the directories of this account whose makers were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: Path) -> int | None:
    """Return the lock of a directory of this account that is there and not in use, or None."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.geteuid() and path.stat().st_ino == os.fstat(lock).st_ino:
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
