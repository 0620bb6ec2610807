"""Costs of layers, embedding and head, estimated from the typical stage times of a session.

All layers of a chunk are assumed to take equal time. The first and the last chunk take longer than
their layers at the usual time per layer; the excess is the embedding and the head. Inner chunks
with a different time per layer hold a different kind of layer, which keeps its time in every
division. The plan of a whole running job takes its measured times from this module
(`app.plans.specs.session`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.analysis.diagnosis.observation import Observation, lower_median
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, WGRAD_COMPUTE

# Times per layer that differ by a smaller share are equal: the difference is noise.
_ALIKE: Final = 0.04
# Number of chunks at the ends of the model: the first may have an embedding, the last a head.
_ENDS: Final = 2
# Lower bound of modelled times, which are divisors.
_LEAST_NS: Final = 1.0
_MS_PER_NS: Final = 1e-6
# Types of the computations of a chunk.
PASSES: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE)
# Metadata key of the maximum number of layers of a stage, and the limit if the key is missing.
KEY: Final = "max_layers"
_UNLIMITED: Final = 1 << 30

Place = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class LayerCosts:
    """Times of a model's chunks for one microbatch, today and with other numbers of layers."""

    places: tuple[Place, ...]  # (stage, chunk) of each chunk, in the order of the forward pass
    layers: IntArray  # (places,): layers of each chunk today
    passes: tuple[str, ...]  # types of computations
    level_ns: FloatArray  # (passes, places): typical time of each chunk
    layer_ns: FloatArray  # (passes, total layers): time of each layer, in the order of the model
    extra_ns: FloatArray  # (passes, places): embedding of the first chunk, head of the last one

    def times_ns(self, layers: IntArray) -> FloatArray:
        """Return the times of chunks with the given numbers of layers, ns, shape (passes, places).

        Each place keeps its deviation from the modelled time.
        """
        return np.asarray(self._modelled(layers) * self.deviation())

    def deviation(self) -> FloatArray:
        """Return today's typical ÷ modelled time of each chunk, shape (passes, places)."""
        return np.asarray(self.level_ns / np.maximum(self._modelled(self.layers), _LEAST_NS))

    def _modelled(self, layers: IntArray) -> FloatArray:
        ends = np.cumsum(layers)
        total = np.concatenate(
            [np.zeros((len(self.layer_ns), 1)), np.cumsum(self.layer_ns, axis=1)], axis=1
        )
        return np.asarray(total[:, ends] - total[:, ends - layers] + self.extra_ns)

    @property
    def separable(self) -> bool:
        """Return whether the time of layers is separable from the times of embedding and head.

        An inner chunk shows the time of layers alone, and so do a first and a last chunk with equal
        times per layer. Otherwise the cheaper of these two is assumed to have neither embedding nor
        head; if both have one, the gain of moving layers is overestimated.
        """
        if len(self.places) > _ENDS:
            return True
        blocks = self.level_ns.sum(axis=0) / self.layers
        return bool(np.ptp(blocks) <= _ALIKE * blocks.min())

    @property
    def median_layer_ns(self) -> float:
        """Return the median time of a layer for one microbatch, forward and backward, ns."""
        return float(np.median(self.layer_ns.sum(axis=0)))

    @property
    def embedding_ns(self) -> float:
        """Return the time of the embedding for one microbatch, forward and backward, ns."""
        return float(self.extra_ns[:, 0].sum())

    @property
    def head_ns(self) -> float:
        """Return the time of head and loss for one microbatch, forward and backward, ns."""
        return float(self.extra_ns[:, -1].sum())


def typical_pass_times(observation: Observation) -> dict[str, FloatArray]:
    """Return by pass type the typical time of each stage's chunks, ns, shape (pp, chunks).

    The typical time is the median over microbatches and steps, then the lower median over DP ranks,
    so that neither a slow worker nor an intermittently slow worker makes a stage heavy.
    """
    return {
        name: lower_median(passes.own_ns, axis=2)
        for name, passes in observation.passes.items()
        if name in PASSES
    }


def estimate_costs(observation: Observation, layers: Sequence[Sequence[int]]) -> LayerCosts | None:
    """Return the costs of layers, estimated with the number of layers of each stage's chunks.

    None if the stages do not compute the same microbatches, or the model has a single chunk.
    """
    levels = typical_pass_times(observation)
    if not levels:
        return None
    shape = next(iter(levels.values())).shape
    places = _model_order(observation, shape)
    if len(places) <= 1 or shape != (len(layers), len(layers[0])):
        return None
    counts = np.array([layers[stage][chunk] for stage, chunk in places], dtype=np.int64)
    level_ns = np.array([[level[place] for place in places] for level in levels.values()])
    rates, extra_ns = _layer_rates(level_ns, counts)
    return LayerCosts(
        places=places,
        layers=counts,
        passes=tuple(levels),
        level_ns=level_ns,
        layer_ns=np.repeat(rates, counts, axis=1),
        extra_ns=extra_ns,
    )


def _model_order(observation: Observation, shape: tuple[int, ...]) -> tuple[Place, ...]:
    """Return (stage, chunk) of each chunk in the order of the forward pass.

    Empty for a bidirectional pipeline, which holds the model once for each direction.
    """
    stages, chunks = shape
    interleaved = tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages))
    routes = observation.layout.routes
    whole = [tuple(route) for route in routes if sorted(route) == sorted(interleaved)]
    return whole[0] if whole else () if routes else interleaved


def _layer_rates(level_ns: FloatArray, layers: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return each chunk's time per layer, and the time of embedding and head, (passes, places)."""
    blocks = level_ns / layers
    last = len(layers) - 1
    rates = blocks.copy()
    ends = np.minimum(blocks[:, 0], blocks[:, last])
    if last > 1:
        plain = median(blocks[:, 1:last].T)
        inner = rates[:, 1:last]
        alike = np.abs(inner / plain[:, None] - 1) <= _ALIKE
        inner[:] = np.where(alike, plain[:, None], inner)
        ends = np.minimum(ends, plain)
    rates[:, [0, last]] = ends[:, None]
    extra_ns = np.zeros_like(level_ns)
    for end in (0, last):
        extra_ns[:, end] = np.maximum(level_ns[:, end] - ends * layers[end], 0.0)
    return rates, extra_ns


@dataclass(frozen=True, slots=True, eq=False)
class StageCapacity:
    """The most layers that the memory of each stage can hold."""

    stage: IntArray  # (places,): stage of each chunk of the model
    layers: IntArray  # (stages,): the most layers that fit
    is_known: bool  # whether the metadata have the limit

    def most(self, place: int) -> int:
        """Return the maximum number of layers of a chunk that its stage's memory can hold."""
        return int(self.layers[self.stage[place]])


def stage_capacity(extra: Mapping[str, Any], costs: LayerCosts) -> StageCapacity:
    """Return the maximum number of layers of each stage from the metadata key ``max_layers``.

    ``max_layers`` is a number, or a list with a number for each stage. A stage can always hold the
    layers that it holds today.
    """
    stage = np.array([stage for stage, _ in costs.places])
    stages = int(stage.max()) + 1
    given = extra.get(KEY)
    numbers = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if numbers is None:
        numbers = [given] * stages
    is_valid = len(numbers) == stages and all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers
    )
    layers = np.array(numbers if is_valid else [_UNLIMITED] * stages, dtype=np.int64)
    today = np.bincount(stage, weights=costs.layers, minlength=stages).astype(np.int64)
    return StageCapacity(stage, np.maximum(layers, today), is_valid)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """Measured times and speeds of a running job."""

    forward_ms: float
    """Forward time of the median block for one microbatch, on workers that are not slow."""
    backward_ms: float
    """Backward time of the median block for one microbatch, gradients of weights included."""
    microbatches: int
    """Microbatches of a pipeline in a step."""
    speeds: Mapping[int, float]
    """Speed of each traced rank; 1 is the speed of its peers, the same stage of other DP ranks."""


def running_job(observation: Observation, layers: Sequence[Sequence[int]]) -> RunningJob | None:
    """Return the time of a session's blocks and the speeds of its workers.

    Parameters
    ----------
    layers : sequence of sequences of int
        Layers of each chunk of each stage, embedding and head not counted. In a single chunk,
        embedding and head are not separable: their time is shared out among its blocks.

    Returns
    -------
    RunningJob or None
        None if the stages do not all compute the same microbatches, forward and backward.
    """
    levels = typical_pass_times(observation)
    if len(levels) < 2 or FORWARD_COMPUTE not in levels:  # noqa: PLR2004 - forward and backward
        return None
    if sum(map(len, layers)) > 1:
        costs = estimate_costs(observation, layers)
        if costs is None:
            return None
        blocks = dict(zip(costs.passes, np.median(costs.layer_ns, axis=1).tolist(), strict=True))
    else:
        blocks = {name: float(level.sum()) / layers[0][0] for name, level in levels.items()}
    forward_ns = blocks.pop(FORWARD_COMPUTE)
    passes = observation.passes[FORWARD_COMPUTE]
    typical = np.add.reduce([level.sum(axis=1) for level in levels.values()])
    taken = np.add.reduce([observation.passes[name].own_ns.sum(axis=1) for name in levels])
    return RunningJob(
        forward_ms=forward_ns * _MS_PER_NS,
        backward_ms=sum(blocks.values()) * _MS_PER_NS,
        microbatches=passes.nodes.shape[1] // max(len(layers[0]), 1),
        speeds=dict(
            zip(
                observation.layout.ranks.ravel().tolist(),
                np.asarray((typical[:, None] / np.maximum(taken, 1.0)).T).ravel().tolist(),
                strict=True,
            )
        ),
    )
