"""Recorded computing, transfer and idle time of each worker in each step.

Arrays have the shape (pp, steps, dp). A step lasts until the next step begins, if both were
recorded. Communication counts only while no computation hides it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.loops import in_threads, threads_for
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.layout.dependency_graph import P2P
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import Replayed, ShapeGroup, ends_of, follows_of
from app.analysis.trace.model import GC, OPTIMIZER

# Op types that run on the device as computing; garbage collections run on the host.
COMPUTING: Final = COMPUTE | {OPTIMIZER}
# Value of `Fillings.before` for the gap at the begin of a stage's step.
BEGIN: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Fillings:
    """Communications of a stage, each in the gap before the first computation that depends on it.

    Shape (communications,).
    """

    node: IntArray
    before: IntArray  # computation that the gap follows; `BEGIN` at the begin of the step
    previous: IntArray  # previous communication in the gap; the node itself if it is the first


def fillings_of(group: ShapeGroup) -> tuple[Fillings, ...]:
    """Return the communications in the gaps of each stage, in launch order within a gap."""
    layout, follows = group.layout, group.memoize(follows_of)
    stages = layout.nodes.pp
    computing = layout.of_types(*COMPUTING)
    # Each communication is put in a single gap; garbage collections are put in none.
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
            in_gap: list[int] = []
            while waiting:
                other = waiting.pop()
                if not taken[other]:
                    taken[other] = True
                    in_gap.append(other)
                    waiting += [n for n in follows[other] if not taken[n] and stage_of[n] == stage]
            if len(in_gap) == 1:
                rows[stage].append((in_gap[0], before, in_gap[0]))
            else:
                rows[stage] += _in_order(in_gap, launch, before)
        last[stage] = node
    # Communications on which no computation depends fill the gap at the end of the step.
    left = ~np.array(taken)
    sends = layout.of_types(*P2P)
    for stage, node in enumerate(last):
        mine = left & (stages == stage)
        if node != BEGIN:
            mine &= ~sends | (layout.launch > layout.launch[node])
        rows[stage] += _in_order(np.flatnonzero(mine).tolist(), launch, node)
    tables = (np.array(of_stage, dtype=np.int64).reshape(-1, 3).T for of_stage in rows)
    return tuple(Fillings(*map(np.ascontiguousarray, table)) for table in tables)


def _in_order(nodes: list[int], launch: Sequence[float], before: int) -> list[tuple[int, int, int]]:
    """Return the `Fillings` rows of a gap's communications in launch order; sorts `nodes` too."""
    nodes.sort(key=lambda node: (launch[node], node))
    return [
        (node, before, previous)
        for node, previous in zip(nodes, [*nodes[:1], *nodes], strict=False)
    ]


# Number of elements that a NumPy call works on: some gaps in all steps and DP ranks.
_AT_A_TIME: Final = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """Time of workers by activity, shape (pp, steps, dp), ns; the rest of a step is waiting.

    Communication counts only while no computation hides it.
    """

    computing_ns: FloatArray
    transferring_ns: FloatArray  # without waiting for other members of the group
    # Time in which a worker neither computes nor runs a launched communication on which a
    # computation depends.
    idle_ns: FloatArray


def spent_of(group: ShapeGroup, begins_ns: FloatArray, ends_ns: FloatArray) -> Spent:
    """Return the computing, transfer and idle time of each worker in each step.

    Parameters
    ----------
    begins_ns, ends_ns : float64 arrays, shape (pp, steps, dp)
        Begins and ends of each worker's steps, by the clock of `Layout.start_ns`.
    """
    layout = group.layout
    shown, transferring = np.zeros(ends_ns.shape), np.zeros(ends_ns.shape)

    def measure(stage: int) -> None:
        shown[stage], transferring[stage] = _communicating(group, fillings[stage], begins_ns[stage])

    fillings = fillings_of(group)
    in_threads(threads_for(layout.start_ns.size), measure, range(len(fillings)))
    computing = np.zeros((layout.pp, *layout.start_ns.shape[1:]))
    for code in layout.codes(*COMPUTING):
        for stage in range(layout.pp):
            nodes = layout.nodes.of(code, stage)
            if len(nodes):
                computing[stage] += layout.duration_ns[nodes[0] : nodes[-1] + 1].sum(axis=0)
    within = ends_ns - begins_ns
    # Durations of concurrent computations may add up to more than the step, so the sum is limited.
    np.minimum(computing, within, out=computing)
    np.minimum(shown, within - computing, out=shown)
    np.minimum(transferring, shown, out=transferring)
    return Spent(computing, transferring, within - shown - computing)


def _communicating(
    group: ShapeGroup, fillings: Fillings, begins_ns: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return a stage's exposed communication, and its transfer time, shape (steps, dp) each, ns."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Time of a session divided at the begins of its steps, ns, in order of steps.

    A step includes the gap to the next step if the next step was recorded; other gaps are unknown
    and do not count. Odd steps before the first analyzed step belong to the first, odd steps after
    the last analyzed step to the last. If steps overlap, a worker's step begins when the worker has
    ended its previous step.
    """

    starts_ns: FloatArray  # (steps,): first starts, by the clock of the recording
    begins_ns: FloatArray  # (pp, steps, dp): begin of a worker's step, since its first start
    ends_ns: FloatArray  # (pp, steps, dp): last end of a worker, since the step's first start
    wall_ns: FloatArray  # (pp, steps, dp): time of a worker from a step's begin to the next one's
    between_ns: FloatArray  # (steps,): from the last end of all workers to the next step's begin
    # Shape (steps,): gaps that contain excluded steps, and odd steps at the ends of the session,
    # ns.
    missing_ns: FloatArray
    usual_ns: float  # median of the gaps between consecutive steps


def windows_of(replayed: Replayed) -> Windows:
    """Return the time of a session divided at the begins of its steps."""
    ends_ns = replayed.over_steps(lambda group: ends_of(group).swapaxes(0, 1)).swapaxes(0, 1)
    last_ns = ends_ns.max(axis=(0, 2))
    starts_ns = replayed.over_steps(lambda group: group.layout.begin_ns)
    period_ns = np.diff(starts_ns)
    joined, whole = _joined(replayed, period_ns)
    begins_ns, until_ns = np.zeros(ends_ns.shape), np.empty(ends_ns.shape)
    until_ns[:] = last_ns[:, None]
    # A worker that ends a step after the next step's begin starts its own next step then.
    late_ns = np.maximum(ends_ns[:, :-1] - period_ns[:, None], 0.0)
    begins_ns[:, 1:] = np.where(joined[:, None], np.minimum(late_ns, ends_ns[:, 1:]), 0.0)
    following_ns = begins_ns[:, 1:] + period_ns[:, None]
    until_ns[:, :-1] = np.where(joined[:, None], following_ns, until_ns[:, :-1])
    empty_ns = np.append(np.where(joined, np.maximum(period_ns - last_ns[:-1], 0.0), 0.0), 0.0)
    counts = np.append(whole, False)
    between_ns = np.where(counts, empty_ns, 0.0)
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
    return Windows(
        starts_ns,
        begins_ns,
        ends_ns,
        until_ns - begins_ns + odd_ns[:, None],
        between_ns,
        empty_ns - between_ns + odd_ns,
        float(median(between_ns[counts])) if counts.any() else 0.0,
    )


def _joined(replayed: Replayed, period_ns: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Return which gaps after steps count, and which of these precede a consecutive step.

    Shape (steps - 1,) each. No gap counts without a common clock, or where a clock was set back.
    """
    steps = replayed.steps
    if not replayed.absolute:
        none = np.zeros(len(period_ns), dtype=bool)
        return none, none
    recorded = np.sort(
        [*steps.tolist(), *(item.step for item in (*replayed.dropped, *replayed.odd))]
    )
    place = np.searchsorted(recorded, steps)
    measurable = (np.diff(steps) == np.diff(place)) & (period_ns > 0)
    return measurable, measurable & (np.diff(steps) == 1)
