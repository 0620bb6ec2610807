"""Which process of a host sends for all of them: whoever has bound a name of the host's sockets.

The name is one of Linux's abstract ones: it is no file, belongs to one process at a time, and is
free as soon as that is gone, however it ended. Processes of other users are not talked to.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import struct
import sys
from typing import Final

_log = logging.getLogger("paceline_client")

_READ_BYTES: Final = 1 << 16
# Of a rank's rows of half a minute.
MOST_MESSAGE_BYTES: Final = 8 << 20
# Process, user and group of the other side.
_PEER: Final = struct.Struct("3i")


class Seat:
    """The place of the process that sends for a host; `name` is the same in all of a job."""

    # Where there are no such names, each rank sends for itself.
    usable: Final = sys.platform == "linux"

    def __init__(self, name: str) -> None:
        self._address = f"\0paceline-pulse-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        self._listener: socket.socket | None = None

    def take(self) -> socket.socket | None:
        """Return where others hand theirs in if the place was free; None if another has it."""
        if not self.usable:
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._address)
            listener.listen(128)
        except OSError as error:
            _log.debug("another rank sends for this host: %s", error)
            listener.close()
            return None
        self._listener = listener
        return listener

    def hand_in(self, message: bytes, timeout_s: float) -> bytes | None:
        """Give a message to who has the place, and return the answer; None without one."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                one.settimeout(timeout_s)
                one.connect(self._address)
                if not is_ours(one):
                    return None
                one.sendall(message)
                one.shutdown(socket.SHUT_WR)
                return read_all(one) or None
        except OSError as error:
            _log.debug("no other rank takes the pulse: %s", error)
            return None

    def leave(self) -> None:
        """Give the place back, or, in a forked child, let go of the parent's."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def is_ours(one: socket.socket) -> bool:
    """Return whether the other side is a process of this user."""
    said = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(said)[1] == os.getuid())


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
