"""The ranks of a host: choice of the rank that sends the pulse, and state of hanging ranks."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_log = logging.getLogger("paceline_client")

_READ_BYTES: Final = 1 << 16
# Size limit of a message, above a rank's rows of half a minute.
_MOST_MESSAGE_BYTES: Final = 8 << 20
# Layout of Linux's peer credentials (SO_PEERCRED): process, user and group.
_PEER: Final = struct.Struct("3i")
# Diagnostics are repeated after this number of beats, because they change little without progress.
_BEATS_BETWEEN_REPORTS: Final = 12
# A rank counts as silent after this number of beats without a message.
_SILENT_BEATS: Final = 4
_PROC: Final = Path("/proc")
# Position of the start time among the fields of `/proc/…/stat` after the name.
_START_TIME: Final = 19

# A function that returns the diagnostics of a rank as texts by file name.
Report = Callable[[], dict[str, str]]


class HostSocket:
    """A socket through which the ranks of a host pass their pulse to the rank that sends it.

    The process that has bound the socket's name sends for the host. The name is in Linux's abstract
    namespace: it is no file, one process at a time can bind it, and it is free again as soon as
    that process has ended in any way. Connections of other users are refused. `name` is the same in
    all processes of a job on the host.
    """

    # On systems other than Linux, which have no such sockets, each rank sends its own pulse.
    supported: Final = sys.platform == "linux"

    def __init__(self, name: str) -> None:
        self._address = f"\0paceline-pulse-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        self._listener: socket.socket | None = None

    def bind(self) -> socket.socket | None:
        """Return the listening socket; None if another process has bound the name."""
        if not self.supported:
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

    def request(self, message: bytes, timeout_s: float) -> bytes | None:
        """Send a message to the process that bound the name; return its answer, or None."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout_s)
                connection.connect(self._address)
                if not is_same_user(connection):
                    return None
                connection.sendall(message)
                connection.shutdown(socket.SHUT_WR)
                return read_all(connection) or None
        except OSError as error:
            _log.debug("no other rank takes the pulse: %s", error)
            return None

    def close(self) -> None:
        """Release the name, or, in a forked child, the copy of the parent's socket."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the peer of a connection is a process of this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(credentials)[1] == os.getuid())


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes up to the peer's end of the stream; empty if they exceed the limit."""
    parts: list[bytes] = []
    size = 0
    while part := connection.recv(_READ_BYTES):
        parts.append(part)
        size += len(part)
        if size > _MOST_MESSAGE_BYTES:
            return b""
    return b"".join(parts)


@dataclass
class _Process:
    """Another rank's process; a later process with the same number has another start time."""

    pid: int
    start_time: str
    seen_s: float
    # Last report about the process, and its time
    report: str = ""
    reported_s: float = 0.0


class HangDiagnostics:
    """Diagnostics of a host's ranks while no step of their job ends.

    They are collected only while the server requests them, once a minute for each rank. A rank
    whose threads cannot get the interpreter's lock is silent; the rank that sends for the host then
    reports the state of its process.

    Parameters
    ----------
    report : callable or None
        Returns the diagnostics of this rank; None if the job has disabled them.
    """

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._reported_s: float | None = None
        self._others: dict[int, _Process] = {}

    def own(self, now_s: float, beat_s: float) -> dict[str, str]:
        """Return the diagnostics of this rank; empty if the last diagnostics are recent."""
        if self._report is None:
            return {}
        between_s = _BEATS_BETWEEN_REPORTS * beat_s
        if self._reported_s is not None and now_s - self._reported_s < between_s:
            return {}
        self._reported_s = now_s
        return self._report()

    def seen(self, rank: int, pid: int, now_s: float) -> None:
        """Record a message of another rank; a process in another container is ignored."""
        stat = _stat(pid)
        if stat is not None:
            self._others[rank] = _Process(pid, stat[1], now_s)

    def silent(self, now_s: float, beat_s: float) -> dict[str, str]:
        """Return the states of the processes of silent ranks, by file name.

        An unchanged state is repeated at the same interval as the diagnostics of this rank.
        """
        if self._report is None:
            return {}
        files = {}
        for rank, process in self._others.items():
            if now_s - process.seen_s <= _SILENT_BEATS * beat_s:
                continue
            stat = _stat(process.pid)
            state = stat[0] if stat is not None and stat[1] == process.start_time else ""
            channel = _wait_channel(process.pid) if state else ""
            document = {"pid": process.pid, "state": state, "wait_channel": channel}
            text = json.dumps({"process": document}, separators=(",", ":"))
            age_s = now_s - process.reported_s
            if text == process.report and age_s < _BEATS_BETWEEN_REPORTS * beat_s:
                continue
            process.report, process.reported_s = text, now_s
            files[f"process_{rank}.json"] = text
        return files


def _stat(pid: int) -> tuple[str, str] | None:
    """Return the state and the start time of a process; None if it does not exist."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The process's name, in parentheses, may contain any character.
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[_START_TIME]) if len(fields) > _START_TIME else None


def _wait_channel(pid: int) -> str:
    """Return the kernel function in which a process waits; empty if unknown."""
    try:
        text = (_PROC / str(pid) / "wchan").read_text(errors="replace")
    except OSError:
        return ""
    return "" if text == "0" else text[:64]
