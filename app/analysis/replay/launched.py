"""How late hosts launch operations, and steps with other durations where they do so again."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from app.analysis.replay.engine.durations import FAULT_NS
from app.analysis.replay.engine.replay import ON_TIME, RECORDED
from app.analysis.replay.engine.variants import Replacement
from app.analysis.replay.layout.dense import FloatArray, IntArray, Layout
from app.analysis.replay.layout.graph import Graph
from app.analysis.replay.session import ShapeGroup, begins_of
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_SEND,
)

NS: Final = 1e-9
# What a host launches as soon as it can.
LAUNCHED: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, FORWARD_SEND, BACKWARD_SEND)
ALL_STEPS: Final = slice(None)
# Elements that one call of NumPy works on.
_AT_A_TIME: Final = 1 << 16


def launch_delays(group: ShapeGroup, steps: slice = ALL_STEPS) -> tuple[FloatArray, int]:
    """Return how late each operation was launched after all that it depends on.

    Returns
    -------
    delays : float64 array, shape (nodes, steps, dp)
        Nanoseconds. Slightly negative values are clock noise and kept.
    clamped : int
        Delays at fault (-10 ms or less) that count as 0.
    """
    layout = group.layout
    delays = _since_ready(layout, group.graph, steps)
    faulty = delays <= FAULT_NS
    clamped = int(np.count_nonzero(faulty))
    if clamped:
        delays[faulty] = 0.0
    if clamped and layout.padding is not None:
        # Ranks that run fewer microbatches than fill the pipeline launch their first backward
        # before what others do first: nothing is at fault.
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
    """Return how long after the last end that it follows each operation starts, ns."""
    start, duration = layout.start_ns[:, steps], layout.duration_ns[:, steps]
    delays = start.copy(order="C")
    # Those that follow equally many go together: in short steps calling costs most.
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
    """Return what `launch_delays` does, computed once; it is not to be written to."""
    return group.once(launch_delays)


def delays_of(group: ShapeGroup, nodes: IntArray) -> FloatArray:
    """Return the same of some nodes, shape (nodes, steps, dp)."""
    return np.asarray(kept_delays(group)[0][nodes])


def launched_step_times(group: ShapeGroup, *replacements: Replacement) -> FloatArray:
    """Replay steps as they were and with each replacement, hosts launching as late as they did.

    A slow worker hides late launches of the others; without it they count. Those of receives and
    collectives do not: in recorded jobs they are seconds late, behind what was not recorded.

    Returns
    -------
    float64 array, shape (steps, 1 + replacements)
        Seconds.
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
        kept_delays(group)[0],
    )
    return times_ns.T * NS
