"""Who holds up a ring of context-parallel ranks: the one that computes longest by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.observation import Observation, lower_median
from app.analysis.diagnosis.ranks.waits import Waits
from app.analysis.trace.operations.computing import has_rings, own_computing


def ring_waits(observation: Observation) -> list[Waits]:
    """Return for how long the ranks of each cell wait in a computation for the one that takes most.

    All of them together, at whichever transfers: a rank that is ahead waits the sooner the nearer
    it is. Empty where no rings are recorded.
    """
    return list(_waits(observation)) if has_rings(observation.trace) else []


def waits_for_missing(observation: Observation, slow: float) -> NDArray[np.bool_]:
    """Return which workers take long only by what they wait for in a ring, shape (pp, dp).

    A rank of theirs is missing, and none of those that are there computes longer by itself than
    `slow` times what the busiest ranks of the stage's other workers do.
    """
    trace, sizes = observation.trace, observation.trace.meta.sizes
    waits = np.zeros((sizes.pp, sizes.dp), dtype=bool)
    if not has_rings(trace):
        return waits
    rows, own_ns = own_computing(trace)
    ranks, first, member = np.unique(trace.rank[rows], return_index=True, return_inverse=True)
    total_ns = np.bincount(member.ravel(), weights=own_ns)
    pp, dp = trace.pp[rows[first]], trace.dp[rows[first]]
    busiest_ns, there = np.zeros(waits.shape), np.zeros(waits.shape, dtype=np.int64)
    np.maximum.at(busiest_ns, (pp, dp), total_ns)
    np.add.at(there, (pp, dp), np.ones(len(ranks), dtype=np.int64))
    incomplete = there < sizes.tp * sizes.cp
    return incomplete & (busiest_ns <= slow * lower_median(busiest_ns, axis=1)[:, None])


def _waits(observation: Observation) -> Iterator[Waits]:
    trace, layout = observation.trace, observation.layout
    rows, own_ns = own_computing(trace)
    known = np.isin(trace.step[rows], layout.steps)
    rows, own_ns = rows[known], own_ns[known]
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
        # A computation of which a record is missing is not counted.
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
            # of two ranks the longer one, of more the median
            wait_ns=np.sort(waiting, axis=1)[:, len(ranks) // 2],
            last=waiting.argmin(axis=1),
            duration_ns=waiting,
        )
