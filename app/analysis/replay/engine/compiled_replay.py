# ruff: noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - compiled loops: no objects there
"""Compiled executor of the replay, with the same results as `ArrayReplay`, bit for bit.

A NumPy call takes as long as some hundred lanes (step, DP rank), and its results go through memory.
Here the ends that are still needed stay in the cache of a core. The module is imported only if this
saves more time than the third of a second that loading it takes (`executors`).
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


class Tables(NamedTuple):
    """A program as arrays: the members of all units are concatenated.

    A slot stores the end of a node until no later unit needs it (a live end).
    """

    unit_first: CodeArray  # (units + 1,): first member
    unit_spans: NDArray[np.bool_]  # (units,): whether it spans the DP ranks
    node_of: CodeArray  # (members,)
    slot_of: CodeArray  # (members,)
    ends_last: NDArray[np.bool_]  # (members,)
    after_first: CodeArray  # (members + 1,): first dependency
    after_slot: CodeArray  # (dependencies,)
    after_lag: FloatArray  # (dependencies,): regular launch delay; empty if all are 0
    begins: CodeArray  # (members,): stage in `Chain.begins` or -1; empty unless steps are chained
    closes: CodeArray  # (members,): stage in `Chain.closes` or -1; empty unless steps are chained
    step_gap: float  # regular gap between chained steps
    slots: int  # number of slots


def tables_of(program: Program) -> Tables:
    """Return a program converted to arrays."""
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
    lags_ns = [
        program.lags_ns.get((member, node), 0.0)
        for members, afters, _, _ in program.units
        for member, after in zip(members, afters, strict=True)
        for node in after
        if program.lags_ns
    ]
    return Tables(
        unit_first=np.array(unit_first, dtype=np.int32),
        unit_spans=np.array([spans for _, _, spans, _ in program.units], dtype=np.bool_),
        node_of=np.array(node_of, dtype=np.int32),
        slot_of=np.array([slot_of[node] for node in node_of], dtype=np.int32),
        ends_last=np.array([node in program.ends_last for node in node_of], dtype=np.bool_),
        after_first=np.array(after_first, dtype=np.int32),
        after_slot=np.array(after_slot, dtype=np.int32),
        after_lag=np.array(lags_ns, dtype=np.float64),
        begins=_stages(node_of, None if program.chain is None else program.chain.begins),
        closes=_stages(node_of, None if program.chain is None else program.chain.closes),
        step_gap=0.0 if program.chain is None else program.chain.step_gap_ns,
        slots=slots,
    )


def _stages(nodes: Sequence[int], stage_of: Mapping[int, int] | None) -> CodeArray:
    """Return the stage of each node, -1 for nodes without a stage; empty if `stage_of` is None."""
    if stage_of is None:
        return np.empty(0, dtype=np.int32)
    return np.array([stage_of.get(node, -1) for node in nodes], dtype=np.int32)


# Number of dependencies up to which a shorter code path is used: most operations have one or two.
_PAIR: Final = 2


class LaneWork(NamedTuple):
    """Variants of a block of steps; see `Batch` and `Block`. Lanes are the block's (step, DP rank).

    `first_lane` is the block's first column of `recorded`, `first_delay` that of `delays`. `masks`
    has the lanes of a tile; all other arrays have the lanes of the block. `late` is empty if no
    node is launched late. `carry`, shape (variants, stages, lanes and partners), has the ends of
    the previous step, which are replaced by the ends of this step; it is empty unless steps are
    chained.
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


# The functions below get the number of a row instead of a view of the row, because creating a view
# takes longer than adding up a short row.
@compiled  # pragma: no cover
def _raise_to(into: FloatArray, to: int, values: FloatArray, row: int) -> None:
    """Set a row to the elementwise maximum of itself and another row."""
    for i in range(into.shape[1]):
        into[to, i] = max(into[to, i], values[row, i])


@compiled  # pragma: no cover
def _latest(ends: FloatArray, into: int, after_slot: CodeArray, first: int, last: int) -> None:
    """Write the latest end of the given dependencies to a row; without any, 0, the step's start.

    Written rows go through memory, so up to four rows are read at a time.
    """
    if first == last:
        for i in range(ends.shape[1]):
            ends[into, i] = 0.0
        return
    first_slot, second_slot = after_slot[first], after_slot[min(first + 1, last - 1)]
    third_slot, fourth_slot = (
        after_slot[min(first + 2, last - 1)],
        after_slot[min(first + 3, last - 1)],
    )
    if last - first <= _PAIR:
        for i in range(ends.shape[1]):
            ends[into, i] = max(ends[first_slot, i], ends[second_slot, i])
    else:
        for i in range(ends.shape[1]):
            ends[into, i] = max(
                ends[first_slot, i], ends[second_slot, i], ends[third_slot, i], ends[fourth_slot, i]
            )
    for k in range(first + 4, last):
        _raise_to(ends, into, ends, after_slot[k])


@compiled  # pragma: no cover
def _latest_of(ends: FloatArray, into: int, tables: Tables, member: int, carry: FloatArray) -> None:
    """Write the latest end of dependencies, plus their lags, to a row.

    In chained steps the end of the stage's previous step is a dependency too.
    """
    first, last = tables.after_first[member], tables.after_first[member + 1]
    begins = tables.begins[member] if tables.begins.shape[0] > 0 else -1
    common = 0.0 if first == last else -np.inf
    for i in range(ends.shape[1]):
        ends[into, i] = common
    if begins >= 0:
        for i in range(ends.shape[1]):
            ends[into, i] = carry[begins, i] + tables.step_gap
    for k in range(first, last):
        slot = tables.after_slot[k]
        lag = tables.after_lag[k] if tables.after_lag.shape[0] > 0 else 0.0
        for i in range(ends.shape[1]):
            ends[into, i] = max(ends[into, i], ends[slot, i] + lag)


@compiled  # pragma: no cover
def _couple(ends: FloatArray, row: int, dp: int, partnered: bool) -> None:  # noqa: FBT001
    """Set all DP ranks of a step, or a lane and its partner, to their maximum in a row."""
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
    left: int,
    right: int,
    values: FloatArray,
    row: int,
    first: int,
    count: int,
) -> None:
    """Write max(two rows of ends) plus `count` values from column `first` on.

    Indices are unsigned, which saves a check for negative indices in each lane.
    """
    for i in range(count):
        begin = max(ends[left, i], ends[right, i])
        ends[to, i] = begin + values[row, np.uint64(first) + np.uint64(i)]


@compiled  # pragma: no cover
def _add_common(
    ends: FloatArray, to: int, left: int, right: int, common: float, first: int, last: int
) -> None:
    """Write max(two rows of ends) plus a common duration for the lanes from `first` to `last`."""
    for i in range(first, last):
        ends[to, i] = max(ends[left, i], ends[right, i]) + common


@compiled  # pragma: no cover
def _launch_late(
    ends: FloatArray,
    to: int,
    left: int,
    right: int,
    delays: FloatArray,
    row: int,
    first: int,
    raises: bool,  # noqa: FBT001
) -> None:
    """Write max(two rows of ends) plus launch delays to a row, or raise the row to this sum.

    Delays begin at column `first`.
    """
    if raises:
        for i in range(ends.shape[1]):
            begin = max(ends[left, i], ends[right, i])
            late = begin + delays[row, np.uint64(first) + np.uint64(i)]
            ends[to, i] = max(ends[to, i], late)
    else:
        for i in range(ends.shape[1]):
            begin = max(ends[left, i], ends[right, i])
            ends[to, i] = begin + delays[row, np.uint64(first) + np.uint64(i)]


@compiled  # pragma: no cover
def replay_lanes(
    tables: Tables, work: LaneWork, first: int, last: int, tile: int, out: FloatArray
) -> None:
    """Replay variants and write the end of each lane's step to `out`, shape (variants, lanes), ns.

    The lanes from `first` to `last` are replayed `tile` at a time, so that the durations that one
    variant has read are still in the cache when the next variant reads them.
    """
    for lane in range(first, last, tile):
        _replay_tile(tables, work, lane, min(tile, last - lane), out)


@compiled  # pragma: no cover
def _replay_tile(tables: Tables, work: LaneWork, begin: int, lanes: int, out: FloatArray) -> None:
    """Replay the variants of `lanes` lanes, beginning with lane `begin`.

    The second half of a row of ends belongs to the partners of the lanes.
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
    # The last two rows hold launches: the latest launch of the unit's members so far, and the
    # launch of the next member.
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
            # A unit begins at the maximum of the rows `left` and `right`; mostly both are the same
            # row.
            left = right = last_launch
            if plain and on_time:
                if 1 <= after_last - after <= _PAIR and not starts and not unit_spans[u]:
                    left, right = int(after_slot[after]), int(after_slot[after_last - 1])
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
                    _add_common(ends, end, left, right, common, 0, width)
                elif code == RECORDED:
                    _add(ends, end, left, right, recorded, node, own, lanes)
                elif code >= 0:
                    _add(ends, end, left, right, values, code, begin, lanes)
                else:
                    kept = FIRST_MASK - code
                    for i in range(lanes):
                        ready = max(ends[left, i], ends[right, i])
                        mine_ns = recorded[node, np.uint64(own) + np.uint64(i)]
                        ends[end, i] = ready + (mine_ns if masks[kept, i] else common)
                if code != IDEAL:
                    _add_common(ends, end, left, right, common, lanes, width)
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


# Number of live ends that fit in the cache of a core together with the durations being read.
_CACHED_ENDS: Final = 1 << 15
# Number of bytes of durations, read once for each variant, that fit in the shared cache of a
# machine.
_CACHED_BYTES: Final = 3 << 20


def _by_lane(rows: FloatArray) -> FloatArray:
    """Reshape (rows, steps, dp) to (rows, lanes)."""
    count, steps, dp = rows.shape
    return rows.reshape(count, steps * dp)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledReplay:
    """Executor with a compiled loop, which uses several threads for large blocks."""

    program: Program
    _tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", tables_of(self.program))

    @property
    def lanes_at_once(self) -> int:
        """Return the fastest size of a block as a number of lanes (step, DP rank)."""
        return _CACHED_ENDS // self._tables.slots

    @property
    def tiles(self) -> bool:
        """Return whether the executor itself cuts large blocks into tiles and releases the GIL."""
        return True

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:
        """Return the ends of steps, shape (variants, steps of the block, dp), ns."""
        chain = self.program.chain
        if chain is None:
            return self._replay(batch, block, np.empty((0, 0, 0)), threads)
        width = block.recorded_ns.shape[2] * (2 if batch.partnered else 1)
        # The carried ends lie one gap before time 0, so that the first step begins at time 0.
        carry = np.full((len(batch.takes), chain.stages, width), -chain.step_gap_ns)
        parts = [self._replay(batch, part, carry, threads) for part in one_by_one(block)]
        return np.concatenate(parts, axis=1)

    def _replay(self, batch: Batch, block: Block, carry: FloatArray, threads: int) -> FloatArray:
        """Return the ends of a block's steps, ns; `carry` as in `LaneWork`."""
        nodes, steps, dp = block.recorded_ns.shape
        first, end, _ = block.steps.indices(steps)
        ends = np.empty((len(batch.takes), (end - first) * dp))
        lanes = ends.shape[1]
        # A tile has as many whole steps as fit in the cache with their durations and ends.
        cached = _CACHED_BYTES // (8 * (nodes + self._tables.slots))
        tile = min(lanes, max(1, cached // dp) * dp)
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
        # Threads split the variants of the same lanes only if there is a single tile, since the
        # caches of cores are not shared.
        by_variant = cut(len(ends), threads if len(by_lane) == 1 else 1)
        in_threads(threads, run, list(product(by_variant, by_lane)))
        return ends.reshape(len(ends), end - first, dp)
