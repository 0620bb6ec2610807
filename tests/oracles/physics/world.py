"""The times of a job's operations before it is executed."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.oracles.physics.shape import Schedule, Shape

Times = NDArray[np.float64]

_MS: Final = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Times of a job in seconds; faults make another world of one.

    Parameters
    ----------
    shape : Shape
    forward_s, backward_s : arrays, shape (pp, vpp, microbatches, steps, dp)
        Computing of each pass.
    activation_s, gradient_s : arrays, shape (pp * vpp - 1, microbatches, steps, dp)
        Moving of each transfer once both ends are there; index: the boundary between chunks.
    gather_s, scatter_s : arrays, shape (pp, vpp, steps)
        Collectives over the DP ranks.
    of_group_s : array, shape (pp, dp)
        What each of these takes longer in the group of a rank.
    clip_s : array, shape (steps,)
    optimizer_s : array, shape (pp, steps, dp)
    launch_s : array, shape (pp, vpp, microbatches, 2, steps, dp)
        What the host takes to launch a pass (forward, backward).
    pause_s : array, the same shape
        Pauses of the host within the launching of a pass.
    before_s, data_s : arrays, shape (pp, steps, dp)
        Waiting of the host before the step's gathering, and after it before the first pass.
    between_s : array, shape (pp, steps, dp)
        What the host does between the step before and this one, ahead of `before_s`.
    saving_s : array, shape (2, pp, steps, dp)
        What of `before_s` and of `data_s` is the writing of checkpoints.
    rank_s : array, shape (tp, pp, 2, steps, dp)
        Factors of tensor-parallel ranks' computing (forward, backward).
    late_s : array, shape (tp, pp, vpp, microbatches, steps, dp)
        What a tensor-parallel rank is late for the collective of a forward pass.
    context_s : array, shape (cp, pp, 2, steps, dp)
        Factors of context-parallel ranks' computing (forward, backward).
    tokens : array, shape (pp, vpp, microbatches, 2, steps, dp)
        What the experts of a rank are sent, ÷ the mean of the ranks that share experts.
    weights : float
        Share of a backward that the gradients of the weights are.
    surplus : array, shape (2, pp, vpp)
        What a chunk takes (forward, backward), ÷ what as many plain layers would. On the first and
        the last chunk that is an embedding and a head; between them its layers are heavy.
    lengths : tuple or None
        Lengths of sequences as [step][dp][microbatch][sequence], where they differ.
    layers : tuple or None
        Layers of each chunk of each stage, as the metadata name them.
    between : str or None
        What ranks record of `between_s`; None where they record nothing.
    between_ends_step : bool
        Whether they record it as the end of the step before, and not as the begin of the next.
    """

    shape: Shape
    forward_s: Times
    backward_s: Times
    activation_s: Times
    gradient_s: Times
    gather_s: Times
    scatter_s: Times
    of_group_s: Times
    clip_s: Times
    optimizer_s: Times
    launch_s: Times
    pause_s: Times
    before_s: Times
    data_s: Times
    between_s: Times
    saving_s: Times
    rank_s: Times
    late_s: Times
    context_s: Times
    tokens: Times
    surplus: Times
    weights: float = 0.0
    lengths: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...] | None = field(default=None)
    layers: tuple[tuple[int, ...], ...] | None = None
    between: str | None = None
    between_ends_step: bool = False

    def computing_s(self, direction: str, place: tuple[int, int, int]) -> Times:
        """Return the computing time of a pass, shape (steps, dp)."""
        if direction == "FORWARD":
            return np.asarray(self.forward_s[place])
        share = self.weights if direction == "WEIGHTS" else 1 - self.weights
        return np.asarray(self.backward_s[place] * share)

    def copy(self) -> World:
        """Return a world whose times can be changed in place."""
        return copy.deepcopy(self)


def draw_world(shape: Shape, rng: np.random.Generator) -> World:
    """Draw the times of a healthy job."""
    passes, lanes = shape.passes, shape.lanes
    mean_s = rng.uniform(4.0, 60.0) * _MS
    ratio = rng.uniform(1.5, 2.4)
    spread = rng.uniform(0.002, 0.02)
    # Layers cannot be divided exactly, and GPUs differ from each other.
    chunk = 1 + rng.uniform(-0.008, 0.008, (shape.pp, shape.vpp, 1, 1, 1))
    silicon = 1 + rng.normal(0, rng.uniform(0.001, 0.005), (shape.pp, 1, 1, 1, shape.dp))
    silicon = np.clip(silicon, 0.985, 1.015)

    def computing(base_s: float) -> Times:
        noise = np.exp(rng.normal(0, spread, passes))
        hiccup = rng.random(passes) < rng.uniform(0, 0.002)
        return np.asarray(base_s * chunk * silicon * noise * np.where(hiccup, 1.15, 1.0))

    moving_s = rng.uniform(0.02, 0.12) * mean_s
    wobble = rng.uniform(0.02, 0.15)

    def moving(scale_s: float, size: tuple[int, ...]) -> Times:
        return np.asarray(scale_s * np.exp(rng.normal(0, wobble, size)))

    boundaries = (shape.pp * shape.vpp - 1, shape.microbatches, *lanes)
    collective_s = rng.uniform(0.2, 1.5) * mean_s
    launches = (shape.pp, shape.vpp, shape.microbatches, 2, *lanes)
    host = (shape.pp, *lanes)
    ranks = (shape.tp, shape.pp, 2, *lanes)
    late = (shape.tp, *passes)
    return World(
        shape=shape,
        forward_s=computing(mean_s),
        backward_s=computing(mean_s * ratio),
        activation_s=moving(moving_s, boundaries),
        gradient_s=moving(moving_s, boundaries),
        gather_s=moving(collective_s, (shape.pp, shape.vpp, shape.steps)),
        scatter_s=moving(collective_s * rng.uniform(1, 2), (shape.pp, shape.vpp, shape.steps)),
        of_group_s=np.zeros((shape.pp, shape.dp)),
        clip_s=moving(0.05 * mean_s, (shape.steps,)),
        optimizer_s=moving(rng.uniform(0.1, 0.6) * mean_s, host),
        launch_s=moving(rng.uniform(0.01, 0.12) * mean_s, launches),
        pause_s=np.zeros(launches),
        before_s=moving(rng.uniform(0.002, 0.03) * mean_s, host),
        data_s=moving(rng.uniform(0.002, 0.03) * mean_s, host),
        between_s=np.zeros(host),
        saving_s=np.zeros((2, *host)),
        rank_s=1 - np.abs(rng.normal(0, 0.004, ranks)),
        late_s=np.abs(rng.normal(0, 0.002 * mean_s, late)),
        context_s=1 - np.abs(rng.normal(0, 0.004, (shape.cp, shape.pp, 2, *lanes))),
        tokens=shared_evenly(shape, np.exp(rng.normal(0, 0.01, launches))),
        surplus=np.ones((2, shape.pp, shape.vpp)),
        weights=0.0 if shape.schedule is not Schedule.ZERO_BUBBLE else rng.uniform(0.35, 0.5),
    )


def shared_evenly(shape: Shape, tokens: Times) -> Times:
    """Return tokens, by DP rank last, relative to the mean of the ranks that share experts."""
    groups = tokens.reshape(*tokens.shape[:-1], shape.dp // shape.ep, shape.ep)
    return np.asarray((groups / groups.mean(axis=-1, keepdims=True)).reshape(tokens.shape))
