"""The ranks that come last at data-parallel collectives, computed one operation at a time.

A readable implementation of `app.analysis.arrivals`, for traces of one rank a worker, with equal
clocks and without missing operations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from app.analysis.arrivals.collective_matching import TYPES, GroupKind
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    FORWARD_COMPUTE,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
    WGRAD_COMPUTE,
    Trace,
)

COMPUTES = {FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE, OPTIMIZER}
# Thresholds as shares of a step, and of all its collectives together, as in the program.
TOGETHER = 0.001
IN_ALL = 0.01

Interval = tuple[int, int]
# start, end, and the awaited rank
_Wait = tuple[int, int, int | None]


@dataclass
class Told:
    """Values by rank, over all steps, in ns."""

    last: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    waited_for_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    waits_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    computing_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(frozen=True)
class _Op:
    rank: int
    stage: int
    name: str
    order: int
    start: int
    end: int


def twin_of(trace: Trace, step_ns: float) -> Told:
    """Return the values of all steps, given the duration of a step."""
    by_step: dict[int, list[_Op]] = defaultdict(list)
    for row in range(len(trace)):
        start = int(trace.start_ns[row])
        by_step[int(trace.step[row])].append(
            _Op(
                int(trace.rank[row]),
                int(trace.pp[row]),
                trace.op_names[trace.op[row]],
                int(trace.order[row]),
                start,
                start + int(trace.duration_ns[row]),
            )
        )
    told = Told()
    met = [_meetings(ops) for ops in by_step.values()]
    each = Counter(key[0] for meetings in met for key in meetings)
    near = {
        stage: min(TOGETHER, IN_ALL * len(by_step) / count) * step_ns
        for stage, count in each.items()
    }
    for ops, meetings in zip(by_step.values(), met, strict=True):
        free = _computing(ops)
        for rank, pieces in free.items():
            told.computing_ns[rank] += _length(pieces)
        waits: dict[int, list[_Wait]] = defaultdict(list)
        for (stage, _, _), members in meetings.items():
            arrival = max(op.start for op in members)
            last = min(op.rank for op in members if op.start == arrival)
            late = arrival - min(op.start for op in members) >= near[stage]
            told.last[last] += late
            for op in members:
                wait = (op.start, min(arrival, op.end), last if late else None)
                waits[op.rank].append(wait)
        for rank, mine in waits.items():
            _count(told, rank, mine, free.get(rank, []))
    return told


def _meetings(ops: list[_Op]) -> dict[tuple[int, str, int], list[_Op]]:
    found: dict[tuple[int, str, int], list[_Op]] = defaultdict(list)
    for op in ops:
        if op.name in TYPES[GroupKind.DATA]:
            found[op.stage, op.name, op.order].append(op)
    return {key: members for key, members in found.items() if len(members) > 1}


def _computing(ops: list[_Op]) -> dict[int, list[Interval]]:
    computing: dict[int, list[Interval]] = defaultdict(list)
    gathers: dict[int, list[Interval]] = defaultdict(list)
    for op in ops:
        if op.name in COMPUTES:
            computing[op.rank].append((op.start, op.end))
        if op.name == PARAMS_ALL_GATHER:
            gathers[op.rank].append((op.start, op.end))
    return {rank: _without(_union(of), _union(gathers[rank])) for rank, of in computing.items()}


def _count(told: Told, rank: int, waits: list[_Wait], computing: list[Interval]) -> None:
    done = 0
    for start, until, last in sorted(waits, key=lambda one: one[:2]):
        left = _length(_without([(max(start, done), until)], computing))
        done = max(done, until)
        told.waits_ns[rank] += left
        if last is not None:
            told.waited_for_ns[last] += left


def _union(intervals: list[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _without(intervals: list[Interval], taken: list[Interval]) -> list[Interval]:
    for begin, finish in taken:
        intervals = [
            piece
            for start, end in intervals
            for piece in ((start, min(end, begin)), (max(start, finish), end))
            if piece[0] < piece[1]
        ]
    return intervals


def _length(intervals: list[Interval]) -> int:
    return sum(max(end - start, 0) for start, end in intervals)
