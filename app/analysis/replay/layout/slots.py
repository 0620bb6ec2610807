"""Slots: position of each trace row among the operations of its kind in a step.

A *kind* is an op type on a stage. The operations of a kind in a lane (a step of a DP rank) have the
slots 0, 1, … in launch order. If the recorder lost some of them, microbatch and chunk identify the
slot. If they do not, recorded times do: a send follows its computation, a receive precedes its
computation, and other operations start at the typical time of the same slot in other lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.layout.pipeline import DIRECTIONS, Flow, agreed_order, transferred
from app.analysis.replay.robust_statistics import median_of_known
from app.analysis.trace import model as ops
from app.analysis.trace.model import Trace

# Largest clock noise between operations of the same host, ns.
TOLERANCE_NS: Final = 1e6
# Factor on the cost of an impossible assignment: a send before the end of its computation, or a
# receive after the begin of its computation.
IMPOSSIBLE: Final = 100.0


@dataclass(frozen=True, slots=True)
class Judge:
    """Cost function by which the operations of a kind are assigned to slots."""

    # (step, DP rank) of each lane → expected time of each slot, shape (lanes, slots), ns; NaN if it
    # is unknown
    expected: Callable[[IntArray, IntArray], FloatArray]
    # (starts, ends, expected times) → cost of each assignment
    cost: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


class LaneTimes:
    """Starts and ends of the operations whose slots are known, ns; NaN for all other operations."""

    def __init__(
        self,
        start: IntArray,
        end: FloatArray,
        filled: NDArray[np.bool_],
        begin: FloatArray,
    ) -> None:
        self._start = np.where(filled, start, np.nan)
        self._end = np.where(filled, end, np.nan)
        self._begin = begin

    def put(
        self,
        nodes: IntArray,
        step: IntArray,
        dp: IntArray,
        start: FloatArray,
        end: FloatArray,
    ) -> None:
        """Store the starts and ends of nodes in some lanes, shape (lanes, nodes), ns."""
        self._start[nodes, step[:, None], dp[:, None]] = start
        self._end[nodes, step[:, None], dp[:, None]] = end

    def begin(self, step: IntArray) -> FloatArray:
        """Return the begin of the step of each lane, shape (lanes,), ns."""
        return np.asarray(self._begin[step])

    def starts(self, nodes: IntArray, step: IntArray, dp: IntArray) -> FloatArray:
        """Return the starts of nodes, shape (lanes, nodes), ns."""
        return np.asarray(self._start[nodes[None], step[:, None], dp[:, None]])

    def ends(self, nodes: IntArray, step: IntArray, dp: IntArray) -> FloatArray:
        """Return the ends of nodes, shape (lanes, nodes), ns."""
        return np.asarray(self._end[nodes[None], step[:, None], dp[:, None]])

    def typical(self, nodes: IntArray) -> FloatArray:
        """Return the median time from the step's begin to each node's start, shape (nodes,), ns."""
        since = self._start[nodes] - self._begin[:, None]
        return median_of_known(since.reshape(len(nodes), -1).T)


def after(times: LaneTimes, computes: IntArray) -> Judge:
    """Return the judge of sends: a send starts when its computation has ended."""
    return Judge(
        lambda step, dp: times.ends(computes, step, dp),
        lambda starts, _, expected: _one_sided(starts - expected),
    )


def before(times: LaneTimes, computes: IntArray) -> Judge:
    """Return the judge of receives: a receive ends when the computation that needs it begins."""
    return Judge(
        lambda step, dp: times.starts(computes, step, dp),
        lambda _, ends, expected: _one_sided(expected - ends),
    )


def by_typical_start(times: LaneTimes, nodes: IntArray) -> Judge:
    """Return the judge of other operations: each starts at its typical time in other lanes."""
    typical = times.typical(nodes)
    return Judge(
        lambda step, _: times.begin(step)[:, None] + typical,
        lambda starts, _, expected: np.abs(starts - expected),
    )


def _one_sided(distance: FloatArray) -> FloatArray:
    """Return the cost of the distance (ns) to a computation; negative distances are impossible."""
    return np.where(distance < -TOLERANCE_NS, -IMPOSSIBLE * distance, np.abs(distance))


def bridged(times: FloatArray) -> FloatArray:
    """Return times in which each NaN is interpolated between the other times of its row."""
    present = ~np.isnan(times)
    filled = np.where(present, times, 0.0)
    place = np.arange(times.shape[1])
    for row in np.flatnonzero(present.any(axis=1) & ~present.all(axis=1)).tolist():
        filled[row] = np.interp(place, place[present[row]], times[row, present[row]])
    return filled


def assign(costs: FloatArray) -> IntArray:
    """Return the cheapest ascending assignment of each lane's operations to slots.

    Parameters
    ----------
    costs : float64 array, shape (lanes, operations, shifts)
        Cost of assigning operation i to slot i + shift.

    Returns
    -------
    int64 array, shape (lanes, operations)
        Slot of each operation.
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


_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """Rows of the operations of all steps of a shape; arrays of shape (rows,)."""

    row: IntArray  # row of the trace
    step: IntArray  # index of the step
    dp: IntArray
    kind: IntArray  # op code × PP + stage
    order: IntArray
    # Shape (steps × dp, kinds): number of operations of each kind that each lane ran; None if all
    # DP ranks run equally many microbatches
    own: IntArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Times of operations as dense arrays of shape (nodes, steps, dp), 0 if missing."""

    start_ns: IntArray
    duration_ns: FloatArray
    missing: NDArray[np.bool_] | None  # None if no operation is missing
    mb: NDArray[np.int32]  # (nodes,)
    mc: NDArray[np.int32]  # (nodes,)


def place(
    trace: Trace, rows: StepRows, shape: IntArray, flow: Flow, size: tuple[int, int]
) -> Placed:
    """Return the operations of rows as dense arrays, each operation at the slot of its row.

    If a lane lost no operation, or if the recorded order has gaps where operations were lost, the
    recorded order is the slot. Otherwise microbatch and chunk identify the slot, or else the times;
    see `Judge`.

    Parameters
    ----------
    rows : StepRows
        Rows of the steps: in each lane and kind at most as many as `shape`.
    shape : int64 array, shape (kinds,)
        Number of operations of each kind.
    size : (steps, dp)
        Number of steps and of DP ranks.
    """
    return _Placing(trace, rows, shape, flow, size).result()


class _Placing:
    def __init__(
        self, trace: Trace, rows: StepRows, shape: IntArray, flow: Flow, size: tuple[int, int]
    ) -> None:
        self.trace, self.rows, self.shape, self.flow = trace, rows, shape, flow
        self.steps, self.dp = size
        whole = np.broadcast_to(shape, (self.steps * self.dp, len(shape)))
        self.own = whole if rows.own is None else rows.own
        self.first = np.concatenate(([0], np.cumsum(shape)))
        self.group = (rows.step * self.dp + rows.dp) * len(shape) + rows.kind
        self.slot = rows.order.copy()

    def result(self) -> Placed:
        lanes = self.steps * self.dp
        counts = np.bincount(self.group, minlength=lanes * len(self.shape))
        full = counts.reshape(lanes, -1) == self.own
        beyond = self.slot >= self.own.ravel()[self.group]
        ragged = ~full.ravel()[self.group]
        if (beyond & ~ragged).any():
            self._renumber(~ragged)
        if self.rows.own is not None:
            self._place_fewer(~ragged)
        if ragged.any():
            self._resolve(ragged, counts)
        # Rows whose slots only their times identify, sorted by lane, kind and order
        unknown = np.flatnonzero(ragged)
        unknown = unknown[self.slot[unknown] < 0]
        unknown = unknown[np.lexsort((self.rows.order[unknown], self.group[unknown]))]
        start, duration, filled = self._fill()
        if len(unknown):
            self._infer_by_time(unknown, start, duration, filled)
            start, duration, filled = self._fill()
        mb, mc = self._names()
        missing = None if filled.all() else ~filled
        return Placed(start, duration, missing, mb, mc)

    def _renumber(self, chosen: NDArray[np.bool_]) -> None:
        """Set the slots of the chosen rows to their position by order within lane and kind."""
        rows = np.flatnonzero(chosen)
        rows = rows[np.lexsort((self.rows.order[rows], self.group[rows]))]
        group = self.group[rows]
        first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
        length = np.diff(first, append=len(group))
        self.slot[rows] = np.arange(len(rows)) - np.repeat(first, length)

    def _place_fewer(self, whole: NDArray[np.bool_]) -> None:
        """Set the slots of lanes with fewer microbatches than others, by microbatch.

        Schedules that run chunk after chunk leave out some microbatches of each chunk, so the order
        is not the slot. The order is kept if DP ranks name microbatches differently.
        """
        fewer = whole & (self.own.ravel()[self.group] < self.shape[self.rows.kind])
        for kind in np.unique(self.rows.kind[fewer]).tolist():
            mine = np.flatnonzero(fewer & (self.rows.kind == kind))
            in_order = self.slot[mine]
            self._resolve_by_name(kind, mine)
            names = np.unique(self.trace.mb[self.rows.row[self.rows.kind == kind]])
            microbatch = np.searchsorted(names, self.trace.mb[self.rows.row[mine]])
            share = self.own.ravel()[self.group[mine]] / self.shape[kind]
            if (microbatch >= np.rint(share * len(names))).any():
                # The ranks name microbatches differently, so the recorded order is kept.
                self.slot[mine] = in_order

    def _resolve(self, ragged: NDArray[np.bool_], counts: IntArray) -> None:
        """Set the slots of lanes that lack operations of a kind, by order or by microbatch."""
        rows = np.flatnonzero(ragged)
        order, kind = self.rows.order[rows], self.rows.kind[rows]
        beyond = np.zeros(len(counts), dtype=bool)
        beyond[self.group[rows[order >= self.shape[kind]]]] = True
        numbered = ~beyond[self.group[rows]]
        if (numbered & (order >= counts[self.group[rows]])).any():
            # The recorded order has gaps: the recorder also numbers lost operations, so the order
            # is the slot.
            self.slot[rows] = np.where(numbered, order, _UNKNOWN)
            rows, kind = rows[~numbered], kind[~numbered]
        self.slot[rows] = np.where(self.shape[kind] == 1, 0, _UNKNOWN)
        for code in np.unique(kind[self.shape[kind] > 1]).tolist():
            self._resolve_by_name(code, rows[kind == code])

    def _resolve_by_name(self, kind: int, ragged: IntArray) -> None:
        """Set the slots of a kind's rows by (microbatch, chunk), if this identifies each slot."""
        every = np.flatnonzero(self.rows.kind == kind)
        mb = self.trace.mb[self.rows.row].astype(np.int64)
        mc = self.trace.mc[self.rows.row].astype(np.int64) + 1
        key = mb * (int(mc[every].max()) + 1) + mc
        names, named = np.unique(key[every], return_inverse=True)
        if len(names) != self.shape[kind]:
            return
        lane = self.group[every] // len(self.shape)
        lanes, column = np.unique(lane, return_inverse=True)
        placed = np.full((len(names), len(lanes)), np.nan)
        placed[named, column] = self.slot[every]
        whole = ~np.isnan(placed).any(axis=0)
        if whole.any():
            slots = placed[:, whole.argmax()].astype(np.int64)
        else:
            starts = np.full(placed.shape, np.nan)
            starts[named, column] = self.trace.start_ns[self.rows.row[every]]
            slots = np.empty(len(names), dtype=np.int64)
            slots[np.argsort(agreed_order(starts), kind="stable")] = np.arange(len(names))
        self.slot[ragged] = slots[np.searchsorted(names, key[ragged])]

    def _fill(self) -> tuple[IntArray, FloatArray, NDArray[np.bool_]]:
        """Return starts and durations of rows with a slot, and a mask of the filled places."""
        size = (int(self.first[-1]), self.steps, self.dp)
        placed = self.slot >= 0
        rows, row = self.rows, self.rows.row[placed]
        node = self.first[rows.kind[placed]] + self.slot[placed]
        place = node * (self.steps * self.dp) + rows.step[placed] * self.dp + rows.dp[placed]
        filled = np.zeros(size, dtype=bool)
        filled.ravel()[place] = True
        start, duration = np.zeros(size, dtype=np.int64), np.zeros(size)
        start.ravel()[place] = self.trace.start_ns[row]
        duration.ravel()[place] = self.trace.duration_ns[row]
        return start, duration, filled

    def _names(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the microbatch and chunk of each node, taken from the first lane with the node."""
        node = self.first[self.rows.kind] + self.slot
        column = self.rows.step * self.dp + self.rows.dp
        rows = np.lexsort((column, node))
        nodes, head = np.unique(node[rows], return_index=True)
        mb = np.full(int(self.first[-1]), ops.ABSENT, dtype=np.int32)
        mc = mb.copy()
        source = self.rows.row[rows[head]]
        mb[nodes], mc[nodes] = self.trace.mb[source], self.trace.mc[source]
        return mb, mc

    def _infer_by_time(
        self,
        unknown: IntArray,
        start: IntArray,
        duration: FloatArray,
        filled: NDArray[np.bool_],
    ) -> None:
        """Set the slots of operations whose slots only their times identify."""
        begin = np.full(self.steps, np.iinfo(np.int64).max)
        np.minimum.at(begin, self.rows.step, self.trace.start_ns[self.rows.row])
        times = LaneTimes(start, start + duration, filled, begin.astype(np.float64))
        lanes = _Lanes.of(unknown, self.group[unknown], len(self.shape))
        # Computations come first, since the slots of transfers are inferred from their
        # computations.
        for kind in sorted(set(lanes.kind.tolist()), key=self._is_transfer):
            judge = self._judge(kind, times)
            for count in np.unique(lanes.length[lanes.kind == kind]).tolist():
                chosen = np.flatnonzero((lanes.kind == kind) & (lanes.length == count))
                rows = lanes.rows(chosen, count)
                step, dp = np.divmod(lanes.lane[chosen], self.dp)
                starts = self.trace.start_ns[self.rows.row[rows]].astype(np.float64)
                ends = starts + self.trace.duration_ns[self.rows.row[rows]]
                expected = bridged(judge.expected(step, dp))
                band = np.arange(count)[:, None] + np.arange(expected.shape[1] - count + 1)
                slots = assign(judge.cost(starts[..., None], ends[..., None], expected[:, band]))
                self.slot[rows] = slots
                if not self._is_transfer(kind):
                    times.put(self.first[kind] + slots, step, dp, starts, ends)

    def _is_transfer(self, kind: int) -> bool:
        name = ops.REPLAYED_OP_TYPES[kind // self._pp]
        return any(name in (direction.send, direction.recv) for direction in DIRECTIONS)

    @property
    def _pp(self) -> int:
        return len(self.shape) // len(ops.REPLAYED_OP_TYPES)

    def _judge(self, kind: int, times: LaneTimes) -> Judge:
        """Return the judge by which the operations of a kind are assigned to slots."""
        code, stage = divmod(kind, self._pp)
        name = ops.REPLAYED_OP_TYPES[code]
        nodes = np.arange(self.first[kind], self.first[kind + 1])
        for direction in DIRECTIONS:
            if name in (direction.send, direction.recv):
                sends = name == direction.send
                computes = self._computes(stage, direction.compute, len(nodes), sends=sends)
                if computes is not None:
                    return after(times, computes) if sends else before(times, computes)
        return by_typical_start(times, nodes)

    def _computes(self, stage: int, name: str, count: int, *, sends: bool) -> IntArray | None:
        """Return the computation of each transfer, (transfers,); None if their numbers differ."""
        kind = ops.REPLAYED_OP_TYPES.index(name) * self._pp + stage
        nodes = np.arange(self.first[kind], self.first[kind + 1])
        placed = self.slot >= 0
        mc = np.full(int(self.first[-1]), ops.ABSENT, dtype=np.int32)
        node = self.first[self.rows.kind[placed]] + self.slot[placed]
        mc[node] = self.trace.mc[self.rows.row[placed]]
        direction = next(d for d in DIRECTIONS if d.compute == name)
        neighbor = self.flow.target if sends else self.flow.source
        neighbors = [neighbor(direction, (stage, max(chunk, 0))) for chunk in mc[nodes].tolist()]
        fitting = (p for p in transferred(stage, neighbors) if len(p) == count)
        places = next(fitting, None)
        return None if places is None else nodes[places]


@dataclass(frozen=True, slots=True, eq=False)
class _Lanes:
    """Stretches of consecutive rows of the same lane and kind."""

    order: IntArray  # (rows,)
    first: IntArray  # (stretches,): index into `order`
    length: IntArray  # (stretches,)
    lane: IntArray  # (stretches,)
    kind: IntArray  # (stretches,)

    @classmethod
    def of(cls, order: IntArray, group: IntArray, kinds: int) -> _Lanes:
        """Return the stretches of rows with equal `group`, which is lane × kinds + kind."""
        first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
        lane, kind = np.divmod(group[first], kinds)
        return cls(order, first, np.diff(first, append=len(order)), lane, kind)

    def rows(self, chosen: IntArray, count: int) -> IntArray:
        """Return the rows of stretches with `count` rows each, shape (stretches, count)."""
        return np.asarray(self.order[self.first[chosen, None] + np.arange(count)])
