"""The executor whose loops are compiled: what it reads, in which parts, on how many threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np

from app.analysis.loops import in_rows
from app.analysis.replay.engine.kernel import LaneWork, replay_lanes
from app.analysis.replay.engine.program import Program
from app.analysis.replay.engine.replay import Batch, Block, one_by_one
from app.analysis.replay.engine.tables import Tables, tables_of
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.threads import cut, in_threads, threads_for

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
        carry = np.full((len(batch.takes), chain.stages, width), -chain.turn_ns)
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
