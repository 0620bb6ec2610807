"""How far a replay of recorded durations is from the recording, for a model on trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from app.analysis.loops import compiled_pays, in_rows
from app.analysis.replay.engine.durations import Durations, own_durations
from app.analysis.replay.engine.executor import executor_for
from app.analysis.replay.engine.program import prepare
from app.analysis.replay.engine.replay import Executor
from app.analysis.replay.engine.variants import Simulator
from app.analysis.replay.layout.dense import FloatArray, IntArray, Layout
from app.analysis.replay.layout.graph import Graph

# What an adaptation on trial has to take off the discrepancy, as a share of a step.
LEAST_GAIN: Final = 0.005
# Operations whose ends are in memory at a time.
_AT_A_TIME: Final = 1 << 16


def recorded_times(layout: Layout, graph: Graph) -> FloatArray:
    """Return how long each step took as recorded, shape (steps,), ns.

    From the first start to the last end of a step; where steps are chained, from the last end of
    the step before, in whose place the first step takes the start of the rank that ends it.
    """
    latest = np.zeros(layout.start_ns.shape[1:])
    raise_to_ends(layout, np.arange(len(layout.nodes)), latest)
    ends = latest.max(axis=1)
    if not graph.chained:
        return np.asarray(ends)
    begin = layout.begin_ns - layout.begin_ns[0]
    times = np.diff(begin + ends, prepend=0.0)
    of_first = layout.start_ns[:, 0] + layout.duration_ns[:, 0]
    node, dp = np.unravel_index(int(of_first.argmax()), of_first.shape)
    times[0] -= layout.start_ns[layout.nodes.pp == layout.nodes.pp[node], 0, dp].min()
    return np.asarray(times)


def stage_begins(layout: Layout, stage: int) -> FloatArray:
    """Return when a stage could begin its steps where they are chained, shape (steps, dp), ns.

    That is when it ended the step before, by the clock of the step's own begin; its first start in
    the first step.
    """
    mine = np.flatnonzero(layout.nodes.pp == stage)
    ends = np.full(layout.start_ns.shape[1:], -np.inf)
    raise_to_ends(layout, mine, ends)
    begins = np.empty(ends.shape)
    begins[0] = layout.start_ns[mine, 0].min(axis=0)
    begins[1:] = ends[:-1] - np.diff(layout.begin_ns)[:, None]
    return begins


def raise_to_ends(layout: Layout, nodes: IntArray, latest: FloatArray) -> None:
    """Replace values, shape (steps, dp), by the ends of some nodes that are later, in place."""
    count = latest.size
    if compiled_pays(layout.start_ns.size):
        from app.analysis.replay.engine import sweeps  # noqa: PLC0415 - loads the compiler

        start, duration = (
            in_rows(times).reshape(len(times), count)
            for times in (layout.start_ns, layout.duration_ns)
        )
        sweeps.raise_to_ends(start, duration, nodes, latest.reshape(count))
        return
    block = max(_AT_A_TIME // count, 1)
    for first in range(0, len(nodes), block):
        some = nodes[first : first + block]
        of_block = layout.start_ns[some] + layout.duration_ns[some]
        np.maximum(latest, of_block.max(axis=0), out=latest)


def discrepancy(layouts: Sequence[Layout], graphs: Sequence[Graph]) -> float:
    """Return how far the replay of recorded durations is from the recording, relative to it."""
    own = [own_durations(*pair)[0] for pair in zip(layouts, graphs, strict=True)]
    executors = [
        executor_for(prepare(graph, layout.nodes.pp, values.min(axis=(1, 2))), values.size)
        for layout, graph, values in zip(layouts, graphs, own, strict=True)
    ]
    return off_recording(zip(layouts, graphs, own, executors, strict=True))


def off_recording(groups: Iterable[tuple[Layout, Graph, FloatArray, Executor]]) -> float:
    """Return the same of groups of steps, each with its durations without waiting."""
    recorded = simulated = 0.0
    for layout, graph, durations, executor in groups:
        simulator = Simulator(layout, Durations(durations, np.zeros(len(durations))), executor)
        simulated += float(simulator.step_times([simulator.keep()])[0].sum())
        recorded += float(recorded_times(layout, graph).sum())
    return abs(recorded / simulated - 1) if simulated > 0 else float("inf")
