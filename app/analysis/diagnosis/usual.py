"""What of a computation's time belongs to its microbatch, and what to its worker.

A computation takes its worker's usual time, times a factor that its microbatch has on every stage
alike (sequence lengths), times what is left: a slow spell of the worker, or a single stall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.observation import (
    Observation,
    Passes,
    SingleArray,
    lower_median,
    sample,
    spread,
)
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import median, peers_median, quantiles
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

# Microbatches differ when their times on most DP ranks scatter by this much, and by several times
# what one microbatch scatters over the stages.
_LEAST_SCATTER: Final = 0.025
_SCATTER_TO_NOISE: Final = 2.0
# …and forward and backward follow each other.
_LEAST_CORRELATION: Final = 0.6
# So many standard errors of a median a worker can seem slow because of its microbatches.
_CHANCES: Final = 6.0
# Computations that are enough to tell whether lengths differ.
_ENOUGH: Final = 150_000


@dataclass(frozen=True, slots=True, eq=False)
class Usual:
    """Times taken apart.

    Parameters
    ----------
    lengths_differ : bool
        Whether microbatches have times of their own.
    microbatch : dict of float32 arrays, shape (passes, steps, dp)
        For each type the factor of the microbatch; 1 where `lengths_differ` is false.
    scatter : float
        Standard deviation of the microbatches' times, relative to their mean.
    correlation : float
        Of forward and backward factors.
    worker : dict of float64 arrays, shape (pp, steps, dp)
        For each type how many times as slow each worker is in each step as its stage's peers are
        over the session; all 1 with one DP rank but for what changes over the steps.
    left : dict of float32 arrays, shape (pp, passes, steps, dp)
        What is left of forward and backward, relative to the worker's usual time.
    noise : float
        Scatter of what is left.
    """

    lengths_differ: bool
    microbatch: dict[str, SingleArray]
    scatter: float
    correlation: float
    worker: dict[str, FloatArray]
    left: dict[str, SingleArray]
    noise: float


def slowness_by_stage(observation: Observation) -> dict[str, FloatArray]:
    """Return what `Usual.worker` is, each stage taken apart by itself.

    That is less: what is the microbatch's is told as with one stage.
    """
    stages = [
        take_apart(observation.passes_of(stage)).worker for stage in range(observation.layout.pp)
    ]
    return {name: np.concatenate([worker[name] for worker in stages]) for name in stages[0]}


def take_apart(passes: Mapping[str, Passes]) -> Usual:
    """Separate microbatches, workers and what is left of computations, given by type."""
    relative = {name: values.relative() for name, values in passes.items()}
    several = len(passes[BACKWARD_COMPUTE].nodes) > 1
    # Some of the steps tell whether lengths differ; only if they do, all are needed.
    every = max(1, relative[BACKWARD_COMPUTE].size // _ENOUGH)
    some = {name: values[:, :, ::every] for name, values in relative.items()}
    forward = lower_median(some[FORWARD_COMPUTE], axis=0)
    backward = lower_median(some[BACKWARD_COMPUTE], axis=0)
    scatter, by_lane = _scatter(backward)
    noise = spread((some[BACKWARD_COMPUTE] if several else forward) / backward)
    correlation = _correlation(forward, backward)
    differ = (
        by_lane >= max(_LEAST_SCATTER, _SCATTER_TO_NOISE * noise)
        and correlation >= _LEAST_CORRELATION
    )
    within = _within(relative, several=several) if differ else {}
    one = np.ones(relative[BACKWARD_COMPUTE].shape[1:], dtype=np.float32)
    left = relative
    for name, factor in within.items():
        left[name] /= factor
    microbatch, worker = {}, {}
    for name, values in passes.items():
        lasting = (values.own_ns / peers_median(values.own_ns)).mean(axis=1)
        by_chance = _by_chance(lasting, scatter, values) if differ else np.ones(lasting.shape[1])
        worker[name] = (lasting / by_chance)[:, None, :] * median(left[name].swapaxes(0, 1))
        microbatch[name] = within[name] * by_chance.astype(np.float32) if differ else one
    return Usual(differ, microbatch, scatter, correlation, worker, left, noise)


def _within(relative: dict[str, SingleArray], *, several: bool) -> dict[str, SingleArray]:
    """Return the factor of each microbatch within its DP rank: the same on all stages.

    With one stage the backward has it, which no stall of the interpreter lengthens.
    """
    if not several:
        return dict.fromkeys(relative, relative[BACKWARD_COMPUTE][0].copy())
    return {name: lower_median(values, axis=0) for name, values in relative.items()}


def _by_chance(lasting: FloatArray, scatter: float, passes: Passes) -> FloatArray:
    """Return how much longer the microbatches of each DP rank happen to be, shape (dp,).

    That is the same on all stages. With one stage it is what the number of microbatches allows; a
    rank that is beyond that has a slow worker.
    """
    if len(lasting) > 1:
        return lower_median(lasting, axis=0)
    _, count, steps, _ = passes.times_ns.shape
    error = 1.25 * scatter / np.sqrt(count * steps)
    likely = np.abs(lasting[0] - 1) <= max(_CHANCES * np.sqrt(2) * error, _LEAST_SCATTER)
    return np.where(likely, lasting[0], 1.0)


def _scatter(factor: SingleArray) -> tuple[float, float]:
    """Return the scatter of a DP rank's microbatches: of the mean, and of the middle DP rank.

    One DP rank whose worker has slow spells must not pass for lengths that differ everywhere.
    """
    lanes = factor.reshape(-1, factor.shape[-1])
    low, high = quantiles(lanes, (0.16, 0.84))
    by_lane = float(lower_median((high - low) / 2, axis=0))
    return float(factor.std() / factor.mean()), by_lane


def _correlation(forward: SingleArray, backward: SingleArray) -> float:
    """Return Pearson's r with outliers drawn in."""
    x, y = (
        np.clip(values, *quantiles(values, (0.02, 0.98)))
        for values in (sample(forward), sample(backward))
    )
    if x.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])
