"""Jobs with an embedding and a head, with two causes at once, and other rare kinds.

They test the gain of fixes. Scores of the diagnosis use jobs with one cause, and not these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from tests.oracles.physics.faults.computing import COMPUTING, evenly_divided, has_peers_and_stages
from tests.oracles.physics.faults.hosts import HOSTS
from tests.oracles.physics.faults.kind import Fault, Struck
from tests.oracles.physics.faults.lengths import sequences_cost
from tests.oracles.physics.faults.links import LINKS, has_links, slow_transfers
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import World

_STAGE: Final = "stage_imbalance"
_FULL: Final = 8192

_SINGLE: Final = {fault.name: fault for fault in (*COMPUTING, *HOSTS, *LINKS)}


def _layered(world: World, rng: np.random.Generator, *, first: bool, last: bool) -> Struck:
    """Divide a model without counting its embedding or head, sometimes nearly evenly.

    A head takes as long as several layers (Llama 3 405B gave the last stage one layer fewer for
    it).
    """
    shape = world.shape
    layers = np.full((shape.pp, shape.vpp), int(rng.integers(3, 17)))
    extra = np.zeros((2, shape.pp, shape.vpp))
    ratio = rng.uniform(0.5, 1.1)
    for end in [(0, 0)] * first + [(-1, -1)] * last:
        long = layers[end] * np.exp(rng.uniform(np.log(0.15), np.log(1.2)))
        extra[:, *end] = long, long * ratio
        if rng.random() < 0.3:
            layers[end] -= min(int(layers[end]) - 2, int(rng.integers(1, 3)))
    struck = world.copy()
    struck.surplus[:] = 1 + extra / layers
    factor = (layers + extra) / layers.mean()
    struck.forward_s[:] *= factor[0, :, :, None, None, None]
    struck.backward_s[:] *= factor[1, :, :, None, None, None]
    struck = replace(struck, layers=tuple(tuple(map(int, row)) for row in layers))
    stage = shape.pp - 1 if last else 0
    return Struck(struck, stage=stage, without=evenly_divided(struck, world), usual=struck)


def _head(world: World, rng: np.random.Generator) -> Struck:
    return _layered(world, rng, first=False, last=True)


def _embedding(world: World, rng: np.random.Generator) -> Struck:
    return _layered(world, rng, first=True, last=False)


def _both_ends(world: World, rng: np.random.Generator) -> Struck:
    return _layered(world, rng, first=True, last=True)


def _plain(world: World, rng: np.random.Generator) -> Struck:
    """Divide a model evenly, with its layers in the metadata."""
    layers = ((int(rng.integers(3, 17)),) * world.shape.vpp,) * world.shape.pp
    named = replace(world.copy(), layers=layers)
    return Struck(named, usual=named, without=world)


def _two(name: str, under: Callable[[World, np.random.Generator], Struck], over: str) -> Fault:
    """Return the kind of job with an uneven division of layers and another fault."""
    fault = _SINGLE[over]

    def strike(world: World, rng: np.random.Generator) -> Struck:
        divided = under(world, rng)
        struck = fault.strike(divided.world, rng)
        return replace(
            struck,
            without=divided.without,
            usual=divided.usual,
            stage=divided.stage if struck.stage is None else struck.stage,
        )

    def fits(shape: Shape) -> bool:
        return shape.pp > 1 and fault.fits(shape)

    return Fault(name, fault.cause, strike, fits)


def _both(one: str, other: str) -> Fault:
    """Return the kind of job with two faults, and an even division of layers in the metadata."""
    first, second = _SINGLE[one], _SINGLE[other]

    def strike(world: World, rng: np.random.Generator) -> Struck:
        divided = _plain(world, rng)
        struck = first.strike(divided.world, rng)
        twice = second.strike(struck.world, rng)
        return replace(
            twice, workers=struck.workers | twice.workers, without=world, usual=divided.usual
        )

    def fits(shape: Shape) -> bool:
        return first.fits(shape) and second.fits(shape)

    return Fault(f"{one} and {other}", first.cause, strike, fits)


def _spells_of_two(world: World, rng: np.random.Generator) -> Struck:
    """Slow two workers down, in independent spells."""
    divided = _plain(world, rng)
    struck = _SINGLE["worker by spells"].strike(divided.world, rng)
    twice = _SINGLE["worker by spells"].strike(struck.world, rng)
    return replace(
        twice, workers=struck.workers | twice.workers, without=world, usual=divided.usual
    )


def _very_rare(world: World, rng: np.random.Generator) -> Struck:
    """Use the full length in few microbatches of a session, and far shorter ones in all others."""
    share, short = float(rng.uniform(0.005, 0.05)), int(_FULL * rng.uniform(0.04, 0.2))

    def pack() -> list[int]:
        if rng.random() < share:
            return [_FULL]
        return [int(short * rng.uniform(0.97, 1.03))]

    return sequences_cost(world, rng, pack)


def _few_long(world: World, rng: np.random.Generator) -> Struck:
    """Fill all microbatches to the same number of tokens, a few with a single document."""
    share, short = float(rng.uniform(0.01, 0.08)), int(_FULL * rng.uniform(0.03, 0.12))

    def pack() -> list[int]:
        left, found = _FULL, []
        if rng.random() < share:
            found = [int(_FULL * rng.uniform(0.5, 1.0))]
            left -= found[0]
        while left > 0:
            found.append(min(left, max(32, int(short * rng.uniform(0.5, 1.5)))))
            left -= found[-1]
        return found

    return sequences_cost(world, rng, pack)


def _stage_network(world: World, rng: np.random.Generator) -> Struck:
    """Slow down all communication of a stage's workers, between stages and DP ranks."""
    shape = world.shape
    struck = world.copy()
    stage = int(rng.integers(shape.pp))
    for dp in range(shape.dp):
        slow_transfers(struck, stage, dp, float(np.median(world.forward_s) * rng.uniform(0.3, 0.8)))
    times = rng.uniform(2.0, 5.0)
    struck.gather_s[stage] *= times
    struck.scatter_s[stage] *= times
    return Struck(struck, frozenset((dp, stage) for dp in range(shape.dp)), stage)


def _saved(world: World, rng: np.random.Generator, *, ranks: int) -> Struck:
    """Write weights before every k-th step, on some DP ranks only."""
    shape = world.shape
    struck = world.copy()
    every = int(rng.integers(3, 9))
    step_s = float(np.median(world.forward_s)) * shape.microbatches * 3
    steps = np.arange(shape.steps) % every == int(rng.integers(every))
    wobble = rng.uniform(0.9, 1.1, (shape.pp, shape.steps, ranks))
    saving = steps[None, :, None] * step_s * rng.uniform(0.6, 2.0) * wobble
    first = rng.random() < 0.5
    struck.saving_s[0 if first else 1, :, :, :ranks] = saving
    (struck.before_s if first else struck.data_s)[:, :, :ranks] += saving
    return Struck(struck)


def _saved_by_first(world: World, rng: np.random.Generator) -> Struck:
    """Let the first DP rank write, as if weights are not sharded."""
    return _saved(world, rng, ranks=1)


def _saved_seldom(world: World, rng: np.random.Generator) -> Struck:
    return _saved(world, rng, ranks=world.shape.dp)


MIXED: Final = (
    Fault("head", _STAGE, _head, has_peers_and_stages),
    Fault("embedding", _STAGE, _embedding, has_peers_and_stages),
    Fault("embedding and head", _STAGE, _both_ends, has_peers_and_stages),
    _two("head and worker", _head, "worker constant"),
    _two("embedding and worker", _embedding, "worker constant"),
    _two("both ends and worker", _both_ends, "worker constant"),
    _two("head and worker by spells", _head, "worker by spells"),
    _two("head and worker from a step on", _head, "worker from a step on"),
    _two("head and heat", _head, "thermal throttling"),
    _two("head and data late", _head, "data late"),
    _two("head and gc", _head, "gc between kernels"),
    _two("head and link", _head, "link"),
    _two("worker, layers known", _plain, "worker constant"),
    _two("worker by spells, layers known", _plain, "worker by spells"),
    _two("two workers, layers known", _plain, "two workers"),
    _both("worker constant", "worker by spells"),
    _both("worker constant", "data late"),
    _both("worker constant", "checkpoints"),
    _both("worker constant", "link"),
    _both("worker constant", "gc before launches"),
    _both("checkpoints", "data late"),
    Fault("two workers by spells", "slow_worker", _spells_of_two, has_peers_and_stages),
    Fault("lengths very rare", "sequence_length_imbalance", _very_rare),
    Fault("few long documents", "sequence_length_imbalance", _few_long),
    Fault("network of a stage", "network", _stage_network, has_links),
    Fault("checkpoint of a rank", "checkpoint", _saved_by_first, lambda shape: shape.dp > 1),
    Fault("checkpoints seldom", "checkpoint", _saved_seldom),
)
