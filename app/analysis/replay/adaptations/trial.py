"""How far a replay of recorded durations is from the recording, for a model on trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from app.analysis.replay.engine.durations import Durations, own_durations
from app.analysis.replay.engine.pieces import executor_of
from app.analysis.replay.engine.replay import Executor
from app.analysis.replay.engine.variants import Simulator
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.graph import Graph

# What an adaptation on trial has to take off the discrepancy, as a share of a step.
LEAST_GAIN: Final = 0.005
# Operations whose ends are in memory at a time.
_AT_A_TIME: Final = 1 << 16


def recorded_times(layout: Layout, graph: Graph, ends: FloatArray | None = None) -> FloatArray:
    """Return how long each step took as recorded, shape (steps,), ns.

    From the first start to the last end of a step; where steps are chained, from the last end of
    the step before, in whose place the first step takes the start of the rank that ends it.

    Parameters
    ----------
    ends : float64 array, shape (pp, steps, dp), or None
        What `stage_ends` returns, where it is known.
    """
    of_stages = stage_ends(layout) if ends is None else ends
    last = of_stages.max(axis=(0, 2), initial=0.0)
    if not graph.chained:
        return np.asarray(last)
    begin = layout.begin_ns - layout.begin_ns[0]
    times = np.diff(begin + last, prepend=0.0)
    of_first = layout.start_ns[:, 0] + layout.duration_ns[:, 0]
    node, dp = np.unravel_index(int(of_first.argmax()), of_first.shape)
    times[0] -= layout.start_ns[layout.nodes.pp == layout.nodes.pp[node], 0, dp].min()
    return np.asarray(times)


def stage_begins(layout: Layout, stage: int, ends: FloatArray, turn_ns: float = 0.0) -> FloatArray:
    """Return when a stage could begin its steps where they are chained, shape (steps, dp), ns.

    That is when it ended the step before, by the clock of the step's own begin, and `turn_ns` has
    passed; its first start in the first step. `ends` is what `stage_ends` returns.
    """
    begins = np.empty(ends.shape[1:])
    begins[0] = layout.start_ns[layout.nodes.pp == stage, 0].min(axis=0)
    begins[1:] = ends[stage, :-1] - np.diff(layout.begin_ns)[:, None] + turn_ns
    return begins


def stage_ends(layout: Layout) -> FloatArray:
    """Return when each stage's last operation of a step ends, shape (pp, steps, dp), ns."""
    _, steps, dp = layout.start_ns.shape
    latest = np.full((layout.pp, steps, dp), -np.inf)
    block = max(_AT_A_TIME // (steps * dp), 1)
    for stage, ends in enumerate(latest):
        nodes = np.flatnonzero(layout.nodes.pp == stage)
        for first in range(0, len(nodes), block):
            some = nodes[first : first + block]
            of_block = layout.start_ns[some] + layout.duration_ns[some]
            np.maximum(ends, of_block.max(axis=0), out=ends)
    return latest


def discrepancy(layouts: Sequence[Layout], graphs: Sequence[Graph]) -> float:
    """Return how far the replay of recorded durations is from the recording, relative to it."""
    own = [own_durations(*pair)[0] for pair in zip(layouts, graphs, strict=True)]
    executors = [
        executor_of(layout, graph, values.min(axis=(1, 2)), values.size)
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
