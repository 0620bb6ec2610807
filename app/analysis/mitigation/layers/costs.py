"""Costs of layers, embedding and head from the typical stage times of a session, ns.

A chunk of n layers has n equal ones. The time of the first and last chunk beyond layers at the
usual price is the embedding and the head. Chunks between them with another price hold layers of
another kind. The plan of a whole running job takes its measured costs from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.analysis.diagnosis.observation import Observation, lower_median
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, WGRAD_COMPUTE

# ---- What the layers of a model take, and its embedding and its head: from lasting times of stages
#
# A chunk of n layers gives n equal ones. What the first and the last chunk take beyond layers
# priced like the cheapest of them and like those between is the embedding and the head. Chunks
# between that take more or less a layer than the others hold layers of another kind, which keep
# what they take wherever they go.


# Chunks whose layers take the same but for noise.
_ALIKE: Final = 0.04
# Chunks of a model that may have an embedding or a head.
_ENDS: Final = 2
# What is shorter is no time.
_LEAST_NS: Final = 1.0
# In which a chunk computes.
PASSES: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE)
# The field of the metadata that says what stages can hold, and what stands for no limit.
KEY: Final = "max_layers"
_ANY: Final = 1 << 30

Place = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class LayerCosts:
    """What the chunks of a model take in a pass, and what they would take with other layers."""

    # tuple of (stage, chunk): in the order in which a forward goes through them
    places: tuple[Place, ...]
    layers: IntArray  # (places,): layers of each today
    passes: tuple[str, ...]  # types of computations
    level_ns: FloatArray  # (passes, places): what each chunk takes, lastingly
    layer_ns: FloatArray  # (passes, total layers): what each layer takes, in the order of the model
    # (passes, places): what a chunk takes beyond its layers: the embedding of the first, the
    # head of the last
    extra_ns: FloatArray

    def times_ns(self, layers: IntArray) -> FloatArray:
        """Return what chunks of these numbers of layers take, shape (passes, places).

        What a chunk takes today beyond what its layers cost anywhere stays its own.
        """
        return np.asarray(self._modelled(layers) * self.own())

    def own(self) -> FloatArray:
        """Return what chunks take today over what their layers cost anywhere."""
        return np.asarray(self.level_ns / np.maximum(self._modelled(self.layers), _LEAST_NS))

    def _modelled(self, layers: IntArray) -> FloatArray:
        ends = np.cumsum(layers)
        total = np.concatenate(
            [np.zeros((len(self.layer_ns), 1)), np.cumsum(self.layer_ns, axis=1)], axis=1
        )
        return np.asarray(total[:, ends] - total[:, ends - layers] + self.extra_ns)

    @property
    def told_apart(self) -> bool:
        """Return whether a chunk without embedding and head shows what its layers alone take.

        Else it is assumed that the cheaper end has neither; where both have, a layer takes less,
        and moving one brings less. Ends that take the same a layer have nothing to be told apart.
        """
        if len(self.places) > _ENDS:
            return True
        blocks = self.level_ns.sum(axis=0) / self.layers
        return bool(np.ptp(blocks) <= _ALIKE * blocks.min())

    @property
    def median_layer_ns(self) -> float:
        """Return what the median layer takes of a microbatch, forward and backward."""
        return float(np.median(self.layer_ns.sum(axis=0)))

    @property
    def embedding_ns(self) -> float:
        """Return what the embedding takes of a microbatch."""
        return float(self.extra_ns[:, 0].sum())

    @property
    def head_ns(self) -> float:
        """Return what the head and the loss take of a microbatch."""
        return float(self.extra_ns[:, -1].sum())


def lasting_levels(observation: Observation) -> dict[str, FloatArray]:
    """Return what a pass takes on each stage and chunk, shape (pp, chunks), by type.

    The median over microbatches and steps, and the lower median over DP ranks: neither a slow
    worker nor a spell of one makes a stage heavy.
    """
    return {
        name: lower_median(passes.own_ns, axis=2)
        for name, passes in observation.passes.items()
        if name in PASSES
    }


def estimate_costs(observation: Observation, layers: Sequence[Sequence[int]]) -> LayerCosts | None:
    """Return what layers take, given those of each chunk of each stage.

    None where stages cannot be compared, or there is one chunk.
    """
    levels = lasting_levels(observation)
    if not levels:
        return None
    shape = next(iter(levels.values())).shape
    places = _in_order(observation, shape)
    if len(places) <= 1 or shape != (len(layers), len(layers[0])):
        return None
    counts = np.array([layers[stage][chunk] for stage, chunk in places], dtype=np.int64)
    level_ns = np.array([[level[place] for place in places] for level in levels.values()])
    rates, extra_ns = _rates(level_ns, counts)
    return LayerCosts(
        places=places,
        layers=counts,
        passes=tuple(levels),
        level_ns=level_ns,
        layer_ns=np.repeat(rates, counts, axis=1),
        extra_ns=extra_ns,
    )


def _in_order(observation: Observation, shape: tuple[int, ...]) -> tuple[Place, ...]:
    """Return stage and chunk of each part of the model, in the order of a forward.

    Empty where the model is there twice, once for each direction that microbatches come from.
    """
    stages, chunks = shape
    in_turn = tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages))
    routes = observation.layout.routes
    whole = [tuple(route) for route in routes if sorted(route) == sorted(in_turn)]
    return whole[0] if whole else () if routes else in_turn


def _rates(level_ns: FloatArray, layers: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return what a layer of each chunk takes, and what the ends take beyond layers."""
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
class Room:
    """The most layers that each stage can hold."""

    stage: IntArray  # (places,): stage of each place of the model
    layers: IntArray  # (stages,): the most that fits
    known: bool  # whether the metadata say so

    def most(self, place: int) -> int:
        """Return the most layers of one chunk."""
        return int(self.layers[self.stage[place]])


def room_of(extra: Mapping[str, Any], costs: LayerCosts) -> Room:
    """Return what the metadata of a session say of the memory of its stages.

    ``max_layers`` is a number, or a list with one for each stage. A stage that holds more today
    holds what it holds.
    """
    stage = np.array([stage for stage, _ in costs.places])
    stages = int(stage.max()) + 1
    given = extra.get(KEY)
    numbers = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if numbers is None:
        numbers = [given] * stages
    known = len(numbers) == stages and all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers
    )
    layers = np.array(numbers if known else [_ANY] * stages, dtype=np.int64)
    today = np.bincount(stage, weights=costs.layers, minlength=stages).astype(np.int64)
    return Room(stage, np.maximum(layers, today), known)


# ---- What a session says of the whole job that runs: its blocks' times, and how fast its workers a
#
# With the model's shape and the batch, which metadata say, this is what the plan of the whole job
# takes as measured (`app.plans.specs.session`).


_MS_PER_NS = 1e-6


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The measured part of a job as it runs."""

    forward_ms: float
    """The median block's forward pass of one microbatch, on workers that are not slow."""
    backward_ms: float
    """The same of its backward pass, with gradients of weights."""
    microbatches: int
    """Of a pipeline in a step."""
    speeds: Mapping[int, float]
    """By traced rank; 1 is that of its peers, the same stage of other DP ranks."""


def running_job(observation: Observation, layers: Sequence[Sequence[int]]) -> RunningJob | None:
    """Return what a session's blocks take and how fast its workers are.

    Parameters
    ----------
    layers : sequence of sequences of int
        Of each chunk of each stage, embedding and head not counted. Of a single chunk, embedding
        and head are told from no block: they are shared out among its blocks.

    Returns
    -------
    RunningJob or None
        None where the stages do not all compute the same microbatches, forward and backward.
    """
    levels = lasting_levels(observation)
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
    return RunningJob(
        forward_ms=forward_ns * _MS_PER_NS,
        backward_ms=sum(blocks.values()) * _MS_PER_NS,
        microbatches=passes.nodes.shape[1] // max(len(layers[0]), 1),
        speeds=dict(
            zip(
                observation.layout.ranks.ravel().tolist(),
                _speeds(observation, levels).ravel().tolist(),
                strict=True,
            )
        ),
    )


def _speeds(observation: Observation, levels: Mapping[str, FloatArray]) -> FloatArray:
    """Return speeds of workers, shape (dp, pp)."""
    typical = np.add.reduce([level.sum(axis=1) for level in levels.values()])
    taken = np.add.reduce([observation.passes[name].own_ns.sum(axis=1) for name in levels])
    return np.asarray((typical[:, None] / np.maximum(taken, 1.0)).T)
