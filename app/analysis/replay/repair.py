"""Operations that the recorder lost, made anew so that a replay can run.

A computation gets the median duration of its type on its rank, a communication the median
*transfer* duration: recorded durations of communication contain waiting. An operation is launched
when what it follows has ended. Where sends are not recorded at all, but their receives are, a
transfer ends when the receive says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.graph import LOCAL, Graph, Unit
from app.analysis.trace.model import GC


@dataclass(frozen=True, slots=True, eq=False)
class RecreatedOperations:
    """Operations that were made anew."""

    by_optype: dict[str, int]
    by_worker: NDArray[np.int64]  # (dp, pp)

    @property
    def total(self) -> int:
        """Return how many there are."""
        return int(self.by_worker.sum())


def recreate(
    layouts: Sequence[Layout], graphs: Sequence[Graph]
) -> tuple[list[Layout], RecreatedOperations]:
    """Fill in what is missing from a session's layouts; the others stay the same objects."""
    typical = _typical_durations(layouts, graphs)
    repaired = [
        layout
        if layout.missing is None
        else _Repair(layout, graph, typical, layout.missing).result()
        for layout, graph in zip(layouts, graphs, strict=True)
    ]
    return repaired, _count(layouts)


def _count(layouts: Sequence[Layout]) -> RecreatedOperations:
    by_optype: Counter[str] = Counter()
    by_worker = np.zeros((layouts[0].dp, layouts[0].pp), dtype=np.int64)
    for layout in layouts:
        if layout.missing is None or layout.free is None:
            continue
        missing = layout.missing
        if layout.padding is not None:
            missing = missing & ~layout.padding.where()
        lost = missing.sum(axis=1)
        lost[layout.free] = 0
        if layout.absent is not None:
            lost[layout.absent.T[layout.nodes.pp]] = 0
        for node in np.flatnonzero(lost.any(axis=1)).tolist():
            by_optype[layout.op_names[layout.nodes.op[node]]] += int(lost[node].sum())
            by_worker[:, layout.nodes.pp[node]] += lost[node]
    return RecreatedOperations(dict(by_optype), by_worker)


def _typical_durations(layouts: Sequence[Layout], graphs: Sequence[Graph]) -> dict[int, FloatArray]:
    """Return each op type's median duration without waiting on each worker, shape (dp, pp).

    Of a worker that has none: the median of its stage, and else of all.
    """
    if all(layout.missing is None for layout in layouts):
        return {}
    dp, pp = layouts[0].dp, layouts[0].pp
    parts: dict[tuple[int, int], list[FloatArray]] = {}
    for layout, graph in zip(layouts, graphs, strict=True):
        own = _own_durations(layout, graph)
        nodes = layout.nodes
        for op, stage in set(zip(nodes.op.tolist(), nodes.pp.tolist(), strict=True)):
            chosen = (nodes.op == op) & (nodes.pp == stage)
            parts.setdefault((op, stage), []).append(own[chosen].reshape(-1, dp))
    typical: dict[int, FloatArray] = {}
    for (op, stage), values in parts.items():
        medians = typical.setdefault(op, np.full((dp, pp), np.nan))
        medians[:, stage] = _medians(np.concatenate(values))
    for medians in typical.values():
        known = medians[~np.isnan(medians)]
        medians[np.isnan(medians)] = np.median(known) if len(known) else 0.0
    return typical


def _medians(values: FloatArray) -> FloatArray:
    """Return the median of each column without NaN; of empty ones that of all."""
    known = ~np.isnan(values)
    if not known.any():
        return np.full(values.shape[1], np.nan)
    medians = np.full(values.shape[1], np.median(values[known]))
    for column in np.flatnonzero(known.any(axis=0)).tolist():
        medians[column] = np.median(values[known[:, column], column])
    return medians


def _own_durations(layout: Layout, graph: Graph) -> FloatArray:
    """Return durations without waiting, NaN where a member of the group is missing."""
    own = layout.duration_ns.copy()
    missing = layout.missing
    for unit in graph.units:
        members = list(unit.members)
        if unit.communication:
            latest = layout.start_ns[members].max(axis=0)
            if unit.across_dp:
                latest = latest.max(axis=-1, keepdims=True)
            own[members] += layout.start_ns[members] - latest
        if missing is not None:
            lost = missing[members].any(axis=0)
            if unit.across_dp:
                # Those that are there meet all the same where a worker is absent.
                absent = _absent(layout, unit)
                lost = (lost & ~absent).any(axis=-1, keepdims=True) | absent
            for node in members:
                own[node][lost] = np.nan
    return own


def _absent(layout: Layout, unit: Unit) -> NDArray[np.bool_]:
    """Return the DP ranks of which a unit's worker is absent, shape (dp,)."""
    if layout.absent is None:
        return np.zeros(layout.dp, dtype=bool)
    return np.asarray(layout.absent[:, layout.nodes.pp[list(unit.members)]].any(axis=1))


class _Repair:
    """Walks the graph of one layout and fills in times, what comes before first."""

    def __init__(
        self,
        layout: Layout,
        graph: Graph,
        typical: dict[int, FloatArray],
        missing: NDArray[np.bool_],
    ) -> None:
        self.layout, self.graph, self.typical = layout, graph, typical
        self.missing = missing
        self.padded = None if layout.padding is None else layout.padding.where()
        self.start = layout.start_ns.copy()
        self.duration = layout.duration_ns.copy()

    def result(self) -> Layout:
        lossy = np.asarray(self.missing.any(axis=(1, 2)))
        for unit in self.graph.units:
            if not lossy[list(unit.members)].any():
                continue
            for node, after in zip(unit.members, unit.after, strict=True):
                self._launch(node, after)
            if unit.communication:
                self._transfer(unit)
        begin = self.start.min(axis=(0, 2))
        self.start -= begin[:, None]
        return replace(
            self.layout,
            start_ns=self.start,
            duration_ns=self.duration,
            begin_ns=self.layout.begin_ns + begin,
        )

    def _launch(self, node: int, after: tuple[int, ...]) -> None:
        """Launch what is missing when all that it follows has ended."""
        lost = self.missing[node]
        ready = np.zeros(lost.shape)
        for other in after:
            np.maximum(ready, self.start[other] + self.duration[other], out=ready)
        self.start[node][lost] = ready[lost]
        op, stage = int(self.layout.nodes.op[node]), int(self.layout.nodes.pp[node])
        name = self.layout.op_names[op]
        if name in LOCAL:
            typical = np.zeros(self.layout.dp) if name == GC else self.typical[op][:, stage]
            self.duration[node][lost] = np.broadcast_to(typical, lost.shape)[lost]
            if self.padded is not None:
                self.duration[node][self.padded[node]] = 0.0

    def _transfer(self, unit: Unit) -> None:
        """End what is missing a transfer after the last launch of its group."""
        members = list(unit.members)
        lost = self.missing[members]
        if self.padded is not None:
            # nothing is transferred there: each is over as soon as it is launched
            lost = lost & ~self.padded[members]
        starts = self.start[members]
        ends = np.where(lost, np.inf, starts + self.duration[members])
        axes = (0, 2) if unit.across_dp else 0
        # who is there cannot have ended before a launch that is only guessed
        bound = ends.min(axis=axes, keepdims=True)
        if unit.across_dp:
            # …nor is an absent worker the one that they waited for
            known = np.where(lost, -np.inf, starts).max(axis=axes, keepdims=True)
            absent = _absent(self.layout, unit) & np.isfinite(known)
            starts = np.where(absent, np.minimum(starts, known), starts)
        starts = np.where(lost, np.minimum(starts, bound), starts)
        latest = starts.max(axis=axes, keepdims=True)
        for i, node in enumerate(members):
            hole = lost[i]
            if not hole.any():
                continue
            op, stage = int(self.layout.nodes.op[node]), int(self.layout.nodes.pp[node])
            transfer = np.broadcast_to(self.typical[op][:, stage], hole.shape)
            if self.layout.free is not None and self.layout.free[node]:
                transfer = np.where(np.isfinite(bound[0]), bound[0] - latest[0], transfer)
            end = np.broadcast_to(latest[0], hole.shape) + transfer
            self.start[node][hole] = starts[i][hole]
            self.duration[node][hole] = (end - starts[i])[hole]
