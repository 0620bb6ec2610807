"""Computing and waiting times of a rank in each part of a step, without labels.

On a device computing is the union of its computing streams, assigned to the part in which the
host launched it, because hosts run ahead. A gap that ends with a collective, with work launched
behind it, is waiting for that collective; any other gap belongs to the host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import PARAMS_ALL_GATHER
from app.analysis.trace.recordings.profiler.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE_SCATTER,
    Collective,
    Roles,
)
from app.analysis.trace.recordings.profiler.host_program import IntArray, Part, Program
from app.analysis.trace.recordings.profiler.process_groups import DATA_COLLECTIVES
from app.analysis.trace.recordings.profiler.scan import Activity, Kernels, Links, Scan

# ---- What a rank computed in each part of a step, and what it waited for -----------------------
# On a device that is the union of what its computing streams ran, for each part what its host
# launched in it: when a kernel runs says nothing about its step, because hosts run ahead. A gap
# that ends with a collective, and after which work was launched already, is waiting for that
# collective; any other gap is the host's.


# A stream computes when it is busy this share of what the busiest one is.
_COMPUTES: Final = 0.05
# What waited for a collective begins within this time after it, on the device or by the host. What
# begins later was launched late, and the collective passed meanwhile.
_FOLLOWS_NS: Final = 300_000
# A kernel that a stream held for a collective starts that soon after it.
_STARTS_NS: Final = 50_000
NOWHERE: Final = -1


class Computed(NamedTuple):
    """What was computed in a segment, ns."""

    first: int
    last: int
    late: int  # how long between them nothing was, and nothing was waited for
    free: int  # when the device had done what comes before, and before what was copied first


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What a rank did."""

    computed: dict[int, Computed]  # by segment
    # (collectives,): when the rank came to need each, and when it had it; both are the end of one
    # that nothing waited for
    needed: IntArray
    had: IntArray
    segment: IntArray  # (collectives,): in which each was issued
    # following, opens: (collectives,): the segment of what was computed next, and whether that is
    # the first of its segment
    following: IntArray
    opens: NDArray[np.bool_]
    # (collectives,): what comes next was launched before each was over, and waited for nothing else
    held: NDArray[np.bool_]
    # starts, ends: of what was computed, merged, ns
    starts: IntArray
    ends: IntArray
    late: IntArray  # before each of these, how long nothing was computed and nothing waited for, ns


class _Busy(NamedTuple):
    """What computing streams ran, by start."""

    start: IntArray
    end: IntArray
    launched: IntArray
    segment: IntArray
    copies: NDArray[np.bool_]  # between host and device


def device_timeline(
    scan: Scan, program: Program, found: Sequence[Collective], exchanging: Collection[str] = ()
) -> Timeline:
    """Return what a device did.

    Parameters
    ----------
    found : sequence of Collective
        By start.
    exchanging : collection of str
        Groups whose collectives hold up what comes next, however late it is launched.
    """
    busy = _busy(scan, program)
    issued = np.array([one.issued for one in found], np.int64)
    segment = program.at(issued)
    done = np.maximum.accumulate(busy.end) if len(busy.end) else busy.end
    before = np.concatenate([busy.start[:1], done[:-1]])
    gap = np.maximum(busy.start - before, 0)
    waited = np.zeros(len(busy.start), np.int64)
    needed = np.array([one.end for one in found], np.int64)
    had = needed.copy()
    following = np.full(len(found), len(program.segments), np.int64)
    opens = np.ones(len(found), np.bool_)
    held = np.zeros(len(found), np.bool_)
    firsts = _firsts(busy)
    ends = np.array([one.end for one in found], np.int64)
    transfers = _transfers([one for one in found if one.group not in exchanging])
    gaps = np.searchsorted(busy.start, ends)
    in_order = np.lexsort((ends, gaps)).tolist()
    for place, alike in groupby(in_order, key=gaps.__getitem__):
        at, numbers = int(place), list(alike)
        last = at == len(busy.start)
        free = int(done[-1]) if last and len(done) else 0
        if not last:
            following[numbers] = busy.segment[at]
            opens[numbers] = firsts[int(busy.segment[at])] == at
            free = int(before[at])
            # What comes next waits for the last of them.
            last_end = int(ends[numbers[-1]])
            if int(busy.start[at]) > last_end + _FOLLOWS_NS:
                begins = firsts[int(busy.segment[at])] == at
                # A part of a step has nothing to do before what it begins with.
                numbers = numbers[:1] if begins else _exchanged(numbers, found, exchanging)
            if int(busy.launched[at]) <= last_end:
                held[numbers] = int(busy.start[at]) <= ends[numbers] + _STARTS_NS
        # The last one was waited for since the rank came to it, those before it until then.
        until = max((int(ends[number]) for number in numbers), default=0)
        for number in reversed(numbers):
            begin, end = max(free, found[number].start), min(until, int(ends[number]))
            if int(issued[number]) > free and not opens[number]:
                # It was launched when the stream had nothing to do: the transfer is the host's
                # delay, and the time beyond it is that of other ranks.
                begin += transfers.get((found[number].group, found[number].name), 0)
            if begin < end:
                needed[number] = int(ends[number]) - (end - begin)
                if not last:
                    waited[at] += end - begin
            until = min(until, found[number].start)
    late = gap - np.minimum(waited, gap)
    opened = {number: at for number, at in firsts.items() if waited[at]}
    computed = _by_segment(busy, _free(busy, before), late, opened)
    return Timeline(computed, needed, had, segment, following, opens, held, busy.start, done, late)


def _exchanged(
    numbers: Sequence[int], found: Sequence[Collective], exchanging: Collection[str]
) -> list[int]:
    """Return which collectives hold up what comes next although that was launched later."""
    return [number for number in numbers if found[number].group in exchanging]


def _free(busy: _Busy, before: IntArray) -> IntArray:
    """Return when what was computed before each kernel was done, long ago if nothing was queued."""
    free = before.copy()
    free[:1][busy.start[:1] <= busy.launched[:1] + _FOLLOWS_NS] = np.iinfo(np.int64).min
    return free


def _transfers(found: Sequence[Collective]) -> dict[tuple[str, str], int]:
    """Return what collectives of a kind take at least, by group and name, ns.

    That is when the rank comes last.
    """
    least: dict[tuple[str, str], int] = {}
    for one in found:
        key = (one.group, one.name)
        least[key] = min(least.get(key, one.end - one.start), one.end - one.start)
    return least


def _firsts(busy: _Busy) -> dict[int, int]:
    """Return where each segment begins to compute.

    A batch that is copied to the device is there before what a forward waits for.
    """
    numbers, places = np.unique(busy.segment, return_index=True)
    firsts = dict(zip(numbers.tolist(), places.tolist(), strict=True))
    computing = np.flatnonzero(~busy.copies)
    numbers, places = np.unique(busy.segment[computing], return_index=True)
    return firsts | dict(zip(numbers.tolist(), computing[places].tolist(), strict=True))


def _by_segment(
    busy: _Busy, free: IntArray, late: IntArray, opened: Mapping[int, int]
) -> dict[int, Computed]:
    """Return what was computed in each segment, from its first kernel on.

    Parameters
    ----------
    free : int64 array, shape (kernels,)
        When what was computed before each was done, ns.
    opened : mapping of int to int
        The first kernel of segments that waited for a collective before it, whatever was copied.
    """
    computed: dict[int, Computed] = {}
    order = np.argsort(busy.segment, kind="stable")
    numbers, places = np.unique(busy.segment[order], return_index=True)
    bounds = [*places.tolist(), len(order)]
    for place, number in enumerate(numbers.tolist()):
        if number == NOWHERE:
            continue
        mine = order[bounds[place] : bounds[place + 1]]
        # Before its first kernel a segment has not begun.
        first = opened.get(number, int(mine[0]))
        inside = int(late[mine[mine > first]].sum())
        computed[number] = Computed(
            int(busy.start[first]), int(busy.end[mine].max()), inside, int(free[mine[0]])
        )
    return computed


def _busy(scan: Scan, program: Program) -> _Busy:
    table = scan.kernels.table
    length = np.zeros(len(scan.threads) + 1, np.int64)
    for duration, work, stream, activity in table.read(
        Kernels.DURATION, Kernels.WORK, Kernels.STREAM, Kernels.ACTIVITY
    ):
        computing = (work < 0) & (activity == Activity.KERNEL)
        np.add.at(length, stream[computing], duration[computing])
    chosen = length >= max(_COMPUTES * float(length.max()), 1)
    columns: list[list[NDArray[np.int64]]] = [[], [], [], [], []]
    for start, duration, work, stream, correlation, external, activity in table.read(
        Kernels.START,
        Kernels.DURATION,
        Kernels.WORK,
        Kernels.STREAM,
        Kernels.CORRELATION,
        Kernels.EXTERNAL,
        Kernels.ACTIVITY,
    ):
        mine = (work < 0) & chosen[stream]
        values = (start, np.maximum(duration, 0), correlation, external, activity)
        for column, part in zip(columns, values, strict=True):
            column.append(part[mine])
    # A recording may have millions of kernels: no column is held twice for long.
    start, duration, correlation, external, activity = (_drained(column) for column in columns)
    copies = activity != Activity.KERNEL
    launched = _launched(scan, correlation, external)
    del correlation, external, activity
    order = np.argsort(start, kind="stable")
    start, duration, launched, copies = (
        start[order],
        duration[order],
        launched[order],
        copies[order],
    )
    del order
    # What is not known to have been launched was launched with what runs before it.
    known = launched != NOWHERE
    latest = np.maximum.accumulate(np.where(known, np.arange(len(launched)), 0))
    launched = launched[latest]
    launched[: int(known.argmax()) if known.any() else len(known)] = np.iinfo(np.int64).min
    return _Busy(start, start + duration, launched, program.at(launched), copies)


def _drained(parts: list[NDArray[np.int64]]) -> IntArray:
    """Return parts of a column as one, and forget them."""
    whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    parts.clear()
    return whole


def _launched(scan: Scan, correlation: IntArray, external: IntArray) -> IntArray:
    """Return when the host launched each kernel, `NOWHERE` where that is not recorded."""
    launched = np.full(len(correlation), NOWHERE, np.int64)
    for links, wanted in ((scan.launches, correlation), (scan.operators, external)):
        if not len(links):
            continue
        missing = np.flatnonzero((launched == NOWHERE) & (wanted >= 0))
        if not len(missing):
            continue
        number = np.concatenate([part for (part,) in links.table.read(Links.NUMBER)])
        order = np.argsort(number, kind="stable")
        number = number[order]
        place = np.minimum(np.searchsorted(number, wanted[missing]), len(number) - 1)
        fits = number[place] == wanted[missing]
        place = order[place[fits]]
        del order, number
        start = np.concatenate([part for (part,) in links.table.read(Links.START)])
        launched[missing[fits]] = start[place]
    return launched


def host_timeline(program: Program, found: Sequence[Collective]) -> Timeline:
    """Return what a rank did that computes on its processors.

    Its own thread computes unless a collective holds it up: no operator is called before that has
    ended.
    """
    called, own = program.called, program.own
    issued = np.array([one.issued for one in found], np.int64)
    segment = program.at(issued)
    end = np.array([one.end for one in found], np.int64)
    returned = np.array([one.returned for one in found], np.int64)
    needed = end.copy()
    following = np.searchsorted(called, returned, side="right")
    for number in range(len(found)):
        at = int(following[number])
        if at == len(called) or int(called[at]) >= int(end[number]):
            needed[number] = int(issued[number])
    computed: dict[int, Computed] = {}
    for number, one in enumerate(program.segments):
        until = (
            int(program.begins[number + 1])
            if number + 1 < len(program.segments)
            else int(called[-1])
            if len(called)
            else one.begin
        )
        match one.part:
            case Part.BACKWARD:
                last = int(program.backward_ends[number])
                computed[number] = Computed(one.begin, max(last, one.begin), 0, one.begin)
            case Part.FORWARD:
                at = int(np.searchsorted(own, one.begin))
                if at < len(own) and own[at] < until:
                    computed[number] = Computed(int(own[at]), until, 0, int(own[at]))
            case Part.OPTIMIZER:
                updates = [
                    span for span in program.optimizers if one.begin <= span.start < max(until, 1)
                ]
                if updates:
                    begin = updates[0].start
                    computed[number] = Computed(begin, updates[-1].end, 0, begin)
            case Part.AFTER:
                pass
    opens = np.zeros(len(found), np.bool_)
    none = called[:0]
    return Timeline(computed, needed, end, segment, segment, opens, opens, none, none, none)


# ---- What computations wait for their peers, told from the collectives that they issue ---------


# A broadcast of buffers, as a forward of DDP begins with, also gives parameters.
OF_DATA: Final = {**DATA_COLLECTIVES, BROADCAST: PARAMS_ALL_GATHER}


class Waits(NamedTuple):
    """What a computation waits for its peers, ns."""

    before: int = 0
    inside: int = 0
    after: int = 0
    end: int = 0  # when the last that it waits for afterwards is there


NO_WAITS: Final = Waits()


class Issued:
    """The collectives of a rank by the segments that issued them."""

    def __init__(
        self, program: Program, found: Sequence[Collective], time: Timeline, roles: Roles
    ) -> None:
        self._segments = program.segments
        self._found = found
        self._time = time
        self._roles = roles
        self._by_segment: dict[int, list[int]] = {}
        for number, segment in enumerate(time.segment.tolist()):
            if segment >= 0:
                self._by_segment.setdefault(segment, []).append(number)

    def of_data(self, number: int) -> list[int]:
        """Return the collectives of data-parallel ranks that a segment issued."""
        roles, found = self._roles, self._found
        return [
            one
            for one in self._by_segment.get(number, ())
            if roles.is_data(found[one]) and found[one].name in OF_DATA
        ]

    def _experts(self, number: int) -> list[int]:
        """Return the collectives by which ranks of experts exchange tokens within a segment."""
        roles, found = self._roles, self._found
        return [
            one
            for one in self._by_segment.get(number, ())
            if found[one].group in roles.experts and found[one].name == ALL_TO_ALL
        ]

    def waits(self) -> dict[int, Waits]:
        """Return what computations wait for their peers, by segment."""
        time, found = self._time, self._found
        waits: dict[int, Waits] = {}
        for number, segment in enumerate(self._segments):
            if segment.part not in {Part.FORWARD, Part.BACKWARD} or number not in time.computed:
                continue
            last = time.computed[number].last
            mine = self.of_data(number)
            experts = self._experts(number)
            if segment.part is Part.BACKWARD and not any(
                found[one].name in {REDUCE_SCATTER, ALL_GATHER} for one in mine
            ):
                # Buckets are reduced meanwhile; after its last kernel a backward waits for all.
                end = max((int(time.had[one]) for one in mine), default=last)
                # What a hook does with a bucket that is there waits for it within the backward.
                inside = sum(
                    int(time.had[one] - time.needed[one])
                    for one in mine
                    if time.held[one] and int(time.following[one]) == number
                ) + sum(
                    int(time.had[one] - time.needed[one])
                    for one in experts
                    if int(time.following[one]) == number and not time.opens[one]
                )
                # What tokens are waited for before it, those of the forward's last exchange, too.
                before = waits.get(number, NO_WAITS).before + sum(
                    int(time.had[one] - time.needed[one])
                    for one in experts
                    if int(time.following[one]) == number and time.opens[one]
                )
                waits[number] = Waits(before, inside, max(end - last, 0), end)
                continue
            for one in (*mine, *experts):
                takes = int(time.had[one] - time.needed[one])
                follows = int(time.following[one])
                reduces = found[one].name in {REDUCE_SCATTER, ALL_REDUCE}
                if follows != number and reduces and time.opens[one]:
                    known = waits.get(number, NO_WAITS)
                    end = max(known.end, int(time.had[one]))
                    waits[number] = known._replace(after=known.after + takes, end=end)
                elif time.opens[one]:
                    known = waits.get(follows, NO_WAITS)
                    waits[follows] = known._replace(before=known.before + takes)
                else:
                    known = waits.get(follows, NO_WAITS)
                    waits[follows] = known._replace(inside=known.inside + takes)
        return waits


def left_out_before(time: Timeline, found: Sequence[Collective], roles: Roles) -> IntArray:
    """Return what of the time before each kernel is no part of a computation, ns, summed up.

    Shape (kernels,): launch delays, and waits for data-parallel ranks.
    """
    each = time.late.copy()
    data = [n for n, one in enumerate(found) if roles.is_data(one) or one.group in roles.experts]
    places = np.searchsorted(time.starts, np.array([found[n].end for n in data], np.int64))
    there = places < len(each)
    takes = (time.had - time.needed)[data]
    np.add.at(each, places[there], takes[there])
    return np.asarray(np.cumsum(each))
