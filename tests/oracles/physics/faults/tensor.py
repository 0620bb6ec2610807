"""Ranks of a tensor-parallel group that are late to its collectives."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.oracles.physics.faults.kind import Fault, Struck, some_steps, some_worker
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import Times, World

_STRAGGLER: Final = "tensor_parallel_straggler"
_MEMORY: Final = "memory_fragmentation"


def _traced(shape: Shape) -> bool:
    return shape.tensor_traced and shape.tp > 1


def _rank(world: World, rng: np.random.Generator, factor: Times) -> Struck:
    struck = world.copy()
    dp, pp = some_worker(world.shape, rng)
    struck.rank_s[int(rng.integers(world.shape.tp)), pp, :, :, dp] *= factor
    return Struck(struck, frozenset({(dp, pp)}), pp)


def _constant(world: World, rng: np.random.Generator) -> Struck:
    return _rank(world, rng, np.full(world.shape.steps, rng.uniform(1.25, 2.5)))


def _by_spells(world: World, rng: np.random.Generator) -> Struck:
    slow = some_steps(world.shape, rng)
    return _rank(world, rng, np.where(slow, rng.uniform(1.5, 3.0), 1.0))


def _fragmented(world: World, rng: np.random.Generator, chance: Times) -> Struck:
    """Let random ranks of one worker allocate memory from the driver during forward passes."""
    shape = world.shape
    struck = world.copy()
    dp, pp = some_worker(shape, rng)
    size = (shape.vpp, shape.microbatches, shape.steps)
    late = rng.random(size) < chance
    who = rng.integers(shape.tp, size=size)
    length_s = float(np.median(world.forward_s)) * rng.uniform(0.8, 2.5)
    for rank in range(shape.tp):
        wobble = rng.uniform(0.7, 1.3, size)
        struck.late_s[rank, pp, ..., dp] += (late & (who == rank)) * length_s * wobble
    return Struck(struck, frozenset({(dp, pp)}), pp)


def _always(world: World, rng: np.random.Generator) -> Struck:
    return _fragmented(world, rng, np.full(world.shape.steps, rng.uniform(0.3, 0.9)))


def _sometimes(world: World, rng: np.random.Generator) -> Struck:
    slow = some_steps(world.shape, rng)
    return _fragmented(world, rng, np.where(slow, rng.uniform(0.5, 0.95), 0.0))


TENSOR: Final = (
    Fault("tensor rank", _STRAGGLER, _constant, _traced),
    Fault("tensor rank by spells", _STRAGGLER, _by_spells, _traced),
    Fault("fragmented memory", _MEMORY, _always, _traced),
    Fault("fragmented memory by spells", _MEMORY, _sometimes, _traced),
)
