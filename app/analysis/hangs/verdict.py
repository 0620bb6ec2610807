"""Which ranks of a job that stands still are waited for, why, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from app.analysis.hangs.stacks import Standing, standing
from app.analysis.hangs.state import Frame, JobState, Place, RankState
from app.analysis.hangs.waits import Operation, Waits

# What is sure where recorded numbers say which operations a rank has entered, and where only
# nothing that it recorded says that it has.
_BY_NUMBERS: Final = 0.95
_BY_ABSENCE: Final = 0.8
# Ranks that wait for one another may have met another trouble first; a stack is of one moment, and
# says what a rank does but not what it waits for.
_IN_A_CYCLE: Final = 0.6
_BY_STACKS: Final = 0.6
# Ranks that are named in a sentence.
_NAMED: Final = 4


class HangKind(StrEnum):
    """Why a rank is waited for."""

    NEVER_ENTERED = "never_entered"
    DEVICE_STUCK = "device_stuck"
    SILENT = "silent"
    MISMATCH = "mismatch"
    ALL_ENTERED = "all_entered"
    NOTHING_PENDING = "nothing_pending"


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that others wait for and that waits for none, or for what cannot come.

    Parameters
    ----------
    operation : str
        What the others wait for, or what it does not complete.
    evidence : str
        A sentence.
    stack : tuple of Frame
        What its thread does that trains, where that is known; the innermost first.
    """

    rank: int
    host: str | None
    gpu: str | None
    kind: HangKind
    operation: str
    evidence: str
    since_ns: int | None
    confidence: float
    stack: tuple[Frame, ...] = ()

    @property
    def place(self) -> str:
        """Return its host and GPU as people name them; empty where nothing is known."""
        return Place(self.host, self.gpu).words


@dataclass(frozen=True, slots=True)
class Link:
    """An operation that ranks wait for, and the ranks that it waits for.

    Parameters
    ----------
    distance : int
        How many operations lie between these ranks and a culprit, this one included.
    """

    operation: str
    waiting: tuple[int, ...]
    waits_for: tuple[int, ...]
    distance: int


@dataclass(frozen=True, slots=True)
class Hang:
    """The verdict on a job that stands still.

    Parameters
    ----------
    kind : HangKind
        Of the culprits; where there are none, what is known instead.
    waiting : tuple of int
        Ranks that wait for the culprits, directly or through others.
    chain : tuple of Link
        Nearest to the culprits first.
    confidence : float
        0 to 1; 0 where no rank is blamed.
    unknown : tuple of str
        What is not known, a sentence each.
    """

    kind: HangKind
    sentence: str
    culprits: tuple[Culprit, ...]
    waiting: tuple[int, ...]
    chain: tuple[Link, ...]
    confidence: float
    remedy: str
    unknown: tuple[str, ...]


_REMEDIES: Final = {
    HangKind.NEVER_ENTERED: (
        "Read what the rank's processor does (py-spy dump --pid PID on its host); where it holds "
        "on to a lock or a file, mend that, else restart the job without its host."
    ),
    HangKind.DEVICE_STUCK: (
        "Look for errors of the GPU on its host (dmesg, nvidia-smi -q), cordon the host, and "
        "restart the job without it."
    ),
    HangKind.SILENT: (
        "Look whether its process and its host are alive; restart the job without the host where "
        "they are not."
    ),
    HangKind.MISMATCH: (
        "The ranks' programs call collectives in different orders or of different sizes: compare "
        "the code paths that lead to the operation named here; no machine is to blame."
    ),
    HangKind.ALL_ENTERED: (
        "Every rank has entered the operation: look at the network between the hosts of the group "
        "(links, switches, NCCL_DEBUG=INFO); no rank is to blame."
    ),
    HangKind.NOTHING_PENDING: "No rank waits for another one: look at what all of them do.",
}


def judge_hang(job: JobState) -> Hang:
    """Return who is waited for in a job that stands still.

    Culprits are the sinks of the wait-for graph that others wait for: ranks that wait for none
    themselves. Where ranks disagree on an operation, these are, since no other rank can help them.
    """
    waits = Waits.of(job)
    found = list(_mismatches(job, waits.operations)) or [
        *_sinks(job, waits),
        *_cycles(job, waits),
    ]
    distance = waits.distances(one.rank for one in found)
    waiting = tuple(sorted(rank for rank, away in distance.items() if away))
    blamed = {one.rank for one in found}
    chain = _chain(job, waits, distance)
    unknown = tuple(_unknown(job, waits, set(waiting) | blamed))
    if not found:
        return _without_culprit(job, waits, unknown)
    kind = found[0].kind
    held = len(set(waits.of_rank) & (set(waiting) | blamed)) / max(len(waits.of_rank), 1)
    return Hang(
        kind=kind,
        sentence=_sentence(found, len(waiting)),
        culprits=tuple(found),
        waiting=waiting,
        chain=chain,
        confidence=round(min(one.confidence for one in found) * held, 3),
        remedy=_REMEDIES[kind],
        unknown=unknown,
    )


def label(job: JobState, operation: Operation) -> str:
    """Return what an operation is, as people read it."""
    first = operation.first
    return f"{first.name} {first.number} of {job.groups[first.group].called}"


def _mismatches(job: JobState, operations: Sequence[Operation]) -> Iterator[Culprit]:
    """Yield ranks that call an operation of a number otherwise than most of its ranks do."""
    for operation in operations:
        if operation.first.peer is not None or len(operation.waiting) == 1:
            continue
        called: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for rank in operation.waiting:
            front = job.ranks[rank].pending[0]
            # parts of unlike sizes are what these exchange
            size = () if "all_to_all" in front.name or "gather" in front.name else front.size
            called.setdefault((front.name, size), []).append(rank)
        if len(called) == 1:
            continue
        usual = max(called, key=lambda one: len(called[one]))
        fewer = [rank for one, ranks in called.items() if one != usual for rank in ranks]
        even = len(fewer) * 2 >= len(operation.waiting)
        for rank in sorted(operation.waiting if even else fewer):
            front = job.ranks[rank].pending[0]
            told = (
                "the ranks do not agree"
                if even
                else f"{len(called[usual])} ranks call {_call(*usual)}"
            )
            call = _call(front.name, front.size)
            evidence = f"calls {call} as number {front.number} of the group; {told}"
            found = _culprit(job, rank, operation, HangKind.MISMATCH, evidence, _BY_NUMBERS)
            yield replace(found, since_ns=front.since_ns)


def _call(name: str, size: tuple[int, ...]) -> str:
    return f"{name} of {'×'.join(map(str, size))}" if size else name


def _sinks(job: JobState, waits: Waits) -> Iterator[Culprit]:
    for rank in waits.sinks():
        state = job.ranks.get(rank)
        number = waits.of_rank.get(rank)
        if number is not None:
            operation = waits.operations[number]
            if operation.beyond:
                evidence = (
                    f"does not complete {label(job, operation)}, which "
                    f"{_ranks(operation.beyond)} {_have(operation.beyond)} completed"
                )
                yield _culprit(job, rank, operation, HangKind.DEVICE_STUCK, evidence, _BY_NUMBERS)
            continue
        awaiting = [one for one in waits.operations if rank in one.awaited]
        operation = min(awaiting, key=_since)
        yield _absent(job, rank, state, operation)


def _since(operation: Operation) -> tuple[bool, float, int]:
    """Order operations by when ranks began to wait in them, where that is known, and how many.

    Transfers last: sends that a rank enqueues ahead wait from the beginning.
    """
    since_ns = operation.first.since_ns
    is_transfer = operation.first.peer is not None
    return is_transfer, math.inf if since_ns is None else since_ns, -len(operation.waiting)


def _absent(job: JobState, rank: int, state: RankState | None, operation: Operation) -> Culprit:
    what = label(job, operation)
    if state is None:
        process = job.processes.get(rank)
        left = "left nothing" if process is None else f"says nothing ({process.words})"
        evidence = f"{left}, and {_ranks(operation.waiting)} wait for it in {what}"
        return _culprit(job, rank, operation, HangKind.SILENT, evidence, _BY_ABSENCE)
    inside = f"; it is in {_code(state.stack[0])}" if state.stack else ""
    evidence = f"has nothing pending and never entered {what}{inside}"
    sure = _BY_NUMBERS if operation.certain else _BY_ABSENCE
    found = _culprit(job, rank, operation, HangKind.NEVER_ENTERED, evidence, sure)
    return replace(found, stack=state.stack)


def _culprit(  # noqa: PLR0913, PLR0917 - what a culprit is
    job: JobState,
    rank: int,
    operation: Operation,
    kind: HangKind,
    evidence: str,
    confidence: float,
) -> Culprit:
    place = job.place(rank)
    return Culprit(
        rank=rank,
        host=place.host,
        gpu=place.gpu,
        kind=kind,
        operation=label(job, operation),
        evidence=evidence,
        since_ns=operation.first.since_ns,
        confidence=confidence,
    )


def _code(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


def _cycles(job: JobState, waits: Waits) -> Iterator[Culprit]:
    """Yield ranks that wait for one another, each in an operation that the other has not entered.

    Where all have entered what each waits for, none is to blame.
    """
    for cycle in waits.cycles():
        operations = [waits.operations[waits.of_rank[rank]] for rank in cycle]
        members = set(cycle)
        if not any(members & set(one.absent) for one in operations):
            continue
        for rank, operation in zip(cycle, operations, strict=True):
            evidence = (
                f"waits in {label(job, operation)} for {_ranks(operation.awaited)}, which in the "
                "end wait for this rank: collectives are called in different orders"
            )
            yield _culprit(job, rank, operation, HangKind.MISMATCH, evidence, _IN_A_CYCLE)


def _chain(job: JobState, waits: Waits, distance: dict[int, int]) -> tuple[Link, ...]:
    links = []
    for operation in waits.operations:
        away = [distance[rank] for rank in operation.awaited if rank in distance]
        if away:
            waits_for = tuple(sorted(rank for rank in operation.awaited if rank in distance))
            links.append(Link(label(job, operation), operation.waiting, waits_for, min(away) + 1))
    return tuple(sorted(links, key=lambda link: (link.distance, -len(link.waiting), link.waiting)))


def _unknown(job: JobState, waits: Waits, explained: set[int]) -> Iterator[str]:
    missing = [rank for rank in job.world if rank not in job.ranks]
    if missing:
        yield f"Nothing is known of {_ranks(missing)}."
    others = sorted(waits.of_rank.keys() - explained)
    if others and len(others) < len(waits.of_rank):
        yield f"What {_ranks(others)} wait for does not lead to those named here."


def _without_culprit(job: JobState, waits: Waits, unknown: tuple[str, ...]) -> Hang:
    if not waits.operations:
        stands = standing(job.ranks)
        if stands is not None:
            return _by_stacks(job, stands, unknown)
        return Hang(
            kind=HangKind.NOTHING_PENDING,
            sentence="No rank has an operation pending: nothing says that they wait.",
            culprits=(),
            waiting=(),
            chain=(),
            confidence=0.0,
            remedy=_REMEDIES[HangKind.NOTHING_PENDING],
            unknown=unknown,
        )
    operation = max(waits.operations, key=lambda one: len(one.waiting))
    what = label(job, operation)
    return Hang(
        kind=HangKind.ALL_ENTERED,
        sentence=f"All ranks have entered {what}, which does not complete: none is to blame.",
        culprits=(),
        waiting=tuple(sorted(waits.of_rank)),
        chain=_chain(job, waits, dict.fromkeys(waits.of_rank, 0)),
        confidence=0.0,
        remedy=_REMEDIES[HangKind.ALL_ENTERED],
        unknown=unknown,
    )


def _by_stacks(job: JobState, stands: Standing, unknown: tuple[str, ...]) -> Hang:
    line = _code(stands.line)
    culprits = []
    for rank in stands.others:
        place, stack = job.place(rank), job.ranks[rank].stack
        culprits.append(
            Culprit(
                rank=rank,
                host=place.host,
                gpu=place.gpu,
                kind=HangKind.NEVER_ENTERED,
                operation=line,
                evidence=f"is in {_code(stack[0])} while the others stand in {line}",
                since_ns=None,
                confidence=_BY_STACKS,
                stack=stack,
            )
        )
    without = sorted(job.ranks.keys() - {*stands.waiting, *stands.others})
    return Hang(
        kind=HangKind.NEVER_ENTERED,
        sentence=_sentence(culprits, len(stands.waiting)),
        culprits=tuple(culprits),
        waiting=stands.waiting,
        chain=(Link(line, stands.waiting, stands.others, 1),),
        confidence=_BY_STACKS,
        remedy=_REMEDIES[HangKind.NEVER_ENTERED],
        unknown=(
            *unknown,
            *([f"There is no stack of {_ranks(without)}."] if without else []),
            "No recorder says what is pending: this is told by the stacks alone.",
        ),
    )


def _sentence(culprits: Sequence[Culprit], waiting: int) -> str:
    first = culprits[0]
    who = f"{waiting} rank waits" if waiting == 1 else f"{waiting} ranks wait"
    blamed = _ranks([one.rank for one in culprits])
    return f"{who} for {blamed}. Rank {first.rank} {first.evidence}."


def _ranks(ranks: Sequence[int]) -> str:
    """Name some ranks, and count the rest."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED:
        return f"ranks {', '.join(map(str, ranks[:_NAMED]))} and {len(ranks) - _NAMED} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
