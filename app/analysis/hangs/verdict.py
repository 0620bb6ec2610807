"""Which ranks of a job that stands still are waited for, why, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from app.analysis.hangs.said import (
    REMEDIES,
    Culprit,
    Hang,
    HangKind,
    Link,
    code_words,
    label,
    left_words,
    rank_words,
    sentence_words,
)
from app.analysis.hangs.stacks import calling, standing
from app.analysis.hangs.state import JobState, RankState
from app.analysis.hangs.unrecorded import by_silence, by_stacks
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
        sentence=sentence_words(found, len(waiting)),
        culprits=tuple(found),
        waiting=waiting,
        chain=chain,
        confidence=round(min(one.confidence for one in found) * held, 3),
        remedy=REMEDIES[kind],
        unknown=unknown,
    )


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
            where = _called_in(job.ranks[rank])
            evidence = f"calls {call} as number {front.number} of the group{where}; {told}"
            found = _culprit(job, rank, operation, HangKind.MISMATCH, evidence, _BY_NUMBERS)
            yield replace(found, since_ns=front.since_ns, stack=job.ranks[rank].stack)


def _called_in(state: RankState) -> str:
    """Return by which line a rank calls what it waits in; nothing where there is no stack."""
    return f", called in {code_words(calling(state.stack))}" if state.stack else ""


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
                    f"{rank_words(operation.beyond)} {_have(operation.beyond)} completed"
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
        waiting = operation.waiting
        wait = "waits" if len(waiting) == 1 else "wait"
        evidence = f"{left_words(job, rank)}, and {rank_words(waiting)} {wait} for it in {what}"
        return _culprit(job, rank, operation, HangKind.SILENT, evidence, _BY_ABSENCE)
    inside = f"; it is in {code_words(state.stack[0])}" if state.stack else ""
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
            state = job.ranks[rank]
            wait = "waits" if len(operation.awaited) == 1 else "wait"
            evidence = (
                f"waits in {label(job, operation)}{_called_in(state)} for "
                f"{rank_words(operation.awaited)}, which in the end {wait} for this rank: "
                "collectives are called in different orders"
            )
            found = _culprit(job, rank, operation, HangKind.MISMATCH, evidence, _IN_A_CYCLE)
            yield replace(found, stack=state.stack)


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
        yield f"Nothing is known of {rank_words(missing)}."
    others = sorted(waits.of_rank.keys() - explained)
    if others and len(others) < len(waits.of_rank):
        yield f"What {rank_words(others)} wait for does not lead to those named here."


def _without_culprit(job: JobState, waits: Waits, unknown: tuple[str, ...]) -> Hang:
    if job.silent:
        return by_silence(job, waits, unknown)
    if not waits.operations:
        stands = standing(job.ranks)
        if stands is not None:
            return by_stacks(job, stands, unknown)
        return Hang(
            kind=HangKind.NOTHING_PENDING,
            sentence="No rank has an operation pending: nothing says that they wait.",
            culprits=(),
            waiting=(),
            chain=(),
            confidence=0.0,
            remedy=REMEDIES[HangKind.NOTHING_PENDING],
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
        remedy=REMEDIES[HangKind.ALL_ENTERED],
        unknown=unknown,
    )


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
