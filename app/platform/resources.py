"""Memory limits, garbage collection, temporary and shared directories of processes."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import mmap
import os
import resource
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.platform.settings import Settings

KIB: Final = 1024
_STATUS: Final = Path("/proc/self/status")
_DATA: Final = "VmData:"


@contextlib.contextmanager
def limited_memory(limit_kib: int) -> Iterator[None]:
    """Let allocations of this process fail above a limit while the block runs.

    So work that needs more ends with a `MemoryError`, and takes neither its process nor its host
    along. The limit is of the data segment, what the process allocated for itself and may write to,
    touched or not; it comes on top of what there is when the block begins. Files that are mapped do
    not count. A process that is limited to less already keeps that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = (_data_kib() + limit_kib) * KIB
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    _set(wanted, hard)
    try:
        yield
    finally:
        _set(soft, hard)


def _set(soft: int, hard: int) -> None:
    # macOS knows the limit and refuses it.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_kib() -> int:
    """Return the size of the data segment; 0 if the system does not say it (not Linux)."""
    if not _STATUS.exists():
        return 0
    lines = _STATUS.read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(_DATA)), 0)


# New objects before the collector looks at them (Python: 700). A page of a thousand rows holds tens
# of thousands until it is sent, and then they go without the collector.
REQUEST_OBJECTS: Final = 10_000
# How long a thread computes while another one waits for the interpreter (Python: 0.005). A page
# waits for it after each of its thirty answers of the database: for all of that while a flush of a
# thousand senders computes.
SWITCH_S: Final = 0.0005


@contextmanager
def loading() -> Iterator[None]:
    """Switch garbage collection off while modules load.

    That is a fifth of the time in which a server starts. What is loaded stays for good: the
    collector looks at none of it again, and children that are forked share its memory.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def answering() -> None:
    """Freeze all present objects, so that garbage collection skips them.

    A server that has shown each page once holds 90,000 objects in addition to its modules; going
    through them takes 50 ms, which one request of a few would wait for.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(REQUEST_OBJECTS)
    sys.setswitchinterval(SWITCH_S)


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
            # None if another process took it for left over before it was locked.
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
    """Lock an unused directory of this account; return its lock, or None."""
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


# Nothing is locked: each writes its own place alone, and what a killed one left is overwritten by
# the one that takes its place.


MAX_PROCESSES: Final = 256

_NUMBER: Final = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Place:
    """The number of a process within its server, and their shared directory.

    `number` counts from 0, below `of`.
    """

    directory: Path
    number: int
    of: int


class Sum:
    """A number that each process of a server writes, and their sum.

    Parameters
    ----------
    place : Place
    name : str
        Of the file in the directory.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        path = place.directory / name
        with path.open("a+b") as file:
            # Longer already where another process was faster.
            if file.seek(0, 2) < MAX_PROCESSES * _NUMBER.size:
                file.truncate(MAX_PROCESSES * _NUMBER.size)
            self._numbers = mmap.mmap(file.fileno(), MAX_PROCESSES * _NUMBER.size)
        # Of the process before this one, which is gone.
        self.set(0)

    def set(self, number: int) -> None:
        """Write this process's number."""
        _NUMBER.pack_into(self._numbers, self._place.number * _NUMBER.size, number)

    def of_others(self) -> int:
        """Return the sum of the other processes' numbers."""
        numbers = _NUMBER.iter_unpack(self._numbers[: self._place.of * _NUMBER.size])
        return sum(value for at, (value,) in enumerate(numbers) if at != self._place.number)


def spool_directory(settings: Settings) -> Path:
    """Return the directory of spooled bodies and unpacked archives; create it if missing.

    In the data directory if there is one. A server with a database of its own keeps no data
    and may run on a read-only file system: there it is the temporary directory, which TMPDIR moves.
    """
    if not settings.data_dir.is_dir():
        return Path(tempfile.gettempdir())
    directory = settings.data_dir / "spool"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory
