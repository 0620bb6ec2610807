"""Operations and workers missing from the recording, re-created for the replay.

A computation gets the median duration of its type on its rank, a communication the median
*transfer* duration, because recorded durations contain waiting. A missing DP rank gets the times
of a typical one and is no slower by construction; only steps in which the others wait for it in a
collective for far longer than usual make it compute longer.
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

# ---- Operations that the recorder lost, made anew so that a replay can run ---------------------
# A computation gets the median duration of its type on its rank, a communication the median
# *transfer* duration: recorded durations of communication contain waiting. An operation is launched
# when what it follows has ended. Where sends are not recorded at all, but their receives are, a
# transfer ends when the receive says so.


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


# ---- Workers of which nothing was recorded: another DP rank of their stage stands in for them ----
# A file is lost, a host's disk is full, a process is killed before it writes. What the other ranks
# recorded is as true as ever, so the job is replayed with all of its workers: a DP rank that is
# missing as a whole takes the times of a typical one, and is no slower than that by construction.
# Where only some of its stages are missing, theirs are made anew between those that are there (see
# `app.analysis.replay.missing_operations`), and transfers with them take what such transfers
# typically take.
#
# How slow a missing worker is nothing says, but for the steps in which the others are in a
# collective with it for far longer than in most: it came last there, and what stands in for it
# computes longer.


# Code of the refusal where nothing tells what a missing worker does.
RANK_MISSING: Final = "trace.rank_missing"

_NO_RANK: Final = -1
# A collective shows that a missing worker came last when it takes this many times as long as it
# does in most steps, and this share of a step longer.
_FAR_LONGER: Final = 1.8
_OF_A_STEP: Final = 0.02
# Of fewer steps nothing is usual.
_FEWEST_STEPS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """Workers of which nothing was recorded."""

    cells: NDArray[np.bool_]  # (dp, pp)

    @property
    def workers(self) -> tuple[tuple[int, int], ...]:
        """Return them: (DP rank, stage)."""
        return tuple((int(dp), int(pp)) for dp, pp in np.argwhere(self.cells))

    @property
    def within(self) -> NDArray[np.bool_]:
        """Return those of DP ranks of which other stages are there, shape (dp, pp)."""
        whole = self.cells.all(axis=1, keepdims=True)
        return np.asarray(self.cells & ~whole)


def with_stand_ins(trace: Trace, *, of_anyone: bool = False) -> tuple[Trace, Absent]:
    """Return a trace in which every worker has operations, and which had none.

    The same object where all are there.

    Parameters
    ----------
    of_anyone : bool
        Any worker may stand in for one of which nothing typical is known: of steps of which
        nothing is told.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_missing``: nothing tells what a missing worker typically does, since no DP rank
        of its stage is there; or the only rank that is there has none to be compared with.
    """
    sizes = trace.meta.sizes
    ranks = _lowest_ranks(trace)
    absent = Absent(ranks == _NO_RANK)
    if not absent.cells.any():
        return trace, absent
    if not of_anyone:
        _require_comparable(absent, sizes)
    numbered = _numbers(ranks, sizes)
    parts = [trace]
    computing = _computing_ns(trace, ranks)
    for dp, pp in absent.workers:
        donor = _typical(computing, absent.cells, dp, pp)
        donor_rank = int(ranks[ranks != _NO_RANK][0]) if donor is None else int(ranks[donor, pp])
        parts.append(_copied(trace, donor_rank, int(numbered[dp, pp]), (dp, pp)))
    return _together(parts), absent


def _lowest_ranks(trace: Trace) -> NDArray[np.int64]:
    """Return the lowest rank that recorded anything of each worker, shape (dp, pp)."""
    sizes, first = trace.meta.sizes, trace.stretches().first
    most = np.iinfo(np.int64).max
    lowest = np.full((sizes.dp, sizes.pp), most)
    np.minimum.at(lowest, (trace.dp[first], trace.pp[first]), trace.rank[first].astype(np.int64))
    lowest[lowest == most] = _NO_RANK
    return lowest


def _require_comparable(absent: Absent, sizes: Sizes) -> None:
    missing = absent.workers
    listed = ", ".join(f"({dp}, {pp})" for dp, pp in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""  # noqa: PLR2004 - named
    said = (
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
            f"{said}. {why}",
            code=RANK_MISSING,
            faults=tuple(
                Fault("rank_missing", f"DP rank {d}, stage {p} sent nothing")
                for d, p in missing[:MAX_NAMED_FAULTS]
            ),
        )


def _numbers(ranks: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
    """Return the rank of each worker: of a missing one what its place says, else any free one.

    Frameworks number stage after stage, or DP rank after DP rank.
    """
    inner = sizes.tp * sizes.cp
    dp, pp = np.arange(sizes.dp, dtype=np.int64)[:, None], np.arange(sizes.pp, dtype=np.int64)
    known = ranks != _NO_RANK
    for numbers in ((pp * sizes.dp + dp) * inner, (dp * sizes.pp + pp) * inner):
        if (numbers[known] == ranks[known] // inner * inner).all():
            return np.where(known, ranks, numbers)
    free = np.setdiff1d(np.arange(sizes.world), ranks[known])
    unnumbered = ranks.copy()
    unnumbered[~known] = free[: int((~known).sum())]
    return unnumbered


def _computing_ns(trace: Trace, ranks: NDArray[np.int64]) -> FloatArray:
    """Return what each worker computes in all, shape (dp, pp)."""
    codes = [trace.op_names.index(name) for name in COMPUTE if name in trace.op_names]
    rows = np.flatnonzero(np.isin(trace.op, codes) & (trace.rank == ranks[trace.dp, trace.pp]))
    total = np.zeros(ranks.shape)
    np.add.at(total, (trace.dp[rows], trace.pp[rows]), trace.duration_ns[rows].astype(np.float64))
    return total


def _typical(computing: FloatArray, absent: NDArray[np.bool_], dp: int, pp: int) -> int | None:
    """Return the DP rank that stands in for a worker: the median one of those that are there.

    For a DP rank that is missing as a whole one that has all stages, so that its times agree. None
    where no DP rank of the stage is there.
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


def _copied(trace: Trace, donor: int, rank: int, cell: tuple[int, int]) -> Trace:
    """Return the operations of a rank that are replayed as those of another worker."""
    codes = [trace.op_names.index(name) for name in REPLAYED_OP_TYPES]
    rows = trace.of_rows(np.flatnonzero((trace.rank == donor) & np.isin(trace.op, codes)))
    rank_of, dp, pp = (np.full(len(rows), number, np.int32) for number in (rank, *cell))
    return replace(rows, rank=rank_of, dp=dp, pp=pp)


def _together(parts: Sequence[Trace]) -> Trace:
    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    return replace(
        parts[0],
        rank=joined("rank"),
        dp=joined("dp"),
        pp=joined("pp"),
        step=joined("step"),
        op=joined("op"),
        mb=joined("mb"),
        mc=joined("mc"),
        order=joined("order"),
        start_ns=joined("start_ns"),
        duration_ns=joined("duration_ns"),
    )


def marked(layout: Layout, absent: Absent) -> Layout:
    """Return a layout that knows which workers are absent; the same object where none is.

    What stands in for some stages of a DP rank has a place, and times that are to be made anew.
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
    """Let transfers with absent workers take what those of their type typically take.

    When these launched theirs is only guessed, and a transfer is short against that. Where all
    transfers of a type are with one, the shortest tells most: the others contain more waiting.

    Parameters
    ----------
    own_ns : float64 array, shape (nodes, steps, dp)
        As `own_durations` returns; changed in place.
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
        known = own_ns[mine].transpose(0, 2, 1)[~guessed[mine]]
        typical = median(known.ravel()) if len(known) else own_ns[mine].min()
        filled = np.broadcast_to(guessed[mine][:, None, :], own_ns[mine].shape)
        own_ns[mine] = np.where(filled, typical, own_ns[mine])
    return own_ns


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """What the workers of a stage that are there spend in collectives with one that is not."""

    nodes: NDArray[np.intp]  # (collectives,)
    taken_ns: FloatArray  # (collectives, steps): from the last of their launches on
    typical_ns: FloatArray  # (collectives,): in most steps
    longer: NDArray[np.bool_]  # (collectives, steps): where that is far longer than in most


def together(layout: Layout, stage: int) -> Together:
    """Return what the others spend in the collectives of a stage, some of whose workers are absent.

    Without any recorded collective there are no rows.
    """
    types = layout.of_types(*(name for name in DP_COLLECTIVES if name in layout.op_names))
    nodes = np.flatnonzero(types & (layout.nodes.pp == stage))
    count = len(layout.steps)
    if layout.absent is None or not len(nodes):
        nothing = np.zeros((0, count))
        return Together(nodes[:0], nothing, np.zeros(0), nothing > 0)
    there = np.flatnonzero(~layout.absent[:, stage])
    start_ns = layout.start_ns[nodes][:, :, there]
    end_ns = start_ns + layout.duration_ns[nodes][:, :, there]
    taken_ns = np.maximum(end_ns.min(axis=2) - start_ns.max(axis=2), 0.0)
    typical_ns = median(taken_ns.T)
    step_ns = (layout.start_ns + layout.duration_ns).max(axis=(0, 2))
    longer = taken_ns > np.maximum(
        _FAR_LONGER * typical_ns[:, None], typical_ns[:, None] + _OF_A_STEP * step_ns
    )
    return Together(nodes, taken_ns, typical_ns, longer & (count >= _FEWEST_STEPS))


def arriving_last(layout: Layout) -> Layout:
    """Return a layout whose stand-in comes as late to collectives as the others waited for it.

    It computes longer before, by what brings it there when only the transfer is left. That is done
    where the missing worker is the only one and there is no pipeline; else nothing tells whom they
    waited for. The same object where it never came last.
    """
    if layout.absent is None or layout.pp > 1 or layout.absent.sum() != 1:
        return layout
    dp, found = int(layout.absent.argmax()), together(layout, 0)
    if not found.longer.any():
        return layout
    start_ns, duration_ns = layout.start_ns.copy(), layout.duration_ns.copy()
    others = np.setdiff1d(np.arange(len(layout.nodes)), found.nodes)
    for step in np.flatnonzero(found.longer.any(axis=0)).tolist():
        launch = start_ns[found.nodes, step, dp]
        end = launch + duration_ns[found.nodes, step, dp]
        late = np.where(found.longer[:, step], np.maximum(end - found.typical_ns, launch), launch)
        # its time runs slower until it gets there, and as it did from the end of the transfer on
        order = np.argsort(np.concatenate([launch, end]), kind="stable")
        known = np.concatenate([[0.0], np.concatenate([launch, end])[order]])
        moved = np.maximum.accumulate(np.concatenate([[0.0], np.concatenate([late, end])[order]]))
        begin = start_ns[others, step, dp]
        finish = begin + duration_ns[others, step, dp]
        after = known[-1]
        mapped = [
            np.where(times > after, times, np.interp(times, known, moved))
            for times in (begin, finish)
        ]
        start_ns[others, step, dp] = mapped[0]
        duration_ns[others, step, dp] = mapped[1] - mapped[0]
        start_ns[found.nodes, step, dp] = late
        duration_ns[found.nodes, step, dp] = end - late
    return replace(layout, start_ns=start_ns, duration_ns=duration_ns)
