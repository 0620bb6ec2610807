"""Faults between steps: loaders, checkpoints, evaluations, recorded or not.

Loaders stall when a shard or a buffer is exhausted: irregularly, or with their own period.
Checkpoints and evaluations occur at a fixed interval.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.oracles.physics.faults.kind import Fault, Struck
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import Times, World

_DATA: Final = "data_loading"


def _step_s(world: World) -> float:
    shape = world.shape
    computing_s = float(np.median(world.forward_s) + np.median(world.backward_s)) * shape.vpp
    return computing_s * (shape.microbatches + shape.pp - 1)


def _every(world: World, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return every k-th step without the first one, before which nothing is recorded."""
    steps = world.shape.steps
    every = int(rng.integers(3, max(4, steps // 2)))
    first = int(rng.integers(1, every + 1)) % every
    struck: NDArray[np.bool_] = np.arange(steps) % every == first
    struck[0] = False
    return struck


def _unevenly(world: World, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a few random steps."""
    steps = world.shape.steps
    struck = np.zeros(steps, dtype=bool)
    struck[1 + rng.permutation(steps - 1)[: int(rng.integers(1, 2 + steps // 5))]] = True
    return struck


def _lasting(world: World, struck: NDArray[np.bool_], rng: np.random.Generator) -> Times:
    """Return the pause of each worker, shape (pp, steps, dp)."""
    shape = world.shape
    mean_s = _step_s(world) * float(rng.uniform(0.15, 0.8)) / float(struck.mean())
    each = rng.uniform(0.9, 1.1, (1, shape.steps, 1)) * rng.uniform(0.97, 1.03, (shape.pp, 1, 1))
    own = rng.uniform(0.98, 1.02, (shape.pp, *shape.lanes))
    return np.asarray(struck[None, :, None] * mean_s * each * own)


def _recorded(world: World, rng: np.random.Generator, name: str, between_s: Times) -> Struck:
    ends = bool(rng.random() < 0.5)
    return Struck(replace(world.copy(), between_s=between_s, between=name, between_ends_step=ends))


def _loaders(world: World, rng: np.random.Generator) -> Struck:
    struck = (_every if rng.random() < 0.5 else _unevenly)(world, rng)
    return _recorded(world, rng, "data-loading", _lasting(world, struck, rng))


def _loader_of_a_rank(world: World, rng: np.random.Generator) -> Struck:
    """Delay a rank's loader in some steps; the others wait for it at their next collective."""
    lasts_s = _lasting(world, _every(world, rng), rng)
    rank = int(rng.integers(world.shape.dp))
    others = np.arange(world.shape.dp) != rank
    lasts_s[..., others] = 0.0
    return _recorded(world, rng, "data-loading", lasts_s)


def _checkpoints(world: World, rng: np.random.Generator) -> Struck:
    return _recorded(world, rng, "checkpoint", _lasting(world, _every(world, rng), rng))


def _evaluations(world: World, rng: np.random.Generator) -> Struck:
    return _recorded(world, rng, "evaluation", _lasting(world, _every(world, rng), rng))


def _nothing_recorded(world: World, rng: np.random.Generator) -> Struck:
    struck = (_every if rng.random() < 0.5 else _unevenly)(world, rng)
    return Struck(replace(world.copy(), between_s=_lasting(world, struck, rng)))


def _has_ranks(shape: Shape) -> bool:
    return shape.dp > 1


BETWEEN: Final = (
    Fault("loaders stall", _DATA, _loaders, between=True),
    Fault("loader of a rank stalls", _DATA, _loader_of_a_rank, _has_ranks),
    Fault("checkpoints between steps", "checkpoint", _checkpoints, between=True),
    Fault("evaluations", "evaluation", _evaluations, between=True),
    Fault("standstills", "between_steps", _nothing_recorded, between=True),
)
