"""Microbatches whose sequences have different costs (what-if paper, section 5.3, figure 10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from tests.oracles.physics.faults.kind import Fault, Struck
from tests.oracles.physics.world import World

_CAUSE: Final = "sequence_length_imbalance"
_FULL: Final = 8192

Packing = Callable[[], list[int]]


def sequences_cost(world: World, rng: np.random.Generator, pack: Packing) -> Struck:
    """Set the time of each pass to (1 - a) Σs + a Σs² of the sequences in its microbatch."""
    shape = world.shape
    lengths = tuple(
        tuple(tuple(tuple(pack()) for _ in range(shape.microbatches)) for _ in range(shape.dp))
        for _ in range(shape.steps)
    )
    attention = float(rng.uniform(0.3, 0.9))

    def cost(sequences: tuple[int, ...]) -> float:
        share = np.asarray(sequences, dtype=float) / _FULL
        return float(((1 - attention) * share + attention * share**2).sum())

    costs = np.array([[[cost(mb) for mb in rank] for rank in step] for step in lengths])
    factor = np.moveaxis(costs / np.median(costs), 2, 0)[None, None]
    struck, without = world.copy(), world.copy()
    for changed, scale in ((struck, factor), (without, factor.mean())):
        changed.forward_s[:] *= scale
        changed.backward_s[:] *= scale
    return Struck(replace(struck, lengths=lengths), without=without)


def _packed(world: World, rng: np.random.Generator) -> Struck:
    """Fill every microbatch to the same number of tokens, with sequences of a heavy tail."""
    sigma = float(rng.uniform(0.9, 1.8))

    def pack() -> list[int]:
        left, found = _FULL, []
        while left > 0:
            length = min(left, max(64, int(rng.lognormal(np.log(_FULL / 10), sigma))))
            found.append(length)
            left -= length
        return found

    return sequences_cost(world, rng, pack)


def _uniform(world: World, rng: np.random.Generator) -> Struck:
    """Fill each microbatch with one sequence of random length."""
    low = int(_FULL * rng.uniform(0.1, 0.5))
    return sequences_cost(world, rng, lambda: [int(rng.integers(low, _FULL + 1))])


def _rare(world: World, rng: np.random.Generator) -> Struck:
    """Use the full length in a few of a hundred microbatches, a short one in all others."""
    share, short = float(rng.uniform(0.03, 0.12)), int(_FULL * rng.uniform(0.15, 0.5))

    def pack() -> list[int]:
        return [_FULL if rng.random() < share else int(short * rng.uniform(0.97, 1.03))]

    return sequences_cost(world, rng, pack)


LENGTHS: Final = (
    Fault("lengths packed", _CAUSE, _packed),
    Fault("lengths uniform", _CAUSE, _uniform),
    Fault("lengths rare", _CAUSE, _rare),
)
