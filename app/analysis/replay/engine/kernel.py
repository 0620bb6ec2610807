# ruff: noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - compiled loops: no objects there
"""The replay as compiled loops: as `app.analysis.replay.engine.replay.ArrayReplay`, to the bit.

A call of NumPy costs as much as computing some hundred lanes, and its results go through memory.
Here the ends that are still needed stay in the cache of a core, and nothing else is written.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.replay.engine.replay import (
    FIRST_MASK,
    IDEAL,
    ON_TIME,
    RECORDED,
    CodeArray,
)
from app.analysis.replay.engine.tables import Tables
from app.analysis.replay.layout.dense import FloatArray

# Of most operations it is one or two that they follow.
_PAIR: Final = 2


class LaneWork(NamedTuple):
    """Variants of a block of steps; see `Batch` and `Block`, whose steps and DP ranks are lanes.

    `first_lane` is the block's first column of `recorded`, `first_delay` that of `delays`;
    everything else has the block's lanes, but for `masks`, which has those of a tile.
    `late` has no rows where no node is late. `carry`, shape (variants, stages, lanes and partners),
    is when each stage ended the step before, and then when it ends this one; it has no rows where
    steps are not chained.
    """

    takes: CodeArray
    late: CodeArray
    masks: NDArray[np.bool_]
    recorded: FloatArray
    first_lane: int
    ideal: FloatArray
    values: FloatArray
    delays: FloatArray
    first_delay: int
    dp: int
    partnered: bool
    carry: FloatArray


# Rows are told by their number: making a view of one takes longer than adding short rows.
@compiled  # pragma: no cover
def _raise_to(into: FloatArray, to: int, values: FloatArray, row: int) -> None:
    """Replace the values of a row by others that are higher."""
    for i in range(into.shape[1]):
        into[to, i] = max(into[to, i], values[row, i])


@compiled  # pragma: no cover
def _latest(ends: FloatArray, into: int, after_slot: CodeArray, first: int, last: int) -> None:
    """Write the latest end of what is followed; the step's start where that is nothing.

    A row that is written goes through memory, so up to four are read at a time.
    """
    if first == last:
        for i in range(ends.shape[1]):
            ends[into, i] = 0.0
        return
    one, other = after_slot[first], after_slot[min(first + 1, last - 1)]
    third, fourth = after_slot[min(first + 2, last - 1)], after_slot[min(first + 3, last - 1)]
    if last - first <= _PAIR:
        for i in range(ends.shape[1]):
            ends[into, i] = max(ends[one, i], ends[other, i])
    else:
        for i in range(ends.shape[1]):
            ends[into, i] = max(ends[one, i], ends[other, i], ends[third, i], ends[fourth, i])
    for k in range(first + 4, last):
        _raise_to(ends, into, ends, after_slot[k])


@compiled  # pragma: no cover
def _latest_of(ends: FloatArray, into: int, tables: Tables, member: int, carry: FloatArray) -> None:
    """Write the same where steps are chained, or time passes regularly before launches."""
    first, last = tables.after_first[member], tables.after_first[member + 1]
    begins = tables.begins[member] if tables.begins.shape[0] > 0 else -1
    common = 0.0 if first == last else -np.inf
    for i in range(ends.shape[1]):
        ends[into, i] = common
    if begins >= 0:
        for i in range(ends.shape[1]):
            ends[into, i] = carry[begins, i] + tables.turn
    for k in range(first, last):
        slot = tables.after_slot[k]
        lag = tables.after_lag[k] if tables.after_lag.shape[0] > 0 else 0.0
        for i in range(ends.shape[1]):
            ends[into, i] = max(ends[into, i], ends[slot, i] + lag)


@compiled  # pragma: no cover
def _couple(ends: FloatArray, row: int, dp: int, partnered: bool) -> None:  # noqa: FBT001
    """Let all DP ranks, or a lane and its partner, begin with the last of them."""
    if partnered:
        lanes = ends.shape[1] // 2
        for i in range(lanes):
            last = max(ends[row, i], ends[row, lanes + i])
            ends[row, i] = last
            ends[row, lanes + i] = last
        return
    for start in range(0, ends.shape[1], dp):
        last = ends[row, start]
        for i in range(start + 1, start + dp):
            last = max(last, ends[row, i])
        for i in range(start, start + dp):
            ends[row, i] = last


@compiled  # pragma: no cover
def _add(
    ends: FloatArray,
    to: int,
    one: int,
    other: int,
    values: FloatArray,
    row: int,
    first: int,
    count: int,
) -> None:
    """Write a row of ends: the later one of two, and `count` values from column `first` on.

    Numbers without a sign cannot count from the end, which would be looked at lane by lane.
    """
    for i in range(count):
        begin = max(ends[one, i], ends[other, i])
        ends[to, i] = begin + values[row, np.uint64(first) + np.uint64(i)]


@compiled  # pragma: no cover
def _add_common(
    ends: FloatArray, to: int, one: int, other: int, common: float, first: int, last: int
) -> None:
    """Write a row of ends of some lanes: the later one of two, and the common duration."""
    for i in range(first, last):
        ends[to, i] = max(ends[one, i], ends[other, i]) + common


@compiled  # pragma: no cover
def _launch_late(
    ends: FloatArray,
    to: int,
    one: int,
    other: int,
    delays: FloatArray,
    row: int,
    first: int,
    raises: bool,  # noqa: FBT001
) -> None:
    """Write when a member is launched late after two ends; or raise the row to that.

    Delays are those from column `first` on.
    """
    if raises:
        for i in range(ends.shape[1]):
            begin = max(ends[one, i], ends[other, i])
            late = begin + delays[row, np.uint64(first) + np.uint64(i)]
            ends[to, i] = max(ends[to, i], late)
    else:
        for i in range(ends.shape[1]):
            begin = max(ends[one, i], ends[other, i])
            ends[to, i] = begin + delays[row, np.uint64(first) + np.uint64(i)]


@compiled  # pragma: no cover
def replay_lanes(
    tables: Tables, work: LaneWork, first: int, last: int, tile: int, out: FloatArray
) -> None:
    """Replay variants; `out` gets the end of each lane's step, shape (variants, lanes).

    Of the lanes from `first` to `last`, `tile` at a time: what a variant has read of them is still
    in the cache when the next one reads it.
    """
    for lane in range(first, last, tile):
        _replay_tile(tables, work, lane, min(tile, last - lane), out)


@compiled  # pragma: no cover
def _replay_tile(tables: Tables, work: LaneWork, begin: int, lanes: int, out: FloatArray) -> None:
    """Replay variants of `lanes` lanes from `begin` on.

    Partners are the second half of a row of ends.
    """
    unit_first, node_of, slot_of = tables.unit_first, tables.node_of, tables.slot_of
    unit_spans, ends_last, closes = tables.unit_spans, tables.ends_last, tables.closes
    after_first, after_slot = tables.after_first, tables.after_slot
    chained = work.carry.shape[0] > 0
    plain = not chained and tables.after_lag.shape[0] == 0
    empty = np.empty((0, 0))
    takes, late, recorded, partnered = work.takes, work.late, work.recorded, work.partnered
    ideal, values, delays, masks = work.ideal, work.values, work.delays, work.masks
    own, own_delay = work.first_lane + begin, work.first_delay + begin
    width = 2 * lanes if partnered else lanes
    # the last rows: when the last member so far is launched, and when the next one is
    ends = np.empty((tables.slots + 2, width))
    last_launch, launch = tables.slots, tables.slots + 1
    closed = np.empty(work.carry.shape[1:])
    for v in range(out.shape[0]):
        for i in range(lanes):
            out[v, begin + i] = 0.0
        carry = work.carry[v] if chained else empty
        if chained:
            closed[:] = carry
        for u in range(unit_spans.shape[0]):
            first, last = unit_first[u], unit_first[u + 1]
            on_time, starts = True, False
            for m in range(first, last):
                on_time &= late.shape[0] == 0 or late[v, node_of[m]] == ON_TIME
                starts |= after_first[m] == after_first[m + 1]
            after, after_last = after_first[first], after_first[last]
            # It begins with the later one of two ends, which are mostly one row.
            one = other = last_launch
            if plain and on_time:
                if 1 <= after_last - after <= _PAIR and not starts and not unit_spans[u]:
                    one, other = int(after_slot[after]), int(after_slot[after_last - 1])
                else:
                    _latest(ends, last_launch, after_slot, after, after_last)
                    if starts and after < after_last:
                        for i in range(width):
                            ends[last_launch, i] = max(ends[last_launch, i], 0.0)
            else:
                for m in range(first, last):
                    mine = last_launch if m == first else launch
                    row = late[v, node_of[m]] if late.shape[0] > 0 else ON_TIME
                    after, after_last = after_first[m], after_first[m + 1]
                    if (
                        plain
                        and not partnered
                        and row != ON_TIME
                        and 1 <= after_last - after <= _PAIR
                    ):
                        before, last_before = after_slot[after], after_slot[after_last - 1]
                        _launch_late(
                            ends,
                            last_launch,
                            before,
                            last_before,
                            delays,
                            row,
                            own_delay,
                            m > first,
                        )
                        continue
                    if plain:
                        _latest(ends, mine, after_slot, after, after_last)
                    else:
                        _latest_of(ends, mine, tables, m, carry)
                    if row != ON_TIME:
                        for i in range(lanes):
                            ends[mine, i] += delays[row, own_delay + i]
                    if m > first:
                        _raise_to(ends, last_launch, ends, launch)
            if unit_spans[u]:
                _couple(ends, last_launch, work.dp, partnered)
            for m in range(first, last):
                node, end = node_of[m], slot_of[m]
                code, common = takes[v, node], ideal[node]
                if code == IDEAL:
                    _add_common(ends, end, one, other, common, 0, width)
                elif code == RECORDED:
                    _add(ends, end, one, other, recorded, node, own, lanes)
                elif code >= 0:
                    _add(ends, end, one, other, values, code, begin, lanes)
                else:
                    kept = FIRST_MASK - code
                    for i in range(lanes):
                        ready = max(ends[one, i], ends[other, i])
                        mine_ns = recorded[node, np.uint64(own) + np.uint64(i)]
                        ends[end, i] = ready + (mine_ns if masks[kept, i] else common)
                if code != IDEAL:
                    _add_common(ends, end, one, other, common, lanes, width)
                if ends_last[m]:
                    for i in range(lanes):
                        out[v, begin + i] = max(out[v, begin + i], ends[end, i])
                    if partnered:
                        for i in range(lanes):
                            out[v, begin + i] = max(out[v, begin + i], ends[end, lanes + i])
                if chained and closes[m] >= 0:
                    _raise_to(closed, closes[m], ends, end)
        if chained:
            carry[:] = closed
