"""Logs of PyTorch's watchdog: the numbers of the operations that each rank enqueued and completed.

When a collective times out, the watchdog of each rank logs the numbers that a dump of the flight
recorder has in its status (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp). The cost of reading
is proportional to the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.analysis.hangs.state import NO_TENSORS, Reached, Tensors
from app.errors import InvalidTraceError
from app.hangs.flight_recorder import (
    DEFAULT_GROUP,
    RecordedDump,
    RecordedGroup,
    RecordedOperation,
)
from app.hangs.pasted import lines_of

MOST_RANKS: Final = 1 << 17
_ANY: Final = re.compile(rb"[Ll]ast enqueued (?:NCCL )?work: |WorkNCCL\(SeqNum=")
_GLOBAL: Final = re.compile(r"\[rank(\d{1,6})\]")
_IN_GROUP: Final = re.compile(
    r"\[PG (?:ID \d{1,9} PG GUID )?([^\s(\]]{1,128}) ?(?:\(([^)]{0,256})\))? ?Rank (\d{1,6})\]"
)
_STATUS: Final = re.compile(
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})"
)
_TIME: Final = re.compile(r"\[[A-Z](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.")
# Lines of one attempt to run the job in which a rank completes more are closer together.
_SAME_ATTEMPT_S: Final = 60
_FAILED: Final = re.compile(r"(?:work sequence id|at work|at NCCL work): (\d{1,18})")
_WORK: Final = re.compile(
    r"Rank (\d{1,6})\] .{0,80}?WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,64})"
    r"(?:, NumelIn=(\d{1,18}), NumelOut=(\d{1,18}))?"
)
_MAIN_GROUP: Final = "0"  # the name that PyTorch gives the default group
# Operations of which the log has neither the other rank nor a number of their own.
_TRANSFERS: Final = ("nccl:send", "nccl:recv", "nccl:coalesced")
# Names of the flight recorder that are not those of the log in lower case.
_NAMES: Final = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "ALLTOALL": "all_to_all",
    "_ALLGATHER_BASE": "_all_gather_base",
}

# Part of all lines that are read ("work: ", "WorkNCCL"): other lines need no search for patterns.
_HINT: Final = "ork"


@dataclass(frozen=True, slots=True)
class _Status:
    """What a line of the log says about a rank in a group.

    Parameters
    ----------
    attempt : int
        Number of earlier attempts to run the job in the log.
    written_s : int
        Time of the line, in seconds from the beginning of the year; -1 if unknown.
    """

    description: str
    enqueued: int
    completed: int
    attempt: int = 0
    written_s: int = -1


def is_watchdog_log(body: bytes) -> bool:
    """Return whether a log has lines in which PyTorch's watchdog numbers operations."""
    return _ANY.search(body) is not None


def dumps_in_log(body: bytes) -> Mapping[int, RecordedDump]:
    """Return, by rank, what the lines of the watchdog say: a dump with numbers only.

    Raises
    ------
    InvalidTraceError
        ``hang.invalid_dump``: no line of the watchdog names its rank.
    """
    log = _Log()
    for line in lines_of(body):
        if _HINT in line:
            log.take(line)
    return log.dumps()


def _written_s(line: str) -> int:
    """Return the time of a line in seconds from the beginning of the year; -1 if unknown."""
    time = _TIME.search(line)
    if time is None:
        return -1
    month, day, hours, minutes, seconds = map(int, time.groups())
    return (((month * 31 + day) * 24 + hours) * 60 + minutes) * 60 + seconds


class _Log:
    """The watchdogs' lines of a log, read one by one."""

    def __init__(self) -> None:
        # by rank and name of a group
        self._statuses: dict[tuple[int, str], _Status] = {}
        self._failed: dict[tuple[int, str], int] = {}
        self._attempt = 0
        # by rank and number
        self._works: dict[tuple[int, int], tuple[str, Tensors]] = {}

    def take(self, line: str) -> None:
        """Read the next line."""
        own = _GLOBAL.search(line)
        if work := _WORK.search(line):
            rank, number = int(own[1] if own else work[1]), int(work[2])
            tensors = Tensors(((int(work[4]),),), ((int(work[5]),),)) if work[4] else NO_TENSORS
            name = f"nccl:{_NAMES.get(work[3], work[3].lower())}"
            if rank < MOST_RANKS:
                self._works.setdefault((rank, number), (name, tensors))
        group, status = _IN_GROUP.search(line), _STATUS.search(line)
        if group is None or status is None:
            return
        name, description = group[1], group[2] or ""
        is_main = name == _MAIN_GROUP or description == DEFAULT_GROUP
        if own is None and not is_main:
            # In other groups the number after "Rank" is that within the group.
            return
        rank = int(own[1] if own else group[3])
        if rank >= MOST_RANKS:
            return
        enqueued, completed = int(status[1]), int(status[2])
        failed = int(found[1]) if (found := _FAILED.search(line)) else None
        written_s = _written_s(line)
        known = self._statuses.get((rank, name))
        is_later = known is not None and self._is_later(known, completed, failed, written_s)
        if known is not None and is_later:
            self._attempt = max(self._attempt, known.attempt + 1)
        # The first line of a hang counts, because aborted operations are completed in later ones;
        # a smaller number is that of another start of the job.
        if known is None or is_later or enqueued < known.enqueued:
            description = DEFAULT_GROUP if is_main else description
            self._statuses[rank, name] = _Status(
                description, enqueued, completed, self._attempt, written_s
            )
            self._failed.pop((rank, name), None)
        if failed is not None:
            self._failed.setdefault((rank, name), failed)

    def _is_later(self, known: _Status, completed: int, failed: int | None, written_s: int) -> bool:
        """Return whether a line is of a later attempt to run the job than a known one.

        The rank has completed more than it had enqueued, and this is no abort: an operation fails
        after these, the line is written much later, or other ranks are in a later attempt.
        """
        is_much_later = known.written_s >= 0 and written_s - known.written_s >= _SAME_ATTEMPT_S
        are_others_later = known.attempt < self._attempt
        if completed <= known.enqueued:
            return are_others_later and is_much_later
        return is_much_later or are_others_later or (failed is not None and failed > completed)

    def dumps(self) -> Mapping[int, RecordedDump]:
        """Return the dumps by rank; errors are those of `dumps_in_log`."""
        statuses = {
            key: status for key, status in self._statuses.items() if status.attempt == self._attempt
        }
        if not statuses:
            # Before 2.3, PyTorch logs only the operation that timed out.
            statuses = {
                (rank, _MAIN_GROUP): _Status(DEFAULT_GROUP, number, number - 1)
                for rank, number in sorted(self._works, reverse=True)
            }
        if not statuses:
            raise InvalidTraceError(
                "None of the watchdog's lines names its rank; with "
                "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 each rank writes a dump",
                code="hang.invalid_dump",
            )
        groups: dict[int, list[RecordedGroup]] = {}
        pending: dict[int, list[RecordedOperation]] = {}
        reached: dict[int, dict[str, Reached]] = {}
        for (rank, name), status in sorted(statuses.items(), key=lambda item: item[0]):
            groups.setdefault(rank, []).append(RecordedGroup(name, status.description, None))
            # PyTorch 2.3 logs an uninitialized number if no operation has completed.
            completed = status.completed if status.completed <= status.enqueued else -1
            failed = self._failed.get((rank, name))
            number = max(completed, 0) + 1 if failed is None else failed
            called, tensors = self._works.get((rank, number), ("", NO_TENSORS))
            if called not in _TRANSFERS:
                reached.setdefault(rank, {})[name] = Reached(status.enqueued, completed)
            if failed is not None or completed < status.enqueued:
                operation = RecordedOperation(
                    group=name,
                    name=called,
                    collective=number,
                    transfer=number,
                    size=(),
                    since_ns=None,
                    tensors=tensors,
                    is_transfer=called in _TRANSFERS,
                )
                pending.setdefault(rank, []).append(operation)
        return {
            rank: RecordedDump(
                tuple(own), tuple(pending.get(rank, ())), reached.get(rank, {}), is_log=True
            )
            for rank, own in groups.items()
        }
