"""Readers of NCCL's RAS (`ncclras -f json`, NCCL 2.28 or later) and `py-spy dump --json`.

A RAS document covers all ranks of a job. For each communicator it counts the operations of each
kind that every rank has launched, and names the ranks that do not answer. It has neither the order
of operations nor their completion: a rank that has launched more operations than another rank of
its communicator waits for that rank. Format: `src/ras/client_support.cc` of NCCL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from app.analysis.hangs.state import Frame, Group, JobState, Pending, Place, RankState, Reached
from app.errors import InvalidTraceError
from app.hangs.flight_recorder import MOST_FRAMES, Int64, RecordedFrame, Written, invalid

INVALID_RAS: Final = "hang.invalid_ras"
MOST_RANKS: Final = 1 << 16
_MOST_COMMUNICATORS: Final = 1 << 16
# Ranks of the communicator of all processes, for each process that only other communicators list.
_MOST_UNKNOWN: Final = 4
_LONGEST_HASH: Final = 64
# Sends and receives are left out of the counts, because their numbers may differ between ranks
# without a fault.
TRANSFERS: Final = re.compile(r"Send|Recv")
# The pattern includes the key "communicators", because a recorder dump may begin with
# "nccl_version", too.
_MARK: Final = re.compile(rb'\A\s*\{\s*"nccl_version"[^\[\]{}]*"communicators"')


# A count beyond this is garbage: at a million operations a second it takes nine years.
_Count = Annotated[int, Field(ge=0, lt=1 << 48)]


class _Process(Written):
    rank: int = Field(ge=0, lt=MOST_RANKS)
    host: str = Field("", max_length=256)
    pid: Int64 = -1
    cuda_dev: Int64 = -1
    nvml_dev: Int64 = -1


class _Rank(_Process):
    collective_counts: dict[str, _Count] = Field(default_factory=dict, max_length=64)


class _MissingStatus(Written):
    unresponsive: bool = False
    considered_dead: bool = False


class _MissingRank(_Process):
    status: _MissingStatus = _MissingStatus()


class _Communicator(Written):
    hash: str = Field(max_length=_LONGEST_HASH)
    size: Int64
    ranks: tuple[_Rank, ...] = Field(max_length=MOST_RANKS)
    missing_ranks: tuple[_MissingRank, ...] = Field((), max_length=MOST_RANKS)

    @model_validator(mode="after")
    def _has_each_rank_once(self) -> Self:
        ranks = [process.rank for process in (*self.ranks, *self.missing_ranks)]
        if len(set(ranks)) < len(ranks) or max(ranks, default=-1) >= self.size:
            raise ValueError("its ranks are not those of a communicator of its size")
        return self


class _Document(Written):
    communicators: tuple[object, ...] = Field(max_length=_MOST_COMMUNICATORS)


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
    """A communicator, and the processes in it that RAS lists; none if they cannot be read."""

    name: str
    size: int
    members: tuple[Member, ...]


def is_ras(body: bytes) -> bool:
    """Return whether the first bytes of a file are those of a RAS document."""
    return _MARK.match(body[:1024]) is not None


def read_ras(body: bytes) -> tuple[Communicator, ...]:
    """Return the communicators in the output of `ncclras -f json`; unreadable ones are empty.

    Raises
    ------
    InvalidTraceError
        The body is no output of `ncclras -f json`, or none of its communicators can be read.
    """
    what = "It is not what ncclras prints"
    try:
        document = _Document.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error, INVALID_RAS, what, "the document") from error
    communicators = []
    refused = None
    for place, value in enumerate(document.communicators):
        try:
            communicators.append(_read_communicator(value))
        except ValidationError as error:
            # NCCL may fill a communicator that is being destroyed with garbage.
            refused = refused or invalid(
                error, INVALID_RAS, what, "", ("communicators", str(place))
            )
            name = value.get("hash") if isinstance(value, dict) else None
            name = name[:_LONGEST_HASH] if isinstance(name, str) else f"number {place}"
            communicators.append(Communicator(name, 0, ()))
    if refused is not None and not any(each.members for each in communicators):
        raise refused
    return tuple(communicators)


def _read_communicator(value: object) -> Communicator:
    communicator = _Communicator.model_validate(value)
    members = []
    for rank in communicator.ranks:
        launched = {
            name: count
            for name, count in rank.collective_counts.items()
            if count and not TRANSFERS.search(name)
        }
        members.append(_member(rank, launched))
    for missing in communicator.missing_ranks:
        is_gone = missing.status.unresponsive or missing.status.considered_dead
        members.append(_member(missing, None if is_gone else {}))
    return Communicator(communicator.hash, communicator.size, tuple(members))


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
    ranks, used = _ranks_of_processes(communicators)
    groups = []
    pending: dict[int, list[Pending]] = {}
    reached: dict[int, dict[int, Reached]] = {}
    silent = set[int]()
    names = {communicator.name for communicator in used}
    for index, communicator in enumerate(used):
        members = {ranks[member.process]: member for member in communicator.members}
        groups.append(Group(communicator.name, "communicator", tuple(sorted(members))))
        silent |= {rank for rank, member in members.items() if member.launched is None}
        counts = {
            rank: member.launched for rank, member in members.items() if member.launched is not None
        }
        waits, number = _waits(counts, is_complete=len(counts) == len(members))
        for rank in counts:
            own = number if rank in waits else number - 1
            reached.setdefault(rank, {})[index] = Reached(own, number - 1)
            if rank in waits:
                pending.setdefault(rank, []).append(Pending(index, number, waits[rank]))
    return JobState(
        tuple(groups),
        {
            rank: RankState(rank, tuple(pending.get(rank, ())), reached.get(rank, {}))
            for rank in ranks.values()
            if rank not in silent
        },
        {
            rank: Place(member.host or None, None if member.gpu < 0 else str(member.gpu))
            for communicator in used
            for member in communicator.members
            for rank in (ranks[member.process],)
        },
        notes=tuple(
            f"Communicator {name} of RAS is left out: its ranks cannot be read."
            for name in dict.fromkeys(each.name for each in communicators)
            if name not in names
        ),
    )


def _waits(
    counts: Mapping[int, Mapping[str, int]], *, is_complete: bool
) -> tuple[Mapping[int, str], int]:
    """Return the operations in which ranks wait, by rank, and their number, equal on all ranks.

    Operations are counted by kind, as RAS does. A rank waits in the first operation of a kind that
    it has launched more often than another rank. Ranks that have launched more of different kinds
    call different operations under the same number.

    Parameters
    ----------
    counts : mapping of int to mapping of str to int
        Number of launched operations by kind, by rank.
    is_complete : bool
        Whether all ranks answer; otherwise they wait for the silent ranks in their last operation.
    """
    kinds = list(dict.fromkeys(kind for launched in counts.values() for kind in launched))
    least = {kind: min(launched.get(kind, 0) for launched in counts.values()) for kind in kinds}
    total = sum(least.values())
    ahead = {
        rank: frozenset(kind for kind, count in launched.items() if count > least[kind])
        for rank, launched in counts.items()
    }
    different = {own for own in ahead.values() if own}
    if not different:
        if is_complete or not total:
            return {}, total + 1
        name = kinds[0] if len(kinds) == 1 else "collective"
        return dict.fromkeys(counts, name), total
    common = frozenset.intersection(*different)
    if not common:
        words = {
            own: " or ".join(f"{kind} {least[kind] + 1}" for kind in sorted(own))
            for own in different
        }
        return {rank: words[own] for rank, own in ahead.items() if own}, total + 1
    *others, last = sorted(common)
    name = " or ".join((*(f"{kind} {least[kind] + 1}" for kind in others), last))
    return {rank: name for rank, own in ahead.items() if own}, least[last] + 1


def ranks_that_answer_ras(
    job: JobState, communicators: Sequence[Communicator]
) -> Mapping[int, RankState]:
    """Return the states of ranks that left no dump but answer to RAS.

    A process group is the only communicator of the same ranks. PyTorch and NCCL may count from
    different operations on, so the difference is that of a rank with a dump. If a rank of the group
    has not launched an operation, the ranks that have launched it wait in it.
    """
    ranks, used = _ranks_of_processes(communicators)
    by_ranks: dict[tuple[int, ...], list[int]] = {}
    for index, group in enumerate(job.groups):
        by_ranks.setdefault(tuple(sorted(group.ranks)), []).append(index)
    launched: dict[tuple[int, ...], list[Mapping[int, Mapping[str, int]]]] = {}
    answering = set[int]()
    for communicator in used:
        members = {ranks[member.process]: member for member in communicator.members}
        answers = {
            rank: member.launched for rank, member in members.items() if member.launched is not None
        }
        answering |= answers.keys()
        launched.setdefault(tuple(sorted(members)), []).append(answers)
    reached: dict[int, dict[int, Reached]] = {}
    pending: dict[int, list[Pending]] = {}
    for key, of_communicators in launched.items():
        indices = by_ranks.get(key, [])
        if len(indices) != 1 or len(of_communicators) != 1:
            continue
        index, counts = indices[0], of_communicators[0]
        totals = {rank: sum(by_kind.values()) for rank, by_kind in counts.items()}
        differences = Counter(
            state.reached[index].enqueued - totals[rank]
            for rank, state in job.ranks.items()
            if rank in totals and index in state.reached
        )
        if not differences:
            continue
        ((difference, _),) = differences.most_common(1)
        enqueued = {rank: total + difference for rank, total in totals.items()}
        awaited = _awaited_by_all(job, index, enqueued)
        kinds = {kind for by_kind in counts.values() for kind in by_kind}
        name = kinds.pop() if len(kinds) == 1 else "collective"
        for rank, number in enqueued.items():
            reached.setdefault(rank, {})[index] = Reached(number, -1)
            if awaited is not None and number >= awaited:
                pending.setdefault(rank, []).append(Pending(index, awaited, name))
    return {
        rank: RankState(
            rank, tuple(pending.get(rank, ())), reached.get(rank, {}), is_recorded=False
        )
        for rank in answering - job.ranks.keys()
    }


def _awaited_by_all(job: JobState, group: int, enqueued: Mapping[int, int]) -> int | None:
    """Return the number of the operation that some rank of a group has not launched, if any.

    It is the first operation that is pending in a dump, as RAS may have been asked earlier;
    without one, the next operation of the rank that has launched the fewest.
    """
    least = min(enqueued.values())
    in_dumps = [
        pending.number
        for state in job.ranks.values()
        for pending in state.pending
        if pending.group == group and pending.peer is None
    ]
    first = min(in_dumps, default=least + 1)
    return first if least < first <= max(enqueued.values()) else None


def _ranks_of_processes(
    communicators: Sequence[Communicator],
) -> tuple[Mapping[tuple[str, int, int], int], Sequence[Communicator]]:
    """Return the global rank of each process: its rank in the communicator of all processes.

    Also return the communicators of these processes; others, which list processes that do not
    exist, are left out if they are few.
    """
    processes = {
        member.process for communicator in communicators for member in communicator.members
    }
    for world in sorted(communicators, key=lambda each: -len(each.members)):
        ranks = {member.process: member.rank for member in world.members}
        unknown = len(processes) - len(ranks)
        if len(ranks) == len(world.members) and _MOST_UNKNOWN * unknown <= len(ranks):
            return ranks, [
                communicator
                for communicator in communicators
                if communicator.members
                and all(member.process in ranks for member in communicator.members)
            ]
        break
    raise InvalidTraceError(
        f"No communicator has all {len(processes)} processes, so that nothing numbers them",
        code="hang.no_world",
    )


_MAIN: Final = "MainThread"
_INVALID_STACKS: Final = "hang.invalid_stack"


class _Thread(Written):
    pid: Int64 | None = None
    os_thread_id: Int64 | None = None
    # null if the program has not imported threading
    thread_name: str | None = None
    owns_gil: bool = False
    frames: tuple[RecordedFrame, ...] = Field(max_length=1 << 16)

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
    return tuple(frame.frame for frame in training.frames[:MOST_FRAMES])
