"""Operations by rank and step on corrected clocks, and unions of their intervals.

A lane is one rank in one step. All ranks end a collective at the same moment, so the offset of
their recorded ends is the offset of their clocks. Ranks that share no collective are not compared.
Lanes lie one after another on one axis: position = lane × `span_ns` + time, ns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.arrivals.collective_matching import IntArray as CollectiveMatchingIntArray
from app.analysis.arrivals.collective_matching import Meetings, kinds_of, meetings_of
from app.analysis.replay.clock_alignment import CORRECTED_NS, CORRECTED_RESIDUALS
from app.analysis.replay.robust_statistics import quantile
from app.analysis.trace.model import Trace

# ---- How long intervals cover lanes: unions of what may overlap, for all lanes at once ---------
# A *lane* is what one rank does in one step. Times of a lane are not negative and below `span_ns`.
# Lanes lie one after another on one axis: a place on it is lane × `span_ns` + time, ns.


IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Intervals within lanes as places, columns of equal length; in any order."""

    start: IntArray
    end: IntArray

    @classmethod
    def within_lanes(
        cls, lane: IntArray, start_ns: IntArray, end_ns: IntArray, span_ns: int
    ) -> Intervals:
        """Return intervals of which lanes and times are given."""
        before_ns = lane * span_ns
        return cls(before_ns + start_ns, before_ns + end_ns)

    def of(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Return some of them."""
        return Intervals(self.start[chosen], self.end[chosen])

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """What intervals cover together: pieces that do not overlap, by lane and time."""

    span_ns: int
    lanes: int
    start: IntArray  # (pieces,)
    end: IntArray  # (pieces,)
    before: IntArray  # (pieces + 1,): what all pieces before it cover, ns

    def by_lane(self) -> NDArray[np.float64]:
        """Return how long each lane is covered, shape (lanes,), ns."""
        first = np.searchsorted(self.start, np.arange(self.lanes + 1) * self.span_ns)
        return np.diff(self.before[first]).astype(np.float64)

    def until(self, at: IntArray) -> IntArray:
        """Return how much is covered before each place, ns."""
        piece = np.searchsorted(self.start, at, side="right") - 1
        known = np.maximum(piece, 0)
        inside = np.minimum(at, self.end[known]) - self.start[known] if len(self.start) else at
        return np.where(piece < 0, 0, self.before[known] + inside)

    def within(self, some: Intervals) -> IntArray:
        """Return how much of each interval is covered, ns."""
        if not len(self.start):
            return np.zeros(len(some), dtype=np.int64)
        return self.until(some.end) - self.until(some.start)


def cover(intervals: Intervals, lanes: int, span_ns: int, *, in_order: bool = False) -> Cover:
    """Return what intervals cover together.

    Parameters
    ----------
    in_order : bool
        They are sorted by start.

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
    # From where each one covers what none before it does.
    np.maximum(start[1:], reach[:-1], out=start[1:])
    kept = end > start
    if not kept.all():
        start, end = start[kept], end[kept]
    before = np.zeros(len(start) + 1, dtype=np.int64)
    np.cumsum(end - start, out=before[1:])
    return Cover(span_ns, lanes, start, end, before)


def first_claims(intervals: Intervals) -> IntArray:
    """Return the place where each interval begins to cover what none that began before it does.

    At its end where nothing is left of it; shape (intervals,).
    """
    start, end = intervals.start, intervals.end
    order = np.lexsort((end, start))
    reach = np.maximum.accumulate(end[order]) if len(order) else end
    begins = start[order]
    begins[1:] = np.minimum(np.maximum(begins[1:], reach[:-1]), end[order][1:])
    found = np.empty_like(begins)
    found[order] = begins
    return found


# ---- The operations that are looked at, by rank and step, on clocks that agree -----------------
# Ends of one collective on all its ranks are one moment: how far a rank's ends are from those of
# its peers says how far its clock is ahead. Ranks that no collective connects are not compared.


# More say nothing new: of larger sessions some steps are looked at, evenly spread. As many
# operations of collectives are matched…
MOST_MATCHED: Final = 200_000
# …and of as many, of all types, it is measured what ranks do while they wait.
MOST_OPERATIONS: Final = 60_000
# Ends of a step that tell the clock of that step; of fewer the ends of all steps do.
_ENOUGH: Final = 4
_ROUNDS: Final = 3
# Where this share of the collectives ends on all ranks as nearly together as clocks agree, they do.
_NEARLY_ALL: Final = 0.9
# Below what 64 bits hold.
_MOST_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Operations by lane: a rank in a step, step × ranks + rank, both by index.

    Times are ns since the first start of the step, by the common clock.
    """

    trace: Trace
    ranks: CollectiveMatchingIntArray  # (ranks,): global, ascending
    steps: CollectiveMatchingIntArray  # (steps,): those whose collectives are matched, ascending
    begin_ns: CollectiveMatchingIntArray  # (steps,): their first starts
    meetings: Meetings
    # (rows,): of the rows of `meetings`
    met_lane: CollectiveMatchingIntArray
    arrival_ns: CollectiveMatchingIntArray
    weighed: NDArray[np.bool_]  # (steps,): those of which all operations are looked at
    # (operations,): of these steps, all by lane and start
    op: NDArray[np.int16]
    lane: CollectiveMatchingIntArray
    start: CollectiveMatchingIntArray  # as places; see `app.analysis.arrivals.lanes`
    end: CollectiveMatchingIntArray
    span_ns: int  # no time reaches it
    clocks_apart_ns: float  # how far clocks were apart that were put right

    @property
    def count(self) -> int:
        """Return how many lanes there are."""
        return len(self.ranks) * len(self.steps)

    def of(self, types: NDArray[np.bool_]) -> Intervals:
        """Return when operations of some types ran, by lane and start.

        Parameters
        ----------
        types : bool array, shape (types,)
        """
        places = np.flatnonzero(types[self.op])
        return Intervals(self.start[places], self.end[places])

    def ends_ns(self) -> CollectiveMatchingIntArray:
        """Return the last end of each lane, shape (steps, ranks), ns; -1 of an empty one."""
        first = np.searchsorted(self.lane, np.arange(self.count + 1))
        known = np.flatnonzero(np.diff(first))
        ends_ns = np.full(self.count, -1)
        ends_ns[known] = np.maximum.reduceat(self.end, first[known]) - known * self.span_ns
        return ends_ns.reshape(len(self.steps), -1)


def lanes_of(
    trace: Trace, steps: Collection[int] | None = None, most: int = MOST_OPERATIONS
) -> Lanes:
    """Choose what is looked at, match its collectives, and put its times on one clock.

    Parameters
    ----------
    trace : Trace
        With at least one operation.
    steps : collection of int, optional
        Those that may be looked at; by default all.
    most : int
        About how many operations of all types are looked at.
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
    # by index among those that are looked at
    lane = (np.cumsum(looked) - 1)[step] * len(ranks) + rank
    origin_ns = np.zeros(int(looked.sum()) * len(ranks), dtype=np.int64)
    chosen = np.flatnonzero(looked[step])
    origin_ns[lane[chosen]] = (own_ns + begin_ns[step])[chosen]
    met_lane = np.searchsorted(every[looked], meetings.step)[meetings.meeting] * len(ranks)
    met_lane += np.searchsorted(ranks, trace.rank[meetings.row])
    arrival_ns = trace.start_ns[meetings.row] - origin_ns[met_lane]
    chosen = np.flatnonzero(weighed[step])
    length = np.diff(first, append=len(trace))[chosen]
    row = _rows(first[chosen], length, whole=len(chosen) == len(first))
    of_row = np.repeat(lane[chosen], length)
    start_ns = trace.start_ns[row] - np.repeat(origin_ns[lane[chosen]], length)
    end_ns = start_ns + np.maximum(trace.duration_ns[row], 0)
    met_end_ns = arrival_ns + np.maximum(trace.duration_ns[meetings.row], 0)
    # Damaged recordings that no replay repairs: what lanes times it does not hold in 64 bits is no
    # time within a step.
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
        op=trace.op[row[by_time]],
        lane=of_row[by_time],
        start=looked_at.start[by_time],
        end=looked_at.end[by_time],
        span_ns=span_ns,
        clocks_apart_ns=apart_ns,
    )


def _matched(
    trace: Trace, every: CollectiveMatchingIntArray, allowed: Collection[int] | None
) -> tuple[NDArray[np.bool_], CollectiveMatchingIntArray]:
    """Return which steps are looked at, and the rows of their collectives."""
    looked = np.ones(len(every), dtype=bool)
    if allowed is not None:
        chosen = frozenset(allowed)
        looked = np.array([step in chosen for step in every.tolist()], dtype=bool)
    rows = np.flatnonzero(_are_collectives(trace))
    most = MOST_MATCHED * len(every) // max(len(rows), 1)
    if most < int(looked.sum()):
        looked = _spread(looked, most)
    if not looked.all():
        rows = rows[looked[np.searchsorted(every, trace.step[rows])]]
    return looked, rows


def _are_collectives(trace: Trace) -> NDArray[np.bool_]:
    """Return which operations are collectives: comparing is quicker than a table."""
    codes = np.flatnonzero(kinds_of(trace) >= 0)
    found = np.zeros(len(trace), dtype=bool)
    most = int(trace.op.max())
    for some in np.split(codes, np.flatnonzero(np.diff(codes) > 1) + 1):
        if some[0] <= most:
            found |= (trace.op >= some[0]) & (trace.op <= some[-1])
    return found


def _spread(among: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Return some of the steps, evenly spread, and at least one."""
    places = np.flatnonzero(among)
    if most >= len(places):
        return among
    few = max(most, 1)
    chosen = np.zeros(len(among), dtype=bool)
    chosen[places[np.arange(few) * len(places) // few]] = True
    return chosen


def _rows(
    first: CollectiveMatchingIntArray, length: CollectiveMatchingIntArray, *, whole: bool
) -> CollectiveMatchingIntArray:
    """Return the rows of stretches, given by their first ones."""
    count = int(length.sum())
    if whole:
        return np.arange(count)
    before = np.cumsum(length) - length
    return np.asarray(np.arange(count) + np.repeat(first - before, length))


def _ahead(
    trace: Trace,
    meetings: Meetings,
    ranks: CollectiveMatchingIntArray,
    steps: CollectiveMatchingIntArray,
) -> tuple[CollectiveMatchingIntArray, float]:
    """Return how far the clock of each rank is ahead in each step, ns, shape (steps, ranks).

    As robust as a median: a rank whose ends are all late is not told from a clock that is ahead.
    0 where clocks agree as nearly as ends do, or where all ranks run on one host.
    """
    shape = (len(steps), len(ranks))
    none = np.zeros(shape, dtype=np.int64)
    if not len(meetings) or (trace.meta.on_one_host and not trace.step_relative):
        return none, 0.0
    row, meeting = meetings.row, meetings.meeting
    end_ns = trace.start_ns[row] + trace.duration_ns[row]
    # relative to one end of the meeting: absolute times have no room for halves
    end = (end_ns - end_ns[meetings.first][meeting]).astype(np.float64)
    apart = np.maximum.reduceat(end, meetings.first) - np.minimum.reduceat(end, meetings.first)
    if quantile(apart, _NEARLY_ALL) <= CORRECTED_NS:
        return none, 0.0
    step = np.searchsorted(steps, meetings.step)[meeting]
    rank = np.searchsorted(ranks, trace.rank[row])
    found = np.zeros(shape)
    for _ in range(_ROUNDS):
        own = end - found[step, rank]
        middle = _grouped_median(own, meeting, len(meetings))[meeting]
        found = found + _pooled(own - middle, step, rank, shape)
    residual = np.abs(end - found[step, rank] - middle)
    scatter = _grouped_median(residual, rank, len(ranks))
    within = np.abs(found).max(axis=0) <= np.maximum(CORRECTED_NS, CORRECTED_RESIDUALS * scatter)
    if within.all():
        return none, 0.0
    return np.rint(found).astype(np.int64), float(found.max() - found.min())


def _pooled(
    apart: NDArray[np.float64],
    step: CollectiveMatchingIntArray,
    rank: CollectiveMatchingIntArray,
    shape: tuple[int, int],
) -> NDArray[np.float64]:
    """Return the median of each rank in each step, of all steps where one has too few."""
    lane = step * shape[1] + rank
    of_step = _grouped_median(apart, lane, shape[0] * shape[1]).reshape(shape)
    count = np.bincount(lane, minlength=shape[0] * shape[1]).reshape(shape)
    few = count < _ENOUGH
    if few.any():
        of_rank = _grouped_median(apart, rank, shape[1])
        of_step = np.where(few, of_rank[None, :], of_step)
    return of_step


def _grouped_median(
    values: NDArray[np.float64], group: CollectiveMatchingIntArray, groups: int
) -> NDArray[np.float64]:
    """Return the median of each group, 0 of an empty one."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    low, high = first + (count - 1) // 2, first + count // 2
    known = count > 0
    found = np.zeros(groups)
    in_order = values[order]
    found[known] = (in_order[low[known]] + in_order[high[known]]) / 2
    return found
