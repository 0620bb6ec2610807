"""Verdict on a hang: the ranks that others wait for, the reason and the action.

Where recorders lead to no rank (gloo records no transfers; many jobs have no recorder), stacks of
the training threads decide: a rank waits if its innermost frame is a wait of PyTorch, or if most
ranks are in the same lines. Otherwise silent ranks are blamed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.analysis.hangs.findings import (
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
from app.analysis.hangs.state import Frame, JobState, RankState
from app.analysis.hangs.wait_graph import Operation, Waits

# ---- Who waits by the stacks of the training threads alone, where no recorder says what is pending
#
# Recorders of gloo know no transfers, and many jobs have no recorder at all. A rank waits where its
# innermost frame is one in which PyTorch waits for other ranks, or where most ranks stand in the
# same lines: the program is the same on all of them, so a rank that is elsewhere is what they wait
# for.


# Where PyTorch waits for other ranks, or for the device that does: ends of files, and functions.
# Without one of these a rank that waits is taken for one that does not.
_WAITS: Final = (
    ("torch/distributed/", ""),
    ("torch/autograd/graph.py", "_engine_run_backward"),
    ("torch/cuda/__init__.py", "synchronize"),
    ("torch/cuda/streams.py", "synchronize"),
    ("pipeline_parallel/p2p_communication.py", ""),
    ("deepspeed/comm/", ""),
)
_OURS: Final = "/paceline_client/"
_TORCH: Final = "/torch/"
# Frames that say where a rank is; of deeper ones loops of the framework differ by chance.
_INNERMOST: Final = 3
# More ranks than this share are no exception: nothing says then who waits for whom.
_MOST_BLAMED: Final = 0.25


@dataclass(frozen=True, slots=True)
class Standing:
    """Ranks that wait, those that do not, and the line in which most of the first wait."""

    waiting: tuple[int, ...]
    others: tuple[int, ...]
    line: Frame


def standing(ranks: Mapping[int, RankState]) -> Standing | None:
    """Return who waits by the stacks; None where they do not tell.

    They do not where fewer than half of the ranks have one, where all wait, and where more ranks
    than a quarter (and more than one) do not.

    Examples
    --------
    >>> def at(rank: int, function: str, file: str, line: int) -> RankState:
    ...     return RankState(rank, stack=(Frame(function, file, line),))
    >>> wait = ("_wait_batch_p2p", "torch/distributed/pipelining/schedules.py", 683)
    >>> found = standing({0: at(0, *wait), 1: at(1, "forward", "train.py", 7), 2: at(2, *wait)})
    >>> found.waiting, found.others
    ((0, 2), (1,))
    """
    stacks = {
        rank: _without_hooks(state.stack) for rank, state in sorted(ranks.items()) if state.stack
    }
    if len(stacks) < max(2, len(ranks) / 2):
        return None
    alike = Counter(stack[:_INNERMOST] for stack in stacks.values())
    usual, count = alike.most_common(1)[0]
    most_alike = count > len(stacks) / 2
    waiting = {
        rank: stack
        for rank, stack in stacks.items()
        if _is_wait(stack[0]) or (most_alike and stack[:_INNERMOST] == usual)
    }
    others = tuple(rank for rank in stacks if rank not in waiting)
    if not others or not waiting or len(others) > max(1, len(stacks) * _MOST_BLAMED):
        return None
    lines = Counter(stack[0] for stack in waiting.values())
    return Standing(tuple(waiting), others, lines.most_common(1)[0][0])


def calling(stack: tuple[Frame, ...]) -> Frame:
    """Return the line of the program, or of its framework, that called what waits.

    Examples
    --------
    >>> calling((Frame("all_reduce", "/lib/torch/distributed/c10d.py", 9), Frame("f", "a.py", 3)))
    Frame(function='f', file='a.py', line=3)
    """
    own = (one for one in stack if _OURS not in one.file and _TORCH not in one.file)
    return next(own, stack[0])


def _without_hooks(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return a stack without what our own client put around a wait of PyTorch's."""
    first = next((n for n, frame in enumerate(stack) if _OURS not in frame.file), 0)
    return stack[first:] if _is_wait(stack[first]) else stack


def _is_wait(frame: Frame) -> bool:
    return any(
        place in frame.file and frame.function.startswith(function) for place, function in _WAITS
    )


# ---- Who is waited for where nothing that recorders say leads to a rank: by silence, and by stacks


# A stack is of one moment, and says what a rank does but not what it waits for; what a host says of
# a process is certain, but not that it is what the others wait for.
_BY_STACKS: Final = 0.6
_BY_PROCESS: Final = 0.8


def by_stacks(job: JobState, stands: Standing, unknown: tuple[str, ...]) -> Hang:
    """Blame the ranks that are elsewhere than those that wait."""
    line = code_words(stands.line)
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
                evidence=f"is in {code_words(stack[0])} while the others stand in {line}",
                since_ns=None,
                confidence=_BY_STACKS,
                stack=stack,
            )
        )
    without = sorted(job.ranks.keys() - {*stands.waiting, *stands.others})
    return Hang(
        kind=HangKind.NEVER_ENTERED,
        sentence=sentence_words(culprits, len(stands.waiting)),
        culprits=tuple(culprits),
        waiting=stands.waiting,
        chain=(Link(line, stands.waiting, stands.others, 1),),
        confidence=_BY_STACKS,
        remedy=REMEDIES[HangKind.NEVER_ENTERED],
        unknown=(
            *unknown,
            *([f"There is no stack of {rank_words(without)}."] if without else []),
            "No recorder says what is pending: this is told by the stacks alone.",
        ),
    )


def by_silence(job: JobState, waits: Waits, unknown: tuple[str, ...]) -> Hang:
    """Blame the ranks that say nothing, where nothing that is pending leads to them or to others.

    Recorders other than NCCL's do not say which ranks a group has, and know no transfers.
    """
    waiting = tuple(sorted(rank for rank, one in job.ranks.items() if one.pending or one.stack))
    if waits.operations:
        where = label(job, max(waits.operations, key=lambda one: len(one.waiting)))
    else:
        lines = Counter(one.stack[0] for one in job.ranks.values() if one.stack)
        where = code_words(lines.most_common(1)[0][0]) if lines else "an unknown place"
    stand = "waits" if len(waiting) == 1 else "wait"
    told = (
        f"and {rank_words(waiting)} {stand} in {where}"
        if waiting
        else "and no rank says where it is"
    )
    culprits = [
        Culprit(
            rank=rank,
            host=job.place(rank).host,
            gpu=job.place(rank).gpu,
            kind=HangKind.SILENT,
            operation=where,
            evidence=f"{left_words(job, rank)}, {told}",
            since_ns=None,
            confidence=_BY_PROCESS if rank in job.processes else _BY_STACKS,
        )
        for rank in sorted(job.silent)
    ]
    return Hang(
        kind=HangKind.SILENT,
        sentence=sentence_words(culprits, len(waiting)),
        culprits=tuple(culprits),
        waiting=waiting,
        chain=(Link(where, waiting, tuple(sorted(job.silent)), 1),) if waiting else (),
        confidence=min(one.confidence for one in culprits),
        remedy=REMEDIES[HangKind.SILENT],
        unknown=(*unknown, "Nothing says that the others wait for it but its silence."),
    )


# ---- Which ranks of a job that stands still are waited for, why, and what to do about it -------


# What is sure where recorded numbers say which operations a rank has entered, and where only
# nothing that it recorded says that it has.
_BY_NUMBERS: Final = 0.95
_BY_ABSENCE: Final = 0.8
# Ranks that wait for one another may have met another trouble first; a stack is of one moment, and
# says what a rank does but not what it waits for.
_IN_A_CYCLE: Final = 0.6
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
