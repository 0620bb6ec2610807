"""Which process of a host sends for all of them: whoever holds a lock that ends with it.

The lock is one of the process, not of an open file: workers that a rank forks, as loaders do, hold
neither it nor the socket, and it is free as soon as the rank is gone, however it ends.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, which is not supported
    fcntl = None  # type: ignore[assignment]

_LOCKS: Final = hasattr(socket, "AF_UNIX") and hasattr(os, "fork")
_log = logging.getLogger("paceline_client")

# Of the address of a Unix socket, with its end.
_LONGEST_PATH: Final = 104
_READ_BYTES: Final = 1 << 16
# Of a rank's rows of half a minute.
MOST_MESSAGE_BYTES: Final = 8 << 20


class Seat:
    """The place of the process that sends for a host; `name` is the same in all of a job."""

    def __init__(self, name: str, directory: Path | None = None) -> None:
        self._directory = directory or _default_directory()
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._socket_path = self._directory / f"{key}.sock"
        self._lock_path = self._directory / f"{key}.lock"
        self._lock: int | None = None
        self._listener: socket.socket | None = None
        self._pid = os.getpid()

    @property
    def usable(self) -> bool:
        """Whether ranks can reach one another here; if not, each sends for itself."""
        fits = len(os.fsencode(self._socket_path)) <= _LONGEST_PATH
        return _LOCKS and fits and self._is_private()

    def take(self) -> socket.socket | None:
        """Return where others hand theirs in if the place was free; None if another has it."""
        if not self.usable:
            return None
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        try:
            # Of a process that was killed.
            self._socket_path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(os.fspath(self._socket_path))
                listener.listen(128)
            except OSError:
                listener.close()
                raise
        except OSError:
            os.close(lock)
            raise
        self._lock, self._listener = lock, listener
        return listener

    def hand_in(self, message: bytes, timeout_s: float) -> bytes | None:
        """Give a message to who has the place, and return the answer; None without one."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                one.settimeout(timeout_s)
                one.connect(os.fspath(self._socket_path))
                one.sendall(message)
                one.shutdown(socket.SHUT_WR)
                return read_all(one) or None
        except OSError as error:
            _log.debug("no other rank takes the pulse: %s", error)
            return None

    def leave(self) -> None:
        """Give the place back."""
        listener, self._listener = self._listener, None
        lock, self._lock = self._lock, None
        if listener is not None:
            listener.close()
        if lock is not None:
            if os.getpid() == self._pid:
                with suppress(OSError):
                    self._socket_path.unlink()
                with suppress(OSError):
                    self._lock_path.unlink()
                    self._directory.rmdir()
            os.close(lock)

    def _is_private(self) -> bool:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = self._directory.lstat()
        except OSError as error:
            _log.debug("no folder for the pulse: %s", error)
            return False
        return stat.S_ISDIR(known.st_mode) and (
            known.st_uid == os.getuid() and not known.st_mode & 0o077
        )


def read_all(one: socket.socket) -> bytes:
    """Return what the other side sends until its end; nothing if that is too much."""
    parts: list[bytes] = []
    size = 0
    while part := one.recv(_READ_BYTES):
        parts.append(part)
        size += len(part)
        if size > MOST_MESSAGE_BYTES:
            return b""
    return b"".join(parts)


def _default_directory() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "all"
    return Path(tempfile.gettempdir()) / f"paceline-pulse-{user}"
