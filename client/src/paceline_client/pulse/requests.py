"""Sessions that the server requests, and the budget that limits how many of them a job records."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from paceline_client.exchange import Document

_SHARE: Final = 0.02
_EVERY_S: Final = 3600.0
# Value of `by` in a request that a user made; other requests were made by an automatic detection.
_PERSON: Final = "person"
# Ranges of the fields of answers: the server requests at most 1,000 steps for a person, and 50 by
# default for a detection.
_MOST_STEPS: Final = 10_000
_LONGEST_INTERVAL_S: Final = 3600.0
_LONGEST_REASON: Final = 500


@dataclass(frozen=True)
class RecordBudget:
    """Limits on the sessions of a job that are recorded after automatic detections.

    `share` limits the steps of these sessions to a share of the job's steps so far. The latest
    session is not counted, so that a young job may record its first. `every_s` is the minimum time
    in seconds between the starts of two such sessions. Periodic sessions, sessions of
    `Monitor.record` and those that a person requests do not count, nor does one session of every
    rank for a cause that others cannot show.
    """

    share: float = _SHARE
    every_s: float = _EVERY_S

    def __post_init__(self) -> None:
        """Raise `ValueError` for a share outside 0 to 1 or negative seconds."""
        if not (0 <= self.share <= 1 and self.every_s >= 0):
            message = f"a share from 0 to 1 and seconds from 0 on, not {self!r}"
            raise ValueError(message)


class RecordRequest(NamedTuple):
    """A request of the server to record a session."""

    steps: int
    reason: str
    by_person: bool  # otherwise by an automatic detection
    # Whether every rank records, with tensor-, context- and expert-parallel collectives
    every_rank: bool = False


class BudgetUse:
    """The sessions that a job has recorded of its `RecordBudget`."""

    def __init__(self, budget: RecordBudget) -> None:
        self._budget = budget
        self._steps = 0
        self._last_s: float | None = None
        self._every_rank = False  # whether every rank has recorded a session

    def has_room(self, request: RecordRequest, job_steps: int, now_s: float) -> bool:
        """Return whether a session may be recorded, by the rule that the server applies too.

        `job_steps` is the number of the job's steps so far; `now_s` is monotonic.
        """
        budget = self._budget
        if request.by_person or (request.every_rank and not self._every_rank):
            return True
        too_early = self._last_s is not None and now_s - self._last_s < budget.every_s
        return not too_early and budget.share > 0 and self._steps <= budget.share * job_steps

    def count(self, request: RecordRequest, now_s: float) -> None:
        """Add a recorded session to the used budget, if it counts."""
        if request.every_rank:
            self._every_rank = True
        elif not request.by_person:
            self._steps += request.steps
            self._last_s = now_s


class PulseAnswer(NamedTuple):
    """The instructions in the server's answer to a pulse."""

    pulse_s: float  # time until the next body
    record: RecordRequest | None
    files: bool  # whether diagnostics of ranks without progress are requested

    @classmethod
    def read(cls, answer: Document) -> PulseAnswer:
        """Return the instructions; raises `DeliveryError` for an answer that has none."""
        request = None
        if answer.has("record"):
            record = answer.document("record")
            request = RecordRequest(
                record.integer("steps", 1, _MOST_STEPS),
                record.text("reason", _LONGEST_REASON) if record.has("reason") else "",
                record.has("by") and record.text("by", len(_PERSON) + 1) == _PERSON,
                record.has("every_rank") and record.flag("every_rank"),
            )
        # Older servers request no diagnostics.
        files = answer.has("files") and answer.flag("files")
        return cls(answer.number("pulse_s", 0.0, _LONGEST_INTERVAL_S), request, files)


@dataclass
class ServerAnswer:
    """The server's latest answer, kept for the ranks of the host."""

    stop: bool = False
    pulse_s: float | None = None
    record: RecordRequest | None = None  # for global rank 0
    files: bool = False  # whether diagnostics of ranks without progress are requested

    def document(self, rank: int, sender: int) -> dict[str, Any]:
        """Return the answer for `rank`; only rank 0 gets a session request, and only once.

        Parameters
        ----------
        sender : int
            The rank that sends for the host. The answer also has its process id, so that the other
            ranks can report the state of that process if it falls silent.
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
