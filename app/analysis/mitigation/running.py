"""What a session says of the whole job that runs: its blocks' times, and how fast its workers are.

With the model's shape and the batch, which metadata say, this is what the plan of the whole job
takes as measured (`app.inputs.plans.session`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.layers.costs import estimate_costs, lasting_levels
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.trace.model import FORWARD_COMPUTE

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
