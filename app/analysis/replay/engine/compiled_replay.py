# ruff: noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - compiled loops: no objects there
"""Compiled executor of the replay, with the same results as `ArrayReplay`, bit for bit.

A NumPy call costs as much as some hundred lanes, and its results go through memory. Here the ends
still needed stay in the cache of a core. Imported only where it pays (`executors`): loading takes
a third of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.loops import cut, in_rows, in_threads, threads_for
from app.analysis.replay.engine.replay import (
    FIRST_MASK,
    IDEAL,
    ON_TIME,
    RECORDED,
    Batch,
    Block,
    CodeArray,
    Program,
    one_by_one,
)
from app.analysis.replay.layout.dense import FloatArray

# ---- A program as arrays, for the compiled loops -----------------------------------------------


class Tables(NamedTuple):
    """A program as arrays; members of all units are in one row, a slot holds a live end.

    Shapes: `unit_first` (units + 1,), `unit_spans` (units,), `node_of`, `slot_of`, `ends_last`
    (members,), `after_first` (members + 1,), `after_slot` (dependencies,).
    `after_lag` (dependencies,) has no rows where nothing passes regularly before launches;
    `begins` and `closes` (members,), the stage of what begins and ends steps that are chained and
    else -1, have no rows where steps are not chained; `turn` is what passes between such steps.
    """

    unit_first: CodeArray
    unit_spans: NDArray[np.bool_]
    node_of: CodeArray
    slot_of: CodeArray
    ends_last: NDArray[np.bool_]
    after_first: CodeArray
    after_slot: CodeArray
    after_lag: FloatArray
    begins: CodeArray
    closes: CodeArray
    turn: float
    slots: int


def tables_of(program: Program) -> Tables:
    """Return a program as arrays."""
    unit_first, after_first = [0], [0]
    node_of: list[int] = []
    after_slot: list[int] = []
    slot_of: dict[int, int] = {}
    free: list[int] = []
    slots = 0
    for members, afters, _, finished in program.units:
        for after in afters:
            after_slot += [slot_of[node] for node in after]
            after_first.append(len(after_slot))
        for node in members:
            if not free:
                free.append(slots)
                slots += 1
            slot_of[node] = free.pop()
        node_of += members
        unit_first.append(len(node_of))
        free += [slot_of[node] for node in finished]
    return Tables(
        unit_first=np.array(unit_first, dtype=np.int32),
        unit_spans=np.array([spans for _, _, spans, _ in program.units], dtype=np.bool_),
        node_of=np.array(node_of, dtype=np.int32),
        slot_of=np.array([slot_of[node] for node in node_of], dtype=np.int32),
        ends_last=np.array([node in program.ends_last for node in node_of], dtype=np.bool_),
        after_first=np.array(after_first, dtype=np.int32),
        after_slot=np.array(after_slot, dtype=np.int32),
        after_lag=np.array(_lags_ns(program), dtype=np.float64),
        begins=_stages(node_of, None if program.chain is None else program.chain.begins),
        closes=_stages(node_of, None if program.chain is None else program.chain.closes),
        turn=0.0 if program.chain is None else program.chain.step_gap_ns,
        slots=slots,
    )


def _lags_ns(program: Program) -> list[float]:
    """Return what regularly passes after each of what is followed; nothing where nothing does."""
    lags_ns = program.lags_ns
    if not lags_ns:
        return []
    return [
        lags_ns.get((member, node), 0.0)
        for members, afters, _, _ in program.units
        for member, after in zip(members, afters, strict=True)
        for node in after
    ]


def _stages(nodes: Sequence[int], stage_of: Mapping[int, int] | None) -> CodeArray:
    """Return the stage of each node that has one, -1 for the others; nothing where none has."""
    if stage_of is None:
        return np.empty(0, dtype=np.int32)
    return np.array([stage_of.get(node, -1) for node in nodes], dtype=np.int32)


# ---- The replay as compiled loops: as `app.analysis.replay.engine.replay.ArrayReplay`, to the bit
#
# A call of NumPy costs as much as computing some hundred lanes, and its results go through memory.
# Here the ends that are still needed stay in the cache of a core, and nothing else is written.


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


# ---- The executor whose loops are compiled: what it reads, in which parts, on how many threads ---


# Ends that fit in the cache of a core along with what is read.
_CACHED_ENDS: Final = 1 << 15
# As many of the durations that all variants read fit into what the processors of a machine share.
_CACHED_BYTES: Final = 3 << 20


def _by_lane(rows: FloatArray) -> FloatArray:
    """Return rows of shape (rows, steps, dp) as rows of lanes."""
    count, steps, dp = rows.shape
    return rows.reshape(count, steps * dp)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledReplay:
    """Executes steps with a compiled loop, on several cores where there is enough to do."""

    program: Program
    _tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", tables_of(self.program))

    @property
    def lanes_at_once(self) -> int:
        """Return about how many (step, DP rank) a block should have."""
        return _CACHED_ENDS // self._tables.slots

    @property
    def tiles(self) -> bool:
        """Return whether it cuts large blocks itself, and lets other threads run meanwhile."""
        return True

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:
        """Return when the steps end, shape (variants, the block's steps, dp), ns."""
        chain = self.program.chain
        if chain is None:
            return self._replay(batch, block, np.empty((0, 0, 0)), threads)
        width = block.recorded_ns.shape[2] * (2 if batch.partnered else 1)
        # the first step begins at once
        carry = np.full((len(batch.takes), chain.stages, width), -chain.step_gap_ns)
        parts = [self._replay(batch, part, carry, threads) for part in one_by_one(block)]
        return np.concatenate(parts, axis=1)

    def _replay(self, batch: Batch, block: Block, carry: FloatArray, threads: int) -> FloatArray:
        """Replay a block; `carry` as in `Work`."""
        nodes, steps, dp = block.recorded_ns.shape
        first, end, _ = block.steps.indices(steps)
        ends = np.empty((len(batch.takes), (end - first) * dp))
        lanes = ends.shape[1]
        tile = min(lanes, self._tile(nodes, dp))
        masks = np.tile(batch.masks, (1, tile // dp)) if len(batch.masks) else batch.masks
        takes = in_rows(batch.takes)
        recorded = in_rows(_by_lane(block.recorded_ns))
        values = in_rows(_by_lane(block.values_ns))
        delays = in_rows(_by_lane(block.delays_ns))
        late = np.empty((0, 0), dtype=np.int32) if batch.late is None else in_rows(batch.late)
        ideal = in_rows(block.ideal_ns)

        def run(part: tuple[slice, slice]) -> None:
            variants, own = part
            work = LaneWork(
                takes=takes[variants],
                late=late[variants] if len(late) else late,
                masks=masks,
                recorded=recorded,
                first_lane=first * dp,
                ideal=ideal,
                values=values,
                delays=delays,
                first_delay=block.first_delay * dp,
                dp=dp,
                partnered=batch.partnered,
                carry=carry[variants] if len(carry) else carry,
            )
            replay_lanes(self._tables, work, own.start, own.stop, tile, ends[variants])

        threads = min(threads, threads_for(ends.size * nodes))
        by_lane = cut(lanes, threads, tile)
        # What one thread has in its cache no other one reads, unless there is but one tile.
        by_variant = cut(len(ends), threads if len(by_lane) == 1 else 1)
        in_threads(threads, run, list(product(by_variant, by_lane)))
        return ends.reshape(len(ends), end - first, dp)

    def _tile(self, nodes: int, dp: int) -> int:
        """Return how many lanes are replayed at a time: whole steps."""
        return max(1, _CACHED_BYTES // (8 * (nodes + self._tables.slots)) // dp) * dp
