"""Removal of recorded transfers that did not take place.

Megatron's timers record all sends and receives that a fused call can make. On the first and the
last virtual stage some of these have no neighbor and transfer nothing. The recorded times show
which transfers are real: a send follows its computation, and a receive ends with the matching send.
If they do not show it, all transfers are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.layout.dependency_graph import P2P, TRANSFERS_UNMATCHED
from app.analysis.replay.layout.pipeline import (
    DIRECTIONS,
    Direction,
    Flow,
    Route,
    VirtualStage,
    flow_of,
)
from app.analysis.replay.layout.slots import assign
from app.analysis.trace.model import ABSENT, FORWARD_COMPUTE, Trace
from app.errors import UnanalyzableError

# Factor on the cost of matching a send with a computation that ends after the send starts. Such a
# match is impossible, except for clock noise.
_IMPOSSIBLE: Final = 100.0

# Kind of operations: (op type, stage)
_Kind = tuple[str, int]


def without_idle_transfers(trace: Trace, routes: Sequence[Route] = ()) -> tuple[Trace, Sign] | None:
    """Return the trace without transfers that have no neighbor; None if there are none."""
    if trace.meta.sizes.pp == 1 or not _has_fused(trace):
        return None
    finder = _Finder(trace, routes)
    idle = finder.idle()
    if not idle:
        return None
    kept = np.ones(len(trace), dtype=bool)
    order = trace.order.copy()
    recorded = 0
    for (name, stage), gone in idle.items():
        mine = np.flatnonzero((trace.op == trace.op_names.index(name)) & (trace.pp == stage))
        kept[mine] = ~np.isin(trace.order[mine], gone)
        order[mine] -= np.searchsorted(gone, trace.order[mine]).astype(order.dtype)
        recorded += finder.count(name, stage)
    where = tuple(f"{len(gone)} {name} on stage {stage}" for (name, stage), gone in idle.items())
    left_out = sum(map(len, idle.values()))
    sign = Sign((*where, f"{left_out} of {recorded} in every step"), 1.0)
    return replace(trace, order=order).of_rows(np.flatnonzero(kept)), sign


def without_transfers(trace: Trace, refused: UnanalyzableError) -> tuple[Trace, Sign] | None:
    """Return the trace without any transfer; None if its transfers can be matched.

    Transfers cannot be matched if they have no neighbor and are not parts of fused calls: it is
    then unknown which of them took place. Computations of neighboring stages then depend directly
    on one another.
    """
    if refused.stable_code != TRANSFERS_UNMATCHED:
        return None
    transfers = np.isin(trace.op, [trace.op_names.index(name) for name in P2P])
    lanes = len(np.unique(np.stack([trace.step, trace.dp]), axis=1).T)
    left_out = f"{transfers.sum() / lanes:.0f} transfers of each step and DP rank left out"
    sign = Sign((refused.message, left_out), 1.0)
    return trace.of_rows(np.flatnonzero(~transfers)), sign


def _has_fused(trace: Trace) -> bool:
    """Return whether transfers come from fused calls: several have exactly the same interval."""
    codes = [trace.op_names.index(name) for name in P2P]
    lane = np.flatnonzero((trace.step == trace.step[0]) & (trace.rank == trace.rank[0]))
    lane = lane[np.isin(trace.op[lane], codes)]
    intervals = np.stack([trace.start_ns[lane], trace.duration_ns[lane]])
    return int(np.unique(intervals, axis=1).shape[1]) < len(lane)


@dataclass(frozen=True, slots=True, eq=False)
class _TypicalStep:
    """Median times of the operations of a kind within a step, in launch order."""

    start_ns: FloatArray
    end_ns: FloatArray
    work: list[tuple[int, int]]  # (chunk, microbatch) of each


class _Finder:
    """Finder of idle transfers: matches a stage's transfers with computations and neighbors."""

    def __init__(self, trace: Trace, routes: Sequence[Route]) -> None:
        self._trace = trace
        steps, number = np.unique(trace.step, return_inverse=True)
        begin = np.full(len(steps), np.iinfo(np.int64).max)
        np.minimum.at(begin, number, trace.start_ns)
        self._since = (trace.start_ns - begin[number]).astype(np.float64)
        forwards = trace.op == trace.op_names.index(FORWARD_COMPUTE)
        places = {
            (int(pp), max(int(mc), 0))
            for pp, mc in np.unique(np.stack([trace.pp[forwards], trace.mc[forwards]]), axis=1).T
        }
        self._flow: Flow = flow_of(places, routes)
        self._typical_steps: dict[_Kind, _TypicalStep] = {}

    def count(self, name: str, stage: int) -> int:
        """Return the number of operations of a kind in a step."""
        return len(self._typical(name, stage).start_ns)

    def idle(self) -> dict[_Kind, NDArray[np.int64]]:
        """Return the order numbers of the idle transfers of each kind."""
        idle: dict[_Kind, NDArray[np.int64]] = {}
        for direction in DIRECTIONS:
            sent: dict[tuple[VirtualStage, int], float] = {}
            for stage in range(self._trace.meta.sizes.pp):
                self._note(idle, (direction.send, stage), self._real_sends(direction, stage, sent))
            for stage in range(self._trace.meta.sizes.pp):
                self._note(
                    idle, (direction.recv, stage), self._real_receives(direction, stage, sent)
                )
        return idle

    def _note(
        self,
        idle: dict[_Kind, NDArray[np.int64]],
        kind: _Kind,
        chosen: NDArray[np.int64] | None,
    ) -> None:
        if chosen is not None and len(chosen) < self.count(*kind):
            idle[kind] = np.setdiff1d(np.arange(self.count(*kind)), chosen)

    def _real_sends(
        self, direction: Direction, stage: int, sent: dict[tuple[VirtualStage, int], float]
    ) -> NDArray[np.int64] | None:
        """Return the send of each computation whose result another stage needs.

        The end of each send is stored in `sent`. Return None if there are too few sends.
        """
        sends, computes = (
            self._typical(direction.send, stage),
            self._typical(direction.compute, stage),
        )
        linked = []
        for place, (chunk, _) in enumerate(computes.work):
            target = self._flow.target(direction, (stage, chunk))
            if target is not None and target[0] != stage:
                linked.append(place)
        if not linked or len(sends.start_ns) < len(linked):
            return None
        late = sends.start_ns[None, :] - computes.end_ns[linked][:, None]
        chosen = _cheapest(np.where(late < 0, -_IMPOSSIBLE * late, late))
        for place, number in zip(linked, chosen.tolist(), strict=True):
            chunk, microbatch = computes.work[place]
            sent[(stage, chunk), microbatch] = float(sends.end_ns[number])
        return chosen

    def _real_receives(
        self, direction: Direction, stage: int, sent: Mapping[tuple[VirtualStage, int], float]
    ) -> NDArray[np.int64] | None:
        """Return the receive of each computation whose input another stage sends.

        Return None if the matching send is unknown, or if there are too few receives.
        """
        receives = self._typical(direction.recv, stage)
        computes = self._typical(direction.compute, stage)
        ends = []
        for chunk, microbatch in computes.work:
            source = self._flow.source(direction, (stage, chunk))
            if source is not None and source[0] != stage:
                ends.append(sent.get((source, microbatch), np.nan))
        if not ends or len(receives.end_ns) < len(ends) or np.isnan(ends).any():
            return None
        return _cheapest(np.abs(receives.end_ns[None, :] - np.array(ends)[:, None]))

    def _typical(self, name: str, stage: int) -> _TypicalStep:
        """Return the median start and end of each operation of a kind, over all lanes, ns."""
        if (name, stage) not in self._typical_steps:
            trace = self._trace
            mine = np.flatnonzero((trace.op == trace.op_names.index(name)) & (trace.pp == stage))
            mine = mine[np.argsort(trace.order[mine], kind="stable")]
            cuts = np.flatnonzero(np.diff(trace.order[mine])) + 1
            groups = np.split(mine, cuts) if len(mine) else []
            start = np.array([np.median(self._since[rows]) for rows in groups])
            end = np.array(
                [np.median(self._since[rows] + trace.duration_ns[rows]) for rows in groups]
            )
            work = []
            for number, rows in enumerate(groups):
                microbatch = int(trace.mb[rows[0]])
                work.append(
                    (max(int(trace.mc[rows[0]]), 0), number if microbatch == ABSENT else microbatch)
                )
            self._typical_steps[name, stage] = _TypicalStep(start, end, work)
        return self._typical_steps[name, stage]


def _cheapest(costs: FloatArray) -> NDArray[np.int64]:
    """Return the transfer of each computation with the least total cost, in ascending order.

    Parameters
    ----------
    costs : float64 array, shape (computations, transfers)
        Cost of each match.
    """
    count, transfers = costs.shape
    band = np.arange(count)[:, None] + np.arange(transfers - count + 1)
    return np.asarray(assign(np.take_along_axis(costs, band, axis=1)[None])[0])
