"""Assembly of rows, each from a single rank, into whole steps; implausible rows are dropped.

A step is whole when every expected rank has sent its row of the step. It also closes without the
rows of missing ranks once many ranks have sent a later step for long enough; missing ranks are not
expected again until they send. Ranks send rows of many seconds in one request, so a row that the
server receives late is not necessarily late. The result depends only on the order of the rows, not
on how they are cut into batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import (
    MEASURES,
    MOST_RANKS,
    WAITS_NS,
    Pulses,
    Steps,
)
from app.analysis.quantities import BoolArray, FloatArray, IntArray


def highest_before(values: IntArray, whose: IntArray, earlier: IntArray) -> IntArray:
    """Return for each row the highest value in earlier rows of the same rank.

    Parameters
    ----------
    values, whose : int64[rows]
        Values, and the index of each value's rank; sorted by rank, in order of arrival within a
        rank.
    known : int64[ranks]
        Highest value of each rank before these rows.
    """
    levels, level = np.unique(np.concatenate([earlier, values]), return_inverse=True)
    base, own = level[: len(earlier)], level[len(earlier) :]
    # An offset by rank lifts each rank's values above those of all ranks before it, so that one
    # running maximum serves all ranks.
    lift = whose * len(levels)
    so_far = np.maximum.accumulate(np.maximum(own, base[whose]) + lift) - lift
    starts = np.append(True, whose[1:] != whose[:-1])
    before = np.where(starts, base[whose], np.append(0, so_far[:-1]))
    return np.asarray(levels[before])


# Limits of a duration (a month) and of a step number; a larger value is an error of the sender.
_MOST_NS: Final = 31 * 86_400 * 1_000_000_000
_LAST_STEP: Final = 1 << 53

NEGATIVE: Final = "pulse.negative"
TOO_LARGE: Final = "pulse.too_large"


def sound(rows: Pulses, counts: Counter[str]) -> Pulses:
    """Return the rows whose numbers are in their valid ranges, and count the other rows.

    Parameters
    ----------
    rows : Pulses
        Rows of ended steps, without heartbeats.
    """
    measures = [getattr(rows, name) for name in MEASURES]
    unsigned = [*measures, rows.rank, rows.step, rows.attempt, rows.dp_rank, rows.pp_rank]
    if not len(rows) or (
        min(values.min() for values in unsigned) >= 0
        and rows.time_ns.min() > 0
        and max(values.max() for values in measures) <= _MOST_NS
        and rows.step.max() <= _LAST_STEP
    ):
        return rows
    negative = np.logical_or.reduce([values < 0 for values in unsigned]) | (rows.time_ns <= 0)
    large = np.logical_or.reduce([values > _MOST_NS for values in measures])
    large = ~negative & (large | (rows.step > _LAST_STEP))
    for code, refused in ((NEGATIVE, negative), (TOO_LARGE, large)):
        if refused.any():
            counts[code] += int(np.count_nonzero(refused))
    return rows.take(~negative & ~large)


# A step waits for its missing ranks until this many later steps have arrived.
_WAITS_STEPS: Final = 2_048
# Clients drop unsent rows after half a minute, so a row that is older than the newest row by more
# than this will not arrive any more.
_DROPPED_NS: Final = 40_000_000_000
# A step is dropped if fewer than this share of the known ranks sent it.
_MANY: Final = 0.25
# Limits of memory, in cells (steps × ranks): cells that are processed at once, and cells of open
# steps.
_MOST_CELLS: Final = 2_000_000
_MOST_OPEN: Final = 600_000
# A new process group may begin only after this many rows per rank of the current group, and after
# this many rows in total: a few wrong rows must not begin a group.
_GROUP_ROWS: Final = (8, 512)
_NEVER: Final = np.iinfo(np.int64).max
_LOOK_AHEAD: Final = 64
# Highest rank up to which ranks are mapped to columns by a table; higher ranks by binary search.
_TABLE: Final = 1 << 17

OLD_ATTEMPT: Final = "pulse.old_attempt"
DOUBLED: Final = "pulse.doubled"
LATE: Final = "pulse.late"
REPEATED: Final = "pulse.repeated"
SIZES_CHANGED: Final = "pulse.sizes_changed"
TOO_MANY_RANKS: Final = "pulse.too_many_ranks"
INCOMPLETE: Final = "pulse.incomplete_step"


def _none() -> IntArray:
    return np.empty(0, np.int64)


@dataclass(slots=True)
class StepAssembler:
    """Assembler of a job's open steps, whose memory is bounded by the number of ranks.

    Parameters
    ----------
    ranks, dp_ranks, pp_ranks, joined : int64[ranks]
        Known ranks of the process group, and the step of each rank's first row.
    absent : bool[ranks]
        Ranks for which steps do not wait.
    last_step, last_ns : int64[ranks]
        Last step of each rank, and the end of this step.
    changed : list of int
        Indices of ranks whose rows contradicted the group.
    formed : bool
        Whether all ranks of the group are known.
    order, ended_ns, known_ns : int64[steps, ranks]
        For each cell of the open steps: number of its row (-1: none), end of the step, and time at
        which the row arrived.
    values : float64[measures, steps, ranks]
        Measures of the open steps; NaN in cells without a row.
    """

    group: int = -1
    attempt: int = -1
    ranks: IntArray = field(default_factory=_none)
    dp_ranks: IntArray = field(default_factory=_none)
    pp_ranks: IntArray = field(default_factory=_none)
    joined: IntArray = field(default_factory=_none)
    absent: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))
    last_step: IntArray = field(default_factory=_none)
    last_ns: IntArray = field(default_factory=_none)
    changed: list[int] = field(default_factory=list)
    last_closed: int = -1
    formed: bool = False
    rows: int = 0
    group_rows: int = 0
    steps: IntArray = field(default_factory=_none)
    first_ns: IntArray = field(default_factory=_none)
    order: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    ended_ns: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    known_ns: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    values: FloatArray = field(default_factory=lambda: np.empty((len(MEASURES), 0, 0)))
    counts: Counter[str] = field(default_factory=Counter)
    waits_ns: int = WAITS_NS

    def __post_init__(self) -> None:
        """Use the ends of steps as arrival times if a state of an earlier version has none."""
        if self.known_ns.shape != self.ended_ns.shape:
            self.known_ns = self.ended_ns.copy()

    def add(self, rows: Pulses, waits_ns: int = WAITS_NS) -> Iterator[Steps]:
        """Add rows of ended steps (not heartbeats), and yield the steps that these rows complete.

        Parameters
        ----------
        waits_ns : int
            Time for which a step waits for missing ranks.
        """
        self.waits_ns = waits_ns
        rows = sound(rows, self.counts)
        while len(rows):
            following = np.flatnonzero(rows.attempt > self.attempt)
            end = int(following[0]) if len(following) else len(rows)
            if end == 0:
                yield from self._flush()
                self._begin(int(rows.attempt[0]))
                continue
            now = rows.take(slice(0, end))
            kept = now.attempt == self.attempt
            self._count(OLD_ATTEMPT, ~kept)
            now = now.take(kept)
            rows = rows.take(slice(end, None))
            while len(now):
                now, rest = self._of_group(now)
                for piece in self._pieces(now):
                    yield from self._fill(piece)
                if rest is None:
                    break
                yield from self._flush()
                self._begin(self.attempt)
                now = rest

    def close_all(self) -> Iterator[Steps]:
        """Yield all open steps, complete or not, and forget them."""
        yield from self._flush()

    def _count(self, code: str, rows: BoolArray) -> None:
        number = int(np.count_nonzero(rows))
        if number:
            self.counts[code] += number

    def _begin(self, attempt: int) -> None:
        counts, group, seen = self.counts, self.group, self.rows
        fresh = StepAssembler(waits_ns=self.waits_ns)
        for name in StepAssembler.__slots__:
            setattr(self, name, getattr(fresh, name))
        self.counts, self.group, self.rows, self.attempt = counts, group + 1, seen, attempt

    def _of_group(self, rows: Pulses) -> tuple[Pulses, Pulses | None]:
        """Return the rows of the current process group, and the rows from the next group on.

        Rows that contradict the current group are dropped and counted.
        """
        rows = self._known(rows)
        place = self._places(rows.rank)
        moved = (rows.dp_rank != self.dp_ranks[place]) | (rows.pp_rank != self.pp_ranks[place])
        repeated = ~moved & self._repeated(rows, place)
        odd = moved | repeated
        if not odd.any():
            return rows, None
        # One rank may report wrong parallel ranks by mistake; two such ranks begin a new process
        # group.
        needed = min(2, len(self.ranks))
        at = np.flatnonzero(odd)
        _, firsts = np.unique(place[at], return_index=True)
        new = [int(at[first]) for first in sorted(firsts) if place[at[first]] not in self.changed]
        old_enough = max(_GROUP_ROWS[0] * len(self.ranks), _GROUP_ROWS[1]) - self.group_rows
        missing = needed - len(self.changed)
        reached = (new[missing - 1] if missing <= len(new) else _NEVER) if missing > 0 else 0
        begins = at[at >= max(reached, old_enough)]
        cut = int(begins[0]) if len(begins) else len(rows)
        before = odd[:cut]
        self._count(SIZES_CHANGED, moved[:cut])
        self._count(REPEATED, repeated[:cut])
        self.changed = sorted({*self.changed, *(int(place[row]) for row in at if row < cut)})
        rest = rows.take(slice(cut, None)) if cut < len(rows) else None
        return rows.take(slice(0, cut)).take(~before), rest

    def _known(self, rows: Pulses) -> Pulses:
        """Add new ranks to the group; return the rows without those of ranks beyond the limit."""
        if len(self.ranks) and np.isin(rows.rank, self.ranks).all():
            return rows
        ranks, firsts = np.unique(rows.rank, return_index=True)
        new = np.sort(firsts[~np.isin(ranks, self.ranks)])
        room = MOST_RANKS - len(self.ranks)
        if len(new) > room:
            beyond = np.isin(rows.rank, rows.rank[new[room:]])
            self._count(TOO_MANY_RANKS, beyond)
            return self._known(rows.take(~beyond))
        if len(new):
            size = len(new)
            self.ranks = np.append(self.ranks, rows.rank[new])
            self.dp_ranks = np.append(self.dp_ranks, rows.dp_rank[new])
            self.pp_ranks = np.append(self.pp_ranks, rows.pp_rank[new])
            self.joined = np.append(self.joined, rows.step[new])
            self.absent = np.append(self.absent, np.zeros(size, np.bool_))
            self.last_step = np.append(self.last_step, np.full(size, -1))
            self.last_ns = np.append(self.last_ns, np.full(size, -1))
            self.order = np.pad(self.order, ((0, 0), (0, size)), constant_values=-1)
            self.ended_ns = np.pad(self.ended_ns, ((0, 0), (0, size)))
            self.known_ns = np.pad(self.known_ns, ((0, 0), (0, size)))
            self.values = np.pad(self.values, ((0, 0), (0, 0), (0, size)), constant_values=np.nan)
        return rows

    def _places(self, ranks: IntArray) -> IntArray:
        highest = int(self.ranks.max())
        if highest < _TABLE:
            table = np.empty(highest + 1, np.int64)
            table[self.ranks] = np.arange(len(self.ranks))
            return np.asarray(table[ranks])
        order = np.argsort(self.ranks)
        return np.asarray(order[np.searchsorted(self.ranks, ranks, sorter=order)])

    def _repeated(self, rows: Pulses, place: IntArray) -> BoolArray:
        """Return which rows repeat, at a later time, a step that the same rank had ended before."""
        # NumPy sorts 16-bit integers by radix sort, several times as fast as wider ones.
        order = np.argsort(place.astype(np.int16), kind="stable")
        whose, steps = place[order], rows.step[order]
        starts = np.append(True, whose[1:] != whose[:-1])
        rises = np.append(True, steps[1:] > steps[:-1])
        rises[starts] = steps[starts] > self.last_step[whose[starts]]
        repeated = np.zeros(len(rows), np.bool_)
        if not rises.all():
            step = highest_before(steps, whose, self.last_step)
            time = highest_before(rows.time_ns[order], whose, self.last_ns)
            repeated[order] = (steps <= step) & (rows.time_ns[order] > time)
        return repeated

    def _pieces(self, rows: Pulses) -> Iterator[Pulses]:
        """Yield the rows in pieces whose number of cells is within the limit of memory."""
        if not len(rows):
            return
        cells = (len(_distinct(rows.step)) + len(self.steps)) * len(self.ranks)
        if cells <= _MOST_CELLS or len(rows) <= 256:  # noqa: PLR2004
            yield rows
            return
        half = len(rows) // 2
        yield from self._pieces(rows.take(slice(0, half)))
        yield from self._pieces(rows.take(slice(half, None)))

    def _fill(self, rows: Pulses) -> Iterator[Steps]:
        order = np.arange(self.rows, self.rows + len(rows))
        self.rows += len(rows)
        self.group_rows += len(rows)
        place = self._places(rows.rank)
        np.maximum.at(self.last_step, place, rows.step)
        np.maximum.at(self.last_ns, place, rows.time_ns)
        late = rows.step <= self.last_closed
        if late.any():
            self._count(LATE, late)
            rows, place, order = rows.take(~late), place[~late], order[~late]
        if not len(rows):
            return
        self._widen(_distinct(rows.step))
        gapless = self.steps[-1] - self.steps[0] == len(self.steps) - 1
        at = rows.step - self.steps[0] if gapless else np.searchsorted(self.steps, rows.step)
        # Of several rows in one cell only the first counts.
        cells = at * len(self.ranks) + place
        taken = np.take(self.order, cells) < 0
        if (cells[1:] <= cells[:-1]).any():
            own = np.arange(len(rows))
            first_of = np.empty(self.order.size, np.int64)
            first_of[cells[::-1]] = own[::-1]
            taken &= first_of[cells] == own
        if not taken.all():
            self._count(DOUBLED, ~taken)
            rows, at, cells, order = rows.take(taken), at[taken], cells[taken], order[taken]
        known_ns = rows.known_ns
        np.put(self.order, cells, order)
        np.put(self.ended_ns, cells, rows.time_ns)
        np.put(self.known_ns, cells, known_ns)
        for number, name in enumerate(MEASURES):
            np.put(self.values[number], cells, getattr(rows, name))
        first_ns = np.full(len(self.steps), -1)
        first_ns[at[::-1]] = known_ns[::-1]
        self.first_ns = np.where(self.first_ns < 0, first_ns, self.first_ns)
        yield from self._close()
        excess = len(self.steps) - max(64, _MOST_OPEN // len(self.ranks))
        if excess > 0:
            yield from self._flush(excess)

    def _widen(self, steps: IntArray) -> None:
        """Grow the arrays of the open steps to include new step numbers."""
        every = np.union1d(self.steps, steps)
        if len(every) == len(self.steps):
            return
        at = np.searchsorted(every, self.steps)
        shape = (len(every), len(self.ranks))
        order = np.full(shape, -1, np.int64)
        ended, arrived = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        values = np.full((len(MEASURES), *shape), np.nan)
        first = np.full(len(every), -1, np.int64)
        order[at], ended[at], first[at] = self.order, self.ended_ns, self.first_ns
        arrived[at], self.known_ns = self.known_ns, arrived
        values[:, at] = self.values
        self.steps, self.order, self.ended_ns, self.values = every, order, ended, values
        self.first_ns = first

    def _close(self) -> Iterator[Steps]:
        by_lag, lag_ns = self._lags()
        start, ahead, closed_at, closed_ns = 0, _LOOK_AHEAD, [], []
        before = -1
        while start < len(self.steps):
            window = slice(start, start + (ahead if self.formed else 1))
            order = self.order[window]
            expected = ~self.absent & (self.joined <= self.steps[window, None])
            there = order >= 0
            whole = (there | ~expected).all(axis=1) & self.formed & there.any(axis=1)
            last = np.where(expected, order, -1).max(axis=1)
            when = np.where(whole, last, _NEVER)
            lagging = by_lag[window] < when
            when = np.maximum.accumulate(
                np.maximum(np.where(lagging, by_lag[window], when), before)
            )
            open_ = np.flatnonzero(when == _NEVER)
            count = int(open_[0]) if len(open_) else len(when)
            # The set of expected ranks changes at a step in which a rank is missing, and at a step
            # in which a missing rank returns.
            back = (there & self.absent & (order <= when[:, None])).any(axis=1)
            changes = np.flatnonzero((lagging | back)[:count])
            count = int(changes[0]) + 1 if len(changes) else count
            if count == 0:
                break
            in_time = there[:count] & (order[:count] <= when[:count, None])
            late = there[:count] & ~in_time
            self._count(LATE, late)
            self.values[:, start : start + count][:, late] = np.nan
            self.order[start : start + count][late] = -1
            end = np.where(in_time, self.ended_ns[start : start + count], -1).max(axis=1)
            end = np.where(lagging[:count], np.maximum(end, lag_ns[start : start + count]), end)
            closed_ns.append(end)
            closed_at.append(start + np.arange(count))
            before = int(when[count - 1])
            if len(changes):
                present = in_time[count - 1]
                if lagging[count - 1] and present.sum() >= _MANY * len(self.ranks):
                    self.absent |= ~present & expected[count - 1]
                    self.formed = True
                self.absent &= ~present
            start += count
            # The window doubles while the set of expected ranks is unchanged; each change restarts
            # with a small window.
            ahead = _LOOK_AHEAD if len(changes) else 2 * ahead
        if start:
            yield from self._taken(np.concatenate(closed_at), np.concatenate(closed_ns))

    def _lags(self) -> tuple[IntArray, IntArray]:
        """Return the number and the end time of the row at which each step stops waiting."""
        many = max(1, int(np.ceil(_MANY * len(self.ranks))))
        there = np.where(self.order >= 0, self.order, _NEVER)
        arrived = np.partition(there, many - 1, axis=1)[:, many - 1]
        row = np.argmax(there == arrived[:, None], axis=1)
        known_ns, at_ns = (
            np.where(arrived < _NEVER, times[np.arange(len(row)), row], -1)
            for times in (self.known_ns, self.ended_ns)
        )
        began_ns = np.where(self.order >= 0, self.ended_ns, _NEVER - _DROPPED_NS).min(axis=1)
        # A later step counts as arrived from the row by which enough ranks have ended it.
        first = np.minimum(
            np.searchsorted(np.maximum.accumulate(known_ns), self.first_ns + self.waits_ns),
            np.searchsorted(np.maximum.accumulate(at_ns), began_ns + _DROPPED_NS),
        )
        number = np.arange(len(self.steps))
        first = np.maximum(np.minimum(first, number + _WAITS_STEPS), number + 1)
        soonest = np.append(np.minimum.accumulate(arrived[::-1])[::-1], _NEVER)
        when = soonest[np.minimum(first, len(number))]
        order = np.argsort(arrived)
        whose = np.minimum(np.searchsorted(arrived, when, sorter=order), len(number) - 1)
        return when, at_ns[order[whose]]

    def _flush(self, count: int | None = None) -> Iterator[Steps]:
        """Close the oldest `count` open steps, or all, without waiting for missing ranks."""
        number = len(self.steps) if count is None else count
        if number:
            end = np.where(self.order[:number] >= 0, self.ended_ns[:number], -1).max(axis=1)
            yield from self._taken(np.arange(number), end)

    def _taken(self, at: IntArray, closed_ns: IntArray) -> Iterator[Steps]:
        """Remove the first open steps, and yield those that enough ranks sent."""
        count = len(at)
        there = self.order[:count] >= 0
        enough = there.sum(axis=1) >= _MANY * len(self.ranks)
        kept: slice | BoolArray = slice(None)
        if not enough.all():
            self.counts[INCOMPLETE] += int((~enough).sum())
            kept = enough
        self.last_closed = int(self.steps[count - 1])
        steps = Steps(
            self.group,
            self.attempt,
            self.ranks,
            self.dp_ranks,
            self.pp_ranks,
            self.steps[:count][kept],
            closed_ns[kept],
            self.ended_ns[:count][kept],
            {name: self.values[number, :count][kept] for number, name in enumerate(MEASURES)},
        )
        self.steps, self.first_ns = self.steps[count:], self.first_ns[count:]
        self.order, self.ended_ns = self.order[count:], self.ended_ns[count:]
        self.known_ns = self.known_ns[count:]
        self.values = self.values[:, count:]
        if len(steps.steps):
            yield steps


def _distinct(steps: IntArray) -> IntArray:
    """Return the distinct step numbers, sorted; fast for input that is mostly sorted."""
    if (steps[1:] < steps[:-1]).any():
        return np.unique(steps)
    return np.asarray(steps[np.append(True, steps[1:] != steps[:-1])])
