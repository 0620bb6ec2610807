"""What NCCL's RAS says of a job: `ncclras -f json`, one document for all ranks (NCCL 2.28 on).

For each communicator it counts how many operations of each kind every rank has launched, and names
the ranks that do not answer. It says neither which operation comes first nor what is over: a rank
that has launched more than another one of its communicator waits for it.

Format: `src/ras/client_support.cc` of NCCL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.analysis.hangs.state import Frame, Group, JobState, Pending, Place, RankState, Reached
from app.errors import Fault, InvalidTraceError

_INVALID: Final = "hang.invalid_ras"
_MOST_RANKS: Final = 1 << 16
_MOST_COMMUNICATORS: Final = 1 << 16
# Sends and receives differ from rank to rank by right.
_TRANSFERS: Final = re.compile(r"Send|Recv")
# Dumps of recorders may begin with the first key, too.
_MARK: Final = re.compile(rb'\A\s*\{\s*"nccl_version"[^\[\]{}]*"communicators"')


class _Written(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Process(_Written):
    rank: int = Field(ge=0, lt=_MOST_RANKS)
    host: str = Field("", max_length=256)
    pid: int = -1
    cuda_dev: int = -1
    nvml_dev: int = -1


class _Rank(_Process):
    collective_counts: dict[str, int] = Field(default_factory=dict, max_length=64)


class _MissingStatus(_Written):
    unresponsive: bool = False
    considered_dead: bool = False


class _MissingRank(_Process):
    status: _MissingStatus = _MissingStatus()


class _Communicator(_Written):
    hash: str = Field(max_length=64)
    size: int
    ranks: tuple[_Rank, ...] = Field(max_length=_MOST_RANKS)
    missing_ranks: tuple[_MissingRank, ...] = Field((), max_length=_MOST_RANKS)


class _Document(_Written):
    communicators: tuple[_Communicator, ...] = Field(max_length=_MOST_COMMUNICATORS)


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a communicator.

    Parameters
    ----------
    rank : int
        Of the communicator.
    launched : mapping of str to int, or None
        Collectives by their kinds; None of a rank that does not answer.
    """

    rank: int
    host: str
    pid: int
    gpu: int
    launched: Mapping[str, int] | None

    @property
    def process(self) -> tuple[str, int, int]:
        """Return what tells it from the others, whatever communicator it stands in."""
        return self.host, self.pid, self.gpu


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator with those of its processes that RAS knows of."""

    name: str
    size: int
    members: tuple[Member, ...]


def is_ras(body: bytes) -> bool:
    """Return whether a file begins as what RAS writes."""
    return _MARK.match(body[:1024]) is not None


def read_ras(body: bytes) -> tuple[Communicator, ...]:
    """Return the communicators of a job.

    Raises
    ------
    InvalidTraceError
        It is not what `ncclras -f json` prints.
    """
    try:
        document = _Document.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        message = f"It is not what ncclras prints: {place}: {first['msg']}"
        raise InvalidTraceError(
            message, code=_INVALID, faults=(Fault(_INVALID, message),)
        ) from error
    return tuple(
        Communicator(
            one.hash,
            one.size,
            tuple(_member(rank, _collectives(rank.collective_counts)) for rank in one.ranks)
            + tuple(
                _member(rank, None if _is_gone(rank.status) else {}) for rank in one.missing_ranks
            ),
        )
        for one in document.communicators
    )


def _is_gone(status: _MissingStatus) -> bool:
    return status.unresponsive or status.considered_dead


def _collectives(counts: Mapping[str, int]) -> Mapping[str, int]:
    return {name: count for name, count in counts.items() if count and not _TRANSFERS.search(name)}


def _member(one: _Process, launched: Mapping[str, int] | None) -> Member:
    gpu = one.cuda_dev if one.nvml_dev < 0 else one.nvml_dev
    return Member(one.rank, one.host, one.pid, gpu, launched)


def ras_job(communicators: Sequence[Communicator]) -> JobState:
    """Return what the counts of communicators say of a job's ranks.

    Raises
    ------
    InvalidTraceError
        ``hang.no_world``: no communicator has all processes, and so nothing numbers them.
    """
    ranks = _ranks_of_processes(communicators)
    groups = []
    pending: dict[int, list[Pending]] = {}
    reached: dict[int, dict[int, Reached]] = {}
    silent = set[int]()
    for index, one in enumerate(communicators):
        members = {ranks[member.process]: member for member in one.members}
        groups.append(Group(one.name, "communicator", tuple(sorted(members))))
        silent |= {rank for rank, member in members.items() if member.launched is None}
        known = {rank: each.launched for rank, each in members.items() if each.launched is not None}
        totals = {rank: sum(launched.values()) for rank, launched in known.items()}
        most, least = max(totals.values(), default=0), min(totals.values(), default=0)
        behind = [known[rank] for rank, total in totals.items() if total == least]
        fewest = {name: min(one.get(name, 0) for one in behind) for one in behind for name in one}
        # Where all that answer are as far, they wait in the last one for those that do not.
        number = most if most == least and len(known) < len(members) else least + 1
        for rank, total in totals.items():
            reached.setdefault(rank, {})[index] = Reached(total, min(total, number - 1))
            if 0 < number <= total:
                name = _name(known[rank], fewest)
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
    """Return the host and the GPU of each rank; of ranks that do not answer, too."""
    ranks = _ranks_of_processes(communicators)
    return {
        ranks[member.process]: Place(
            member.host or None, None if member.gpu < 0 else str(member.gpu)
        )
        for one in communicators
        for member in one.members
    }


def _name(launched: Mapping[str, int], least: Mapping[str, int]) -> str:
    """Return which collective a rank has launched more often than those that are behind."""
    ahead = [name for name, count in launched.items() if count > least.get(name, 0)]
    return ahead[0] if len(ahead) == 1 else "collective"


def _ranks_of_processes(
    communicators: Sequence[Communicator],
) -> Mapping[tuple[str, int, int], int]:
    """Return each process's rank: that of the communicator which has all of them."""
    processes = {member.process for one in communicators for member in one.members}
    for one in communicators:
        ranks = {member.process: member.rank for member in one.members}
        if ranks.keys() == processes and len(set(ranks.values())) == len(processes):
            return ranks
    raise InvalidTraceError(
        f"No communicator has all {len(processes)} processes, so that nothing numbers them",
        code="hang.no_world",
    )


# Stacks by `py-spy dump --json`; variables are not read.
# Frames of a stack that are kept, the innermost ones.
MOST_FRAMES: Final = 40
_MAIN: Final = "MainThread"
_INVALID_STACKS: Final = "hang.invalid_stack"


class _Frame(_Written):
    name: str
    filename: str
    short_filename: str | None = None
    line: int


class _Thread(_Written):
    pid: int | None = None
    os_thread_id: int | None = None
    # null where the program does not import threading
    thread_name: str | None = None
    owns_gil: bool = False
    frames: tuple[_Frame, ...] = Field(max_length=1 << 16)

    @property
    def is_main(self) -> bool:
        """Return whether it is the main one: Linux numbers that as its process."""
        is_first = self.pid is not None and self.os_thread_id == self.pid
        return self.thread_name == _MAIN or is_first


_THREADS: Final = TypeAdapter(tuple[_Thread, ...])


def stack_of(body: bytes) -> tuple[Frame, ...]:
    """Return what the thread that trains does, the innermost frame first.

    That is the main one; where none is called so, the one that holds the interpreter's lock.

    Raises
    ------
    InvalidTraceError
        It is no dump of py-spy.
    """
    try:
        threads = _THREADS.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the dump"
        message = f"It is no dump of py-spy: {place}: {first['msg']}"
        raise InvalidTraceError(
            message, code=_INVALID_STACKS, faults=(Fault(_INVALID_STACKS, message),)
        ) from error
    if not threads:
        return ()
    training = max(threads, key=lambda one: (one.is_main, one.owns_gil))
    return tuple(
        Frame(one.name, one.short_filename or one.filename, one.line)
        for one in training.frames[:MOST_FRAMES]
    )
