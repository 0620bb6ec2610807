"""The ranks that come last at data-parallel collectives, and the origins of the waits for them.

A readable implementation of `app.analysis.arrivals`, one operation at a time, for traces of one
rank a worker, with equal clocks and without missing operations.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import fmean

from app.analysis.arrivals.collective_matching import TYPES, GroupKind
from app.analysis.arrivals.lateness import COMMUNICATIONS
from app.analysis.replay.layout.pipeline import BACKWARD, FORWARD
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    EMBEDDING_ALL_REDUCE,
    FORWARD_COMPUTE,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
    WGRAD_COMPUTE,
    Sizes,
    Trace,
)

COMPUTES = {FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE, OPTIMIZER}
# Thresholds as shares of a step, and of all its collectives together, as in the program.
TOGETHER = 0.001
IN_ALL = 0.01

# Of the walk back to the origins of a wait, as in the program.
MOMENT_NS = 50_000
LEFT = 0.002
EXPLAINS = 0.9

Interval = tuple[int, int]
# start, end, and the last arrival
_Wait = tuple[int, int, "_Op"]


@dataclass
class Told:
    """Values by rank, over all steps, in ns."""

    last: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    waited_for_ns: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    waits_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    computing_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(frozen=True)
class _Op:
    rank: int
    dp: int
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
                int(trace.dp[row]),
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
        walk = _Walk(ops, free, trace.meta.sizes)
        for (stage, _, _), members in meetings.items():
            last = max(members, key=lambda op: (op.start, -op.rank))
            told.last[last.rank] += last.start - min(op.start for op in members) >= near[stage]
            for op in members:
                waits[op.rank].append((op.start, min(last.start, op.end), last))
        for rank, mine in waits.items():
            done = 0
            for start, until, last in sorted(mine, key=lambda wait: wait[:2]):
                left = _length(_without([(max(start, done), until)], free.get(rank, [])))
                done = max(done, until)
                told.waits_ns[rank] += left
                for origin, share in walk.origins(last).items() if left else ():
                    told.waited_for_ns[origin] += share * left
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


class _Walk:
    """The way back from a late arrival to the ranks whose own work is the reason."""

    def __init__(self, ops: list[_Op], computing: dict[int, list[Interval]], sizes: Sizes) -> None:
        ops = sorted(ops, key=lambda op: op.start)
        communication = [op for op in ops if op.name in COMMUNICATIONS]
        self._of_rank: dict[int, list[_Op]] = defaultdict(list)
        self._alike: dict[tuple[int, str, int], list[_Op]] = defaultdict(list)
        for op in communication:
            self._of_rank[op.rank].append(op)
            self._alike[op.stage, op.name, op.order].append(op)
        ends: dict[int, list[int]] = defaultdict(list)
        for op in ops:
            if op.name in COMPUTES:
                insort(ends[op.rank], op.end)
        self._holds = {op: _holds(op, computing.get(op.rank, [])) for op in communication}
        # When a rank has finished an exchange, and what it computes before going on
        self._free: dict[_Op, int] = {}
        for alike in self._alike.values():
            computed = {op: bisect_right(ends[op.rank], op.end + MOMENT_NS) for op in alike}
            count = max((computed[op] for op in alike if self._holds[op]), default=0)
            for op in alike:
                later = computed[op] < count <= len(ends[op.rank])
                self._free[op] = max(op.end, ends[op.rank][count - 1]) if later else op.end
        exchanges: dict[tuple[object, ...], list[_Op]] = defaultdict(list)
        for op in communication:
            exchanges[_exchange(op, sizes)].append(op)
        self._partner: dict[_Op, _Op] = {}
        self._earlier: dict[_Op, _Op] = {}
        for key, both in exchanges.items():
            if key[0] == "collective":
                last = max(both, key=lambda op: (op.start, -op.rank))
                self._partner.update(dict.fromkeys(both, last))
            elif len(both) == 2:
                self._earlier.update(dict.fromkeys(both, min(both, key=lambda op: op.stage)))
                one, other = sorted(both, key=lambda op: op.end - op.start)
                self._partner[other] = (
                    one if one.end - one.start < other.end - other.start else other
                )

    def origins(self, op: _Op) -> dict[int, float]:
        """Return the share of each rank in the lateness of an arrival."""
        late = self._late(op)
        if late is None or late <= 0:
            return {op.rank: 1.0}
        least, scale, shares = LEFT * late, 1.0, defaultdict[int, float](float)
        first = op
        while True:
            late = scale * (self._late(op) or 0)
            held = self._held_up(op)
            inherited = 0.0 if held is None else scale * self._free_late(held)
            if held is None or inherited <= least:
                shares[op.rank] += late
                break
            shares[op.rank] += late - inherited
            cause = self._partner.get(held, held)
            arrived, caused = (scale * (self._late(end) or 0) for end in (held, cause))
            if caused < EXPLAINS * min(arrived, inherited):
                cause, caused = held, arrived
            explained = min(max(caused, 0), inherited)
            shares[self._earlier.get(held, held).rank] += inherited - explained
            if explained <= least:
                break
            scale *= explained / caused
            op = cause
        positive = {rank: share for rank, share in shares.items() if share > 0}
        total = sum(positive.values())
        return {rank: share / total for rank, share in positive.items()} or {first.rank: 1.0}

    def _peers(self, op: _Op) -> list[_Op]:
        return [peer for peer in self._alike[op.stage, op.name, op.order] if peer is not op]

    def _late(self, op: _Op) -> float | None:
        peers = self._peers(op)
        return op.start - fmean(peer.start for peer in peers) if peers else None

    def _free_late(self, op: _Op) -> float:
        return self._free[op] - fmean(self._free[peer] for peer in self._peers(op))

    def _held_up(self, op: _Op) -> _Op | None:
        mine = self._of_rank[op.rank]
        for held in sorted(mine[: mine.index(op)], key=lambda held: held.end, reverse=True):
            peers = self._peers(held)
            if not self._holds[held] or not peers or self._free[held] > op.start + MOMENT_NS:
                continue
            begin = fmean(peer.start for peer in self._peers(op))
            if fmean(self._free[peer] for peer in peers) <= begin + MOMENT_NS:
                return held
        return None


def _holds(op: _Op, computing: list[Interval]) -> bool:
    """Return whether a rank does not compute while an exchange ends."""
    idle = _length(_without([(op.end - 2 * MOMENT_NS, op.end)], computing))
    return idle >= MOMENT_NS


def _exchange(op: _Op, sizes: Sizes) -> tuple[object, ...]:
    """Return what the ends of an exchange have in common."""
    if op.name in TYPES[GroupKind.DATA]:
        return "collective", op.stage, op.name, op.order
    if op.name == EMBEDDING_ALL_REDUCE:
        return "embedding", op.dp, op.order
    for direction, away in ((FORWARD, 1), (BACKWARD, -1)):
        if op.name == direction.recv:
            return direction, op.dp, op.stage, op.order
        if op.name == direction.send:
            to = op.stage + away
            return direction, op.dp, to % sizes.pp if sizes.vpp > 1 else to, op.order
    return "alone", op


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
