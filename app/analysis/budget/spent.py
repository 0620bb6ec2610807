"""What passes on each worker in each step, measured in the recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.budget.gaps import BEGIN, COMPUTING, Fillings, fillings_of
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.session import ShapeGroup
from app.analysis.threads import in_threads, threads_for

# Elements that one call of NumPy works on: all steps and DP ranks of some gaps.
_AT_A_TIME: Final = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """What workers spend of their steps, shape (pp, steps, dp), ns; for the rest of it they wait.

    Computing comes first: communication counts where no computation hides it.
    """

    computing_ns: FloatArray
    transferring_ns: FloatArray  # without waiting for other members of the group
    # While nothing computes and no communication that a computation waits for is launched.
    idle_ns: FloatArray


def spent_of(group: ShapeGroup, begins_ns: FloatArray, ends_ns: FloatArray) -> Spent:
    """Measure what workers compute and transfer, and how long they do nothing.

    Parameters
    ----------
    begins_ns, ends_ns : float64 arrays, shape (pp, steps, dp)
        When workers begin and end their steps, by the clock of `Layout.start_ns`.
    """
    shown, transferring = np.zeros(ends_ns.shape), np.zeros(ends_ns.shape)

    def look_at(stage: int) -> None:
        shown[stage], transferring[stage] = _communicating(group, fillings[stage], begins_ns[stage])

    fillings = fillings_of(group)
    in_threads(threads_for(group.layout.start_ns.size), look_at, range(len(fillings)))
    computing = _computing(group)
    within = ends_ns - begins_ns
    # What computes side by side takes its time once.
    np.minimum(computing, within, out=computing)
    np.minimum(shown, within - computing, out=shown)
    np.minimum(transferring, shown, out=transferring)
    return Spent(computing, transferring, within - shown - computing)


def _communicating(
    group: ShapeGroup, fillings: Fillings, begins_ns: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return how long a stage's communications show, and how long they transfer meanwhile."""
    shown_ns, transferring_ns = np.zeros(begins_ns.shape), np.zeros(begins_ns.shape)
    start_ns, duration_ns = group.layout.start_ns, group.layout.duration_ns
    size = max(1, _AT_A_TIME // begins_ns.size)
    for first in range(0, len(fillings.node), size):
        some = slice(first, first + size)
        node, before, previous = fillings.node[some], fillings.before[some], fillings.previous[some]
        since = start_ns[before]
        since += duration_ns[before]
        since[before == BEGIN] = begins_ns
        further = (node != previous).nonzero()[0]
        if len(further):
            other = previous[further]
            since[further] = np.maximum(since[further], start_ns[other] + duration_ns[other])
        start = start_ns[node]
        np.maximum(since, start, out=since)
        start += duration_ns[node]
        start -= since
        exposed = np.maximum(start, 0.0, out=start)
        own = np.minimum(group.durations.recorded_ns[node], exposed, out=since)
        np.maximum(own, 0.0, out=own)
        shown_ns += exposed.sum(axis=0)
        transferring_ns += own.sum(axis=0)
    return shown_ns, transferring_ns


def _computing(group: ShapeGroup) -> FloatArray:
    layout = group.layout
    total = np.zeros((layout.pp, *layout.start_ns.shape[1:]))
    for code in layout.codes(*COMPUTING):
        for stage in range(layout.pp):
            nodes = layout.nodes.of(code, stage)
            if len(nodes):
                total[stage] += layout.duration_ns[nodes[0] : nodes[-1] + 1].sum(axis=0)
    return total
