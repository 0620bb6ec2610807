"""Waits within tensor- and context-parallel groups, and the ranks that cause these waits.

All ranks of a group end a collective together, so the rank that arrives last has the shortest
record; no common clock is needed. In a ring of context-parallel ranks, the last rank is the rank
that computes longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from app.analysis.diagnosis.finding import LateRanks, Uncertainty
from app.analysis.diagnosis.locations import FigureView, View, Worker, WorkerView
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation, kept_waiting, lower_median
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import TENSOR_TYPES, Trace
from app.analysis.trace.parallelism import groups_of, has_rings, own_compute_times

LISTED: Final = 3  # groups that the evidence describes


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether a group waits for one of its ranks."""

    least_share: float = 0.03  # A group waits when it does so for this share of its computing …
    to_median: float = 4.0  # …and this many times as long as the median group
    # Assumed wait of a healthy group, as a share of its computing time, if no healthy group is
    # recorded: the ranks of a healthy group differ by some tenths of a percent.
    typical_wait: float = 0.003
    # The assumed wait may be longer by this many half intervals.
    without_healthy: float = 2.0
    differ: float = 0.5  # relative half width of the 95 % interval of a healthy group's wait
    # A rank is at fault when it causes this share of its group's waiting.
    same_rank: float = 0.8


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class LateSends:
    """Lateness of sends and receives at the collectives of a group, arrays (collectives,)."""

    # wait of the group because its last rank received its input later than the others; not in
    # `Waits.wait_ns`
    received_ns: FloatArray
    # time that the analyzed rank computes longer than the others after the last collective of a
    # computation, before it sends
    computed_ns: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Waits of the collectives of a worker for the rank that arrives last."""

    cell: Worker  # the worker: (dp, pp)
    ranks: IntArray  # (ranks,): global ranks of the group
    step: IntArray  # (collectives,)
    start_ns: IntArray  # (collectives,): by the clock of the analyzed rank
    wait_ns: FloatArray  # (collectives,): without the waits for late inputs
    last: IntArray  # (collectives,): index into `ranks`
    duration_ns: FloatArray  # (collectives, ranks): each rank's record: its wait and the transfer
    late_sends: LateSends | None = None  # None if the group is not compared with other stages


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A group of ranks that wait for one another."""

    waits: Waits
    share: float  # wait as a share of computing time
    by_rank: FloatArray  # (ranks,): the share of the waiting that each rank causes
    typical: float  # wait of a healthy group, as a share of its computing time
    typical_known: bool  # whether healthy groups of the job were measured

    @property
    def cell(self) -> Worker:
        """Return the worker of the group, (dp, pp)."""
        return self.waits.cell

    @property
    def concentration(self) -> float:
        """Return the share of the waiting that the slowest rank causes."""
        return float(self.by_rank.max())

    @property
    def slowest(self) -> int:
        """Return the index within the group of the rank that causes most of the waiting."""
        return int(np.argmax(self.by_rank))

    @property
    def of_one_rank(self) -> bool:
        """Return whether a single rank causes nearly all of the waiting."""
        return self.concentration >= THRESHOLDS.same_rank


def has_tensor_ranks(trace: Trace, types: Sequence[str] = TENSOR_TYPES) -> bool:
    """Return whether several ranks of any group recorded collectives of the given types."""
    codes = [trace.op_names.index(name) for name in types]
    if int(trace.op.max()) < min(codes):
        return False
    rows = np.logical_or.reduce([trace.op == code for code in codes])
    return bool(rows.any()) and len(np.unique(trace.rank[rows])) > trace.meta.sizes.workers


def measure_waits(observation: Observation, types: Sequence[str] = TENSOR_TYPES) -> list[Waits]:
    """Return the waits of each worker whose collectives are recorded by several ranks.

    If a worker has several groups of ranks, the waits are those of the group that waits longest:
    the other groups wait for this group at the collectives of the other kind, in which all groups
    meet.
    """
    trace = observation.trace
    rows = np.flatnonzero(np.isin(trace.op, [trace.op_names.index(n) for n in types]))
    rows = rows[np.isin(trace.step[rows], observation.layout.steps)]
    keys = (trace.rank, trace.order, trace.op, trace.step, trace.pp, trace.dp)
    rows = rows[np.lexsort([key[rows] for key in keys])]
    cell = trace.dp[rows].astype(np.int64) * trace.meta.sizes.pp + trace.pp[rows]
    computations = _Computations(observation)
    longest = []
    for mine in np.split(rows, np.flatnonzero(np.diff(cell)) + 1):
        recorded = trace.rank[mine]
        waits = [
            _waits(observation, mine[np.isin(recorded, group)], computations)
            for group in groups_of(np.unique(recorded), trace.meta.sizes, types)
        ]
        measured = [wait for wait in waits if wait is not None]
        if measured:
            longest.append(max(measured, key=lambda wait: float(wait.wait_ns.sum())))
    return longest


class _Computations:
    """Computations of all ranks in the analyzed steps, by each rank's own clock."""

    def __init__(self, observation: Observation) -> None:
        trace = observation.trace
        codes = [trace.op_names.index(name) for name in COMPUTATIONS]
        rows = np.flatnonzero(np.isin(trace.op, codes))
        rows = rows[np.isin(trace.step[rows], observation.layout.steps)]
        self._rows = rows[np.lexsort((trace.start_ns[rows], trace.rank[rows]))]
        self._ranks = trace.rank[self._rows]
        self._trace = trace

    def around(self, collectives: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the idle time before, and the computing time after, collectives of a rank, ns.

        Parameters
        ----------
        collectives : int64 array
            Rows of a single rank.

        Returns
        -------
        idle_ns : float64 array, shape (collectives,)
            From the end of the computation before to the begin of the computation with the
            collective, if the collective is its first; otherwise 0.
        tail_ns : float64 array, shape (collectives,)
            From the end of the collective to the end of the computation with it, if the collective
            is its last; otherwise 0.
        """
        idle_ns, tail_ns = np.zeros(len(collectives)), np.zeros(len(collectives))
        start_ns, duration_ns = self._trace.start_ns, self._trace.duration_ns
        rank = self._trace.rank[collectives[0]]
        own = self._rows[slice(*np.searchsorted(self._ranks, [rank, rank + 1]))]
        if not len(own):
            return idle_ns, tail_ns
        begin = start_ns[own]
        end = begin + duration_ns[own]
        order = np.argsort(start_ns[collectives], kind="stable")
        at = np.searchsorted(begin, start_ns[collectives[order]], side="right") - 1
        inside = (at >= 0) & (start_ns[collectives[order]] <= end[np.maximum(at, 0)])
        change = at[1:] != at[:-1]
        first = inside & np.append(True, change) & (at > 0)
        last = inside & np.append(change, True)
        idle_ns[order[first]] = begin[at[first]] - end[at[first] - 1]
        ended = (start_ns + duration_ns)[collectives[order[last]]]
        tail_ns[order[last]] = np.maximum(end[at[last]] - ended, 0)
        return idle_ns, tail_ns


def _waits(observation: Observation, rows: IntArray, computations: _Computations) -> Waits | None:
    """Return the waits of a group, whose `rows` are sorted by step, type, order and rank."""
    trace = observation.trace
    ranks = np.unique(trace.rank[rows])
    count = len(ranks)
    if count == 1:
        return None
    # Collectives that lack a rank's record are not counted.
    change = np.zeros(len(rows), bool)
    change[0] = True
    for column in (trace.step, trace.op, trace.order):
        change[1:] |= column[rows][1:] != column[rows][:-1]
    first = np.flatnonzero(change)
    whole = np.diff(np.append(first, len(rows))) == count
    if not whole.any():
        return None
    table = rows[first[whole][:, None] + np.arange(count)]
    duration = trace.duration_ns[table].astype(np.float64)
    dp, pp = int(trace.dp[rows[0]]), int(trace.pp[rows[0]])
    analyzed = int(np.searchsorted(ranks, observation.layout.ranks[dp, pp]))
    # Wait of the typical rank: the median over the ranks; for two ranks, the longer wait.
    typical = np.sort(duration, axis=1)[:, count // 2]
    analyzed = min(analyzed, count - 1)
    wait_ns, last = typical - duration.min(axis=1), duration.argmin(axis=1)
    idle_ns, tail_ns = np.array([computations.around(table[:, n]) for n in range(count)]).swapaxes(
        0, 1
    )
    later_ns = idle_ns[last, np.arange(len(last))] - np.sort(idle_ns, axis=0)[(count - 1) // 2]
    received_ns = np.clip(later_ns, 0.0, np.maximum(wait_ns, 0.0))
    others_ns = np.median(np.delete(tail_ns, analyzed, axis=0), axis=0)
    return Waits(
        cell=(dp, pp),
        ranks=ranks.astype(np.int64),
        step=trace.step[table[:, 0]],
        start_ns=trace.start_ns[table[:, analyzed]],
        wait_ns=wait_ns - received_ns,
        last=last,
        duration_ns=duration,
        late_sends=LateSends(received_ns, np.maximum(tail_ns[analyzed] - others_ns, 0.0)),
    )


def costs_enough(share: float) -> bool:
    """Return whether a wait, as a share of computing time, is longer than chance explains."""
    return share >= THRESHOLDS.least_share


def waiting_groups(
    observation: Observation, waits: Sequence[Waits], *, to_median: float | None = None
) -> list[Waiting]:
    """Return the groups that wait for a rank, the longest wait first.

    A group's wait is at least `to_median` times the wait of the median group; by default the
    threshold's number.
    """
    total = computing_ns(observation)
    shares = np.array([w.wait_ns.sum() / total[w.cell[1], w.cell[0]] for w in waits])
    if not len(shares):
        return []
    typical_share = float(np.median(shares)) if len(shares) > 2 else 0.0  # noqa: PLR2004 - of two there is none
    if to_median is None:
        to_median = THRESHOLDS.to_median
    limit = max(THRESHOLDS.least_share, to_median * typical_share)
    others = shares[shares < limit]
    typical = float(median(others)) if len(others) else THRESHOLDS.typical_wait
    groups = [
        Waiting(wait, share, by_rank / by_rank.sum(), typical, typical_known=len(others) > 0)
        for wait, share in zip(waits, shares.tolist(), strict=True)
        if share >= limit
        for by_rank in [
            np.bincount(wait.last, weights=np.maximum(wait.wait_ns, 0.0), minlength=len(wait.ranks))
        ]
    ]
    return sorted(groups, key=lambda group: -group.share)


def computing_ns(observation: Observation) -> FloatArray:
    """Return each worker's computing time, with the waits within computations, (pp, dp), ns."""
    layout = observation.layout
    computes = layout.of_types(*COMPUTATIONS)
    total = np.zeros((layout.pp, layout.dp))
    for node in np.flatnonzero(computes).tolist():
        total[layout.nodes.pp[node]] += observation.recorded_ns[node].sum(axis=0)
    return np.maximum(total, 1.0)


def without_waits(observation: Observation, groups: Sequence[Waiting]) -> Uncertainty:
    """Return the uncertainty of a step in which some groups wait only as long as healthy groups.

    The slowest DP rank decides a step, so a group's uncertainty is weighted by its share of the DP
    ranks. If no healthy group is recorded, the wait may be twice the typical wait.
    """
    ranks = {dp for dp, _ in (group.cell for group in groups)}
    reference = (
        unsure_of_typical(groups[0].typical, len(groups)) * len(ranks) / observation.layout.dp
    )
    return Uncertainty(
        reference,
        longer=0.0 if groups[0].typical_known else THRESHOLDS.without_healthy * reference,
        hiding=kept_waiting(observation, [group.cell for group in groups]),
    )


def unsure_of_typical(typical: float, groups: int) -> float:
    """Return a step interval's relative half width if groups wait for the typical time.

    Healthy groups differ independently, so the mean wait of several groups is better known.
    """
    return THRESHOLDS.differ * typical / sqrt(groups)


def computations_without(
    observation: Observation, groups: Sequence[Waiting]
) -> dict[int, FloatArray]:
    """Return the computing time lost to waits of some groups, by node, (steps, dp), ns.

    Each wait counts for the computation that contains it, less the wait of a healthy group, which
    is subtracted as the same share of every wait.
    """
    layout = observation.layout
    lost_ns: dict[int, FloatArray] = {}
    for group in groups:
        wait, (dp, _) = group.waits, group.cell
        typical = group.typical * (1 - group.share)
        beyond = max(1 - typical / group.share, 0.0)
        nodes, steps = holders(observation, wait)
        for node in np.unique(nodes[nodes >= 0]).tolist():
            mine = nodes == node
            if node not in lost_ns:
                lost_ns[node] = np.zeros((len(layout.steps), layout.dp))
            np.add.at(lost_ns[node][:, dp], steps[mine], beyond * wait.wait_ns[mine])
    return lost_ns


def passed_on(
    observation: Observation, groups: Sequence[Waiting], waits: Sequence[Waits]
) -> dict[int, FloatArray]:
    """Return the computing time lost to late sends of the groups' slowest ranks, by node, ns.

    What a slow rank computes after the last collective of a pass delays its send, so the rank of
    the same index in the next stage's group begins late, and its group waits for it.

    Parameters
    ----------
    waits : sequence of Waits
        Waits of all groups of the job.

    Returns
    -------
    dict of int to float64 array
        Shape (steps, dp), ns.
    """
    layout = observation.layout
    lost_ns: dict[int, FloatArray] = {}
    for group in groups:
        dp, pp = group.cell
        for wait in waits:
            sends = wait.late_sends
            if sends is None or wait.cell[0] != dp:
                continue
            if wait.cell != group.cell:
                late_ns = np.where(wait.last == group.slowest, sends.received_ns, 0.0)
            elif int(wait.ranks[group.slowest]) == int(layout.ranks[dp, pp]):
                late_ns = sends.computed_ns
            else:
                continue
            if not late_ns.any():
                continue
            nodes, steps = holders(observation, wait)
            for node in np.unique(nodes[(nodes >= 0) & (late_ns > 0)]).tolist():
                mine = nodes == node
                if node not in lost_ns:
                    lost_ns[node] = np.zeros((len(layout.steps), layout.dp))
                np.add.at(lost_ns[node][:, dp], steps[mine], late_ns[mine])
    return lost_ns


def figure_of(group: Waiting) -> LateRanks:
    """Return the figure of a group: the share of the waiting that each rank causes."""
    return LateRanks(
        worker=group.cell,
        ranks=tuple(group.waits.ranks.tolist()),
        share=tuple(group.by_rank.tolist()),
    )


def view_of(group: Waiting, *, drawn: bool) -> View:
    """Return the view of a group: the figure of the cause if it is `drawn`, else the worker."""
    dp, pp = group.cell
    return FigureView() if drawn else WorkerView(dp=dp, pp=pp)


def holders(observation: Observation, wait: Waits) -> tuple[IntArray, IntArray]:
    """Return the computation that contains each collective, by the clock of the analyzed rank.

    Returns
    -------
    nodes : int64 array, shape (collectives,)
        -1 if there is none.
    steps : int64 array, shape (collectives,)
        Indices of their steps.
    """
    trace, layout = observation.trace, observation.layout
    dp, pp = wait.cell
    codes = [layout.op_names.index(n) for n in COMPUTATIONS if n in layout.op_names]
    rows = np.flatnonzero((trace.rank == layout.ranks[dp, pp]) & np.isin(trace.op, codes))
    table = layout.nodes
    own = np.flatnonzero((table.pp == pp) & np.isin(table.op, codes))
    node_of = {(int(table.op[n]), int(table.order[n])): int(n) for n in own}
    nodes = np.full(len(wait.step), -1, dtype=np.int64)
    for step in layout.steps.tolist():
        mine = rows[trace.step[rows] == step]
        mine = mine[np.argsort(trace.start_ns[mine], kind="stable")]
        of_step = np.flatnonzero(wait.step == step)
        if not len(mine):
            continue
        holder = np.searchsorted(trace.start_ns[mine], wait.start_ns[of_step], side="right") - 1
        holding = mine[np.maximum(holder, 0)].tolist()
        nodes[of_step] = [node_of.get((int(trace.op[r]), int(trace.order[r])), -1) for r in holding]
    return nodes, np.searchsorted(layout.steps, wait.step)


def ring_waits(observation: Observation) -> list[Waits]:
    """Return the waits of each context-parallel ring for its rank that computes longest.

    Each computation has one wait, which may be at any of its transfers: how early a rank waits
    depends on its distance to the slow rank. Empty if no rings are recorded.
    """
    return list(_ring_waits(observation)) if has_rings(observation.trace) else []


def waits_only_for_missing(observation: Observation, slow: float) -> BoolArray:
    """Return which workers seem slow only as they wait for a ring's missing rank, (pp, dp).

    None of the recorded ranks of such a worker computes longer than `slow` times the busiest ranks
    of the stage's other workers (the median).
    """
    trace, sizes = observation.trace, observation.trace.meta.sizes
    waits = np.zeros((sizes.pp, sizes.dp), dtype=bool)
    if not has_rings(trace):
        return waits
    rows, own_ns = own_compute_times(trace)
    ranks, first, member = np.unique(trace.rank[rows], return_index=True, return_inverse=True)
    total_ns = np.bincount(member.ravel(), weights=own_ns)
    pp, dp = trace.pp[rows[first]], trace.dp[rows[first]]
    busiest_ns, recorded = np.zeros(waits.shape), np.zeros(waits.shape, dtype=np.int64)
    np.maximum.at(busiest_ns, (pp, dp), total_ns)
    np.add.at(recorded, (pp, dp), np.ones(len(ranks), dtype=np.int64))
    incomplete = recorded < sizes.tp * sizes.cp
    return incomplete & (busiest_ns <= slow * lower_median(busiest_ns, axis=1)[:, None])


def _ring_waits(observation: Observation) -> Iterator[Waits]:
    trace, layout = observation.trace, observation.layout
    rows, own_ns = own_compute_times(trace)
    in_analyzed = np.isin(trace.step[rows], layout.steps)
    rows, own_ns = rows[in_analyzed], own_ns[in_analyzed]
    keys = (trace.rank, trace.order, trace.op, trace.step, trace.pp, trace.dp)
    order = np.lexsort([key[rows] for key in keys])
    rows, own_ns = rows[order], own_ns[order]
    cell = trace.dp[rows].astype(np.int64) * layout.pp + trace.pp[rows]
    for mine in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(cell)) + 1):
        at = rows[mine]
        ranks = np.unique(trace.rank[at])
        dp, pp = int(trace.dp[at[0]]), int(trace.pp[at[0]])
        if len(ranks) == 1:
            continue
        change = np.ones(len(at), bool)
        change[1:] = np.logical_or.reduce(
            [key[at][1:] != key[at][:-1] for key in (trace.step, trace.op, trace.order)]
        )
        first = np.flatnonzero(change)
        # Computations that lack a rank's record are not counted.
        first = first[np.diff(first, append=len(at)) == len(ranks)]
        if not len(first):
            continue
        table = first[:, None] + np.arange(len(ranks))
        own = own_ns[mine][table]
        waiting = own.max(axis=1, keepdims=True) - own
        analyzed = int(np.searchsorted(ranks, layout.ranks[dp, pp]))
        yield Waits(
            cell=(dp, pp),
            ranks=ranks.astype(np.int64),
            step=trace.step[at[first]],
            start_ns=trace.start_ns[at[table[:, analyzed]]],
            # Wait of the typical rank: the median over the ranks; for two ranks, the longer wait.
            wait_ns=np.sort(waiting, axis=1)[:, len(ranks) // 2],
            last=waiting.argmin(axis=1),
            duration_ns=waiting,
        )
