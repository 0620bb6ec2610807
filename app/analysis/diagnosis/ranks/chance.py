"""What ranks lose by chance that share the processors of one machine.

On a laptop, and in every trial on CPUs, ranks take processors from one another. Each of their
operations takes longer now and then, on whichever rank, and each collective waits for the latest.
No worker is at fault, and against a job that ran alone on each processor every such job is slow. So
the job that one is held against has that chance in it. Ranks with a device of their own, or a host,
lose nothing so: there it is told, whatever its cause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.counterfactual import NS
from app.analysis.diagnosis.observation import Observation
from app.analysis.replay.confidence import FEWEST_DRAWN
from app.analysis.replay.engine.durations import Durations
from app.analysis.replay.engine.pieces import executor_of
from app.analysis.replay.engine.variants import Simulator
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.graph import LOCAL
from app.analysis.replay.metrics import Metrics

# Fewer passes of a worker through a chunk have no typical time.
_FEWEST_PASSES: Final = 3


def by_chance_s(observation: Observation, metrics: Metrics) -> float:
    """Return what a mean step loses by chance, seconds; 0 where ranks share no processors.

    That is what steps would be shorter if each operation took on each rank what it typically takes
    there. What a rank lastingly takes longer is no chance. Without a pipeline, nothing else is a
    loss: that collectives of one type differ, since they carry more or less, is not.
    """
    if not observation.shares_processors:
        return 0.0
    own = observation.recorded_ns
    typical_s = _replayed_s(observation, np.median(own, axis=1, keepdims=True))
    chance_s = max(metrics.simulated_step_s - typical_s, 0.0)
    if observation.layout.pp > 1:
        return chance_s
    alike_s = _replayed_s(observation, np.median(own, axis=(1, 2), keepdims=True))
    return chance_s + max(alike_s - metrics.ideal_step_s, 0.0)


def single_chance_s(observation: Observation, metrics: Metrics) -> float:
    """Return what a mean step loses by single operations, seconds, of steps without a cause.

    Of few steps nothing tells what takes long once from what does so now and then. Computations
    take on each worker what its passes through the same chunk typically take, where there are
    enough of them, and transfers no longer than typical ones. 0 of steps enough for an interval.
    """
    if len(observation.layout.steps) >= FEWEST_DRAWN:
        return 0.0
    typical_ns = observation.recorded_ns.copy()
    computing = observation.layout.of_types(*sorted(LOCAL & observation.op_types))
    ideal_ns = observation.group.durations.ideal_ns[~computing, None, None]
    typical_ns[~computing] = np.minimum(typical_ns[~computing], ideal_ns)
    for passes in observation.passes.values():
        for stage, nodes in enumerate(passes.nodes):
            for chunk in np.unique(passes.chunk).tolist():
                mine = nodes[passes.chunk == chunk]
                if len(mine) * len(observation.layout.steps) >= _FEWEST_PASSES:
                    typical_ns[mine] = np.minimum(typical_ns[mine], passes.own_ns[stage, chunk])
    return max(metrics.simulated_step_s - _replayed_s(observation, typical_ns), 0.0)


def _replayed_s(observation: Observation, typical_ns: FloatArray) -> float:
    """Return the mean step if operations take that; shape (nodes, steps or 1, dp or 1)."""
    group = observation.group
    layout = _with_even_shares(group.layout)
    durations = np.broadcast_to(typical_ns, observation.recorded_ns.shape)
    executor = executor_of(layout, group.graph, durations.min(axis=(1, 2)), durations.size)
    simulator = Simulator(layout, Durations(durations, group.durations.ideal_ns), executor)
    return float(np.mean(simulator.step_times([simulator.keep()])[0])) * NS


def _with_even_shares(layout: Layout) -> Layout:
    """Return a layout whose computations are cut alike in all steps and on all ranks."""
    even = {
        node: np.broadcast_to(shares.mean(axis=(1, 2), keepdims=True), shares.shape)
        for node, shares in layout.shares.items()
    }
    return replace(layout, shares=even)
