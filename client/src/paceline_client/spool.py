"""A folder for data that cannot be sent now: shares of sessions, and spilled operations.

A share, or a chunk of one, is a file with its address, one line of JSON, and its body. The sending
process holds a lock on the file, which ends with the process. The ranks of a host use the same
folder, so that one of them can send for all.
"""

from __future__ import annotations

import itertools
import json
import os
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

_SHARE: Final = ".share"
_PART: Final = ".part"
_HEADER_BYTES: Final = 1 << 16
_NUMBERS: Final = itertools.count()
# An unfinished file of at least this age in seconds belongs to a killed process.
_PART_LIVES_S: Final = 3600.0


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
    if directory:
        return Path(directory)
    user = os.getuid() if hasattr(os, "getuid") else "all"
    return Path(tempfile.gettempdir()) / f"paceline-spool-{user}"


class Spool:
    """The spool's folder, `default_directory` unless given; created if it does not exist.

    Beyond `max_bytes` of shares, the oldest ones are removed for a new one.
    """

    def __init__(self, directory: Path | None = None, max_bytes: int = 1 << 30) -> None:
        self.directory = directory or default_directory()
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
            with part.open("wb") as file:
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
            return sorted(self.directory.glob(f"*{_SHARE}"))
        except OSError:
            return []

    @contextmanager
    def claimed(self, path: Path) -> Iterator[tuple[Address, bytes] | None]:
        """Lock a share and yield it; yield None if another process has locked it."""
        try:
            file = path.open("rb")
        except OSError:
            yield None
            return
        with file:
            # Another process may have sent and removed the file before it was locked here.
            yield _read(file) if _lock(file) and path.exists() else None

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
        if hasattr(os, "getuid") and self.directory.stat().st_uid != os.getuid():
            # Any user can create this folder among the temporary files.
            message = f"{self.directory} belongs to another user"
            raise PermissionError(message)

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
        address = Address(**json.loads(file.readline(_HEADER_BYTES)))
        return address, file.read()
    except (OSError, ValueError, TypeError):
        return None
