"""Better divisions of the layers over the stages, replayed on the session's own durations.

The replay scales each recorded computation by its chunk's new ÷ old time. Collectives of
parameters and gradients and the optimizer scale with the number of layers; transfers between stages
stay as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.fixes import ByChunk, Division
from app.analysis.mitigation.layers.costs import (
    LayerCosts,
    Place,
    StageCapacity,
    estimate_costs,
    stage_capacity,
)
from app.analysis.mitigation.layers.execution import TypicalStep, find_owners
from app.analysis.mitigation.layers.search import EQUAL, search
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.engine.simulator import Replacement
from app.analysis.replay.session import Replayed, ShapeGroup
from app.analysis.trace.model import FORWARD_COMPUTE
from app.analysis.trace.parallelism import layers_per_chunk

# Number of divisions, the best for the typical step, that are replayed on the whole session.
_REPLAYED: Final = 6
_MS_PER_NS: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Division of the layers to replay, with the layer costs that it is based on."""

    division: Division
    costs: LayerCosts
    counts: IntArray

    def replacement(self, group: ShapeGroup) -> Replacement:
        """Return the durations of an operation group under the division."""
        factors = self.costs.times_ns(self.counts) / np.maximum(self.costs.level_ns, 1.0)
        return _by_factors(
            group, self.costs, factors, self.counts / self.costs.layers, self.costs.layers
        )


def divisions(observation: Observation, replayed: Replayed) -> list[Candidate]:
    """Return the divisions that make the typical step faster than today's does, fastest first.

    Empty if the metadata lack the number of layers of each stage.
    """
    meta = observation.trace.meta
    today = layers_per_chunk(meta.extra, meta.sizes.pp, meta.sizes.vpp)
    if today is None:
        return []
    costs = estimate_costs(observation, today)
    if costs is None:
        return []
    room = stage_capacity(meta.extra, costs)
    ranked = search(TypicalStep(replayed.main, costs), room)
    proven = ranked.proven and not replayed.graph.chained
    as_good_ns = (1 + EQUAL) * ranked.best[0][0]
    now_ns = next(time for time, counts in ranked.best if (counts == costs.layers).all())
    return [
        Candidate(
            _division(costs, counts, room, proven=proven and time_ns <= as_good_ns), costs, counts
        )
        for time_ns, counts in ranked.best[:_REPLAYED]
        if time_ns < now_ns
    ]


def even_level(group: ShapeGroup, observation: Observation) -> Replacement:
    """Return the durations of the computations if every chunk took the mean typical time.

    The replay with these durations gives an upper bound of the gain of any division of the layers.
    """
    recorded = group.durations.recorded_ns
    chunks = len(np.unique(group.layout.nodes.mc[observation.computations(FORWARD_COMPUTE, 0)]))
    costs = estimate_costs(observation, [[1] * chunks] * group.layout.pp)
    if costs is None:
        return Replacement(np.empty(0, dtype=np.int64), lambda steps: recorded[:0, steps])
    factors = costs.level_ns.mean(axis=1, keepdims=True) / np.maximum(costs.level_ns, 1.0)
    return _by_factors(group, costs, factors, np.ones(len(costs.places)))


def _by_factors(
    group: ShapeGroup,
    costs: LayerCosts,
    passes: FloatArray,
    parameters: FloatArray,
    layers: IntArray | None = None,
) -> Replacement:
    owners = find_owners(group, costs)
    recorded = group.durations.recorded_ns
    weights = np.ones(len(costs.places)) if layers is None else layers
    factor = np.ones(len(recorded))
    computing = (owners.kind >= 0).nonzero()[0]
    factor[computing] = passes[owners.kind[computing], owners.place[computing]]
    scaled = owners.scaled
    factor[scaled] = parameters[owners.place[scaled]]
    for node, places in owners.shared.items():
        factor[node] = np.average(parameters[places], weights=weights[places])
    nodes = (factor != 1.0).nonzero()[0]
    changed = factor[nodes, None, None]
    return Replacement(nodes, lambda steps: recorded[nodes, steps] * changed)


def _division(
    costs: LayerCosts, counts: IntArray, room: StageCapacity, *, proven: bool
) -> Division:
    layers = _by_chunk(costs.places, counts)
    return Division(
        today=_by_chunk(costs.places, costs.layers),
        layers=layers,
        layer_ms=costs.median_layer_ns * _MS_PER_NS,
        embedding_ms=costs.embedding_ns * _MS_PER_NS,
        head_ms=costs.head_ns * _MS_PER_NS,
        proven=proven,
        max_layers=tuple(room.layers.tolist()) if room.is_known else None,
        flag=launcher_flag(layers),
    )


def _by_chunk(places: Sequence[Place], counts: IntArray) -> ByChunk:
    stages = max(stage for stage, _ in places) + 1
    table: list[list[int]] = [[0] * (len(places) // stages) for _ in range(stages)]
    for (stage, chunk), count in zip(places, counts.tolist(), strict=True):
        table[stage][chunk] = count
    return tuple(map(tuple, table))


def launcher_flag(layers: ByChunk) -> str:
    """Return Megatron-LM's flag for a division of the layers.

    If only the first and the last stage differ from the others, the older flags suffice, which more
    versions of Megatron-LM have.

    Examples
    --------
    >>> launcher_flag(((20,), (21,), (21,), (18,)))
    '--decoder-first-pipeline-num-layers 20 --decoder-last-pipeline-num-layers 18'
    >>> launcher_flag(((20,), (22,), (21,), (18,)))
    '--pipeline-model-parallel-layout "Et*20|t*22|t*21|t*18L"'
    >>> launcher_flag(((5, 5), (6, 4)))
    '--pipeline-model-parallel-layout "Et*5|t*6|t*5|t*4L"'
    """
    inner = set(layers[1:-1])
    if len(layers[0]) == 1 and len(inner) == 1:
        first, last = layers[0][0], layers[-1][0]
        return (
            f"--decoder-first-pipeline-num-layers {first} --decoder-last-pipeline-num-layers {last}"
        )
    interleaved = [stage[chunk] for chunk in range(len(layers[0])) for stage in layers]
    parts = "|".join(f"t*{count}" for count in interleaved)
    return f'--pipeline-model-parallel-layout "E{parts}L"'
