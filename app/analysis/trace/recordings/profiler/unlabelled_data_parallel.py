"""Operations of a data-parallel rank without a pipeline, from a recording without labels.

The decoded operations are those that the hooks of `paceline_client.torch` record: forwards and
backwards with the collectives inside them, the wait for gradients after a backward, and the
optimizer. Within a step, waiting for other ranks and idle time of late launches are moved to the
points where all ranks have the same data, so that a replay can compare ranks there.
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
    assign_kernels,
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
    idle_before,
    with_lost_kernels,
)
from app.analysis.trace.recordings.recording import Rows

# Least computing time of an evaluation as a share of a median forward; shorter work after the
# optimizer is bookkeeping.
_EVALUATES: Final = 0.2


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """Segments of steps, collectives, times and process groups of a recording without labels."""

    program: Program
    collectives: tuple[Collective, ...]
    timeline: Timeline
    roles: Roles
    on_device: bool

    @property
    def complete(self) -> bool:
        """Return whether a step of the recording contains a backward."""
        return any(segment.part is Part.BACKWARD for segment in self.program.segments)

    @property
    def on_host(self) -> bool:
        """Return whether the rank computes on CPUs."""
        return not self.on_device

    @property
    def largest_group(self) -> int | None:
        """Return the number of ranks of the largest process group; None if no size is recorded."""
        return _largest_group(self.collectives)


def _largest_group(collectives: Sequence[Collective]) -> int | None:
    return max((collective.size for collective in collectives if collective.size), default=None)


def read_unlabelled(scan: Scan) -> Unlabelled:
    """Return the segments of the steps, the collectives and the times of a scan without labels."""
    program = read_program(scan)
    assign_kernels(scan)
    on_device = len(scan.kernels) > 0
    collectives = with_lost_kernels(scan, program, collectives_of(scan))
    issued = np.array([collective.issued for collective in collectives], np.int64)
    parts = [
        (collective, program.segments[segment].part)
        for collective, segment in zip(collectives, program.at(issued).tolist(), strict=True)
        if segment >= 0
    ]
    roles = roles_of(parts, scan.world or _largest_group(collectives))
    timeline = (
        device_timeline(scan, program, collectives, roles.exchanging)
        if on_device
        else host_timeline(program, collectives)
    )
    return Unlabelled(program, tuple(collectives), timeline, roles, on_device)


def place_of(
    recording: Unlabelled, scan: Scan, rank: int, world: int, meta: SessionMeta | None
) -> Cell:
    """Return the job's parallel sizes (dp, pp, …) and the DP rank of the recording rank."""
    sizes = {
        collective.group: collective.size for collective in recording.collectives if collective.size
    }
    return place(rank, world, scan.groups, recording.roles, sizes, meta)


def add_operations(
    recording: Unlabelled, scan: Scan, rank: int, cell: Cell, limits: Limits
) -> tuple[Rows, Counter[tuple[str, str | None]]]:
    """Return the operations of a rank, and the number of unmapped items by (item, remedy).

    The remedy is the recorder's setting that would record the item; None if there is none.
    """
    rows = Rows(limits)
    lost: Counter[tuple[str, str | None]] = Counter()
    decoder = _RankDecoder(recording, cell.sizes.dp, lost)
    for op, span, step, mb in decoder.operations():
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


class _RankDecoder:
    """Decoder of the segments of one rank without labels to operations."""

    def __init__(
        self, recording: Unlabelled, dp: int, lost: Counter[tuple[str, str | None]]
    ) -> None:
        self._recording = recording
        self._dp = dp
        self._lost = lost
        self._segments = recording.program.segments
        self._time = recording.timeline
        issued = Issued(
            recording.program, recording.collectives, recording.timeline, recording.roles
        )
        self._data = issued.of_data
        self._waits = issued.waits()
        # Segment of a forward → time in ns by which the forward and the optimizer before it are
        # moved earlier.
        self._earlier: dict[int, int] = {}
        # Segment of a computation → its start in ns after waiting and idle time were moved.
        self._drawn: dict[int, int] = {}

    def operations(self) -> Iterator[_Operation]:
        """Yield the operations of all steps as (type, span, step, microbatch)."""
        # Regular optimizers have as many collectives as most steps with the same number of
        # accumulation rounds.
        ends = [n for n, segment in enumerate(self._segments) if segment.part is Part.OPTIMIZER]
        shape = {n: (self._segments[n].mb, len(self._ending(n))) for n in ends}
        alike = Counter(shape.values())
        of_round = Counter(mb for mb, _ in shape.values())
        regular = frozenset(n for n in ends if 2 * alike[shape[n]] > of_round[shape[n][0]])
        kept = 0
        cut = self._cut_step()
        for number, segment in enumerate(self._segments):
            if segment.step == cut:
                break
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
        for operation in (*self._others(), *self._loading()):
            if operation[2] != cut:
                yield operation

    def _cut_step(self) -> int | None:
        """Return the last step if a profiler stopped before the device had run all of it.

        The host's part of such a step is complete, but the device has no kernels of forwards,
        backwards or optimizers that it has in most other steps.
        """
        parts: dict[int, Counter[Part]] = {}
        ran: dict[int, Counter[Part]] = {}
        for number, segment in enumerate(self._segments):
            if segment.part is not Part.AFTER:
                parts.setdefault(segment.step, Counter())[segment.part] += 1
                computed = ran.setdefault(segment.step, Counter())
                computed[segment.part] += number in self._time.computed
        if not parts:
            return None
        last = max(parts)
        alike = [ran[step] for step in parts if step != last and parts[step] == parts[last]]
        fewer = sum(ran[last] < other for other in alike)
        return last if 2 * fewer > len(alike) else None

    def _computation(
        self, number: int, segment: Segment, done: Computed, kept: int
    ) -> tuple[list[_Operation], int]:
        """Return the operations of a forward or backward: computing, and waiting for other ranks.

        A forward waits for its first parameters before it computes. All other waiting inside
        forwards and backwards is moved behind the backward, where all ranks have the last gradients
        at the same time: ranks wait for each other in every layer, but no layer ends on all ranks
        at the same time. Waiting for a group of only some ranks, such as the shards of a replica,
        is moved there as well.

        Parameters
        ----------
        kept : int
            Waiting earlier in the step that no operation shows yet, ns.

        Returns
        -------
        operations : list
        kept : int
            Waiting that no operation shows yet after this computation, ns.
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
            # The idle time of late launches stays a gap between the forward and the backward.
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
        """Return the span in which a forward waits for the first gathered parameters."""
        time = self._time
        waited = [
            item
            for item in mine
            if time.opens[item]
            and int(time.following[item]) == number
            and time.needed[item] < time.had[item]
        ]
        return self._together(waited or mine[:1])

    def _together(self, some: Sequence[int]) -> Span:
        """Return one span for the waits for several collectives: their sum, ending at the last end.

        The sum contains no idle time of late launches between the waits.
        """
        needed, had = self._time.needed[list(some)], self._time.had[list(some)]
        end = int(had.max())
        return Span(end - int((had - needed).sum()), end, 0)

    def _ending(self, number: int) -> list[int]:
        """Return the data-parallel collectives of an optimizer and of the segment after it."""
        after = number + 1
        follows = after < len(self._segments) and self._segments[after].part is Part.AFTER
        shared = self._data(after) if follows else []
        return [*self._data(number), *shared]

    def _is_of_all(self, mine: Sequence[int]) -> bool:
        """Return whether the groups of some collectives together span all data-parallel ranks.

        A group of unknown size counts as spanning all of them.
        """
        collectives = [self._recording.collectives[number] for number in mine]
        sizes = {collective.group: collective.size for collective in collectives}
        recorded_sizes = [size for size in sizes.values() if size is not None]
        return len(recorded_sizes) < len(sizes) or prod(recorded_sizes) >= self._dp

    def _end_of_step(
        self, number: int, segment: Segment, done: Computed | None, regular: frozenset[int]
    ) -> Iterator[_Operation]:
        """Yield the end of a step: gradient reduction, optimizer, parameter gathering."""
        collectives, time = self._recording.collectives, self._time
        mine = self._ending(number) if number in regular else []
        reduced = [n for n in mine if OF_DATA[collectives[n].name] == GRADS_REDUCE_SCATTER]
        gathered = [n for n in mine if n not in set(reduced)]
        first = None if done is None else done.first
        if reduced:
            begin = min(int(time.needed[n]) for n in reduced)
            end = max(int(time.had[n]) for n in reduced)
            yield GRADS_REDUCE_SCATTER, Span(begin, end, 0), segment.step, ABSENT
            if done is not None and first is not None:
                first = self._opens_after(end, first, done)
        elif done is not None and first is not None:
            # Kernels that copy reduced buckets belong to the wait for the buckets, not to the
            # optimizer.
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
        """Return the idle time of late launches from time `first` to the end of a segment, ns."""
        time = self._time
        if not len(time.late):
            return done.late
        begin, end = np.searchsorted(time.starts, [first, done.last], side="right")
        return int(time.late[begin:end].sum())

    def _launched_late(self, number: int, begin: int) -> int:
        """Return by how much an optimizer is moved earlier, ns: its idle time after the backward.

        The next forward is moved by the same time, so that all idle time of late launches in a step
        lies before a backward. Nothing is moved (0) if the next forward has a data-parallel
        collective.
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
        """Return the start of the first kernel after `end`, if `end` lies within the segment.

        Otherwise return `first`, the start of the segment's first kernel. Times are in ns.
        """
        if not first < end < done.last:
            return first
        after = int(np.searchsorted(self._time.starts, end))
        return int(self._time.starts[after]) if after < len(self._time.starts) else end

    def _evaluation(self, segment: Segment, done: Computed | None) -> Iterator[_Operation]:
        if done is None:
            return
        forwards = [
            computed.last - computed.first
            for other, computed in self._time.computed.items()
            if self._segments[other].part is Part.FORWARD
        ]
        # The evaluation begins after the idle time, since its batch may arrive late.
        begin = done.first + done.late
        if forwards and done.last - begin >= _EVALUATES * float(np.median(forwards)):
            yield EVALUATION, Span(begin, done.last, 0), segment.step, ABSENT

    def _others(self) -> Iterator[_Operation]:
        """Yield the tensor- and context-parallel collectives; count collectives of unknown type."""
        roles = self._recording.roles
        idle = idle_before(self._time, self._recording.collectives, self._recording.roles)
        for number, collective in enumerate(self._recording.collectives):
            if roles.is_data(collective):
                continue
            segment = int(self._time.segment[number])
            role = roles.of_group.get(collective.group)
            op = None if role is None else OF_DIMENSION[role].get(collective.name)
            if segment < 0:
                self._lost["operations before the first step of the profiler", None] += 1
            elif op is None:
                group = collective.description[:80] or collective.group[:80]
                what = f"{collective.name[:40]} of the process group {group}"
                self._lost[what, None] += 1
            else:
                moved = self._moved(segment, collective.end, idle)
                span = Span(collective.start + moved, collective.end + moved, 0)
                yield op, span, self._segments[segment].step, ABSENT

    def _moved(self, segment: int, end: int, idle: IntArray) -> int:
        """Return by how much a collective inside a moved computation is moved, ns."""
        drawn = self._drawn.get(segment)
        if drawn is None or not len(idle):
            return 0
        first = self._time.computed[segment].first
        at = int(np.searchsorted(self._time.starts, end))
        opens = int(np.searchsorted(self._time.starts, first))
        if at <= opens:
            return drawn - first
        at = min(at, len(idle) - 1)
        return drawn - first - int(idle[at] - idle[opens])

    def _loading(self) -> Iterator[_Operation]:
        """Yield the waits of computations for the data loader as operations between steps."""
        for span in self._recording.program.loaders:
            segment = int(self._recording.program.at(np.array([span.start]))[0])
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
            if not self._recording.on_device:
                yield DATA_LOADING, span, step, ABSENT
                continue
            opens = self._time.computed[following[0]].first
            begin = min(max(span.start, self._time.free_at(span.start)), opens)
            end = max(begin, min(span.end, opens))
            yield DATA_LOADING, Span(begin - earlier, end - earlier, 0), step, ABSENT
