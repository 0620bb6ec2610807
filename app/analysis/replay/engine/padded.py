"""Steps in which DP ranks run different numbers of microbatches: nothing is handed over in padding.

A transfer that takes no time would still wait until both of its sides are launched, and hold up
what a rank runs in earnest. One that ends before all time holds up nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.engine.program import Program
from app.analysis.replay.engine.replay import Batch, Block, Executor
from app.analysis.replay.layout.dense import FloatArray, Layout

# What a transfer takes that does not happen.
NO_TRANSFER: Final = -np.inf


def transfers_padded(layout: Layout) -> NDArray[np.bool_]:
    """Return the places in which no transfer happens, shape (nodes, steps, dp)."""
    if layout.padding is None:
        return np.zeros(layout.start_ns.shape, dtype=bool)
    return np.asarray(layout.padding.where() & layout.padding.transfers[:, None, None])


def without_transfers(ideal_ns: FloatArray, nodes: NDArray[np.bool_]) -> FloatArray:
    """Return ideal durations, shape (nodes,), in which some transfers that take no time are none.

    Parameters
    ----------
    nodes : bool array, shape (nodes,)
        Transfers that do not happen on some DP rank.
    """
    return np.where(nodes & (ideal_ns <= 0), NO_TRANSFER, ideal_ns)


@dataclass(frozen=True, slots=True, eq=False)
class PaddedReplay:
    """Executes padded steps: what takes no time in a place without a transfer is none."""

    program: Program
    inner: Executor
    transfers: NDArray[np.bool_]  # (nodes, steps, dp): places in which none happens
    # Durations that were asked for last, and those without transfers in padding.
    _known: list[tuple[FloatArray, FloatArray]] = field(init=False, default_factory=list)

    @property
    def lanes_at_once(self) -> int:
        """Return about how many (step, DP rank) a block should have."""
        return self.inner.lanes_at_once

    @property
    def tiles(self) -> bool:
        """Return whether it cuts large blocks itself, and lets other threads run meanwhile."""
        return self.inner.tiles

    def step_ends(self, batch: Batch, block: Block, threads: int = 1) -> FloatArray:
        """Return when the steps end, shape (variants, the block's steps, dp), ns."""
        nodes = np.asarray(self.transfers.any(axis=(1, 2)))
        ideal = without_transfers(block.ideal_ns, nodes)
        values = block.values_ns
        if len(values):
            values = self._values(batch, block)
        recorded = self._recorded(block.recorded_ns)
        block = replace(block, recorded_ns=recorded, ideal_ns=ideal, values_ns=values)
        return self.inner.step_ends(batch, block, threads)

    def _recorded(self, recorded_ns: FloatArray) -> FloatArray:
        for known, without in self._known:
            if known is recorded_ns:
                return without
        without = np.where(self.transfers, NO_TRANSFER, recorded_ns)
        self._known[:] = [(recorded_ns, without)]
        return without

    def _values(self, batch: Batch, block: Block) -> FloatArray:
        """Return the rows of values: of nodes whose transfers do not happen, none that take none.

        A row is of one node, whichever variants take it.
        """
        values = block.values_ns.copy()
        for node in np.flatnonzero(self.transfers.any(axis=(1, 2))).tolist():
            rows = np.unique(batch.takes[:, node])
            for row in rows[rows >= 0].tolist():
                none = self.transfers[node, block.steps] & (values[row] <= 0)
                values[row][none] = NO_TRANSFER
        return values
