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
    """Limit the memory that this process allocates in the block; more raises `MemoryError`.

    Work that needs more memory then ends with a `MemoryError` and does not endanger its process or
    host. The limit applies to the data segment (private writable memory that the process has
    allocated, used or not), in addition to its size when the block begins. Mapped files do not
    count. A lower limit that the process already has stays in force.
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
    # macOS has the limit but refuses to set it.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_kib() -> int:
    """Return the size of the data segment in KiB; 0 on systems other than Linux."""
    if not _STATUS.exists():
        return 0
    lines = _STATUS.read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(_DATA)), 0)


# New objects that start a garbage collection (Python: 700). A page of a thousand rows allocates
# tens of thousands of objects and frees them once it is sent, without the collector.
REQUEST_OBJECTS: Final = 10_000
# Interval at which a computing thread hands over the interpreter (Python: 0.005). A page waits for
# the interpreter after each of its thirty database answers, for a whole interval if the flush of a
# thousand senders computes meanwhile.
SWITCH_S: Final = 0.0005


@contextmanager
def loading() -> Iterator[None]:
    """Switch garbage collection off while modules load.

    Garbage collection takes a fifth of a server's start otherwise. Loaded modules stay for good:
    the collector skips their objects afterwards, and forked children share their memory.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def answering() -> None:
    """Freeze all present objects, so that garbage collection skips them.

    After it has shown each page once, a server holds 90,000 objects in addition to its modules;
    collecting them takes 50 ms, for which one request of a few would wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(REQUEST_OBJECTS)
    sys.setswitchinterval(SWITCH_S)


_PREFIX: Final = "paceline-child-"


class Scratch:
    """A new, locked temporary directory, which no other process deletes.

    Attributes
    ----------
    path : Path
    """

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = _locked(self.path)
            # None if another process, in `sweep`, locked the new directory first.
            if lock is not None:
                break
        self._lock = lock

    def remove(self) -> None:
        """Remove the directory and its contents; a second call does nothing."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock)


def sweep() -> None:
    """Remove the scratch directories of this account whose processes were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: Path) -> int | None:
    """Lock an unused directory of this account, and return the lock; None if it is in use."""
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


# Processes share numbers without locks: each process writes only its own slot, and the successor of
# a killed process overwrites that process's value.


MAX_PROCESSES: Final = 256

_NUMBER: Final = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Place:
    """The number of a process within its server, and the directory that the processes share.

    `number` counts from 0 and is less than `of`.
    """

    directory: Path
    number: int
    of: int


class Sum:
    """A shared number of each process of a server, and the sum of these numbers.

    Parameters
    ----------
    place : Place
    name : str
        Name of the file in the shared directory.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        path = place.directory / name
        with path.open("a+b") as file:
            # Another process may have extended the file already.
            if file.seek(0, 2) < MAX_PROCESSES * _NUMBER.size:
                file.truncate(MAX_PROCESSES * _NUMBER.size)
            self._numbers = mmap.mmap(file.fileno(), MAX_PROCESSES * _NUMBER.size)
        # Overwrites the value of the earlier process in this slot, which has ended.
        self.set(0)

    def set(self, number: int) -> None:
        """Write the number of this process."""
        _NUMBER.pack_into(self._numbers, self._place.number * _NUMBER.size, number)

    def of_others(self) -> int:
        """Return the sum of the numbers of all other processes."""
        numbers = _NUMBER.iter_unpack(self._numbers[: self._place.of * _NUMBER.size])
        return sum(value for at, (value,) in enumerate(numbers) if at != self._place.number)


def spool_directory(settings: Settings) -> Path:
    """Return the directory of spooled bodies and unpacked archives; create it if missing.

    It is in the data directory if there is one. A server with an external database stores no data
    and may run on a read-only file system; it uses the temporary directory, which TMPDIR sets.
    """
    if not settings.data_dir.is_dir():
        return Path(tempfile.gettempdir())
    directory = settings.data_dir / "spool"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory
