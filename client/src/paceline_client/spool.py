"""A folder for data that cannot be sent now: shares of sessions, and spilled operations.

A share, or a chunk of one, is a file with its address, one line of JSON, and its body. The sending
process holds a lock on the file, which ends with the process. The ranks of a host use the same
folder, so that one of them can send for all.

Shares are sent with this user's token, so that other users must not be able to add or change one: a
folder that another user owns or can write to is not used, nor a file of another user or a link.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, which is not supported
    fcntl = None  # type: ignore[assignment]

from paceline_client.exchange import parse_json

_log = logging.getLogger("paceline_client")

_SHARE: Final = ".share"
_PART: Final = ".part"
_HEADER_BYTES: Final = 1 << 16
_NUMBERS: Final = itertools.count()
# An unfinished file of at least this age in seconds belongs to a killed process.
_PART_LIVES_S: Final = 3600.0
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
# A link is refused, and a pipe does not block; neither flag exists on Windows.
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True)
class Address:
    """The destination of a share, or of a chunk of a share."""

    server: str
    job: str
    session: int
    producer: str
    # None if the server counts the attempts of `run_id` and `restart`
    attempt: int | None = None
    run_id: str = ""
    restart: int = 0
    # Absent in files of versions that did not send chunks
    number: int = 0
    final: bool = True


def default_directory() -> Path:
    """Return ``PACELINE_SPOOL``, or this user's folder among the temporary files."""
    directory = os.environ.get("PACELINE_SPOOL")
    return Path(directory) if directory else Path(tempfile.gettempdir()) / _own_name()


def _own_name() -> str:
    return f"paceline-spool-{os.getuid() if hasattr(os, 'getuid') else 'all'}"


def _usable(directory: Path) -> Path:
    """Return the folder, or the first usable one instead of it if other users control it.

    All processes of a user on a host return the same folder.
    """
    fault = _fault_of(directory)
    if fault is None:
        return directory
    own = _own_name()
    instead = [Path(tempfile.gettempdir()) / own, _home() / ".cache" / own]
    with suppress(OSError):
        # Such as a volume of Kubernetes, which every user can write to.
        status = directory.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid in {0, os.getuid()}:
            instead.insert(0, directory / own)
    for candidate in instead:
        with suppress(OSError):
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _fault_of(candidate) is None:
                _log.warning("the spool is %s and not %s: %s", candidate, directory, fault)
                return candidate
    _log.warning("there is no spool, %s is not used: %s", directory, fault)
    return directory


def _home() -> Path:
    # Unlike `Path.home`, it does not raise for a user without a home.
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - see above


def _fault_of(directory: Path) -> str | None:
    """Return why other users control a folder; None if they do not, or it does not exist."""
    try:
        status = directory.lstat()
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    return _fault(status, _WRITABLE_BY_OTHERS)


def _fault(status: os.stat_result, forbidden: int) -> str | None:
    """Return why other users control a file or folder, by owner and mode; None if not."""
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        return f"it belongs to another user ({status.st_uid})"
    if os.name == "posix" and status.st_mode & forbidden:
        return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return None


class Spool:
    """The spool's folder, `default_directory` unless given; created if it does not exist.

    Instead of a folder that other users control, one of this user is used, with a warning. Beyond
    `max_bytes` of shares, the oldest ones are removed for a new one.
    """

    def __init__(self, directory: Path | None = None, max_bytes: int = 1 << 30) -> None:
        self.directory = _usable(directory or default_directory())
        self._max_bytes = max_bytes

    def put(self, address: Address, body: bytes) -> Path:
        """Store a share durably and return its file; raises `OSError`, such as on a full disk."""
        self._make()
        self._make_room(len(body))
        name = f"{time.time_ns():020d}-{os.getpid()}-{next(_NUMBERS)}"
        path = self.directory / f"{name}{_SHARE}"
        part = self.directory / f"{name}{_PART}"
        header = json.dumps(asdict(address)).encode() + b"\n"
        try:
            part_fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(part_fd, "wb") as file:
                file.write(header)
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise
        return path

    def waiting(self) -> list[Path]:
        """Return the files of all shares, sorted from oldest to newest."""
        try:
            return [] if _fault_of(self.directory) else sorted(self.directory.glob(f"*{_SHARE}"))
        except OSError:
            return []

    @contextmanager
    def claimed(self, path: Path) -> Iterator[tuple[Address, bytes] | None]:
        """Lock a share and yield it; yield None if another process has locked it."""
        try:
            file = os.fdopen(os.open(path, _OPEN_FLAGS), "rb")
        except OSError:
            yield None
            return
        with file:
            # Another process may have sent and removed the file before it was locked here.
            is_ours = self._is_ours(file) and _lock(file) and path.exists()
            yield _read(file) if is_ours else None

    def remove(self, path: Path) -> None:
        """Remove a share that was delivered or refused."""
        with suppress(OSError):
            path.unlink()

    def overflow(self) -> IO[bytes]:
        """Return an unnamed file for spilled operations; the system deletes it with the process."""
        self._make()
        return tempfile.TemporaryFile(dir=self.directory)

    def _make(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Another user may have created it since this spool was.
        fault = _fault_of(self.directory)
        if fault is not None:
            message = f"the spool {self.directory} is not used: {fault}"
            raise PermissionError(message)

    def _is_ours(self, file: IO[bytes]) -> bool:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return False
        # In a folder that others cannot enter, they cannot change a file, whatever its mode; files
        # of earlier versions have the mode of the process.
        is_private = not self.directory.stat().st_mode & _OPEN_TO_OTHERS
        return _fault(status, 0 if is_private else _WRITABLE_BY_OTHERS) is None

    def _make_room(self, more: int) -> None:
        sizes: dict[Path, int] = {}
        for path in self.waiting():
            with suppress(OSError):
                sizes[path] = path.stat().st_size
        for path in self.directory.glob(f"*{_PART}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _PART_LIVES_S:
                    path.unlink()
        for path in list(sizes):
            if sum(sizes.values()) + more <= self._max_bytes:
                break
            del sizes[path]
            self.remove(path)


def _lock(file: IO[bytes]) -> bool:
    if fcntl is None:  # pragma: no cover
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _read(file: IO[bytes]) -> tuple[Address, bytes] | None:
    try:
        header = parse_json(file.readline(_HEADER_BYTES))
        if not isinstance(header, dict):
            return None
        address = Address(**header)
        return address, file.read()
    except (OSError, ValueError, TypeError):
        return None
