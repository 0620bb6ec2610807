"""What a rank holds of its host's pulse until it is sent, and what the server told last."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from paceline_client.pulse.rows import Beat, Row

# Who asks for a session, where that is no notice.
PERSON: Final = "person"


class Asked(NamedTuple):
    """A session that the server asks for."""

    steps: int
    reason: str
    by_person: bool  # a notice, else

    @classmethod
    def read(cls, answer: object) -> Asked | None:
        """Return what an answer's `record` asks for; None: nothing."""
        if not isinstance(answer, dict):
            return None
        steps = answer.get("steps")
        if not isinstance(steps, int) or steps < 1:
            return None
        return cls(steps, str(answer.get("reason", "")), answer.get("by") == PERSON)


@dataclass
class Held:
    """What was measured, and when it came, by the monotonic clock."""

    at_s: float
    rows: list[Row]
    beats: list[Beat]
    files: dict[str, str] = field(default_factory=dict)
    # what GPUs say of themselves, each with the rank that computes on it
    readings: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Told:
    """What the server answered last, for the host's ranks."""

    stop: bool = False
    pulse_s: float | None = None
    record: Asked | None = None  # for global rank 0
    files: bool = False

    def document(self, rank: int, sender: int) -> dict[str, Any]:
        """Return the answer to a rank that handed its pulse in; a request is told once.

        Parameters
        ----------
        sender : int
            The rank that sends for the host: should it fall silent, the others know its process.
        """
        record = None
        if rank == 0:
            record, self.record = self.record, None
        return {
            "stop": self.stop,
            "pulse_s": self.pulse_s,
            "record": record,
            "files": self.files,
            "sender": sender,
            "pid": os.getpid(),
        }


@dataclass
class Counts:
    """Rows of a rank, and of those that others handed to it, by their fate."""

    rows: int = 0  # measured by this rank
    sent: int = 0
    handed_in: int = 0
    dropped: int = 0
    bytes: int = 0  # of the bodies sent


def files_of(held: list[Held]) -> dict[str, str]:
    """Return the texts that are held, by the names of their files."""
    return {name: text for one in held for name, text in one.files.items()}


def without(held: list[Held], sent: int, beats: list[Beat]) -> list[Held]:
    """Return what is held without the first rows that were sent, and with the last beats only."""
    kept = []
    # They went with the first body.
    has_files = not sent
    for one in held:
        files = one.files if has_files else {}
        readings = one.readings if has_files else []
        left = one.rows[sent:]
        sent = max(0, sent - len(one.rows))
        mine = [beat for beat in one.beats if beat in beats]
        if left or mine or files or readings:
            kept.append(Held(one.at_s, left, mine, files, readings))
    return kept
