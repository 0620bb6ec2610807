"""How long intervals cover lanes: unions of what may overlap, for all lanes at once.

A *lane* is what one rank does in one step. Times of a lane are not negative and below `span_ns`.
Lanes lie one after another on one axis: a place on it is lane × `span_ns` + time, ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
