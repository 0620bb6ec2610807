"""A program as arrays, for the compiled loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.engine.program import Program
from app.analysis.replay.engine.replay import CodeArray
from app.analysis.replay.layout.dense import FloatArray


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
        turn=0.0 if program.chain is None else program.chain.turn_ns,
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
