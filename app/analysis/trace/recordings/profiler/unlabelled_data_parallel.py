"""Operations of a data-parallel rank without pipeline and labels.

Operations have the shapes that hooks record (`paceline_client.torch`): forwards and backwards
with the collectives inside them, the wait for gradients after a backward, and the optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from app.analysis.trace.limits import Limits
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    DATA_LOADING,
    EVALUATION,
    FORWARD_COMPUTE,
    GRADS_REDUCE_SCATTER,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
    SessionMeta,
)
from app.analysis.trace.recordings.profiler.collectives import (
    Collective,
    Roles,
    adopt_kernels,
    collectives_of,
    place,
    roles_of,
)
from app.analysis.trace.recordings.profiler.host_program import (
    IntArray,
    Part,
    Program,
    Segment,
    read_program,
)
from app.analysis.trace.recordings.profiler.process_groups import OF_DIMENSION, Cell
from app.analysis.trace.recordings.profiler.scan import Scan, Span
from app.analysis.trace.recordings.profiler.timeline import (
    NO_WAITS,
    OF_DATA,
    Computed,
    Issued,
    Timeline,
    device_timeline,
    host_timeline,
    left_out_before,
)
from app.analysis.trace.recordings.recording import Rows

# What an evaluation computes is at least this share of a step's forwards.
_EVALUATES: Final = 0.2


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """What a recording without labels holds, as far as it is known before its rank is placed."""

    program: Program
    collectives: tuple[Collective, ...]
    timeline: Timeline
    roles: Roles
    on_device: bool

    @property
    def complete(self) -> bool:
        """Return whether any step has a backward."""
        return any(one.part is Part.BACKWARD for one in self.program.segments)

    @property
    def on_host(self) -> bool:
        """Return whether processors compute."""
        return not self.on_device

    @property
    def largest_group(self) -> int | None:
        """Return how many ranks the largest process group has, None where that is not recorded."""
        return max((one.size for one in self.collectives if one.size), default=None)


def read_unlabelled(scan: Scan) -> Unlabelled:
    """Tell the parts of steps, and what they wait for, from what a scan kept."""
    program = read_program(scan)
    adopt_kernels(scan)
    found = collectives_of(scan)
    on_device = len(scan.kernels) > 0
    segments = program.at(np.array([one.issued for one in found], np.int64))
    parts = [
        (one, program.segments[segment].part)
        for one, segment in zip(found, segments.tolist(), strict=True)
        if segment >= 0
    ]
    world = scan.world or max((one.size for one in found if one.size), default=None)
    roles = roles_of(parts, world)
    timeline = (
        device_timeline(scan, program, found, roles.exchanging)
        if on_device
        else host_timeline(program, found)
    )
    return Unlabelled(program, tuple(found), timeline, roles, on_device)


def place_of(
    known: Unlabelled, scan: Scan, rank: int, world: int, meta: SessionMeta | None
) -> Cell:
    """Return where the rank of a scan stands; raises what `groups.place` does."""
    sizes = {one.group: one.size for one in known.collectives if one.size}
    return place(rank, world, scan.groups, known.roles, sizes, meta)


def add_operations(
    known: Unlabelled, scan: Scan, rank: int, cell: Cell, limits: Limits
) -> tuple[Rows, Counter[tuple[str, str | None]]]:
    """Return the operations of a rank, and what is left out."""
    rows = Rows(limits)
    lost: Counter[tuple[str, str | None]] = Counter()
    writer = _Writer(known, cell.sizes.dp, lost)
    for op, span, step, mb in writer.operations():
        rows.add(
            op,
            scan.base_ns + span.start,
            max(span.end - span.start, 0),
            event=max(span.event, 0),
            rank=rank,
            dp=cell.dp,
            pp=cell.pp,
            step=step,
            mb=mb,
        )
    return rows, lost


_Operation = tuple[str, Span, int, int]


class _Writer:
    """Makes the operations of one rank."""

    def __init__(self, known: Unlabelled, dp: int, lost: Counter[tuple[str, str | None]]) -> None:
        self._known = known
        self._dp = dp
        self._lost = lost
        self._segments = known.program.segments
        self._time = known.timeline
        issued = Issued(known.program, known.collectives, known.timeline, known.roles)
        self._data = issued.of_data
        self._waits = issued.waits()
        # How much earlier an optimizer is drawn, ns, by the segment of the forward after it.
        self._earlier: dict[int, int] = {}
        # Where computations are drawn, by segment.
        self._drawn: dict[int, int] = {}

    def operations(self) -> Iterator[_Operation]:
        """Yield every operation: its type, its times, its step and its microbatch."""
        regular = self._regular()
        kept = 0
        for number, segment in enumerate(self._segments):
            done = self._time.computed.get(number)
            match segment.part:
                case Part.FORWARD | Part.BACKWARD:
                    if segment.part is Part.FORWARD and segment.mb == 0:
                        kept = 0
                    if done is not None:
                        operations, kept = self._computation(number, segment, done, kept)
                        yield from operations
                case Part.OPTIMIZER:
                    yield from self._end_of_step(number, segment, done, regular)
                case Part.AFTER:
                    yield from self._evaluation(segment, done)
        yield from self._others()
        yield from self._loading()

    def _computation(
        self, number: int, segment: Segment, done: Computed, kept: int
    ) -> tuple[list[_Operation], int]:
        """Return a computation, and what it waits for its peers.

        A forward waits for its first parameters. All that computations wait for inside stands
        together behind the backward, where all ranks have the last gradients at one moment: they
        wait for one another in every layer, but end no layer together. So does what the ranks of a
        group wait that not all are in, as one that shards within a replica.

        Parameters
        ----------
        kept : int
            What the step waited before, ns, without a collective of all ranks since.

        Returns
        -------
        operations : list
        kept : int
            The same after it.
        """
        waits = self._waits.get(number, NO_WAITS)
        computing = max(done.last - done.first - done.late - waits.inside, 0)
        mine = self._data(number)
        together = bool(mine) and self._is_of_all(mine)
        step = segment.step
        if segment.part is Part.FORWARD:
            begin = done.first - kept - self._earlier.get(number, 0)
            operations: list[_Operation] = []
            if together and not kept:
                opening = self._opening(number, mine)
                operations = [(PARAMS_ALL_GATHER, opening, step, ABSENT)]
            else:
                kept += waits.before
                begin -= waits.before
            # What a host launches late delays the backward that lies between.
            operations.append(
                (FORWARD_COMPUTE, Span(begin, begin + computing, 0), step, segment.mb)
            )
            self._drawn[number] = begin
            return operations, kept + waits.inside + waits.after
        end = max(done.last, waits.end)
        begin = done.first - waits.before - kept
        kept += waits.before + waits.inside + waits.after
        last = end - kept if together else begin + done.late + computing
        self._drawn[number] = last - computing
        operations = [(BACKWARD_COMPUTE, Span(last - computing, last, 0), step, segment.mb)]
        if together:
            operations.append((GRADS_REDUCE_SCATTER, Span(last, end, 0), step, ABSENT))
            kept = 0
        return operations, kept

    def _opening(self, number: int, mine: Sequence[int]) -> Span:
        """Return when a forward waited for the parameters that it begins with."""
        time = self._time
        waited = [
            one
            for one in mine
            if time.opens[one]
            and int(time.following[one]) == number
            and time.needed[one] < time.had[one]
        ]
        chosen = waited or mine[:1]
        return self._together(chosen)

    def _together(self, some: Sequence[int]) -> Span:
        """Return what collectives were waited for together, when the last of them was there.

        What a host launches late between them is none of it.
        """
        needed, had = self._time.needed[list(some)], self._time.had[list(some)]
        end = int(had.max())
        return Span(end - int((had - needed).sum()), end, 0)

    def _ending(self, number: int) -> list[int]:
        """Return the data-parallel collectives of an optimizer, or of what follows it at once."""
        after = number + 1
        follows = after < len(self._segments) and self._segments[after].part is Part.AFTER
        shared = self._data(after) if follows else []
        return [*self._data(number), *shared]

    def _is_of_all(self, mine: Sequence[int]) -> bool:
        """Return whether some collectives together are of all data-parallel ranks."""
        found = self._known.collectives
        sizes = {found[one].group: found[one].size for one in mine}
        known = [size for size in sizes.values() if size is not None]
        return len(known) < len(sizes) or prod(known) >= self._dp

    def _end_of_step(
        self, number: int, segment: Segment, done: Computed | None, regular: frozenset[int]
    ) -> Iterator[_Operation]:
        """Yield what gradients are reduced or clipped with after a backward, and the optimizer."""
        found, time = self._known.collectives, self._time
        mine = [one for one in self._ending(number) if number in regular]
        reduced = [one for one in mine if OF_DATA[found[one].name] == GRADS_REDUCE_SCATTER]
        gathered = [one for one in mine if one not in set(reduced)]
        first = None if done is None else done.first
        if reduced:
            begin = min(int(time.needed[one]) for one in reduced)
            end = max(int(time.had[one]) for one in reduced)
            yield GRADS_REDUCE_SCATTER, Span(begin, end, 0), segment.step, ABSENT
            if done is not None and first is not None:
                first = self._opens_after(end, first, done)
        elif done is not None and first is not None:
            # Buckets that are copied when they are there still belong to the wait for all of them.
            waits = self._waits.get(number - 1, NO_WAITS)
            first = self._opens_after(waits.end, first, done)
        if done is not None and first is not None:
            begin = min(first + self._late(first, done), done.last)
            earlier = 0 if gathered else self._launched_late(number, begin)
            span = Span(begin - earlier, done.last - earlier, 0)
            yield OPTIMIZER, span, segment.step, ABSENT
        if gathered:
            yield PARAMS_ALL_GATHER, self._together(gathered), segment.step, ABSENT

    def _late(self, first: int, done: Computed) -> int:
        """Return how long nothing was computed since a kernel, as nothing was launched, ns."""
        time = self._time
        if not len(time.late):
            return done.late
        begin, end = np.searchsorted(time.starts, [first, done.last], side="right")
        return int(time.late[begin:end].sum())

    def _launched_late(self, number: int, begin: int) -> int:
        """Return how late an optimizer was launched, ns, where the next forward meets no peer.

        That forward is drawn as much earlier: all that a host launches late in a step stands
        before a backward.
        """
        ready = self._waits.get(number - 1, NO_WAITS).end
        following = next(
            (
                n
                for n in range(number + 1, len(self._segments))
                if self._segments[n].part is Part.FORWARD
            ),
            None,
        )
        if not 0 < ready < begin or following is None or self._data(following):
            return 0
        self._earlier[following] = begin - ready
        return begin - ready

    def _opens_after(self, end: int, first: int, done: Computed) -> int:
        """Return when the first kernel after a wait began, in what was computed since `first`."""
        if not first < end < done.last:
            return first
        after = int(np.searchsorted(self._time.starts, end))
        return int(self._time.starts[after]) if after < len(self._time.starts) else end

    def _regular(self) -> frozenset[int]:
        """Return the ends of steps that have as many collectives as those of most steps."""
        ends = [n for n, one in enumerate(self._segments) if one.part is Part.OPTIMIZER]
        shape = {n: (self._segments[n].mb, len(self._ending(n))) for n in ends}
        alike = Counter(shape.values())
        of_round = Counter(mb for mb, _ in shape.values())
        return frozenset(n for n in ends if 2 * alike[shape[n]] > of_round[shape[n][0]])

    def _evaluation(self, segment: Segment, done: Computed | None) -> Iterator[_Operation]:
        if done is None:
            return
        forwards = [
            computed.last - computed.first
            for other, computed in self._time.computed.items()
            if self._segments[other].part is Part.FORWARD
        ]
        # Its batch may be late, too, after what was zeroed before.
        begin = done.first + done.late
        if forwards and done.last - begin >= _EVALUATES * float(np.median(forwards)):
            yield EVALUATION, Span(begin, done.last, 0), segment.step, ABSENT

    def _others(self) -> Iterator[_Operation]:
        """Yield collectives of tensor- and context-parallel ranks; count what is left out."""
        roles = self._known.roles
        left_out = left_out_before(self._time, self._known.collectives, self._known.roles)
        for number, one in enumerate(self._known.collectives):
            if roles.is_data(one):
                continue
            segment = int(self._time.segment[number])
            role = roles.of_group.get(one.group)
            op = None if role is None else OF_DIMENSION[role].get(one.name)
            if segment < 0:
                self._lost["operations before the first step of the profiler", None] += 1
            elif op is None:
                what = (
                    f"{one.name[:40]} of the process group {one.description[:80] or one.group[:80]}"
                )
                self._lost[what, None] += 1
            else:
                moved = self._moved(segment, one.end, left_out)
                span = Span(one.start + moved, one.end + moved, 0)
                yield op, span, self._segments[segment].step, ABSENT

    def _moved(self, segment: int, end: int, left_out: IntArray) -> int:
        """Return how far a collective within a computation is drawn from where it was, ns."""
        drawn = self._drawn.get(segment)
        if drawn is None or not len(left_out):
            return 0
        first = self._time.computed[segment].first
        at = int(np.searchsorted(self._time.starts, end))
        opens = int(np.searchsorted(self._time.starts, first))
        if at <= opens:
            return drawn - first
        at = min(at, len(left_out) - 1)
        return drawn - first - int(left_out[at] - left_out[opens])

    def _loading(self) -> Iterator[_Operation]:
        """Yield what a step's computing waited for its loader."""
        for span in self._known.program.loaders:
            segment = int(self._known.program.at(np.array([span.start]))[0])
            if segment < 0:
                continue
            following = [
                n
                for n in range(segment, len(self._segments))
                if n in self._time.computed and self._segments[n].part is not Part.AFTER
            ]
            if not following:
                continue
            step = self._segments[following[0]].step
            earlier = self._earlier.get(following[0], 0)
            if not self._known.on_device:
                yield DATA_LOADING, span, step, ABSENT
                continue
            computed = self._time.computed[following[0]]
            opens = computed.first
            begin = min(max(span.start, computed.free), opens)
            end = max(begin, min(span.end, opens))
            yield DATA_LOADING, Span(begin - earlier, end - earlier, 0), step, ABSENT
