"""What the ranks of a host say of themselves while no step of their job ends.

Only while the server asks, and once a minute each. Of a rank that says nothing, as one does whose
threads cannot get the interpreter's lock, the process that sends for the host tells how its process
is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Of beats: what a rank is in changes little while it stands still.
_BEATS_A_SAYING: Final = 12
# A rank that has not handed its pulse in for that many beats says nothing.
_SILENT_BEATS: Final = 4
_PROC: Final = Path("/proc")
# Of the fields after a process's name.
_BEGAN: Final = 19

# Returns texts by the names of their files.
Say = Callable[[], dict[str, str]]


@dataclass
class _Process:
    """A process by its number and when it began, by which another one of that number differs."""

    pid: int
    began: str
    heard_s: float
    # what was said of it last, and when
    said: str = ""
    said_s: float = 0.0


class Standing:
    """What this rank says, and what it knows of the others of its host.

    Parameters
    ----------
    say : callable or None
        Returns what this rank says; None where its job keeps that to itself.
    """

    def __init__(self, say: Say | None) -> None:
        self._say = say
        self._said_s: float | None = None
        self._others: dict[int, _Process] = {}

    def own(self, now_s: float, beat_s: float) -> dict[str, str]:
        """Return what this rank says if it is asked at a time; nothing soon after the last time."""
        if self._say is None:
            return {}
        if self._said_s is not None and now_s - self._said_s < _BEATS_A_SAYING * beat_s:
            return {}
        self._said_s = now_s
        return self._say()

    def heard(self, rank: int, pid: int, now_s: float) -> None:
        """Take note of another rank; of one in a container of its own nothing is known."""
        found = _stat(pid)
        if found is not None:
            self._others[rank] = _Process(pid, found[1], now_s)

    def silent(self, now_s: float, beat_s: float) -> dict[str, str]:
        """Return how the processes are of ranks that have said nothing for some beats.

        What stays as it is is said again only when the ranks that speak say anew what they are in.
        """
        if self._say is None:
            return {}
        told = {}
        for rank, process in self._others.items():
            if now_s - process.heard_s > _SILENT_BEATS * beat_s:
                found = _stat(process.pid)
                state = found[0] if found is not None and found[1] == process.began else ""
                channel = _wait_channel(process.pid) if state else ""
                about = {"pid": process.pid, "state": state, "wait_channel": channel}
                text = json.dumps({"process": about}, separators=(",", ":"))
                if text == process.said and now_s - process.said_s < _BEATS_A_SAYING * beat_s:
                    continue
                process.said, process.said_s = text, now_s
                told[f"process_{rank}.json"] = text
        return told


def _stat(pid: int) -> tuple[str, str] | None:
    """Return the state of a process and when it began; None where there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # Its name, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[_BEGAN]) if len(fields) > _BEGAN else None


def _wait_channel(pid: int) -> str:
    try:
        text = (_PROC / str(pid) / "wchan").read_text(errors="replace")
    except OSError:
        return ""
    return "" if text == "0" else text[:64]
