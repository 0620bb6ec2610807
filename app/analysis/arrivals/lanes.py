"""Operations by rank and step on corrected clocks, and unions of time intervals.

A *lane* is one rank in one step. All ranks end a collective at the same moment, so the offset of
their recorded ends is the offset of their clocks. Ranks that share no collective are not compared.
Lanes lie one after another on one axis: position = lane × `span_ns` + time, ns, where times within
a lane are from 0 to `span_ns`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.arrivals.collective_matching import Meetings, kinds_of, meetings_of
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.clock_alignment import CORRECTED_NS, CORRECTED_RESIDUALS
from app.analysis.replay.robust_statistics import quantile
from app.analysis.trace.model import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Intervals on the axis of lanes, arrays of shape (intervals,), in any order."""

    start: IntArray
    end: IntArray

    @classmethod
    def within_lanes(
        cls, lane: IntArray, start_ns: IntArray, end_ns: IntArray, span_ns: int
    ) -> Intervals:
        """Return intervals on the axis of lanes from lanes and times within the lanes."""
        before_ns = lane * span_ns
        return cls(before_ns + start_ns, before_ns + end_ns)

    def of(self, chosen: BoolArray) -> Intervals:
        """Return the intervals that the mask selects."""
        return Intervals(self.start[chosen], self.end[chosen])

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """Union of intervals as pieces that do not overlap, ascending."""

    span_ns: int
    lanes: int
    start: IntArray  # (pieces,)
    end: IntArray  # (pieces,)
    before: IntArray  # (pieces + 1,): total length of all pieces before each, ns

    def by_lane(self) -> FloatArray:
        """Return the covered time of each lane, shape (lanes,), ns."""
        first = np.searchsorted(self.start, np.arange(self.lanes + 1) * self.span_ns)
        return np.diff(self.before[first]).astype(np.float64)

    def until(self, at: IntArray) -> IntArray:
        """Return the covered length before each position, shape (positions,), ns."""
        piece = np.searchsorted(self.start, at, side="right") - 1
        valid = np.maximum(piece, 0)
        inside = np.minimum(at, self.end[valid]) - self.start[valid] if len(self.start) else at
        return np.where(piece < 0, 0, self.before[valid] + inside)

    def within(self, some: Intervals) -> IntArray:
        """Return the covered length within each interval, shape (intervals,), ns."""
        if not len(self.start):
            return np.zeros(len(some), dtype=np.int64)
        return self.until(some.end) - self.until(some.start)


def cover(intervals: Intervals, lanes: int, span_ns: int, *, in_order: bool = False) -> Cover:
    """Return the union of intervals as a cover.

    Parameters
    ----------
    in_order : bool
        Whether intervals are sorted by start.

    Examples
    --------
    >>> some = Intervals(np.array([0, 5, 102]), np.array([10, 12, 103]))
    >>> cover(some, lanes=2, span_ns=100).by_lane().tolist()
    [12.0, 1.0]
    """
    start, end = intervals.start.copy(), intervals.end
    if not in_order:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    # Each interval is cut to begin at the largest end of the earlier intervals.
    np.maximum(start[1:], reach[:-1], out=start[1:])
    kept = end > start
    if not kept.all():
        start, end = start[kept], end[kept]
    before = np.zeros(len(start) + 1, dtype=np.int64)
    np.cumsum(end - start, out=before[1:])
    return Cover(span_ns, lanes, start, end, before)


def first_claims(intervals: Intervals) -> IntArray:
    """Return the position from which each interval extends beyond all earlier intervals.

    For an interval that earlier intervals cover completely this is its end. Shape (intervals,).
    """
    start, end = intervals.start, intervals.end
    order = np.lexsort((end, start))
    reach = np.maximum.accumulate(end[order]) if len(order) else end
    begins = start[order]
    begins[1:] = np.minimum(np.maximum(begins[1:], reach[:-1]), end[order][1:])
    claims = np.empty_like(begins)
    claims[order] = begins
    return claims


# Larger sessions are sampled by evenly spread steps, which limits the time of the analysis. Largest
# number of recorded collectives that are matched…
MOST_MATCHED: Final = 200_000
# …and largest number of operations of all types by which hidden waiting is measured.
MOST_OPERATIONS: Final = 60_000
# Smallest number of ends from which a step's clock offset is computed; for a step with fewer ends,
# the ends of all steps are used.
_ENOUGH: Final = 4
_ROUNDS: Final = 3
# Clocks agree if, in this share of the collectives, the ends on all ranks differ by at most
# `CORRECTED_NS`.
_NEARLY_ALL: Final = 0.9
# Largest time; longer times are clipped so that positions on the axis of lanes fit in 64 bits.
_MOST_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Sampled operations by lane; a lane's index is step index × number of ranks + rank index.

    Times are ns since the first start of the step, on the common clock.
    """

    trace: Trace
    ranks: IntArray  # (ranks,): global, ascending
    steps: IntArray  # (steps,): steps whose collectives are matched, ascending
    begin_ns: IntArray  # (steps,): their first starts
    meetings: Meetings
    met_lane: IntArray  # (rows of `meetings`,): lane of each
    arrival_ns: IntArray  # (rows of `meetings`,): start of each
    weighed: BoolArray  # (steps,): steps of which all operations are sampled
    # row, op, lane, start, end: shape (operations,), operations of the `weighed` steps, sorted by
    # lane and start
    row: IntArray  # row of the trace
    op: NDArray[np.int16]
    lane: IntArray
    start: IntArray  # position on the axis of lanes
    end: IntArray  # position on the axis of lanes
    span_ns: int  # length of a lane on the axis
    clocks_apart_ns: float  # largest clock difference that was corrected

    @property
    def count(self) -> int:
        """Return the number of lanes."""
        return len(self.ranks) * len(self.steps)

    def of(self, types: BoolArray) -> Intervals:
        """Return the intervals of the operations of the given types, sorted by lane and start.

        Parameters
        ----------
        types : bool array, shape (types,)
        """
        places = np.flatnonzero(types[self.op])
        return Intervals(self.start[places], self.end[places])

    def ends_ns(self) -> IntArray:
        """Return the last end in each lane, shape (steps, ranks), ns; -1 for empty lanes."""
        first = np.searchsorted(self.lane, np.arange(self.count + 1))
        occupied = np.flatnonzero(np.diff(first))
        ends_ns = np.full(self.count, -1)
        ends_ns[occupied] = np.maximum.reduceat(self.end, first[occupied]) - occupied * self.span_ns
        return ends_ns.reshape(len(self.steps), -1)


def lanes_of(
    trace: Trace, steps: Collection[int] | None = None, most: int = MOST_OPERATIONS
) -> Lanes:
    """Return the sampled steps of a trace with matched collectives, on a common clock.

    Parameters
    ----------
    trace : Trace
        With at least one operation.
    steps : collection of int, optional
        Steps that may be sampled; by default all.
    most : int
        Approximate number of sampled operations of all types.
    """
    first = trace.stretches().first
    every, step = np.unique(trace.step[first], return_inverse=True)
    step = step.ravel()
    looked, met = _matched(trace, every, steps)
    weighed = _spread(looked, most * len(every) // len(trace))
    meetings = meetings_of(trace, met)
    present = np.bincount(trace.rank[first])
    ranks = np.flatnonzero(present)
    rank = (np.cumsum(present > 0) - 1)[trace.rank[first]]
    ahead_ns, apart_ns = _ahead(trace, meetings, ranks, every)
    own_ns = ahead_ns[step, rank]
    begin_ns = np.full(len(every), np.iinfo(np.int64).max)
    np.minimum.at(begin_ns, step, trace.stretches().earliest_ns - own_ns)
    # Index of each lane, where steps are counted among the sampled steps
    lane = (np.cumsum(looked) - 1)[step] * len(ranks) + rank
    origin_ns = np.zeros(int(looked.sum()) * len(ranks), dtype=np.int64)
    chosen = np.flatnonzero(looked[step])
    origin_ns[lane[chosen]] = (own_ns + begin_ns[step])[chosen]
    met_lane = np.searchsorted(every[looked], meetings.step)[meetings.meeting] * len(ranks)
    met_lane += np.searchsorted(ranks, trace.rank[meetings.row])
    arrival_ns = trace.start_ns[meetings.row] - origin_ns[met_lane]
    chosen = np.flatnonzero(weighed[step])
    length = np.diff(first, append=len(trace))[chosen]
    row = np.arange(int(length.sum()))
    if len(chosen) < len(first):
        row += np.repeat(first[chosen] - (np.cumsum(length) - length), length)
    of_row = np.repeat(lane[chosen], length)
    start_ns = trace.start_ns[row] - np.repeat(origin_ns[lane[chosen]], length)
    end_ns = start_ns + np.maximum(trace.duration_ns[row], 0)
    met_end_ns = arrival_ns + np.maximum(trace.duration_ns[meetings.row], 0)
    # Damaged recordings contain times so large that their positions on the axis of lanes exceed 64
    # bits.
    longest_ns = _MOST_NS // (len(origin_ns) + 1)
    for times_ns in (arrival_ns, met_end_ns, start_ns, end_ns):
        np.clip(times_ns, 0, longest_ns, out=times_ns)
    span_ns = int(max(end_ns.max(initial=0), met_end_ns.max(initial=0))) + 1
    looked_at = Intervals.within_lanes(of_row, start_ns, end_ns, span_ns)
    by_time = np.argsort(looked_at.start, kind="stable")
    return Lanes(
        trace=trace,
        ranks=ranks,
        steps=every[looked],
        begin_ns=begin_ns[looked],
        meetings=meetings,
        met_lane=met_lane,
        arrival_ns=arrival_ns,
        weighed=weighed[looked],
        row=row[by_time],
        op=trace.op[row[by_time]],
        lane=of_row[by_time],
        start=looked_at.start[by_time],
        end=looked_at.end[by_time],
        span_ns=span_ns,
        clocks_apart_ns=apart_ns,
    )


def _matched(
    trace: Trace, every: IntArray, allowed: Collection[int] | None
) -> tuple[BoolArray, IntArray]:
    """Return which steps are sampled, shape (steps,), and the row numbers of their collectives."""
    looked = np.ones(len(every), dtype=bool)
    if allowed is not None:
        chosen = frozenset(allowed)
        looked = np.array([step in chosen for step in every.tolist()], dtype=bool)
    # Comparing the rows with ranges of op codes is faster than a lookup in a table.
    codes = np.flatnonzero(kinds_of(trace) >= 0)
    collective = np.zeros(len(trace), dtype=bool)
    largest = int(trace.op.max())
    for some in np.split(codes, np.flatnonzero(np.diff(codes) > 1) + 1):
        if some[0] <= largest:
            collective |= (trace.op >= some[0]) & (trace.op <= some[-1])
    rows = np.flatnonzero(collective)
    most = MOST_MATCHED * len(every) // max(len(rows), 1)
    if most < int(looked.sum()):
        looked = _spread(looked, most)
    if not looked.all():
        rows = rows[looked[np.searchsorted(every, trace.step[rows])]]
    return looked, rows


def _spread(among: BoolArray, most: int) -> BoolArray:
    """Return a mask of at most `most` of the given steps, evenly spread, and at least one step."""
    places = np.flatnonzero(among)
    if most >= len(places):
        return among
    few = max(most, 1)
    chosen = np.zeros(len(among), dtype=bool)
    chosen[places[np.arange(few) * len(places) // few]] = True
    return chosen


def _ahead(
    trace: Trace,
    meetings: Meetings,
    ranks: IntArray,
    steps: IntArray,
) -> tuple[IntArray, float]:
    """Return each rank's clock offset in each step, (steps, ranks), ns, and the largest difference.

    The offset is the median difference between the rank's ends of collectives and its peers' ends,
    so a rank whose ends are all late looks like a clock that is ahead. Kinds of groups are aligned
    in turn, and ranks that are aligned move together: most collectives may be those of
    tensor-parallel ranks on one host. Offsets are 0 if the clocks agree as closely as ends do, and
    if all ranks run on one host.
    """
    shape = (len(steps), len(ranks))
    none = np.zeros(shape, dtype=np.int64)
    if not len(meetings) or (trace.meta.on_one_host and not trace.step_relative):
        return none, 0.0
    row, meeting = meetings.row, meetings.meeting
    end_ns = trace.start_ns[row] + trace.duration_ns[row]
    # Ends count from an end of the same meeting, since absolute ns exceed the precision of floats.
    end = (end_ns - end_ns[meetings.first][meeting]).astype(np.float64)
    apart = np.maximum.reduceat(end, meetings.first) - np.minimum.reduceat(end, meetings.first)
    names = np.array([group.kind for group in meetings.groups])[meetings.group]
    kinds, kind = np.unique(names, return_inverse=True)
    # The kind with the most collectives first
    in_turn = np.argsort(-np.bincount(kind), kind="stable").tolist()
    if all(quantile(apart[kind == place], _NEARLY_ALL) <= CORRECTED_NS for place in in_turn):
        return none, 0.0
    step = np.searchsorted(steps, meetings.step)[meeting]
    rank = np.searchsorted(ranks, trace.rank[row])
    offsets = np.zeros(shape)
    # Ranks whose clocks are aligned with one another, shape (ranks,): the same number
    aligned = np.arange(len(ranks))
    for place in in_turn:
        of_kind = np.flatnonzero(kind[meeting] == place)
        seen = np.flatnonzero(np.bincount(rank[of_kind], minlength=len(ranks)))
        for _ in range(_ROUNDS):
            own = end - offsets[step, rank]
            middle = _grouped_median(own, meeting, len(meetings))[meeting]
            pooled = _pooled((own - middle)[of_kind], step[of_kind], rank[of_kind], shape)
            together = np.arange(len(steps))[:, None] * len(ranks) + aligned[None, seen]
            moved = _grouped_median(pooled[:, seen].ravel(), together.ravel(), pooled.size)
            offsets = offsets + moved.reshape(shape)[:, aligned]
        for group in meetings.groups:
            if group.kind == kinds[place]:
                joined = aligned[np.searchsorted(ranks, group.ranks)]
                aligned[np.isin(aligned, joined)] = joined.min()
    own = end - offsets[step, rank]
    residual = np.abs(own - _grouped_median(own, meeting, len(meetings))[meeting])
    scatter = _grouped_median(residual, rank, len(ranks))
    within = np.abs(offsets).max(axis=0) <= np.maximum(CORRECTED_NS, CORRECTED_RESIDUALS * scatter)
    if within.all():
        return none, 0.0
    return np.rint(offsets).astype(np.int64), float(offsets.max() - offsets.min())


def _pooled(
    apart: FloatArray,
    step: IntArray,
    rank: IntArray,
    shape: tuple[int, int],
) -> FloatArray:
    """Return each rank's median in each step; over all steps where a step has few values."""
    lane = step * shape[1] + rank
    of_step = _grouped_median(apart, lane, shape[0] * shape[1]).reshape(shape)
    count = np.bincount(lane, minlength=shape[0] * shape[1]).reshape(shape)
    few = count < _ENOUGH
    if few.any():
        of_rank = _grouped_median(apart, rank, shape[1])
        of_step = np.where(few, of_rank[None, :], of_step)
    return of_step


def _grouped_median(values: FloatArray, group: IntArray, groups: int) -> FloatArray:
    """Return the median of each group, shape (groups,); 0 for an empty group."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    low, high = first + (count - 1) // 2, first + count // 2
    filled = count > 0
    medians = np.zeros(groups)
    in_order = values[order]
    medians[filled] = (in_order[low[filled]] + in_order[high[filled]]) / 2
    return medians
