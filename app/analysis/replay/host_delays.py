"""Launch delays of operations, and gaps between steps.

A launch delay is the time from the last end of an operation's dependencies to its start. A gap
counts only between consecutive recorded steps, since the time between recorded windows is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.engine.replay import ON_TIME, RECORDED
from app.analysis.replay.engine.simulator import FAULT_NS, Replacement
from app.analysis.replay.layout.dense import FloatArray, IntArray, Layout
from app.analysis.replay.layout.dependency_graph import Graph
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import Replayed, ShapeGroup, begins_of, ends_of, follows_of
from app.analysis.trace.model import BACKWARD_COMPUTE, BACKWARD_SEND, FORWARD_COMPUTE, FORWARD_SEND

NS: Final = 1e-9
# Types that hosts launch as soon as their dependencies have ended.
LAUNCHED: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, FORWARD_SEND, BACKWARD_SEND)
ALL_STEPS: Final = slice(None)
# Two operations start at one moment if their starts differ by at most this: clocks are rounded.
_MOMENT_NS: Final = 50_000
# Number of elements that a NumPy call works on, which limits the size of temporary arrays.
_AT_A_TIME: Final = 1 << 16


def launch_delays(group: ShapeGroup, steps: slice = ALL_STEPS) -> tuple[FloatArray, int]:
    """Return the launch delay of each operation, and the number of faulty delays.

    Returns
    -------
    delays : float64 array, shape (nodes, steps, dp)
        Launch delays, ns. Slightly negative values are clock noise and are kept.
    clamped : int
        Number of faulty delays (-10 ms or less), which count as 0.
    """
    layout = group.layout
    delays = _since_ready(layout, group.graph, steps)
    faulty = delays <= FAULT_NS
    clamped = int(np.count_nonzero(faulty))
    if clamped:
        delays[faulty] = 0.0
    if clamped and layout.padding is not None:
        # Ranks whose microbatches do not fill the pipeline launch their first backward earlier than
        # other ranks; their negative delays are not faults.
        counts = layout.padding.counts[steps]
        clamped = int(np.count_nonzero(faulty[:, counts == counts.max()]))
    chain = group.simulator.executor.program.chain
    if chain is None:
        return delays, clamped
    for stage in range(layout.pp):
        begins = begins_of(group, stage)[steps]
        for node in (node for node, own in chain.begins.items() if own == stage):
            late = np.minimum(delays[node], layout.start_ns[node, steps] - begins)
            clamped += int((late <= FAULT_NS).sum())
            delays[node] = np.where(late <= FAULT_NS, 0.0, late)
    return delays, clamped


def _since_ready(layout: Layout, graph: Graph, steps: slice) -> FloatArray:
    """Return the time from the last end of an operation's dependencies to its start, ns.

    Shape (nodes, steps, dp).
    """
    start, duration = layout.start_ns[:, steps], layout.duration_ns[:, steps]
    delays = start.copy(order="C")
    # Nodes with equal numbers of dependencies share NumPy calls, whose overhead dominates in short
    # steps.
    alike: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for unit in graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            alike[len(after)].append((node, *after))
    at_a_time = max(1, _AT_A_TIME // start[0].size)
    for count, listed in alike.items():
        for first in range(0, len(listed) if count else 0, at_a_time):
            columns = np.array(listed[first : first + at_a_time]).T
            nodes, ready = columns[0], np.full((1, 1, 1), -np.inf)
            for before in columns[1:]:
                end = start[before] + duration[before]
                if graph.lags_ns:
                    pairs = zip(nodes.tolist(), before.tolist(), strict=True)
                    end += np.array([graph.lag_ns(*pair) for pair in pairs])[:, None, None]
                ready = np.maximum(ready, end)
            delays[nodes] -= ready
    return delays


def kept_delays(group: ShapeGroup) -> tuple[FloatArray, int]:
    """Return the cached `launch_delays` of all steps; callers must not write to the arrays."""
    return group.memoize(launch_delays)


def delays_of(group: ShapeGroup, nodes: IntArray) -> FloatArray:
    """Return the launch delays of the given nodes, shape (nodes, steps, dp), ns."""
    return np.asarray(kept_delays(group)[0][nodes])


def _kept_in_replays(group: ShapeGroup) -> FloatArray:
    """Return the launch delays that a replay keeps whatever it changes, ns.

    A send that starts at the moment at which its receive starts is recorded from the exchange on.
    It waited for its receiver, and the replay itself computes this wait.
    """
    delays, start = kept_delays(group)[0].copy(), group.layout.start_ns
    sends = group.layout.of_types(FORWARD_SEND, BACKWARD_SEND)
    for unit in group.graph.units:
        for node in (node for node in unit.members if sends[node] and len(unit.members) > 1):
            others = [other for other in unit.members if other != node]
            posted = start[others].max(axis=0)
            delays[node][np.abs(start[node] - posted) <= _MOMENT_NS] = 0.0
    return delays


def launched_step_times(group: ShapeGroup, *replacements: Replacement) -> FloatArray:
    """Return step times with recorded launch delays: as recorded, and with each replacement.

    A slow worker hides late launches of other workers, which cost time once the slow worker is
    replaced. Delays of receives and collectives are left out, because in recorded jobs these are
    launched seconds late for unrecorded reasons.

    Returns
    -------
    float64 array, shape (steps, 1 + replacements)
        Step times, seconds.
    """
    count = len(group.layout.nodes)
    takes = np.full((1 + len(replacements), count), RECORDED, dtype=np.int32)
    first = 0
    for row, item in zip(takes[1:], replacements, strict=True):
        row[item.nodes] = np.arange(first, first + len(item.nodes))
        first += len(item.nodes)
    own = group.layout.of_types(*LAUNCHED)
    late = np.broadcast_to(np.where(own, np.arange(count), ON_TIME).astype(np.int32), takes.shape)
    times_ns = group.simulator.coded_step_times(
        takes,
        lambda steps: np.concatenate([item.times_ns(steps) for item in replacements]),
        late,
        group.memoize(_kept_in_replays),
    )
    return times_ns.T * NS


# Smallest number of gaps from which a median is computed.
FEWEST_TURNS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Gaps before each step, ns; NaN if the previous step is not recorded."""

    steps: IntArray  # (steps,): ascending
    # Shape (steps,): time from the last end of any worker in the previous step to the first start
    # of any worker in this step; negative if steps overlap. In chained steps at most the regular
    # gap, since a later launch counts as a launch delay.
    gap_ns: FloatArray
    begins_ns: FloatArray  # (steps, pp, dp): a worker's first start, ns of the epoch
    ends_ns: FloatArray  # (steps, pp, dp): a worker's last end, ns of the epoch

    @property
    def known(self) -> NDArray[np.bool_]:
        """Return which steps have a recorded previous step, shape (steps,)."""
        return np.asarray(np.isfinite(self.gap_ns))

    @property
    def usual_ns(self) -> float:
        """Return the median gap between steps, at least 0, ns; 0 if no gap is recorded."""
        gaps_ns = self.gap_ns[self.known]
        return max(float(median(gaps_ns)), 0.0) if len(gaps_ns) else 0.0


def turns_of(replayed: Replayed) -> Turns:
    """Return the gaps between the steps of a session, over all shapes of steps.

    All gaps are NaN if starts are not readings of clocks, and for chained steps without a regular
    gap, whose times count from the end of the previous step.
    """
    groups = replayed.groups
    order = np.argsort(np.concatenate([group.layout.steps for group in groups]))
    steps = replayed.steps
    begins, ends = (
        np.concatenate(bounds, axis=1)[:, order].transpose(1, 0, 2)
        for bounds in (
            [_begins(group) for group in groups],
            [ends_of(group) + group.layout.begin_ns[:, None] for group in groups],
        )
    )
    following = np.diff(steps, prepend=steps[0] - 2) == 1
    chained, regularly_ns = replayed.graph.chained, replayed.graph.step_gap_ns
    if not replayed.absolute or (chained and not regularly_ns):
        following[:] = False
    gap = np.full(len(steps), np.nan)
    gap[1:] = begins.min(axis=(1, 2))[1:] - ends.max(axis=(1, 2))[:-1]
    if chained:
        gap = np.minimum(gap, regularly_ns)
    gap[~following] = np.nan
    return Turns(steps, gap, begins, ends)


def between_steps_ns(replayed: Replayed) -> float:
    """Return the usual gap between two steps of a job with data parallelism only, ns.

    The result is 0 if steps overlap or are chained, if gaps are unknown, for a single worker, and
    in pipelines, whose stages fill and drain in each step.
    """
    layout = replayed.layout
    if layout.pp > 1 or layout.dp == 1 or replayed.graph.chained:
        return 0.0
    return turns_of(replayed).usual_ns


def _begins(group: ShapeGroup) -> FloatArray:
    """Return each worker's first start in each step, shape (pp, steps, dp), ns since the epoch."""
    layout = group.layout
    begins = np.empty((layout.pp, *layout.start_ns.shape[1:]))
    # The first operation of a step is one without dependencies; or, if the job's order differs from
    # the dependency model, the operation that is launched first.
    roots = np.array([node for node, after in group.memoize(follows_of).items() if not after])
    for stage, own in enumerate(begins):
        mine = layout.nodes.on(stage)
        first = mine[layout.launch[mine].argmin()]
        nodes = np.append(roots[layout.nodes.pp[roots] == stage], first)
        own[:] = layout.start_ns[nodes].min(axis=0)
    return begins + layout.begin_ns[:, None]
