"""Which operations a lane lacks, told by the times of those that it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.medians import median_of_known

# Clock noise of one host.
TOLERANCE_NS: Final = 1e6
# Being on the wrong side of a computation costs this many times the distance.
IMPOSSIBLE: Final = 100.0


@dataclass(frozen=True, slots=True)
class Judge:
    """Says how badly operations fit the slots of their kind."""

    # Given steps and DP ranks, an instant for each slot, shape (lanes, slots); NaN where unknown.
    expected: Callable[[IntArray, IntArray], FloatArray]
    # Given starts, ends and expected instants, what putting one there costs.
    cost: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


class LaneTimes:
    """When the operations that have their place began and ended, NaN for the others."""

    def __init__(
        self, start: IntArray, end: FloatArray, filled: NDArray[np.bool_], begin: FloatArray
    ) -> None:
        self._start = np.where(filled, start, np.nan)
        self._end = np.where(filled, end, np.nan)
        self._begin = begin

    def put(
        self, nodes: IntArray, step: IntArray, dp: IntArray, start: FloatArray, end: FloatArray
    ) -> None:
        """Enter times of nodes, shape (lanes, nodes), of some steps and DP ranks."""
        self._start[nodes, step[:, None], dp[:, None]] = start
        self._end[nodes, step[:, None], dp[:, None]] = end

    def begin(self, step: IntArray) -> FloatArray:
        """Return when steps begin."""
        return np.asarray(self._begin[step])

    def starts(self, nodes: IntArray, step: IntArray, dp: IntArray) -> FloatArray:
        """Return starts of nodes, shape (lanes, nodes)."""
        return np.asarray(self._start[nodes[None], step[:, None], dp[:, None]])

    def ends(self, nodes: IntArray, step: IntArray, dp: IntArray) -> FloatArray:
        """Return ends of nodes, shape (lanes, nodes)."""
        return np.asarray(self._end[nodes[None], step[:, None], dp[:, None]])

    def typical(self, nodes: IntArray) -> FloatArray:
        """Return when each node usually starts after its step's begin."""
        since = self._start[nodes] - self._begin[:, None]
        return median_of_known(since.reshape(len(nodes), -1).T)


def after(times: LaneTimes, computes: IntArray) -> Judge:
    """Judge sends: launched when the computation has ended whose result they carry away."""
    return Judge(
        lambda step, dp: times.ends(computes, step, dp),
        lambda starts, _, expected: _one_sided(starts - expected),
    )


def before(times: LaneTimes, computes: IntArray) -> Judge:
    """Judge receives: ended when the computation that they feed begins."""
    return Judge(
        lambda step, dp: times.starts(computes, step, dp),
        lambda _, ends, expected: _one_sided(expected - ends),
    )


def by_typical_start(times: LaneTimes, nodes: IntArray) -> Judge:
    """Judge all others: they begin when they do in other lanes."""
    typical = times.typical(nodes)
    return Judge(
        lambda step, _: times.begin(step)[:, None] + typical,
        lambda starts, _, expected: np.abs(starts - expected),
    )


def _one_sided(distance: FloatArray) -> FloatArray:
    """Return what being so far from a computation costs; negative is on the wrong side of it."""
    return np.where(distance < -TOLERANCE_NS, -IMPOSSIBLE * distance, np.abs(distance))


def bridged(times: FloatArray) -> FloatArray:
    """Fill unknown times between known ones, row by row."""
    known = ~np.isnan(times)
    filled = np.where(known, times, 0.0)
    place = np.arange(times.shape[1])
    for row in np.flatnonzero(known.any(axis=1) & ~known.all(axis=1)).tolist():
        filled[row] = np.interp(place, place[known[row]], times[row, known[row]])
    return filled


def assign(costs: FloatArray) -> IntArray:
    """Give each operation a slot, rising, at the least total cost.

    Parameters
    ----------
    costs : float64 array, shape (lanes, operations, shifts)
        Of giving operation i the slot i + shift.

    Returns
    -------
    int64 array, shape (lanes, operations)
    """
    lanes, count, width = costs.shape
    shifts = np.arange(width)
    total = np.zeros((lanes, width))
    choice = np.empty((count, lanes, width), dtype=np.int64)
    for operation in range(count):
        best = np.minimum.accumulate(total, axis=1)
        fresh = np.ones((lanes, width), dtype=bool)
        fresh[:, 1:] = total[:, 1:] < best[:, :-1]
        choice[operation] = np.maximum.accumulate(np.where(fresh, shifts, 0), axis=1)
        total = best + costs[:, operation]
    lane = np.arange(lanes)
    shift = total.argmin(axis=1)
    slots = np.empty((lanes, count), dtype=np.int64)
    for operation in range(count - 1, -1, -1):
        slots[:, operation] = operation + shift
        shift = choice[operation, lane, shift]
    return slots
