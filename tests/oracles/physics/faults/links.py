"""Slow links and switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tests.oracles.physics.faults.kind import Fault, Struck, some_steps, some_worker
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import World

_NETWORK: Final = "network"
_CONGESTION: Final = "network_congestion"


def has_links(shape: Shape) -> bool:
    """Return whether links between stages have other links to be compared with."""
    return shape.pp > 1 and shape.dp > 1


def _has_chunks(shape: Shape) -> bool:
    return shape.vpp > 2 and shape.dp > 1


def _extra_s(world: World, rng: np.random.Generator) -> float:
    """Return the additional time of a transfer on a slow link: a few passes."""
    return float(np.median(world.forward_s) * rng.uniform(0.4, 2.0))


def _between(world: World, lower: int) -> list[int]:
    """Return the boundaries between chunks whose transfers use the link after a stage."""
    shape = world.shape
    return [at for at in range(shape.pp * shape.vpp - 1) if at % shape.pp == lower]


def _link(world: World, rng: np.random.Generator) -> Struck:
    struck = world.copy()
    rank, extra_s = int(rng.integers(world.shape.dp)), _extra_s(world, rng)
    lower = int(rng.integers(world.shape.pp - 1))
    for at in _between(world, lower):
        struck.activation_s[at, ..., rank] += extra_s
        struck.gradient_s[at, ..., rank] += extra_s
    return Struck(struck, frozenset({(rank, lower), (rank, lower + 1)}))


def _link_by_spells(world: World, rng: np.random.Generator) -> Struck:
    struck = world.copy()
    rank, extra_s = int(rng.integers(world.shape.dp)), 1.5 * _extra_s(world, rng)
    slow = some_steps(world.shape, rng)
    lower = int(rng.integers(world.shape.pp - 1))
    for at in _between(world, lower):
        struck.activation_s[at, :, slow, rank] += extra_s
        struck.gradient_s[at, :, slow, rank] += extra_s
    return Struck(struck, frozenset({(rank, lower), (rank, lower + 1)}))


def _half(world: World, rng: np.random.Generator) -> Struck:
    """Slow down the links of half of the DP ranks."""
    struck = world.copy()
    dp, extra_s = world.shape.dp, _extra_s(world, rng)
    ranks = rng.permutation(dp)[: (dp + 1) // 2]
    struck.activation_s[..., ranks] += extra_s
    struck.gradient_s[..., ranks] += extra_s
    workers = {(int(rank), stage) for rank in ranks for stage in range(world.shape.pp)}
    return Struck(struck, frozenset(workers))


def _card(world: World, rng: np.random.Generator) -> Struck:
    """Slow down all communication of one worker."""
    struck, extra_s = world.copy(), _extra_s(world, rng)
    dp, pp = some_worker(world.shape, rng)
    slow_transfers(struck, pp, dp, extra_s)
    return Struck(struck, frozenset({(dp, pp)}))


def slow_transfers(struck: World, pp: int, dp: int, extra_s: float) -> None:
    """Slow down, in place, all transfers between stages of one worker."""
    for lower in (pp - 1, pp):
        for at in _between(struck, lower % struck.shape.pp) if lower >= 0 else []:
            struck.activation_s[at, ..., dp] += extra_s
            struck.gradient_s[at, ..., dp] += extra_s


def _collectives(world: World, rng: np.random.Generator) -> Struck:
    struck = world.copy()
    stage = int(rng.integers(world.shape.pp))
    step_s = float(np.median(world.forward_s)) * world.shape.microbatches * 3
    extra_s = step_s * rng.uniform(0.1, 0.5) / world.shape.vpp
    struck.gather_s[stage] += extra_s
    struck.scatter_s[stage] += extra_s
    return Struck(struck, stage=stage)


def _group(world: World, rng: np.random.Generator) -> Struck:
    """Slow down the collectives of one of two groups that each shard the weights."""
    shape = replace(world.shape, groups=2)
    healthy, struck = (replace(world.copy(), shape=shape) for _ in range(2))
    first = int(rng.integers(2)) * shape.dp // 2
    ranks = range(first, first + shape.dp // 2)
    step_s = float(np.median(world.forward_s)) * shape.microbatches * 3
    struck.of_group_s[0, ranks] += step_s * rng.uniform(0.1, 0.3)
    return Struck(struck, frozenset((dp, 0) for dp in ranks), without=healthy)


def _has_groups(shape: Shape) -> bool:
    return shape.pp == 1 and shape.dp > 2 and shape.dp % 2 == 0 and shape.scatter_recorded


def _congestion(world: World, rng: np.random.Generator) -> Struck:
    """Slow down all links in some steps, the same on every rank."""
    struck = world.copy()
    phase = rng.uniform(0, 2 * np.pi)
    hours = np.linspace(0, rng.uniform(1, 2.5) * 2 * np.pi, world.shape.steps)
    level = np.clip(np.sin(hours + phase), 0, None)[:, None]
    extra_s = _extra_s(world, rng) * level
    struck.activation_s[:] += extra_s
    struck.gradient_s[:] += extra_s
    times = 1 + 4 * level[:, 0]
    struck.gather_s[:] *= times
    struck.scatter_s[:] *= times
    return Struck(struck)


LINKS: Final = (
    Fault("link", _NETWORK, _link, has_links),
    Fault("link by spells", _NETWORK, _link_by_spells, has_links),
    Fault("link with many chunks", _NETWORK, _link, _has_chunks),
    Fault("half of the links", _NETWORK, _half, lambda shape: shape.pp > 1 and shape.dp > 1),
    Fault("network card", _NETWORK, _card, has_links),
    Fault("collectives of a stage", _NETWORK, _collectives, has_links),
    Fault("collectives of a group", _NETWORK, _group, _has_groups),
    Fault("congestion by the hour", _CONGESTION, _congestion, lambda shape: shape.pp > 1),
)
