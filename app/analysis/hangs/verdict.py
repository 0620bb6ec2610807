"""Verdict on a hang: the ranks that other ranks wait for, the reason, and the action.

Culprits come from the wait-for graph of pending operations. If the graph leads to no rank (gloo
records no transfers; many jobs have no recorder), silent ranks are blamed. Without silent ranks,
the stacks of the training threads decide: a rank waits if its innermost frame is a wait of PyTorch,
or if most ranks are at the same lines; as all ranks run the same program, they wait for a rank at
another line.
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

# Frames in which PyTorch waits for other ranks or the device: part of the file's path, and the
# beginning of the function's name.
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
_INNERMOST: Final = 3  # compared frames; deeper ones differ by chance in loops of the framework
_MOST_BLAMED: Final = 0.25  # share of ranks; more of them are no exception


@dataclass(frozen=True, slots=True)
class StackSplit:
    """Ranks split by their stacks: waiting ranks, others, and the line where most ranks wait."""

    waiting: tuple[int, ...]
    others: tuple[int, ...]
    line: Frame


def split_by_stacks(ranks: Mapping[int, RankState]) -> StackSplit | None:
    """Return the ranks that wait and the ranks that do not; None if their stacks do not show it.

    Stacks do not show it if fewer than half of the ranks have a stack, if all ranks wait, or if
    more than a quarter of them (and more than one) do not wait.

    Examples
    --------
    >>> def at(rank: int, function: str, file: str, line: int) -> RankState:
    ...     return RankState(rank, stack=(Frame(function, file, line),))
    >>> wait = ("_wait_batch_p2p", "torch/distributed/pipelining/schedules.py", 683)
    >>> states = {0: at(0, *wait), 1: at(1, "forward", "train.py", 7), 2: at(2, *wait)}
    >>> split = split_by_stacks(states)
    >>> split.waiting, split.others
    ((0, 2), (1,))
    """
    stacks: dict[int, tuple[Frame, ...]] = {}
    for rank, state in sorted(ranks.items()):
        if state.stack:
            # Frames of Paceline's client around a wait of PyTorch are left out.
            own = (n for n, frame in enumerate(state.stack) if _OURS not in frame.file)
            first = next(own, 0)
            stacks[rank] = state.stack[first:] if _is_wait(state.stack[first]) else state.stack
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
    return StackSplit(tuple(waiting), others, lines.most_common(1)[0][0])


def calling(stack: tuple[Frame, ...]) -> Frame:
    """Return the innermost frame of the program or its framework, outside of PyTorch.

    Examples
    --------
    >>> calling((Frame("all_reduce", "/lib/torch/distributed/c10d.py", 9), Frame("f", "a.py", 3)))
    Frame(function='f', file='a.py', line=3)
    """
    own = (frame for frame in stack if _OURS not in frame.file and _TORCH not in frame.file)
    return next(own, stack[0])


def _is_wait(frame: Frame) -> bool:
    return any(
        place in frame.file and frame.function.startswith(function) for place, function in _WAITS
    )


# Confidence in culprits found by their stacks: a stack shows what a rank does at one moment, but
# not why. A host's report on a process is certain, but not that other ranks wait for this process.
_BY_STACKS: Final = 0.6
_BY_PROCESS: Final = 0.8


def by_stacks(job: JobState, split: StackSplit, unknown: tuple[str, ...]) -> Hang:
    """Return the verdict that the ranks whose stacks show no wait are the culprits."""
    line = code_words(split.line)
    culprits = []
    for rank in split.others:
        place, stack = job.place(rank), job.ranks[rank].stack
        culprits.append(
            Culprit(
                rank=rank,
                host=place.host,
                gpu=place.gpu,
                kind=HangKind.NEVER_ENTERED,
                operation=line,
                evidence=f"is in {code_words(stack[0])} while the others wait in {line}",
                since_ns=None,
                confidence=_BY_STACKS,
                stack=stack,
            )
        )
    without = sorted(job.ranks.keys() - {*split.waiting, *split.others})
    return Hang(
        kind=HangKind.NEVER_ENTERED,
        sentence=sentence_words(culprits, len(split.waiting)),
        culprits=tuple(culprits),
        waiting=split.waiting,
        chain=(Link(line, split.waiting, split.others, 1),),
        confidence=_BY_STACKS,
        remedy=REMEDIES[HangKind.NEVER_ENTERED],
        unknown=(
            *unknown,
            *([f"There is no stack of {rank_words(without)}."] if without else []),
            "No recorder reports pending operations: only the stacks show this.",
        ),
    )


def by_silence(job: JobState, waits: Waits, unknown: tuple[str, ...]) -> Hang:
    """Return the verdict that silent ranks are the culprits, if pending operations lead to no rank.

    Recorders other than NCCL's do not record the ranks of a group, nor transfers.
    """
    waiting = tuple(sorted(rank for rank, s in job.ranks.items() if s.pending or s.stack))
    if waits.operations:
        where = label(job, max(waits.operations, key=lambda operation: len(operation.waiting)))
    else:
        lines = Counter(state.stack[0] for state in job.ranks.values() if state.stack)
        where = code_words(lines.most_common(1)[0][0]) if lines else "an unknown place"
    stand = "waits" if len(waiting) == 1 else "wait"
    others = "and no rank says where it is"
    if waiting:
        others = f"and {rank_words(waiting)} {stand} in {where}"
    culprits = [
        Culprit(
            rank=rank,
            host=job.place(rank).host,
            gpu=job.place(rank).gpu,
            kind=HangKind.SILENT,
            operation=where,
            evidence=f"{left_words(job, rank)}, {others}",
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
        confidence=min(culprit.confidence for culprit in culprits),
        remedy=REMEDIES[HangKind.SILENT],
        unknown=(*unknown, "Only its silence indicates that the others wait for it."),
    )


# Confidence that a rank has not entered an operation: because its recorded sequence numbers are
# lower, or because its records do not contain the operation.
_BY_NUMBERS: Final = 0.95
_BY_ABSENCE: Final = 0.8
_IN_A_CYCLE: Final = 0.6  # ranks that wait for one another may have failed otherwise before


def judge_hang(job: JobState) -> Hang:
    """Return the verdict on a stopped job.

    Culprits are the sinks of the wait-for graph: ranks that other ranks wait for and that wait for
    no rank. If ranks disagree on an operation, these ranks are the culprits, as no other rank can
    resolve the mismatch.
    """
    waits = Waits.of(job)
    culprits = list(_mismatches(job, waits.operations)) or [
        *_sinks(job, waits),
        *_cycles(job, waits),
    ]
    blamed = [culprit.rank for culprit in culprits]
    distance = waits.distances(blamed)
    waiting = tuple(sorted(rank for rank, away in distance.items() if away))
    chain = _chain(job, waits, distance)
    explained = {*waiting, *blamed}
    notes = []
    missing = [rank for rank in job.world if rank not in job.ranks]
    if missing:
        notes.append(f"Nothing is known of {rank_words(missing)}.")
    others = sorted(waits.of_rank.keys() - explained)
    if others and len(others) < len(waits.of_rank):
        notes.append(f"The waits of {rank_words(others)} do not lead to a rank named here.")
    unknown = tuple(notes)
    if not culprits:
        return _without_culprit(job, waits, unknown)
    kind = culprits[0].kind
    explained_share = len(set(waits.of_rank) & explained) / max(len(waits.of_rank), 1)
    return Hang(
        kind=kind,
        sentence=sentence_words(culprits, len(waiting)),
        culprits=tuple(culprits),
        waiting=waiting,
        chain=chain,
        confidence=round(min(c.confidence for c in culprits) * explained_share, 3),
        remedy=REMEDIES[kind],
        unknown=unknown,
    )


def _mismatches(job: JobState, operations: Sequence[Operation]) -> Iterator[Culprit]:
    """Yield ranks that call another operation or size than most ranks of the group."""
    for operation in operations:
        if operation.first.peer is not None or len(operation.waiting) == 1:
            continue
        called: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for rank in operation.waiting:
            front = job.ranks[rank].pending[0]
            # Ranks may call these operations with different sizes.
            size = () if "all_to_all" in front.name or "gather" in front.name else front.size
            called.setdefault((front.name, size), []).append(rank)
        if len(called) == 1:
            continue
        usual = max(called, key=lambda call: len(called[call]))
        fewer = [rank for call, ranks in called.items() if call != usual for rank in ranks]
        even = len(fewer) * 2 >= len(operation.waiting)
        for rank in sorted(operation.waiting if even else fewer):
            front = job.ranks[rank].pending[0]
            others = "the ranks do not agree"
            if not even:
                others = f"{len(called[usual])} ranks call {_call_words(*usual)}"
            call_words = _call_words(front.name, front.size)
            where = _called_in(job.ranks[rank])
            evidence = f"calls {call_words} as number {front.number} of the group{where}; {others}"
            culprit = _culprit(job, rank, operation, HangKind.MISMATCH, evidence, _BY_NUMBERS)
            yield replace(culprit, since_ns=front.since_ns, stack=job.ranks[rank].stack)


def _called_in(state: RankState) -> str:
    """Return the clause about the code line that calls a rank's operation; empty if unknown."""
    return f", called in {code_words(calling(state.stack))}" if state.stack else ""


def _call_words(name: str, size: tuple[int, ...]) -> str:
    return f"{name} of {'×'.join(map(str, size))}" if size else name


def _sinks(job: JobState, waits: Waits) -> Iterator[Culprit]:
    """Yield the ranks that other ranks wait for and that wait for no rank."""
    # Each text about many ranks is made once: a recorder's file may name a million of them.
    operations = sorted(waits.operations, key=_since)
    awaiting: dict[int, int] = {}
    for place, operation in enumerate(operations):
        for rank in operation.awaited:
            awaiting.setdefault(rank, place)
    beyond: dict[int, str] = {}
    absent: dict[int, str] = {}
    for rank in waits.sinks():
        number = waits.of_rank.get(rank)
        if number is None:
            place = awaiting[rank]
            if place not in absent:
                absent[place] = _wait_words(operations[place])
            yield _absent(job, rank, operations[place], absent[place])
            continue
        operation = waits.operations[number]
        if not operation.beyond:
            continue
        if number not in beyond:
            have = "has" if len(operation.beyond) == 1 else "have"
            beyond[number] = f"{rank_words(operation.beyond)} {have} completed"
        evidence = f"does not complete {label(job, operation)}, which {beyond[number]}"
        yield _culprit(job, rank, operation, HangKind.DEVICE_STUCK, evidence, _BY_NUMBERS)


def _wait_words(operation: Operation) -> str:
    """Return which ranks wait: ``ranks 0 to 3 wait``."""
    return f"{rank_words(operation.waiting)} {'waits' if len(operation.waiting) == 1 else 'wait'}"


def _since(operation: Operation) -> tuple[bool, float, int]:
    """Return a sort key: collectives first, then the begin of the wait, then the waiting ranks.

    Transfers come last, as a send that a rank enqueues ahead waits from the beginning of the hang.
    """
    since_ns = operation.first.since_ns
    is_transfer = operation.first.peer is not None
    return is_transfer, math.inf if since_ns is None else since_ns, -len(operation.waiting)


def _absent(job: JobState, rank: int, operation: Operation, waiting: str) -> Culprit:
    """Return the culprit that never entered an operation, or that sends no report."""
    state, what = job.ranks.get(rank), label(job, operation)
    if state is None:
        evidence = f"{left_words(job, rank)}, and {waiting} for it in {what}"
        return _culprit(job, rank, operation, HangKind.SILENT, evidence, _BY_ABSENCE)
    inside = f"; it is in {code_words(state.stack[0])}" if state.stack else ""
    evidence = f"has nothing pending and never entered {what}{inside}"
    sure = _BY_NUMBERS if operation.certain else _BY_ABSENCE
    culprit = _culprit(job, rank, operation, HangKind.NEVER_ENTERED, evidence, sure)
    return replace(culprit, stack=state.stack)


def _culprit(  # noqa: PLR0913, PLR0917 - the fields of a culprit
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
    """Yield ranks that wait for one another, each in an operation that the next has not entered.

    If all ranks of a cycle have entered the operations of the others, no rank is to blame.
    """
    for cycle in waits.cycles():
        operations = [waits.operations[waits.of_rank[rank]] for rank in cycle]
        members = set(cycle)
        if not any(members & set(operation.absent) for operation in operations):
            continue
        for rank, operation in zip(cycle, operations, strict=True):
            state = job.ranks[rank]
            wait = "waits" if len(operation.awaited) == 1 else "wait"
            evidence = (
                f"waits in {label(job, operation)}{_called_in(state)} for "
                f"{rank_words(operation.awaited)}, which in the end {wait} for this rank: "
                "collectives are called in different orders"
            )
            culprit = _culprit(job, rank, operation, HangKind.MISMATCH, evidence, _IN_A_CYCLE)
            yield replace(culprit, stack=state.stack)


def _chain(job: JobState, waits: Waits, distance: dict[int, int]) -> tuple[Link, ...]:
    """Return the operations between waiting ranks and culprits, nearest to the culprits first."""
    links = []
    for operation in waits.operations:
        away = [distance[rank] for rank in operation.awaited if rank in distance]
        if away:
            waits_for = tuple(sorted(rank for rank in operation.awaited if rank in distance))
            links.append(Link(label(job, operation), operation.waiting, waits_for, min(away) + 1))
    return tuple(sorted(links, key=lambda link: (link.distance, -len(link.waiting), link.waiting)))


def _without_culprit(job: JobState, waits: Waits, unknown: tuple[str, ...]) -> Hang:
    """Return the verdict if the wait-for graph leads to no rank."""
    if job.silent:
        return by_silence(job, waits, unknown)
    if not waits.operations:
        split = split_by_stacks(job.ranks)
        if split is not None:
            return by_stacks(job, split, unknown)
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
    operation = max(waits.operations, key=lambda operation: len(operation.waiting))
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
