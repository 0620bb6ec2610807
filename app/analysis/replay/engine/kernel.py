# ruff: noqa: PLR0912, C901 - compiled loops over plain arrays: no objects there
"""The replay as compiled loops: as `app.analysis.replay.engine.replay.ArrayReplay`, to the bit.

A call of NumPy costs as much as computing some hundred lanes, and its results go through memory.
Here the ends that are still needed stay in the cache of a core, and nothing else is written.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.replay.engine.durations import FAULT_NS
from app.analysis.replay.engine.replay import (
    FIRST_MASK,
    IDEAL,
    ON_TIME,
    RECORDED,
    Batch,
    Block,
    CodeArray,
    Program,
)
from app.analysis.replay.layout.dense import FloatArray

# Ends that fit in the cache of a core along with what is read.
_CACHED_ENDS: Final = 1 << 15
# Below so many operations a second thread costs more than it saves.
_WORTH_A_THREAD: Final = 1_000_000
# More threads would take cores from the analyses of other sessions.
_MOST_THREADS: Final = 4


class Tables(NamedTuple):
    """A program as arrays; members of all units are in one row, a slot holds a live end.

    Shapes: `unit_first` (units + 1,), `unit_spans` (units,), `node_of`, `slot_of`, `ends_last`
    (members,), `after_first` (members + 1,), `after_slot`, `after_node` (dependencies,).
    """

    unit_first: CodeArray
    unit_spans: NDArray[np.bool_]
    node_of: CodeArray
    slot_of: CodeArray
    ends_last: NDArray[np.bool_]
    after_first: CodeArray
    after_slot: CodeArray
    after_node: CodeArray
    slots: int


class Work(NamedTuple):
    """Variants of a block of steps; see `Batch` and `Block`, whose steps and DP ranks are lanes.

    `first_lane` is the block's first column of `recorded`; everything else has the block's lanes.
    `late` has no rows where nobody is late.
    """

    takes: CodeArray
    late: CodeArray
    masks: NDArray[np.bool_]
    recorded: FloatArray
    first_lane: int
    ideal: FloatArray
    values: FloatArray
    delays: FloatArray
    dp: int
    partnered: bool


@compiled  # pragma: no cover - coverage does not see compiled code
def _raise_to(values: FloatArray, others: FloatArray) -> None:
    """Replace values by others that are higher."""
    for i in range(values.shape[0]):
        values[i] = max(values[i], others[i])


@compiled  # pragma: no cover
def _latest(
    into: FloatArray, ends: FloatArray, after_slot: CodeArray, first: int, last: int
) -> None:
    """Write the latest end of what a member follows; the step's start where that is nothing."""
    if first == last:
        into[:] = 0.0
    elif first + 1 == last:
        into[:] = ends[after_slot[first]]
    else:
        one, other = ends[after_slot[first]], ends[after_slot[first + 1]]
        for i in range(into.shape[0]):
            into[i] = max(one[i], other[i])
        for k in range(first + 2, last):
            _raise_to(into, ends[after_slot[k]])


@compiled  # pragma: no cover
def _couple(begin: FloatArray, dp: int, partnered: bool) -> None:  # noqa: FBT001 - compiled
    """Let all DP ranks, or a lane and its partner, begin with the last of them."""
    if partnered:
        lanes = begin.shape[0] // 2
        _raise_to(begin[:lanes], begin[lanes:])
        begin[lanes:] = begin[:lanes]
        return
    for start in range(0, begin.shape[0], dp):
        last = begin[start]
        for i in range(start + 1, start + dp):
            last = max(last, begin[i])
        begin[start : start + dp] = last


@compiled  # pragma: no cover
def _add(end: FloatArray, begin: FloatArray, duration: FloatArray) -> None:
    for i in range(duration.shape[0]):
        end[i] = begin[i] + duration[i]


@compiled  # pragma: no cover
def replay_lanes(tables: Tables, work: Work, out: FloatArray) -> None:
    """Replay variants; `out` gets the end of each lane's step, shape (variants, lanes).

    Partners are the second half of a row of ends.
    """
    unit_first, node_of, slot_of = tables.unit_first, tables.node_of, tables.slot_of
    after_first, after_slot = tables.after_first, tables.after_slot
    takes, late, recorded, partnered = work.takes, work.late, work.recorded, work.partnered
    lanes = out.shape[1]
    width = 2 * lanes if partnered else lanes
    ends = np.empty((tables.slots, width))
    last_launch = np.empty(width)
    launch = np.empty(width)
    for v in range(out.shape[0]):
        out[v] = 0.0
        for u in range(tables.unit_spans.shape[0]):
            first, last = unit_first[u], unit_first[u + 1]
            on_time = late.shape[0] == 0 or late[v, node_of[first]] == ON_TIME
            alone = last == first + 1 and on_time and not tables.unit_spans[u]
            if alone and after_first[last] == after_first[first] + 1:
                # It begins with the end of the only one that it follows: no need to copy that.
                begin = ends[after_slot[after_first[first]]]
            else:
                begin = last_launch
                for m in range(first, last):
                    mine = last_launch if m == first else launch
                    _latest(mine, ends, after_slot, after_first[m], after_first[m + 1])
                    if late.shape[0] > 0 and late[v, node_of[m]] != ON_TIME:
                        _add(mine, mine, work.delays[late[v, node_of[m]]])
                    if m > first:
                        _raise_to(last_launch, launch)
                if tables.unit_spans[u]:
                    _couple(last_launch, work.dp, partnered)
            for m in range(first, last):
                node = node_of[m]
                end = ends[slot_of[m]]
                code, usual = takes[v, node], work.ideal[node]
                own = recorded[node, work.first_lane : work.first_lane + lanes]
                if code == IDEAL:
                    for i in range(lanes):
                        end[i] = begin[i] + usual
                elif code == RECORDED:
                    _add(end, begin, own)
                elif code >= 0:
                    _add(end, begin, work.values[code])
                else:
                    kept = work.masks[FIRST_MASK - code]
                    for i in range(lanes):
                        end[i] = begin[i] + (own[i] if kept[i] else usual)
                for i in range(lanes, width):
                    end[i] = begin[i] + usual
                if tables.ends_last[m]:
                    _raise_to(out[v], end[:lanes])
                    if partnered:
                        _raise_to(out[v], end[lanes:])


@compiled  # pragma: no cover
def delay_launches(
    tables: Tables, start: FloatArray, duration: FloatArray, first_lane: int, out: FloatArray
) -> int:
    """Write how late each node of some lanes starts; return how many delays are at fault."""
    node_of, after_first, after_node = tables.node_of, tables.after_first, tables.after_node
    lanes = out.shape[1]
    own = slice(first_lane, first_lane + lanes)
    latest = np.empty(lanes)
    clamped = 0
    for m in range(node_of.shape[0]):
        first, last = after_first[m], after_first[m + 1]
        delay = out[node_of[m]]
        delay[:] = start[node_of[m], own]
        if first < last:
            _add(latest, start[after_node[first], own], duration[after_node[first], own])
            for k in range(first + 1, last):
                other, length = start[after_node[k], own], duration[after_node[k], own]
                for i in range(lanes):
                    latest[i] = max(latest[i], other[i] + length[i])
            for i in range(lanes):
                delay[i] -= latest[i]
        for i in range(lanes):
            if delay[i] <= FAULT_NS:
                delay[i] = 0.0
                clamped += 1
    return clamped


@dataclass(frozen=True, slots=True, eq=False)
class CompiledReplay:
    """Executes steps with a compiled loop, on several cores where there is enough to do."""

    program: Program
    _tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", _tables(self.program))

    @property
    def lanes_at_once(self) -> int:
        """Return about how many (step, DP rank) a block should have."""
        return _CACHED_ENDS // self._tables.slots

    def step_ends(self, batch: Batch, block: Block) -> FloatArray:
        """Return when the steps end, shape (variants, the block's steps, dp), ns."""
        nodes, steps, dp = block.recorded_ns.shape
        first, end, _ = block.steps.indices(steps)
        ends = np.empty((len(batch.takes), (end - first) * dp))
        masks = np.tile(batch.masks, (1, end - first))
        recorded = block.recorded_ns.reshape(nodes, steps * dp)
        values = block.values_ns.reshape(len(block.values_ns), ends.shape[1])
        delays = block.delays_ns.reshape(len(block.delays_ns), ends.shape[1])
        late = np.empty((0, 0), dtype=np.int32) if batch.late is None else batch.late

        def run(variants: slice) -> None:
            work = Work(
                takes=batch.takes[variants],
                late=late[variants] if len(late) else late,
                masks=masks,
                recorded=recorded,
                first_lane=first * dp,
                ideal=block.ideal_ns,
                values=values,
                delays=delays,
                dp=dp,
                partnered=batch.partnered,
            )
            replay_lanes(self._tables, work, ends[variants])

        threads = 1
        if ends.size * nodes >= _WORTH_A_THREAD:
            threads = min(_MOST_THREADS, os.cpu_count() or 1, len(ends))
        if threads == 1:
            run(slice(0, len(ends)))
        else:
            with ThreadPoolExecutor(threads) as pool:
                cuts = np.linspace(0, len(ends), threads + 1).astype(int).tolist()
                list(pool.map(run, map(slice, cuts[:-1], cuts[1:])))
        return ends.reshape(len(ends), end - first, dp)

    def launch_delays(
        self, start_ns: FloatArray, duration_ns: FloatArray, steps: slice
    ) -> tuple[FloatArray, int]:
        """Return how late each operation of some steps starts; see `Executor`."""
        nodes, count, dp = start_ns.shape
        first, end, _ = steps.indices(count)
        delays = np.empty((nodes, end - first, dp))
        clamped = delay_launches(
            self._tables,
            start_ns.reshape(nodes, count * dp),
            duration_ns.reshape(nodes, count * dp),
            first * dp,
            delays.reshape(nodes, (end - first) * dp),
        )
        return delays, clamped


def _tables(program: Program) -> Tables:
    unit_first, after_first = [0], [0]
    node_of: list[int] = []
    after_slot: list[int] = []
    after_node: list[int] = []
    slot_of: dict[int, int] = {}
    free: list[int] = []
    slots = 0
    for members, afters, _, finished in program.units:
        for after in afters:
            after_slot += [slot_of[node] for node in after]
            after_node += after
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
        after_node=np.array(after_node, dtype=np.int32),
        slots=slots,
    )
