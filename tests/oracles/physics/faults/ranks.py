"""Late context-parallel ranks, and experts that get more tokens than others."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tests.oracles.physics.faults.kind import Fault, Struck, some_steps, some_worker
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import Times, World, shared_evenly

_CONTEXT: Final = "context_parallel_straggler"
_EXPERTS: Final = "expert_parallel_imbalance"


def _has_contexts(shape: Shape) -> bool:
    return shape.cp > 1


def _has_experts(shape: Shape) -> bool:
    return shape.ep > 1


def _rank(world: World, rng: np.random.Generator, factor: Times) -> Struck:
    struck = world.copy()
    dp, pp = some_worker(world.shape, rng)
    struck.context_s[int(rng.integers(world.shape.cp)), pp, :, :, dp] *= factor
    return Struck(struck, frozenset({(dp, pp)}), pp)


def _constant(world: World, rng: np.random.Generator) -> Struck:
    return _rank(world, rng, np.full(world.shape.steps, rng.uniform(1.25, 2.5)))


def _by_spells(world: World, rng: np.random.Generator) -> Struck:
    slow = some_steps(world.shape, rng)
    return _rank(world, rng, np.where(slow, rng.uniform(1.5, 3.0), 1.0))


def _causal(world: World, rng: np.random.Generator) -> Struck:
    """Divide sequences into one piece for each rank: the last attends to all, and works most."""
    attention = float(rng.uniform(0.3, 0.8))
    cp = world.shape.cp
    pairs = (2 * np.arange(cp) + 1) / cp
    struck = world.copy()
    struck.context_s[:] *= (1 - attention + attention * pairs)[:, None, None, None, None]
    return Struck(struck)


def _sent(world: World, tokens: Times) -> Struck:
    even = np.ones_like(tokens)
    return Struck(
        replace(world.copy(), tokens=shared_evenly(world.shape, tokens)),
        without=replace(world.copy(), tokens=even),
    )


def _favorites(world: World, rng: np.random.Generator) -> Struck:
    """Send more tokens to some experts of each stage in all microbatches."""
    shape = world.shape
    spread = rng.uniform(0.4, 1.0)
    liked = np.exp(rng.normal(0, spread, (shape.pp, shape.ep)))
    by_rank = np.tile(liked, shape.dp // shape.ep)
    return _sent(world, world.tokens * by_rank[:, None, None, None, None, :])


def _by_text(world: World, rng: np.random.Generator) -> Struck:
    """Send more tokens to other experts in each microbatch, and the same in its backward pass."""
    shape = world.shape
    spread = rng.uniform(0.4, 0.9)
    size = (shape.pp, shape.vpp, shape.microbatches, 1, *shape.lanes)
    return _sent(world, world.tokens * np.exp(rng.normal(0, spread, size)))


RANKS: Final = (
    Fault("context rank", _CONTEXT, _constant, _has_contexts),
    Fault("context rank by spells", _CONTEXT, _by_spells, _has_contexts),
    Fault("causal division", _CONTEXT, _causal, _has_contexts),
    Fault("favorite experts", _EXPERTS, _favorites, _has_experts, shares_experts=True),
    Fault("experts by text", _EXPERTS, _by_text, _has_experts, shares_experts=True),
)
