"""Recorded computing, transfer and idle time of each worker in each step, ns.

Arrays have the shape (pp, steps, dp). A step lasts until the next one begins, where both were
recorded; communication counts where no computation hides it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.loops import in_threads, threads_for
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.layout.dependency_graph import P2P
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import Replayed, ShapeGroup, ends_of, follows_of
from app.analysis.trace.model import GC, OPTIMIZER

# ---- The gaps between the computations of each stage, and which communication may fill them ----


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
    layout, follows = group.layout, group.memoize(follows_of)
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


# ---- What passes on each worker in each step, measured in the recording ------------------------


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


# ---- When each worker begins and ends its steps, and what passes between steps -----------------


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The time of a session, cut at the begins of its steps, ns; in order of steps.

    To a step belongs what passes until the next one begins, where that one follows in the
    recording. Other gaps are unknown: the job went on without a recorder, and nothing is lost.
    Odd steps before the first one belong to that one, and those after the last to the last.
    Where steps overlap, a worker's time is cut where it is done with the step before.
    """

    starts_ns: FloatArray  # (steps,): first starts, by the clock of the recording
    # Shape (pp, steps, dp): by the clock that counts from the first start of each step, when
    # workers begin it and end it; and how long it is theirs.
    begins_ns: FloatArray
    ends_ns: FloatArray
    wall_ns: FloatArray
    # Shape (steps,): from the last end of all workers to the begin of the next step; and the same
    # where steps that are left out lie between, with odd ones at the ends of the session.
    between_ns: FloatArray
    missing_ns: FloatArray
    usual_ns: float  # the median of what passes between two steps


def windows_of(replayed: Replayed) -> Windows:
    """Cut the time of a session at the begins of its steps."""
    ends_ns = replayed.over_steps(lambda group: ends_of(group).swapaxes(0, 1)).swapaxes(0, 1)
    last_ns = ends_ns.max(axis=(0, 2))
    starts_ns = replayed.over_steps(lambda group: group.layout.begin_ns)
    period_ns = np.diff(starts_ns)
    joined, whole = _joined(replayed, period_ns)
    begins_ns, until_ns = np.zeros(ends_ns.shape), np.empty(ends_ns.shape)
    until_ns[:] = last_ns[:, None]
    # Late ends reach into the next step, on the workers that have them.
    late_ns = np.maximum(ends_ns[:, :-1] - period_ns[:, None], 0.0)
    begins_ns[:, 1:] = np.where(joined[:, None], np.minimum(late_ns, ends_ns[:, 1:]), 0.0)
    following_ns = begins_ns[:, 1:] + period_ns[:, None]
    until_ns[:, :-1] = np.where(joined[:, None], following_ns, until_ns[:, :-1])
    empty_ns = np.append(np.where(joined, np.maximum(period_ns - last_ns[:-1], 0.0), 0.0), 0.0)
    known = np.append(whole, False)
    between_ns = np.where(known, empty_ns, 0.0)
    odd_ns = _odd_ns(replayed, starts_ns, last_ns)
    return Windows(
        starts_ns,
        begins_ns,
        ends_ns,
        until_ns - begins_ns + odd_ns[:, None],
        between_ns,
        empty_ns - between_ns + odd_ns,
        float(median(between_ns[known])) if known.any() else 0.0,
    )


def _odd_ns(replayed: Replayed, starts_ns: FloatArray, last_ns: FloatArray) -> FloatArray:
    """Return how long odd steps take that open or close the session, shape (steps,), ns.

    With what passes between them and the steps that are analyzed.
    """
    steps, spans_ns, odd_ns = replayed.steps, replayed.odd_spans_ns, np.zeros(len(starts_ns))
    if replayed.absolute and spans_ns:
        first, last = int(steps[0]), int(steps[-1])
        while first - 1 in spans_ns:
            first -= 1
        while last + 1 in spans_ns:
            last += 1
        if first < steps[0]:
            odd_ns[0] += max(starts_ns[0] - spans_ns[first][0], 0.0)
        if last > steps[-1]:
            odd_ns[-1] += max(spans_ns[last][1] - starts_ns[-1] - last_ns[-1], 0.0)
    return odd_ns


def _joined(
    replayed: Replayed, period_ns: FloatArray
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return after which steps the time to the next one counts, and where nothing is left out.

    Shape (steps - 1,) each. None does where starts count from each step, and where clocks were set
    back.
    """
    steps = replayed.steps
    if not replayed.absolute:
        none = np.zeros(len(period_ns), dtype=bool)
        return none, none
    recorded = np.sort(
        [*steps.tolist(), *(item.step for item in (*replayed.dropped, *replayed.odd))]
    )
    place = np.searchsorted(recorded, steps)
    known = (np.diff(steps) == np.diff(place)) & (period_ns > 0)
    return known, known & (np.diff(steps) == 1)
