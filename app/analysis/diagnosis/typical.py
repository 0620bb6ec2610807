"""What of a computation's time belongs to its microbatch, and what to its worker.

A computation takes its worker's typical time, times a factor that its microbatch has on every stage
alike (sequence lengths), times a residual: a slow spell of the worker, or a single stall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.analysis.diagnosis.lengths.microbatches import (
    Difference,
    Microbatches,
    by_chance,
    chance,
    of_steps,
    take_off,
    tell_difference,
)
from app.analysis.diagnosis.lengths.recorded import RecordedLengths
from app.analysis.diagnosis.observation import Observation, Passes, SingleArray
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import peers_median


@dataclass(frozen=True, slots=True, eq=False)
class Typical:
    """Times taken apart."""

    difference: Difference  # whether microbatches have times of their own
    # For each type how long they take; empty where they do not differ.
    microbatches: dict[str, Microbatches]
    # (pp, steps, dp), by type: how many times as slow each worker is in each step as its stage's
    # peers are over the session; all 1 with one DP rank but for what changes over the steps.
    worker: dict[str, FloatArray]
    # (pp, passes, steps, dp): residuals of forward and backward over the worker's typical time.
    residual: dict[str, SingleArray]

    @property
    def noise(self) -> float:
        """Return the noise of the residuals."""
        return self.difference.noise


def slowness_by_stage(observation: Observation) -> dict[str, FloatArray]:
    """Return what `Typical.worker` is, each stage taken apart by itself.

    That is less: what is the microbatch's is told as with one stage.
    """
    stages = [
        take_apart(observation.passes_of(stage)).worker for stage in range(observation.layout.pp)
    ]
    return {name: np.concatenate([worker[name] for worker in stages]) for name in stages[0]}


def take_apart(passes: Mapping[str, Passes], lengths: RecordedLengths | None = None) -> Typical:
    """Separate microbatches, workers and residuals of computations, given by type."""
    residual = {name: values.relative() for name, values in passes.items()}
    by_step = {name: of_steps(values) for name, values in residual.items()}
    difference = tell_difference(residual, by_step, lengths)
    microbatches = {}
    if difference.differ:
        # changes the residuals
        microbatches = take_off(passes, residual, by_step, difference)
        by_step = {name: of_steps(values) for name, values in residual.items()}
    worker = {}
    for name, values in passes.items():
        lasting = (values.own_ns / peers_median(values.own_ns)).mean(axis=1)
        if difference.differ:
            error = chance(difference.scatter, values, lasting=True)
            longer = by_chance(lasting, difference.rise[name], error)
            own = microbatches[name]
            for stage, of_stage in enumerate(lasting):
                of_stage /= own.on(stage, longer)  # noqa: PLW2901 - in place
            # One median of all DP ranks: those above it have other peers than those below.
            level = (values.own_ns / np.median(values.own_ns, axis=-1, keepdims=True)).mean(axis=1)
            microbatches[name] = own.times(by_chance(level, difference.rise[name], error))
        worker[name] = lasting[:, None, :] * by_step[name].astype(np.float64)
    return Typical(difference, microbatches, worker, residual)
