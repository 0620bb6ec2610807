"""Computing and waiting times of a rank in each part of a step, from a recording without labels.

The computing time of a device is the union of the kernels on its computing streams. A kernel is
assigned to the part of the step in which the host launched it, because hosts run ahead of their
devices. A gap before a kernel counts as waiting for a collective if the collective ends the gap and
the kernel was already launched; any other gap is a delay of the host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
from app.analysis.trace.recordings.profiler.launches import rows_of
from app.analysis.trace.recordings.profiler.process_groups import DATA_COLLECTIVES
from app.analysis.trace.recordings.profiler.scan import Activity, Kernels, Links, Scan

# Least busy time of a computing stream as a share of the busiest stream's time.
_COMPUTES: Final = 0.05
# Longest gap between the end of a collective and a kernel that waited for the collective. A kernel
# that begins later was launched late, and did not wait.
_FOLLOWS_NS: Final = 300_000
# Longest gap between the end of a collective and a queued kernel that its stream held back until
# this end.
_STARTS_NS: Final = 50_000
# Longest time from the launch of a kernel to its start on an idle device.
_LONGEST_LATENCY_NS: Final = 1_000_000
_UNKNOWN: Final = -1


class Computed(NamedTuple):
    """Computing time of a segment, the part of a step between two collectives; times in ns."""

    first: int
    last: int
    late: int  # idle time between first and last without waiting


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Computing and waiting times of a rank; times in ns."""

    computed: dict[int, Computed]  # by segment
    # needed, had: shape (collectives,), ns: start and end of the wait for each collective; both are
    # the end of the collective if no kernel waited for it
    needed: IntArray
    had: IntArray
    segment: IntArray  # (collectives,): segment that issued each collective
    # following, opens: shape (collectives,): segment of the next kernel or copy after each
    # collective, and whether no kernel of that segment is earlier
    following: IntArray
    opens: NDArray[np.bool_]
    # Shape (collectives,): whether the next kernel was launched before the end of the collective,
    # and waited for nothing else.
    held: NDArray[np.bool_]
    # starts, ends: shape (kernels,): computing times, overlapping kernels merged
    starts: IntArray
    ends: IntArray
    late: IntArray  # (kernels,): idle time before each kernel, without waiting
    # (kernels,): time on the host before which a kernel and all earlier kernels were launched, ns
    launched: IntArray
    free: int  # end of the work that the device did before the recording

    def free_at(self, time: int) -> int:
        """Return the end of the work that a device was given before a time on the host, ns."""
        earlier = int(np.searchsorted(self.launched, time))
        return int(self.ends[earlier - 1]) if earlier else self.free


class _Busy(NamedTuple):
    """Kernels and copies of the computing streams, sorted by start."""

    start: IntArray
    end: IntArray
    launched: IntArray
    segment: IntArray
    copies: NDArray[np.bool_]  # whether each is a copy, not a kernel


def with_lost_kernels(
    scan: Scan, program: Program, collectives: Sequence[Collective]
) -> list[Collective]:
    """Return collectives sorted by start, with the times of lost kernels where they are known.

    A backward waits for its last reduction before any kernel of the next segment runs, so this
    kernel shows when a lost one ended. Lost kernels of other reductions are left out: nothing
    waits for them but later reductions.
    """
    if not any(collective.lost for collective in collectives):
        return list(collectives)
    busy = _busy(scan, program)
    segment = program.at(np.array([collective.issued for collective in collectives], np.int64))
    last = {
        number: max(collective.issued for collective in issued)
        for number in np.unique(segment).tolist()
        for issued in [[c for c, at in zip(collectives, segment, strict=True) if at == number]]
    }
    kept = []
    for collective, number in zip(collectives, segment.tolist(), strict=True):
        if not collective.lost:
            kept.append(collective)
            continue
        following = busy.start[busy.segment > number]
        in_backward = number >= 0 and program.segments[number].part is Part.BACKWARD
        if collective.issued < last[number] or not in_backward or not len(following):
            continue
        end = int(following[0])
        earlier = [c.end for c in collectives if not c.lost and c.issued < collective.issued]
        start = min(max([collective.issued, *earlier]), end)
        kept.append(replace(collective, start=start, end=end))
    return sorted(kept, key=lambda collective: (collective.start, collective.end))


def device_timeline(
    scan: Scan,
    program: Program,
    collectives: Sequence[Collective],
    exchanging: Collection[str] = (),
) -> Timeline:
    """Return the computing and waiting times of a rank that computes on a device.

    Parameters
    ----------
    collectives : sequence of Collective
        Collectives of the rank, sorted by start.
    exchanging : collection of str
        Process groups that exchange activations: the next kernel always waits for their
        collectives, even if it is launched late.
    """
    busy = _busy(scan, program)
    issued = np.array([collective.issued for collective in collectives], np.int64)
    segment = program.at(issued)
    done = np.maximum.accumulate(busy.end) if len(busy.end) else busy.end
    before = np.concatenate([busy.start[:1], done[:-1]])
    gap = np.maximum(busy.start - before, 0)
    waited = np.zeros(len(busy.start), np.int64)
    needed = np.array([collective.end for collective in collectives], np.int64)
    had = needed.copy()
    following = np.full(len(collectives), len(program.segments), np.int64)
    opens = np.ones(len(collectives), np.bool_)
    held = np.zeros(len(collectives), np.bool_)
    firsts = _firsts(busy)
    ends = np.array([collective.end for collective in collectives], np.int64)
    transfers = _least_durations(
        [c for c in collectives if c.group not in exchanging and not c.lost]
    )
    gaps = np.searchsorted(busy.start, ends)
    in_order = np.lexsort((ends, gaps)).tolist()
    for place, alike in groupby(in_order, key=gaps.__getitem__):
        at, numbers = int(place), list(alike)
        last = at == len(busy.start)
        free = int(done[-1]) if last and len(done) else 0
        if not last:
            following[numbers] = busy.segment[at]
            # The batch of a later round is copied before the round's first kernel.
            begins = at <= firsts[int(busy.segment[at])]
            opens[numbers] = begins
            free = int(before[at])
            # If several collectives end before the next kernel, the kernel waits for the last of
            # these ends.
            last_end = int(ends[numbers[-1]])
            if int(busy.start[at]) > last_end + _FOLLOWS_NS:
                # The kernel was launched late. The first kernel of a segment then waited only for
                # the first collective; any other kernel waited only for collectives whose result it
                # needs.
                needing = [n for n in numbers if collectives[n].group in exchanging]
                numbers = numbers[:1] if begins else needing
            if int(busy.launched[at]) <= last_end:
                held[numbers] = int(busy.start[at]) <= ends[numbers] + _STARTS_NS
        # Waits are made disjoint: the wait for a collective ends at the start of the next
        # collective.
        until = max((int(ends[number]) for number in numbers), default=0)
        for number in reversed(numbers):
            begin, end = max(free, collectives[number].start), min(until, int(ends[number]))
            if int(issued[number]) > free and not opens[number]:
                # The collective was launched while the stream was idle. Its own transfer time is
                # then a delay of the host; only the time beyond the transfer is waiting for other
                # ranks.
                begin += transfers.get((collectives[number].group, collectives[number].name), 0)
            if begin < end:
                needed[number] = int(ends[number]) - (end - begin)
                if not last:
                    waited[at] += end - begin
            until = min(until, collectives[number].start)
    late = gap - np.minimum(waited, gap)
    opened = {number: at for number, at in firsts.items() if waited[at]}
    # If the first kernel of the recording ran as soon as a launch of this host takes effect,
    # nothing was queued before it.
    latency = np.maximum(busy.start - np.maximum(busy.launched, 0), 0)
    queued = latency[:1] > latency.min(initial=_LONGEST_LATENCY_NS) + _FOLLOWS_NS
    return Timeline(
        computed=_by_segment(busy, late, opened),
        needed=needed,
        had=had,
        segment=segment,
        following=following,
        opens=opens,
        held=held,
        starts=busy.start,
        ends=done,
        late=late,
        launched=np.maximum.accumulate(busy.launched),
        free=int(busy.start[0]) if queued.any() else np.iinfo(np.int64).min,
    )


def _least_durations(collectives: Sequence[Collective]) -> dict[tuple[str, str], int]:
    """Return the shortest duration of the collectives of each (group, name), ns.

    The shortest duration is the transfer time, recorded by the rank that arrives last.
    """
    least: dict[tuple[str, str], int] = {}
    for collective in collectives:
        key = (collective.group, collective.name)
        duration = collective.end - collective.start
        least[key] = min(least.get(key, duration), duration)
    return least


def _firsts(busy: _Busy) -> dict[int, int]:
    """Return the index of each segment's first kernel, or of its first copy if it has no kernels.

    A copy counts only in a segment without kernels, because a batch is copied to the device before
    the forward waits for anything.
    """
    numbers, places = np.unique(busy.segment, return_index=True)
    firsts = dict(zip(numbers.tolist(), places.tolist(), strict=True))
    computing = np.flatnonzero(~busy.copies)
    numbers, places = np.unique(busy.segment[computing], return_index=True)
    return firsts | dict(zip(numbers.tolist(), computing[places].tolist(), strict=True))


def _by_segment(busy: _Busy, late: IntArray, opened: Mapping[int, int]) -> dict[int, Computed]:
    """Return the computing time of each segment, counted from its first kernel.

    Parameters
    ----------
    opened : mapping of int to int
        Segment → its first kernel, for segments that begin by waiting for a collective; copies are
        not counted as the first kernel.
    """
    computed: dict[int, Computed] = {}
    order = np.argsort(busy.segment, kind="stable")
    numbers, places = np.unique(busy.segment[order], return_index=True)
    bounds = [*places.tolist(), len(order)]
    for place, number in enumerate(numbers.tolist()):
        if number == _UNKNOWN:
            continue
        mine = order[bounds[place] : bounds[place + 1]]
        # Idle time before the first kernel does not belong to the segment.
        first = opened.get(number, int(mine[0]))
        inside = int(late[mine[mine > first]].sum())
        computed[number] = Computed(int(busy.start[first]), int(busy.end[mine].max()), inside)
    return computed


def _busy(scan: Scan, program: Program) -> _Busy:
    """Return the device activities on the computing streams of a scan."""
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
    # Columns are freed as they are converted: a recording may have millions of kernels.
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
    # A kernel without a recorded launch gets the launch time of the kernel before it.
    recorded = launched != _UNKNOWN
    latest = np.maximum.accumulate(np.where(recorded, np.arange(len(launched)), 0))
    launched = launched[latest]
    launched[: int(recorded.argmax()) if recorded.any() else len(recorded)] = np.iinfo(np.int64).min
    return _Busy(start, start + duration, launched, program.at(launched), copies)


def _drained(parts: list[NDArray[np.int64]]) -> IntArray:
    """Return the concatenation of a list of arrays, and empty the list to free them."""
    whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    parts.clear()
    return whole


def _launched(scan: Scan, correlation: IntArray, external: IntArray) -> IntArray:
    """Return the launch time of each kernel on the host, ns; `_UNKNOWN` if not recorded."""
    launched = np.full(len(correlation), _UNKNOWN, np.int64)
    for links, wanted in ((scan.launches, correlation), (scan.operators, external)):
        if not len(links):
            continue
        missing = np.flatnonzero((launched == _UNKNOWN) & (wanted >= 0))
        if not len(missing):
            continue
        rows = rows_of(links, wanted[missing])
        start = np.concatenate([part for (part,) in links.table.read(Links.START)])
        launched[missing[rows >= 0]] = start[rows[rows >= 0]]
    return launched


def host_timeline(program: Program, collectives: Sequence[Collective]) -> Timeline:
    """Return the computing and waiting times of a rank that computes on CPUs.

    The main thread waits for a collective if it calls no operator before the collective's end; at
    all other times it computes.
    """
    called, own = program.called, program.own
    issued = np.array([c.issued for c in collectives], np.int64)
    segment = program.at(issued)
    end = np.array([c.end for c in collectives], np.int64)
    returned = np.array([c.returned for c in collectives], np.int64)
    needed = end.copy()
    following = np.searchsorted(called, returned, side="right")
    for number in range(len(collectives)):
        at = int(following[number])
        if at == len(called) or int(called[at]) >= int(end[number]):
            needed[number] = int(issued[number])
    computed: dict[int, Computed] = {}
    for number, current in enumerate(program.segments):
        until = (
            int(program.begins[number + 1])
            if number + 1 < len(program.segments)
            else int(called[-1])
            if len(called)
            else current.begin
        )
        match current.part:
            case Part.BACKWARD:
                last = int(program.backward_ends[number])
                computed[number] = Computed(current.begin, max(last, current.begin), 0)
            case Part.FORWARD:
                at = int(np.searchsorted(own, current.begin))
                if at < len(own) and own[at] < until:
                    computed[number] = Computed(int(own[at]), until, 0)
            case Part.OPTIMIZER:
                updates = [
                    span
                    for span in program.optimizers
                    if current.begin <= span.start < max(until, 1)
                ]
                if updates:
                    begin = updates[0].start
                    computed[number] = Computed(begin, updates[-1].end, 0)
            case Part.AFTER:
                pass
    opens = np.zeros(len(collectives), np.bool_)
    none = called[:0]
    return Timeline(
        computed, needed, end, segment, segment, opens, opens, none, none, none, none, 0
    )


# Name of a data-parallel collective → operation type. DDP's broadcast of buffers at the start of a
# forward counts as a gather of parameters.
OF_DATA: Final = {**DATA_COLLECTIVES, BROADCAST: PARAMS_ALL_GATHER}


class Waits(NamedTuple):
    """Times for which a computation waits for other ranks, ns."""

    before: int = 0
    inside: int = 0
    after: int = 0
    end: int = 0  # end of the last wait after the computation


NO_WAITS: Final = Waits()


class Issued:
    """Lookup of a rank's collectives by the segment that issued them."""

    def __init__(
        self, program: Program, collectives: Sequence[Collective], time: Timeline, roles: Roles
    ) -> None:
        self._segments = program.segments
        self._collectives = collectives
        self._time = time
        self._roles = roles
        self._by_segment: dict[int, list[int]] = {}
        for number, segment in enumerate(time.segment.tolist()):
            if segment >= 0:
                self._by_segment.setdefault(segment, []).append(number)

    def of_data(self, number: int) -> list[int]:
        """Return the indices of the data-parallel collectives that a segment issued."""
        roles, collectives = self._roles, self._collectives
        return [
            item
            for item in self._by_segment.get(number, ())
            if roles.is_data(collectives[item]) and collectives[item].name in OF_DATA
        ]

    def _experts(self, number: int) -> list[int]:
        """Return the indices of the expert-parallel token exchanges that a segment issued."""
        roles, collectives = self._roles, self._collectives
        return [
            item
            for item in self._by_segment.get(number, ())
            if collectives[item].group in roles.experts and collectives[item].name == ALL_TO_ALL
        ]

    def waits(self) -> dict[int, Waits]:
        """Return how long each forward and backward waits for other ranks, by segment, ns."""
        time, collectives = self._time, self._collectives
        waits: dict[int, Waits] = {}
        for number, segment in enumerate(self._segments):
            if segment.part not in {Part.FORWARD, Part.BACKWARD} or number not in time.computed:
                continue
            last = time.computed[number].last
            mine = self.of_data(number)
            experts = self._experts(number)
            if segment.part is Part.BACKWARD and not any(
                collectives[item].name in {REDUCE_SCATTER, ALL_GATHER} for item in mine
            ):
                # Gradient buckets are reduced during the backward, which waits for all of them
                # after its last kernel.
                end = max((int(time.had[item]) for item in mine), default=last)
                # A hook that uses a reduced bucket makes the backward wait for this bucket before
                # its end.
                inside = sum(
                    int(time.had[item] - time.needed[item])
                    for item in mine
                    if time.held[item] and int(time.following[item]) == number
                ) + sum(
                    int(time.had[item] - time.needed[item])
                    for item in experts
                    if int(time.following[item]) == number and not time.opens[item]
                )
                # The wait before the backward's first kernel may be for the token exchange of the
                # last forward.
                before = waits.get(number, NO_WAITS).before + sum(
                    int(time.had[item] - time.needed[item])
                    for item in experts
                    if int(time.following[item]) == number and time.opens[item]
                )
                waits[number] = Waits(before, inside, max(end - last, 0), end)
                continue
            for item in (*mine, *experts):
                takes = int(time.had[item] - time.needed[item])
                follows = int(time.following[item])
                reduces = collectives[item].name in {REDUCE_SCATTER, ALL_REDUCE}
                if follows != number and reduces and time.opens[item]:
                    earlier = waits.get(number, NO_WAITS)
                    end = max(earlier.end, int(time.had[item]))
                    waits[number] = earlier._replace(after=earlier.after + takes, end=end)
                elif time.opens[item]:
                    earlier = waits.get(follows, NO_WAITS)
                    waits[follows] = earlier._replace(before=earlier.before + takes)
                else:
                    earlier = waits.get(follows, NO_WAITS)
                    waits[follows] = earlier._replace(inside=earlier.inside + takes)
        return waits


def idle_before(time: Timeline, collectives: Sequence[Collective], roles: Roles) -> IntArray:
    """Return the cumulative idle time before each kernel, ns, shape (kernels,).

    Idle time consists of launch delays and of waits for data- and expert-parallel ranks.
    """
    each = time.late.copy()
    data = [
        number
        for number, collective in enumerate(collectives)
        if roles.is_data(collective) or collective.group in roles.experts
    ]
    ends = np.array([collectives[number].end for number in data], np.int64)
    places = np.searchsorted(time.starts, ends)
    there = places < len(each)
    takes = (time.had - time.needed)[data]
    np.add.at(each, places[there], takes[there])
    return np.asarray(np.cumsum(each))
