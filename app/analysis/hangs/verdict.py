"""Verdict on a hang: the ranks that other ranks wait for, the reason, and the action.

Culprits come from the wait-for graph of pending operations. If the graph leads to no rank (gloo
records no transfers; many jobs have no recorder), silent ranks are blamed. Without silent ranks,
the stacks of the training threads decide.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from app.analysis.hangs.findings import (
    ALL_STARTED,
    BOTH_SIDES,
    FEW_FILES,
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
from app.analysis.hangs.stacks import (
    StackSplit,
    calling,
    is_collective,
    is_wait,
    split_by_stacks,
    waits_of_stacks,
)
from app.analysis.hangs.state import JobState, RankState, elements
from app.analysis.hangs.wait_graph import Operation, Waits

_PAIR: Final = 2
_FEW: Final = 4  # at most every fourth rank is an exception
_SHAPES: Final = 3  # in a sentence

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


def by_waits(job: JobState, waits: Waits, unknown: tuple[str, ...]) -> Hang | None:
    """Return the verdict if the stacks of all ranks show that they wait; else None.

    A few ranks without a stack are silent. A few ranks that wait in another collective than most,
    or in another line of the program, are the culprits.
    """
    sides = waits_of_stacks(job.ranks)
    if not sides:
        return None
    waiting = tuple(sorted(rank for ranks in sides.values() for rank in ranks))
    most = max(1, len(waiting) // _FEW)
    missing = sorted({*range(max(job.ranks) + 1)} - {*waiting})
    if 0 < len(missing) <= most:
        return by_silence(job, waits, unknown, missing)
    notes = [f"There is no stack of {rank_words(missing)}."] if missing else []
    notes.append("No recorder reports pending operations: only the stacks show this.")
    ((usual, program), ranks), *others = sides.items()
    line = code_words(usual)
    rare = sorted(rank for _, own in others for rank in own)
    culprits = []
    if 0 < len(rare) <= most and all(is_collective(inner) for inner, _ in sides):
        for (inner, caller), own in others:
            evidence = (
                f"waits in {inner.function}, called in {code_words(caller)}, while the others "
                f"wait in {usual.function}, called in {code_words(program)}"
            )
            culprits += [
                Culprit(
                    rank=rank,
                    host=job.place(rank).host,
                    gpu=job.place(rank).gpu,
                    kind=HangKind.MISMATCH,
                    operation=line,
                    evidence=evidence,
                    since_ns=None,
                    confidence=_BY_STACKS,
                    stack=job.ranks[rank].stack,
                )
                for rank in own
            ]
        culprits.sort(key=lambda culprit: culprit.rank)
    if culprits:
        kind, sentence = HangKind.MISMATCH, sentence_words(culprits, len(ranks))
    else:
        kind = HangKind.ALL_ENTERED
        where = f"in {line}"
        if others:
            where = f"in {len(sides)} places, {rank_words(ranks)} in {line}"
        who = "All ranks" if not missing else "All ranks with a stack"
        sentence = f"{who} wait {where}: none is to blame."
    return Hang(
        kind=kind,
        sentence=sentence,
        culprits=tuple(culprits),
        waiting=tuple(ranks) if culprits else waiting,
        chain=(Link(line, tuple(ranks), tuple(rare), 1),) if culprits else (),
        confidence=_BY_STACKS if culprits else 0.0,
        remedy=REMEDIES[kind],
        unknown=(*unknown, *notes),
    )


def by_silence(
    job: JobState, waits: Waits, unknown: tuple[str, ...], silent: Sequence[int]
) -> Hang:
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
        for rank in silent
    ]
    return Hang(
        kind=HangKind.SILENT,
        sentence=sentence_words(culprits, len(waiting)),
        culprits=tuple(culprits),
        waiting=waiting,
        chain=(Link(where, waiting, tuple(silent), 1),) if waiting else (),
        confidence=min(culprit.confidence for culprit in culprits),
        remedy=REMEDIES[HangKind.SILENT],
        unknown=(*unknown, "Only its silence indicates that the others wait for it."),
    )


# Confidence that a rank has not entered an operation: because its recorded sequence numbers are
# lower, or because its records do not contain the operation.
_BY_NUMBERS: Final = 0.95
_BY_ABSENCE: Final = 0.8
_IN_A_CYCLE: Final = 0.6  # ranks that wait for one another may have failed otherwise before
# Confidence that few ranks call what the others rightly do not call: the others may be late.
_BY_MINORITY: Final = 0.8
_BOTH_SIDES: Final = 0.6
_NOT_STARTED: Final = 0.7  # another kernel of the device may be at fault
# Confidence if most ranks left no file: these are missing rather than silent.
_FEW_FILES: Final = 0.3
_MOST_UNLISTED: Final = 0.25  # missing ranks for each rank with a file


def judge_hang(job: JobState) -> Hang:
    """Return the verdict on a stopped job.

    Culprits are the sinks of the wait-for graph: ranks that other ranks wait for and that wait for
    no rank. If ranks disagree on an operation, these ranks are the culprits, as no other rank can
    resolve the mismatch; if most ranks never enter an operation, the few that call it.
    """
    waits = Waits.of(job)
    culprits = list(_mismatches(job, waits.operations))
    is_unlike = bool(culprits)
    if is_unlike:
        culprits += _absent_too(job, waits)
    else:
        culprits = _callers_if_few(job, waits, list(_sinks(job, waits)))
        culprits += _cycles(job, waits)
    blamed = [culprit.rank for culprit in culprits]
    distance = waits.distances(blamed)
    waiting = tuple(sorted(rank for rank, away in distance.items() if away))
    explained = {*waiting, *blamed}
    notes = list(job.notes)
    missing = [rank for rank in job.world if rank not in job.ranks]
    if missing:
        notes.append(f"Nothing is known of {rank_words(missing)}.")
    others = sorted(waits.of_rank.keys() - explained)
    if others and len(others) < len(waits.of_rank):
        notes.append(f"The waits of {rank_words(others)} do not lead to a rank named here.")
    if not culprits:
        return _without_culprit(job, waits, tuple(notes))
    kind, remedy = culprits[0].kind, REMEDIES[culprits[0].kind]
    confidence = min(culprit.confidence for culprit in culprits)
    if kind is not HangKind.MISMATCH:
        confidence *= len(set(waits.of_rank) & explained) / max(len(waits.of_rank), 1)
    elif not is_unlike and any(c.kind is HangKind.NEVER_ENTERED for c in culprits):
        remedy = BOTH_SIDES
    if kind is HangKind.SILENT and _most_are_missing(job, missing):
        confidence, remedy = min(confidence, _FEW_FILES), FEW_FILES
    return Hang(
        kind=kind,
        sentence=sentence_words(culprits, len(waiting)),
        culprits=tuple(culprits),
        waiting=waiting or tuple(sorted(waits.of_rank)),
        chain=_chain(job, waits, distance),
        confidence=round(confidence, 3),
        remedy=remedy,
        unknown=tuple(notes),
    )


def _most_are_missing(job: JobState, missing: Sequence[int]) -> bool:
    """Return whether most ranks left no file: then the files are incomplete.

    If no recorder lists the ranks of a group, it may have fewer ranks than are numbered, and a
    quarter is enough.
    """
    is_listed = any(group.is_listed for group in job.groups)
    count = len(set(missing) - job.silent)
    return count > (len(job.ranks) if is_listed else len(job.ranks) * _MOST_UNLISTED)


def _mismatches(job: JobState, operations: Sequence[Operation]) -> Iterator[Culprit]:
    """Yield ranks that call an operation otherwise than most ranks of the group."""
    by_number: dict[tuple[int, ...], list[Operation]] = {}
    for operation in operations:
        if operation.call is not None:
            first, (rank, *_) = operation.first, operation.waiting
            key: tuple[int, ...] = first.group, first.number
            if first.peer is not None:
                key = first.group, *sorted((rank, first.peer)), first.is_send is (rank < first.peer)
            by_number.setdefault(key, []).append(operation)
    for sides in by_number.values():
        words = _words_of_calls(sides)
        usual = max(range(len(sides)), key=lambda number: len(sides[number].waiting))
        count = sum(len(side.waiting) for side in sides)
        is_even = 2 * len(sides[usual].waiting) <= count
        by_rank: dict[int, tuple[Operation, str, str]] = {}
        for number, side in enumerate(sides):
            if number == usual and not is_even:
                continue
            # Each text is made once, as thousands of ranks may call differently.
            others = f"the ranks make {len(sides)} different calls"
            if not is_even or len(sides) == _PAIR:
                other = usual if number != usual else 1 - usual
                ranks = len(sides[other].waiting)
                who = "1 rank calls" if ranks == 1 else f"{ranks} ranks call"
                others = f"{who} {words[other]}"
            by_rank |= dict.fromkeys(side.waiting, (side, words[number], others))
        for rank, (side, call, others) in sorted(by_rank.items()):
            state, number = job.ranks[rank], side.first.number
            called = f"calls {call} as number {number} of the group{_called_in(state)}"
            evidence = f"{called}; {others}"
            culprit = _culprit(job, rank, side, HangKind.MISMATCH, evidence, _BY_NUMBERS)
            since_ns = state.pending[0].since_ns
            yield replace(culprit, since_ns=since_ns, stack=state.called_at)


def _absent_too(job: JobState, waits: Waits) -> Iterator[Culprit]:
    """Yield the ranks that have not entered an operation that other ranks call differently.

    If these are most of the ranks, they may rightly not call it.
    """
    unlike = [operation for operation in waits.operations if operation.call is not None]
    absent = {rank for operation in unlike for rank in operation.absent}
    if len(absent) < len({rank for operation in unlike for rank in operation.waiting}):
        for culprit in _sinks(job, waits):
            if culprit.rank in absent and culprit.kind is HangKind.NEVER_ENTERED:
                yield culprit


def _called_in(state: RankState) -> str:
    """Return the clause about the code line that calls a rank's operation; empty if unknown."""
    stack = state.called_at
    return f", called in {code_words(calling(stack))}" if stack else ""


def _words_of_calls(sides: Sequence[Operation]) -> Sequence[str]:
    """Return the words for the calls of an operation, with everything in which they differ."""
    calls = [side.call for side in sides if side.call is not None]
    has_equal_inputs = len({elements(call.tensors.inputs) for call in calls}) == 1
    outputs = {elements(call.tensors.outputs) for call in calls}
    has_other_outputs = has_equal_inputs and len(outputs) > 1
    has_other_types = len({call.tensors.dtypes for call in calls}) > 1
    texts = []
    for call in calls:
        text = (call.name or "an operation") + _sizes(" of ", call.tensors.inputs)
        if has_other_outputs:
            text += _sizes(" into ", call.tensors.outputs)
        if has_other_types:
            text += f" in {', '.join(call.tensors.dtypes)}"
        texts.append(text)
    return texts


def _sizes(before: str, shapes: Sequence[tuple[int, ...]]) -> str:
    """Return the words for shapes: `` of 8×16, 4``; equal shapes are counted."""
    parts = []
    for shape, equal in groupby(shapes):
        count = len(list(equal))
        times = f"{count} tensors of " if count > 1 else ""
        parts.append(times + ("×".join(map(str, shape)) or "a scalar"))
    more = f" and {len(parts) - _SHAPES} more" if len(parts) > _SHAPES else ""
    return f"{before}{', '.join(parts[:_SHAPES])}{more}" if parts else ""


def _callers_if_few(job: JobState, waits: Waits, sinks: list[Culprit]) -> list[Culprit]:
    """Return the ranks that call a collective if most ranks never enter it, else the sinks.

    All ranks run the same program: a call that few of them make stands under a condition that only
    these ranks meet. If as many ranks call it as do not, either side may be wrong. Ranks whose
    stacks show no wait are late, however many they are.
    """
    absent = {culprit.rank for culprit in sinks if culprit.kind is HangKind.NEVER_ENTERED}
    is_otherwise = any(
        culprit.kind is HangKind.DEVICE_STUCK or culprit.rank in job.silent for culprit in sinks
    )
    stacks = [job.ranks[rank].stack for rank in absent]
    if is_otherwise or all(stack and not is_wait(stack[0]) for stack in stacks):
        return sinks
    waiting = sum(away > 0 for away in waits.distances(absent).values())
    operations = [
        operation
        for operation in waits.operations
        if operation.first.peer is None and not absent.isdisjoint(operation.absent)
    ]
    if not operations or len(absent) < waiting:
        return sinks
    callers = [caller for operation in operations for caller in _callers(job, operation)]
    if len(absent) > waiting:
        return callers
    missing = [culprit for culprit in sinks if culprit.rank in absent]
    return [replace(culprit, confidence=_BOTH_SIDES) for culprit in (*callers, *missing)]


def _callers(job: JobState, operation: Operation) -> Iterator[Culprit]:
    """Yield the ranks that wait in an operation as those that should not call it."""
    others = f"which {rank_words(operation.absent)} "
    others += "does not enter" if len(operation.absent) == 1 else "do not enter"
    for rank in operation.waiting:
        state = job.ranks[rank]
        evidence = f"calls {label(job, operation)}{_called_in(state)}, {others}"
        culprit = _culprit(job, rank, operation, HangKind.MISMATCH, evidence, _BY_MINORITY)
        since_ns = None if state.front is None else state.front.since_ns
        yield replace(culprit, since_ns=since_ns, stack=state.called_at)


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
    idle = {
        waits.of_rank[rank]
        for operation in operations
        if operation.call is None
        for rank in operation.unlike
    }
    for rank in waits.sinks():
        number = waits.of_rank.get(rank)
        if number is None:
            place = awaiting[rank]
            if place not in absent:
                absent[place] = _wait_words(operations[place])
            yield _absent(job, rank, operations[place], absent[place])
            continue
        operation = waits.operations[number]
        if operation.beyond and number not in beyond:
            have = "has" if len(operation.beyond) == 1 else "have"
            beyond[number] = f"{rank_words(operation.beyond)} {have} completed"
        if number in beyond:
            evidence = f"does not complete {label(job, operation)}, which {beyond[number]}"
            yield _culprit(job, rank, operation, HangKind.DEVICE_STUCK, evidence, _BY_NUMBERS)
        elif number in idle:
            evidence = (
                f"has enqueued {label(job, operation)}, but its device has not started it, "
                "unlike those of the others"
            )
            yield _culprit(job, rank, operation, HangKind.DEVICE_STUCK, evidence, _NOT_STARTED)
        else:
            yield from _unlike_batch(job, waits, rank, operation)


def _unlike_batch(
    job: JobState, waits: Waits, rank: int, operation: Operation
) -> Iterator[Culprit]:
    """Yield a rank whose peer meets its transfer in a batch with another one that it lacks."""
    place = waits.of_rank.get(rank if operation.first.peer is None else operation.first.peer)
    other = operation if place is None else waits.operations[place]
    if rank in other.absent:
        evidence = (
            f"is in {label(job, operation)} with rank {operation.first.peer}, and never entered "
            f"{label(job, other)} of the same batch"
        )
        culprit = _culprit(job, rank, other, HangKind.MISMATCH, evidence, _IN_A_CYCLE)
        yield replace(culprit, stack=job.ranks[rank].called_at)


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
        is_member = rank in job.silent or job.groups[operation.first.group].is_listed
        sure = _BY_ABSENCE if is_member else _BY_STACKS
        return _culprit(job, rank, operation, HangKind.SILENT, evidence, sure)
    inside = f"; it is in {code_words(state.stack[0])}" if state.stack else ""
    has_nothing = "has nothing pending and " if state.is_recorded else ""
    evidence = f"{has_nothing}never entered {what}{inside}"
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

    If fewer than half of the ranks of a group have entered one of the operations, only its callers
    are yielded. Transfers that both ends have entered are no fault, unless all are sends, or all
    receives, that wait for the next transfer of another rank.
    """
    for cycle in waits.cycles():
        places = dict.fromkeys(waits.of_rank[rank] for rank in cycle)
        operations = [waits.operations[place] for place in places]
        members = set(cycle)
        fronts = [operation.first for operation in operations]
        is_transfer = any(front.peer is not None for front in fronts)
        is_crossed = all(
            front.peer is not None and front.is_send == fronts[0].is_send for front in fronts
        )
        is_entered = all(members.isdisjoint(operation.absent) for operation in operations)
        if is_entered and is_transfer and not is_crossed:
            continue
        rare = [
            operation
            for operation in operations
            if operation.first.peer is None
            and 2 * len(operation.absent) > len(job.groups[operation.first.group].ranks)
        ]
        if len(rare) == 1:
            yield from _callers(job, rare[0])
            continue
        places_of = {rank: place for place in places for rank in waits.operations[place].waiting}
        for rank, place in sorted(places_of.items()):
            operation = waits.operations[place]
            state = job.ranks[rank]
            wait = "waits" if len(operation.awaited) == 1 else "wait"
            evidence = (
                f"waits in {label(job, operation)}{_called_in(state)} for "
                f"{rank_words(operation.awaited)}, which in the end {wait} for this rank: "
            )
            if is_crossed and is_entered:
                who = "both" if len(cycle) == _PAIR else "all"
                evidence += f"{who} {'send' if operation.first.is_send else 'receive'} first"
            elif is_transfer:
                evidence += "their transfers do not match"
            else:
                evidence += "collectives are called in different orders"
            culprit = _culprit(job, rank, operation, HangKind.MISMATCH, evidence, _IN_A_CYCLE)
            yield replace(culprit, stack=state.called_at)


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
        return by_silence(job, waits, unknown, sorted(job.silent))
    if not waits.operations:
        split = split_by_stacks(job.ranks)
        if split is not None:
            return by_stacks(job, split, unknown)
        found = by_waits(job, waits, unknown)
        if found is not None:
            return found
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
    entered = [operation for operation in waits.operations if not operation.awaited]
    operation = max(entered or waits.operations, key=lambda operation: len(operation.waiting))
    what = label(job, operation)
    group = job.groups[operation.first.group]
    who = "All ranks"
    if not group.is_listed or operation.unclear:
        who = "All ranks whose operations are known"
    if operation.first.peer is not None:
        ends = {rank for other in entered if other.first.peer is not None for rank in other.waiting}
        who = rank_words(sorted(ends or operation.waiting)).capitalize()
    have = "has" if who.startswith("Rank ") else "have"
    fronts = [job.ranks[rank].front for rank in operation.waiting]
    is_running = len(fronts) == len(group.ranks) and all(
        front and front.has_started for front in fronts
    )
    if operation.unclear:
        whether = f"Whether {rank_words(operation.unclear)} entered {what} is not recorded."
        unknown = (*unknown, whether)
    return Hang(
        kind=HangKind.ALL_ENTERED,
        sentence=f"{who} {have} entered {what}, which does not complete: none is to blame.",
        culprits=(),
        waiting=tuple(sorted(waits.of_rank)),
        chain=_chain(job, waits, dict.fromkeys(waits.of_rank, 0)),
        confidence=0.0,
        remedy=ALL_STARTED if is_running else REMEDIES[HangKind.ALL_ENTERED],
        unknown=unknown,
    )
