"""Operations and workers missing from the recording, re-created for the replay.

A lost operation is launched when its dependencies have ended. A computation gets the median
duration of its type on its rank; a communication gets the median *transfer* duration, because
recorded durations contain waiting. If only receives are recorded, sends end when their receives
end.

A worker is missing after a lost file, a full disk or a killed process. It is replaced by a
stand-in, so that the job is replayed with all of its workers: a whole missing DP rank takes the
times of a typical DP rank, and single missing stages of a DP rank are re-created between the
recorded stages. So by construction a missing worker is no slower than others. Only if the other
ranks wait in a collective for far longer than usual, the missing worker must have arrived last, and
its stand-in computes for longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import MAX_NAMED_FAULTS, FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, LOCAL, P2P, Graph, Unit
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import GC, REPLAYED_OP_TYPES, Sizes, Trace
from app.errors import Fault, UnanalyzableError


@dataclass(frozen=True, slots=True, eq=False)
class RecreatedOperations:
    """Numbers of lost operations that were re-created, by op type and by worker."""

    by_optype: dict[str, int]
    by_worker: NDArray[np.int64]  # (dp, pp)

    @property
    def total(self) -> int:
        """Return the number of re-created operations of all types."""
        return int(self.by_worker.sum())


def recreate(
    layouts: Sequence[Layout], graphs: Sequence[Graph]
) -> tuple[list[Layout], RecreatedOperations]:
    """Return layouts with lost operations re-created, and the numbers of these operations.

    A complete layout is returned unchanged.
    """
    typical = _typical_durations(layouts, graphs)
    repaired = [
        layout
        if layout.missing is None
        else _Repair(layout, graph, typical, layout.missing).result()
        for layout, graph in zip(layouts, graphs, strict=True)
    ]
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
    return repaired, RecreatedOperations(dict(by_optype), by_worker)


def _typical_durations(layouts: Sequence[Layout], graphs: Sequence[Graph]) -> dict[int, FloatArray]:
    """Return each worker's median duration without waiting by op type, shape (dp, pp), ns.

    A worker without such operations gets the median of its stage, or else of all workers.
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
        recorded = medians[~np.isnan(medians)]
        medians[np.isnan(medians)] = np.median(recorded) if len(recorded) else 0.0
    return typical


def _medians(values: FloatArray) -> FloatArray:
    """Return the median of each column, without NaN; of an empty one the median of all values."""
    present = ~np.isnan(values)
    if not present.any():
        return np.full(values.shape[1], np.nan)
    medians = np.full(values.shape[1], np.median(values[present]))
    for column in np.flatnonzero(present.any(axis=0)).tolist():
        medians[column] = np.median(values[present[:, column], column])
    return medians


def _own_durations(layout: Layout, graph: Graph) -> FloatArray:
    """Return durations without waiting, ns; NaN if a member of the communication is missing."""
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
                # In a collective with an absent worker the present members still take part, so only
                # the absent worker's DP rank counts as lost.
                absent = _absent(layout, unit)
                lost = (lost & ~absent).any(axis=-1, keepdims=True) | absent
            for node in members:
                own[node][lost] = np.nan
    return own


def _absent(layout: Layout, unit: Unit) -> NDArray[np.bool_]:
    """Return whether a stage of the unit has an absent worker, by DP rank, shape (dp,)."""
    if layout.absent is None:
        return np.zeros(layout.dp, dtype=bool)
    return np.asarray(layout.absent[:, layout.nodes.pp[list(unit.members)]].any(axis=1))


class _Repair:
    """Repair of the lost times of a layout, in the order of its dependency graph."""

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
        """Set a lost launch of a node to the last end of the node's dependencies.

        A lost computation also gets its typical duration.
        """
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
        """Set lost ends of a communication to a typical transfer after the last launch."""
        members = list(unit.members)
        lost = self.missing[members]
        if self.padded is not None:
            # Empty places transfer no data and keep the duration 0.
            lost = lost & ~self.padded[members]
        starts = self.start[members]
        ends = np.where(lost, np.inf, starts + self.duration[members])
        axes = (0, 2) if unit.across_dp else 0
        # An inferred launch is at most the first recorded end of the group, since no member ends
        # before all members are launched.
        bound = ends.min(axis=axes, keepdims=True)
        if unit.across_dp:
            # The inferred launch of an absent worker is also at most the last recorded launch, so
            # that an absent worker never delays its group.
            last_launch = np.where(lost, -np.inf, starts).max(axis=axes, keepdims=True)
            absent = _absent(self.layout, unit) & np.isfinite(last_launch)
            starts = np.where(absent, np.minimum(starts, last_launch), starts)
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


# Error code if no recorded worker can stand in for a missing worker.
RANK_MISSING: Final = "trace.rank_missing"

_NO_RANK: Final = -1
# A missing worker arrived last at a collective if the collective takes more than `_FAR_LONGER`
# times its median over steps, and exceeds the median by the share `_OF_A_STEP` of a step.
_FAR_LONGER: Final = 1.8
_OF_A_STEP: Final = 0.02
# Smallest number of steps from which the median duration of a collective is computed.
_FEWEST_STEPS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """Workers without any recorded operation."""

    cells: NDArray[np.bool_]  # (dp, pp)

    @property
    def workers(self) -> tuple[tuple[int, int], ...]:
        """Return the absent workers as (DP rank, stage)."""
        return tuple((int(dp), int(pp)) for dp, pp in np.argwhere(self.cells))

    @property
    def within(self) -> NDArray[np.bool_]:
        """Return a mask of absent workers whose DP rank has recorded workers, shape (dp, pp)."""
        whole = self.cells.all(axis=1, keepdims=True)
        return np.asarray(self.cells & ~whole)


def with_stand_ins(trace: Trace, *, of_anyone: bool = False) -> tuple[Trace, Absent]:
    """Return a trace in which every worker has operations, and the workers without recorded ones.

    If every worker has recorded operations, the given trace is returned.

    Parameters
    ----------
    of_anyone : bool
        Whether a worker of another stage may stand in if no worker of the same stage is recorded.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_missing``: no DP rank of a missing worker's stage is recorded, or only a single
        worker is recorded, so that there is no worker to compare it with.
    """
    sizes = trace.meta.sizes
    # Lowest recorded rank of each worker, shape (dp, pp)
    first, most = trace.stretches().first, np.iinfo(np.int64).max
    ranks = np.full((sizes.dp, sizes.pp), most)
    np.minimum.at(ranks, (trace.dp[first], trace.pp[first]), trace.rank[first].astype(np.int64))
    ranks[ranks == most] = _NO_RANK
    absent = Absent(ranks == _NO_RANK)
    if not absent.cells.any():
        return trace, absent
    if not of_anyone:
        _require_comparable(absent, sizes)
    numbered = _numbers(ranks, sizes)
    parts = [trace]
    # Shape (dp, pp): total computing time of each worker, ns
    codes = [trace.op_names.index(name) for name in COMPUTE if name in trace.op_names]
    rows = np.flatnonzero(np.isin(trace.op, codes) & (trace.rank == ranks[trace.dp, trace.pp]))
    computing = np.zeros(ranks.shape)
    times_ns = trace.duration_ns[rows].astype(np.float64)
    np.add.at(computing, (trace.dp[rows], trace.pp[rows]), times_ns)
    codes = [trace.op_names.index(name) for name in REPLAYED_OP_TYPES]
    replayed = np.isin(trace.op, codes)
    for dp, pp in absent.workers:
        donor = _typical(computing, absent.cells, dp, pp)
        donor_rank = int(ranks[ranks != _NO_RANK][0]) if donor is None else int(ranks[donor, pp])
        copied = trace.of_rows(np.flatnonzero((trace.rank == donor_rank) & replayed))
        rank_column, dp_column, pp_column = (
            np.full(len(copied), number, np.int32) for number in (numbered[dp, pp], dp, pp)
        )
        parts.append(replace(copied, rank=rank_column, dp=dp_column, pp=pp_column))
    columns = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in columns
    }
    return replace(trace, **joined), absent


def _require_comparable(absent: Absent, sizes: Sizes) -> None:
    """Raise ``trace.rank_missing`` if no recorded worker can stand in for a missing worker."""
    missing = absent.workers
    listed = ", ".join(f"({dp}, {pp})" for dp, pp in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""  # noqa: PLR2004 - named
    summary = (
        f"{len(missing)} of {sizes.workers} workers sent nothing: (DP rank, stage) {listed}{more}"
    )
    stages = np.flatnonzero(absent.cells.all(axis=0)).tolist()
    why = ""
    if stages:
        which = f"stage {stages[0]}" if len(stages) == 1 else f"stages {str(stages)[1:-1]}"
        why = (
            f"No DP rank of {which} is there, and without it neither the way through the pipeline "
            "nor who waits for whom can be told"
        )
    elif sizes.workers - len(missing) == 1:
        why = "A straggler is a comparison, and the only worker that is there has no other"
    if why:
        raise UnanalyzableError(
            f"{summary}. {why}",
            code=RANK_MISSING,
            faults=tuple(
                Fault("rank_missing", f"DP rank {d}, stage {p} sent nothing")
                for d, p in missing[:MAX_NAMED_FAULTS]
            ),
        )


def _numbers(ranks: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
    """Return the global rank of each worker, shape (dp, pp); for missing workers an inferred rank.

    Frameworks number ranks stage by stage, or DP rank by DP rank. If neither order fits the
    recorded ranks, missing workers get unused numbers.
    """
    inner = sizes.tp * sizes.cp
    dp, pp = np.arange(sizes.dp, dtype=np.int64)[:, None], np.arange(sizes.pp, dtype=np.int64)
    recorded = ranks != _NO_RANK
    for numbers in ((pp * sizes.dp + dp) * inner, (dp * sizes.pp + pp) * inner):
        if (numbers[recorded] == ranks[recorded] // inner * inner).all():
            return np.where(recorded, ranks, numbers)
    free = np.setdiff1d(np.arange(sizes.world), ranks[recorded])
    unnumbered = ranks.copy()
    unnumbered[~recorded] = free[: int((~recorded).sum())]
    return unnumbered


def _typical(computing: FloatArray, absent: NDArray[np.bool_], dp: int, pp: int) -> int | None:
    """Return the DP rank whose worker stands in for a missing worker: the median recorded worker.

    Workers are compared by their computing time. For a whole missing DP rank, a DP rank with all
    stages is preferred, so that the times of its stages fit together. Return None if no DP rank of
    the stage is recorded.
    """
    there = np.flatnonzero(~absent[:, pp])
    if not len(there):
        return None
    if absent[dp].all():
        complete = np.flatnonzero(~absent.any(axis=1))
        there = complete if len(complete) else there
        taken = computing[there].sum(axis=1)
    else:
        taken = computing[there, pp]
    return int(there[np.argsort(taken, kind="stable")[(len(there) - 1) // 2]])


def marked(layout: Layout, absent: Absent) -> Layout:
    """Return a layout with the absent workers marked; the given layout if no worker is absent.

    If only some stages of a DP rank are absent, their operations are marked as missing, so that
    they are re-created.
    """
    if not absent.cells.any():
        return layout
    within = absent.within
    if not within.any():
        return replace(layout, absent=absent.cells)
    lost = np.broadcast_to(within.T[layout.nodes.pp][:, None, :], layout.start_ns.shape)
    missing = lost if layout.missing is None else layout.missing | lost
    free = np.zeros(len(layout.nodes), bool) if layout.free is None else layout.free
    start_ns, duration_ns = (
        np.where(lost, 0.0, ns) for ns in (layout.start_ns, layout.duration_ns)
    )
    return replace(
        layout,
        absent=absent.cells,
        start_ns=start_ns,
        duration_ns=duration_ns,
        missing=np.ascontiguousarray(missing),
        free=free,
    )


def with_typical_transfers(layout: Layout, graph: Graph, own_ns: FloatArray) -> FloatArray:
    """Return durations in which transfers with absent workers take the median of their op type.

    The launches of absent workers are guesses with errors longer than a transfer. If all transfers
    of a type are with absent workers, all of them take the shortest duration, which contains the
    least waiting.

    Parameters
    ----------
    own_ns : float64 array, shape (nodes, steps, dp)
        Result of `own_durations`; changed in place.
    """
    if layout.absent is None or layout.absent.all(axis=1).sum() == layout.absent.any(axis=1).sum():
        return own_ns
    within = layout.absent & ~layout.absent.all(axis=1, keepdims=True)
    op, stage = layout.nodes.op, layout.nodes.pp
    transfers = layout.of_types(*(name for name in P2P if name in layout.op_names))
    guessed = np.zeros((len(layout.nodes), layout.dp), bool)
    for unit in graph.units:
        members = list(unit.members)
        if not unit.across_dp and transfers[members].all():
            guessed[members] = within[:, stage[members]].any(axis=1)
    for code in np.unique(op[guessed.any(axis=1)]).tolist():
        mine = op == code
        recorded_ns = own_ns[mine].transpose(0, 2, 1)[~guessed[mine]]
        typical = median(recorded_ns.ravel()) if len(recorded_ns) else own_ns[mine].min()
        filled = np.broadcast_to(guessed[mine][:, None, :], own_ns[mine].shape)
        own_ns[mine] = np.where(filled, typical, own_ns[mine])
    return own_ns


@dataclass(frozen=True, slots=True, eq=False)
class CollectivesWithAbsent:
    """Times of a stage's present workers in collectives in which a worker is absent."""

    nodes: NDArray[np.intp]  # (collectives,)
    taken_ns: FloatArray  # (collectives, steps): from their last launch to their first end
    typical_ns: FloatArray  # (collectives,): median over steps
    longer: NDArray[np.bool_]  # (collectives, steps): where `taken_ns` is far above the median


def collectives_with_absent(layout: Layout, stage: int) -> CollectivesWithAbsent:
    """Return the times of present workers in the collectives of a stage with an absent worker.

    The arrays have no rows if no worker of the stage is absent or no collective is recorded.
    """
    types = layout.of_types(*(name for name in DP_COLLECTIVES if name in layout.op_names))
    nodes = np.flatnonzero(types & (layout.nodes.pp == stage))
    count = len(layout.steps)
    if layout.absent is None or not len(nodes):
        nothing = np.zeros((0, count))
        return CollectivesWithAbsent(nodes[:0], nothing, np.zeros(0), nothing > 0)
    there = np.flatnonzero(~layout.absent[:, stage])
    start_ns = layout.start_ns[nodes][:, :, there]
    end_ns = start_ns + layout.duration_ns[nodes][:, :, there]
    taken_ns = np.maximum(end_ns.min(axis=2) - start_ns.max(axis=2), 0.0)
    typical_ns = median(taken_ns.T)
    step_ns = (layout.start_ns + layout.duration_ns).max(axis=(0, 2))
    longer = taken_ns > np.maximum(
        _FAR_LONGER * typical_ns[:, None], typical_ns[:, None] + _OF_A_STEP * step_ns
    )
    return CollectivesWithAbsent(nodes, taken_ns, typical_ns, longer & (count >= _FEWEST_STEPS))


def arriving_last(layout: Layout) -> Layout:
    """Return a layout in which the stand-in arrives at collectives as late as others waited for it.

    The stand-in's computations before a collective are stretched so that only a typical transfer
    remains when it arrives. This is done only with a single missing worker and without a pipeline,
    since otherwise the other ranks may have waited for another worker. If the stand-in never
    arrived last, the given layout is returned.
    """
    if layout.absent is None or layout.pp > 1 or layout.absent.sum() != 1:
        return layout
    dp, meetings = int(layout.absent.argmax()), collectives_with_absent(layout, 0)
    if not meetings.longer.any():
        return layout
    start_ns, duration_ns = layout.start_ns.copy(), layout.duration_ns.copy()
    others = np.setdiff1d(np.arange(len(layout.nodes)), meetings.nodes)
    for step in np.flatnonzero(meetings.longer.any(axis=0)).tolist():
        launch = start_ns[meetings.nodes, step, dp]
        end = launch + duration_ns[meetings.nodes, step, dp]
        late = np.where(
            meetings.longer[:, step], np.maximum(end - meetings.typical_ns, launch), launch
        )
        # Piecewise linear map of times: the time before the launch is stretched, times from the end
        # on are unchanged.
        order = np.argsort(np.concatenate([launch, end]), kind="stable")
        recorded = np.concatenate([[0.0], np.concatenate([launch, end])[order]])
        moved = np.maximum.accumulate(np.concatenate([[0.0], np.concatenate([late, end])[order]]))
        begin = start_ns[others, step, dp]
        finish = begin + duration_ns[others, step, dp]
        after = recorded[-1]
        mapped = [
            np.where(times > after, times, np.interp(times, recorded, moved))
            for times in (begin, finish)
        ]
        start_ns[others, step, dp] = mapped[0]
        duration_ns[others, step, dp] = mapped[1] - mapped[0]
        start_ns[meetings.nodes, step, dp] = late
        duration_ns[meetings.nodes, step, dp] = end - late
    return replace(layout, start_ns=start_ns, duration_ns=duration_ns)
