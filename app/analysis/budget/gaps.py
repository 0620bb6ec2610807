"""The gaps between the computations of each stage, and which communication may fill them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.replay.layout.dense import IntArray
from app.analysis.replay.layout.graph import COMPUTE, P2P
from app.analysis.replay.session import ShapeGroup, follows_of
from app.analysis.trace.model import GC, OPTIMIZER

# Types whose time is computing: what the host collects is no work of its device.
COMPUTING: Final = COMPUTE | {OPTIMIZER}
# The stage begins with the gap.
BEGIN: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Fillings:
    """A stage's communications, each in the gap before the first computation that waits for it.

    Shape (communications,).
    """

    node: IntArray
    before: IntArray  # the computation that the gap follows; `BEGIN` where the stage begins
    previous: IntArray  # the communication before it in the gap; itself where it is the first


def fillings_of(group: ShapeGroup) -> tuple[Fillings, ...]:
    """Return what may fill the gaps of each stage, of each gap in order of launch."""
    layout, follows = group.layout, group.once(follows_of)
    stages = layout.nodes.pp
    computing = layout.of_types(*COMPUTING)
    # Each communication belongs to one gap, and what collects garbage to none.
    taken: list[bool] = (computing | layout.of_types(GC)).tolist()
    stage_of: list[int] = stages.tolist()
    launch: list[float] = layout.launch.tolist()
    nodes = np.flatnonzero(computing)
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(layout.pp)]
    last = [BEGIN] * layout.pp
    for node in nodes[np.lexsort((nodes, layout.launch[nodes], stages[nodes]))].tolist():
        stage = stage_of[node]
        waiting = [n for n in follows[node] if not taken[n] and stage_of[n] == stage]
        if waiting:
            before = last[stage]
            found: list[int] = []
            while waiting:
                other = waiting.pop()
                if not taken[other]:
                    taken[other] = True
                    found.append(other)
                    waiting += [n for n in follows[other] if not taken[n] and stage_of[n] == stage]
            if len(found) == 1:
                rows[stage].append((found[0], before, found[0]))
            else:
                rows[stage] += _in_order(found, launch, before)
        last[stage] = node
    # What is launched last, and what nothing waits for, is at the ends of stages.
    left = ~np.array(taken)
    sends = layout.of_types(*P2P)
    for stage, node in enumerate(last):
        mine = left & (stages == stage)
        if node != BEGIN:
            mine &= ~sends | (layout.launch > layout.launch[node])
        rows[stage] += _in_order(np.flatnonzero(mine).tolist(), launch, node)
    tables = (np.array(of_stage, dtype=np.int64).reshape(-1, 3).T for of_stage in rows)
    return tuple(Fillings(*map(np.ascontiguousarray, table)) for table in tables)


def _in_order(found: list[int], launch: Sequence[float], before: int) -> list[tuple[int, int, int]]:
    """Return the rows of a gap's communications in order of launch."""
    found.sort(key=lambda node: (launch[node], node))
    return [
        (node, before, previous)
        for node, previous in zip(found, [*found[:1], *found], strict=False)
    ]
