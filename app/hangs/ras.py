"""Readers of NCCL's RAS (`ncclras -f json`, NCCL 2.28 or later) and `py-spy dump --json`.

A RAS document covers all ranks of a job. For each communicator it counts the operations of each
kind that every rank has launched, and names the ranks that do not answer. It has neither the order
of operations nor their completion: a rank that has launched more operations than another rank of
its communicator waits for that rank. Format: `src/ras/client_support.cc` of NCCL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import Field, TypeAdapter, ValidationError

from app.analysis.hangs.state import Frame, Group, JobState, Pending, Place, RankState, Reached
from app.errors import InvalidTraceError
from app.hangs.flight_recorder import Int64, Written, invalid

_INVALID: Final = "hang.invalid_ras"
_MOST_RANKS: Final = 1 << 16
_MOST_COMMUNICATORS: Final = 1 << 16
# Sends and receives are left out of the counts, because their numbers may differ between ranks
# without a fault.
_TRANSFERS: Final = re.compile(r"Send|Recv")
# The pattern includes the key "communicators", because a recorder dump may begin with
# "nccl_version", too.
_MARK: Final = re.compile(rb'\A\s*\{\s*"nccl_version"[^\[\]{}]*"communicators"')


class _Process(Written):
    rank: int = Field(ge=0, lt=_MOST_RANKS)
    host: str = Field("", max_length=256)
    pid: Int64 = -1
    cuda_dev: Int64 = -1
    nvml_dev: Int64 = -1


class _Rank(_Process):
    collective_counts: dict[str, Int64] = Field(default_factory=dict, max_length=64)


class _MissingStatus(Written):
    unresponsive: bool = False
    considered_dead: bool = False


class _MissingRank(_Process):
    status: _MissingStatus = _MissingStatus()


class _Communicator(Written):
    hash: str = Field(max_length=64)
    size: Int64
    ranks: tuple[_Rank, ...] = Field(max_length=_MOST_RANKS)
    missing_ranks: tuple[_MissingRank, ...] = Field((), max_length=_MOST_RANKS)


class _Document(Written):
    communicators: tuple[_Communicator, ...] = Field(max_length=_MOST_COMMUNICATORS)


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a communicator.

    Parameters
    ----------
    rank : int
        Rank within the communicator.
    launched : mapping of str to int, or None
        Number of launched collectives by kind; None of a rank that does not answer.
    """

    rank: int
    host: str
    pid: int
    gpu: int
    launched: Mapping[str, int] | None

    @property
    def process(self) -> tuple[str, int, int]:
        """Return host, process id and GPU: the same process has them in all communicators."""
        return self.host, self.pid, self.gpu


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator, and the processes in it that RAS lists."""

    name: str
    size: int
    members: tuple[Member, ...]


def is_ras(body: bytes) -> bool:
    """Return whether the first bytes of a file are those of a RAS document."""
    return _MARK.match(body[:1024]) is not None


def read_ras(body: bytes) -> tuple[Communicator, ...]:
    """Return the communicators in the output of `ncclras -f json`.

    Raises
    ------
    InvalidTraceError
        The body is no output of `ncclras -f json`.
    """
    try:
        document = _Document.model_validate_json(body)
    except ValidationError as error:
        what = "It is not what ncclras prints"
        raise invalid(error, _INVALID, what, "the document") from error
    communicators = []
    for communicator in document.communicators:
        members = []
        for rank in communicator.ranks:
            launched = {
                name: count
                for name, count in rank.collective_counts.items()
                if count and not _TRANSFERS.search(name)
            }
            members.append(_member(rank, launched))
        for missing in communicator.missing_ranks:
            is_gone = missing.status.unresponsive or missing.status.considered_dead
            members.append(_member(missing, None if is_gone else {}))
        communicators.append(Communicator(communicator.hash, communicator.size, tuple(members)))
    return tuple(communicators)


def _member(process: _Process, launched: Mapping[str, int] | None) -> Member:
    gpu = process.cuda_dev if process.nvml_dev < 0 else process.nvml_dev
    return Member(process.rank, process.host, process.pid, gpu, launched)


def ras_job(communicators: Sequence[Communicator]) -> JobState:
    """Return the state of a job's ranks that follows from the counts of its communicators.

    Raises
    ------
    InvalidTraceError
        ``hang.no_world``: no communicator has all processes, so that their ranks are unknown.
    """
    ranks = _ranks_of_processes(communicators)
    groups = []
    pending: dict[int, list[Pending]] = {}
    reached: dict[int, dict[int, Reached]] = {}
    silent = set[int]()
    for index, communicator in enumerate(communicators):
        members = {ranks[member.process]: member for member in communicator.members}
        groups.append(Group(communicator.name, "communicator", tuple(sorted(members))))
        silent |= {rank for rank, member in members.items() if member.launched is None}
        counts = {
            rank: member.launched for rank, member in members.items() if member.launched is not None
        }
        totals = {rank: sum(launched.values()) for rank, launched in counts.items()}
        most, least = max(totals.values(), default=0), min(totals.values(), default=0)
        behind = [counts[rank] for rank, total in totals.items() if total == least]
        fewest = {
            name: min(counts_behind.get(name, 0) for counts_behind in behind)
            for counts_behind in behind
            for name in counts_behind
        }
        # If all answering ranks have launched the same number of collectives and other ranks do not
        # answer, the answering ranks wait for them in the last collective.
        number = most if most == least and len(counts) < len(members) else least + 1
        for rank, total in totals.items():
            reached.setdefault(rank, {})[index] = Reached(total, min(total, number - 1))
            if 0 < number <= total:
                name = _collective_ahead(counts[rank], fewest)
                pending.setdefault(rank, []).append(Pending(index, number, name))
    return JobState(
        tuple(groups),
        {
            rank: RankState(rank, tuple(pending.get(rank, ())), reached.get(rank, {}))
            for rank in ranks.values()
            if rank not in silent
        },
        ras_places(communicators),
    )


def ras_places(communicators: Sequence[Communicator]) -> dict[int, Place]:
    """Return the host and the GPU of each rank, including ranks that do not answer."""
    ranks = _ranks_of_processes(communicators)
    return {
        ranks[member.process]: Place(
            member.host or None, None if member.gpu < 0 else str(member.gpu)
        )
        for communicator in communicators
        for member in communicator.members
    }


def _collective_ahead(launched: Mapping[str, int], least: Mapping[str, int]) -> str:
    """Return the kind of collective that a rank launched more often than the ranks behind."""
    ahead = [name for name, count in launched.items() if count > least.get(name, 0)]
    return ahead[0] if len(ahead) == 1 else "collective"


def _ranks_of_processes(
    communicators: Sequence[Communicator],
) -> Mapping[tuple[str, int, int], int]:
    """Return the global rank of each process: its rank in the communicator of all processes."""
    processes = {
        member.process for communicator in communicators for member in communicator.members
    }
    for communicator in communicators:
        ranks = {member.process: member.rank for member in communicator.members}
        if ranks.keys() == processes and len(set(ranks.values())) == len(processes):
            return ranks
    raise InvalidTraceError(
        f"No communicator has all {len(processes)} processes, so that nothing numbers them",
        code="hang.no_world",
    )


# Largest number of frames of a stack that are kept, from the innermost on.
MOST_FRAMES: Final = 40
_MAIN: Final = "MainThread"
_INVALID_STACKS: Final = "hang.invalid_stack"


class _Frame(Written):
    name: str
    filename: str
    short_filename: str | None = None
    line: Int64


class _Thread(Written):
    pid: Int64 | None = None
    os_thread_id: Int64 | None = None
    # null if the program has not imported threading
    thread_name: str | None = None
    owns_gil: bool = False
    frames: tuple[_Frame, ...] = Field(max_length=1 << 16)

    @property
    def is_main(self) -> bool:
        """Return whether this is the main thread; on Linux its id is that of the process."""
        is_first = self.pid is not None and self.os_thread_id == self.pid
        return self.thread_name == _MAIN or is_first


_THREADS: Final = TypeAdapter(tuple[_Thread, ...])


def stack_of(body: bytes) -> tuple[Frame, ...]:
    """Return the stack of the training thread, the innermost frame first, without variables.

    The training thread is the main thread or, if no thread has that name, the thread that holds the
    interpreter's lock.

    Raises
    ------
    InvalidTraceError
        The body is no dump of py-spy.
    """
    try:
        threads = _THREADS.validate_json(body)
    except ValidationError as error:
        raise invalid(error, _INVALID_STACKS, "It is no dump of py-spy", "the dump") from error
    if not threads:
        return ()
    training = max(threads, key=lambda thread: (thread.is_main, thread.owns_gil))
    return tuple(
        Frame(frame.name, frame.short_filename or frame.filename, frame.line)
        for frame in training.frames[:MOST_FRAMES]
    )
