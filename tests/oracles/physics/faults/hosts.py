"""Hosts that launch late: garbage collection, data, checkpoints, slow processors."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.oracles.physics.faults.kind import Fault, Struck
from tests.oracles.physics.world import Times, World

_GC: Final = "garbage_collection"
_DATA: Final = "data_loading"
_CHECKPOINT: Final = "checkpoint"
_OVERHEAD: Final = "host_overhead"


def _pauses(world: World, rng: np.random.Generator) -> Times:
    """Return pauses at random forward passes of each worker: shape (pp, vpp, mb, steps, dp)."""
    shape = world.shape
    mean_s = float(np.median(world.forward_s))
    length_s = mean_s * rng.uniform(1.5, 6.0)
    chance = rng.uniform(0.25, 1.0) / (shape.microbatches * shape.vpp)
    struck = rng.random(shape.passes) < chance
    return np.asarray(struck * length_s * rng.uniform(0.8, 1.2, shape.passes))


def _gc_kernels(world: World, rng: np.random.Generator) -> Struck:
    """Pause between two kernels of a forward pass."""
    struck = world.copy()
    struck.pause_s[..., 0, :, :] += _pauses(world, rng)
    return Struck(struck)


def _gc_launches(world: World, rng: np.random.Generator) -> Struck:
    """Pause before a forward pass is launched, so that none of its kernels can start."""
    struck = world.copy()
    struck.launch_s[..., 0, :, :] += _pauses(world, rng)
    return Struck(struck)


def _gc_growing(world: World, rng: np.random.Generator) -> Struck:
    struck = world.copy()
    growth = np.linspace(0.5, rng.uniform(1.5, 2.5), world.shape.steps)[:, None]
    struck.pause_s[..., 0, :, :] += _pauses(world, rng) * growth
    return Struck(struck)


def _waits(world: World, rng: np.random.Generator) -> Times:
    """Return the delays of reading a batch: shape (steps, dp)."""
    step_s = float(np.median(world.forward_s)) * world.shape.microbatches * 3
    length_s = step_s * rng.uniform(0.12, 0.6)
    often = rng.uniform(0.5, 1.0)
    lanes = world.shape.lanes
    struck = rng.random((lanes[0], 1)) < often
    return np.asarray(struck * length_s * rng.uniform(0.7, 1.3, lanes))


def _data(world: World, rng: np.random.Generator) -> Struck:
    struck = world.copy()
    struck.data_s[0] += _waits(world, rng)
    return Struck(struck, stage=0)


def _data_one_rank(world: World, rng: np.random.Generator) -> Struck:
    struck = world.copy()
    rank = int(rng.integers(world.shape.dp))
    struck.data_s[0, :, rank] += _waits(world, rng)[:, rank]
    return Struck(struck, stage=0)


def _data_before(world: World, rng: np.random.Generator) -> Struck:
    """Read the batch before the parameters are gathered."""
    struck = world.copy()
    struck.before_s[0] += _waits(world, rng)
    return Struck(struck, stage=0)


def _checkpoint(world: World, rng: np.random.Generator) -> Struck:
    """Write weights on every stage before every k-th step."""
    struck = world.copy()
    every = int(rng.integers(3, 6))
    step_s = float(np.median(world.forward_s)) * world.shape.microbatches * 3
    length_s = step_s * rng.uniform(0.6, 2.0)
    steps = np.arange(world.shape.steps) % every == int(rng.integers(every))
    wobble = rng.uniform(0.9, 1.1, (world.shape.pp, *world.shape.lanes))
    struck.saving_s[1] = steps[None, :, None] * length_s * wobble
    struck.data_s[:] += struck.saving_s[1]
    return Struck(struck)


def _launching(world: World, rng: np.random.Generator) -> Struck:
    """Launch slower than the devices compute, on all hosts."""
    struck = world.copy()
    mean_s = float(np.median(world.forward_s))
    struck.launch_s[:] += (
        mean_s * rng.uniform(1.6, 3.0) * rng.uniform(0.9, 1.1, struck.launch_s.shape)
    )
    return Struck(struck)


def _launching_host(world: World, rng: np.random.Generator) -> Struck:
    """Launch slower than the devices compute, on one host."""
    shape = world.shape
    struck = world.copy()
    mean_s = float(np.median(world.forward_s))
    machine = int(rng.integers(shape.pp * shape.dp // shape.hosts_of))
    workers = set()
    for cell in range(machine * shape.hosts_of, (machine + 1) * shape.hosts_of):
        dp, pp = cell % shape.dp, cell // shape.dp
        workers.add((dp, pp))
        struck.launch_s[pp, ..., dp] += mean_s * rng.uniform(2.2, 4.0)
    return Struck(struck, frozenset(workers))


HOSTS: Final = (
    Fault("gc between kernels", _GC, _gc_kernels),
    Fault("gc before launches", _GC, _gc_launches),
    Fault("gc growing", _GC, _gc_growing),
    Fault("data late", _DATA, _data),
    Fault("data late on one rank", _DATA, _data_one_rank, lambda shape: shape.dp > 1),
    Fault("data before gathering", _DATA, _data_before, lambda shape: shape.pp > 1),
    Fault("checkpoints", _CHECKPOINT, _checkpoint),
    Fault("slow launching", _OVERHEAD, _launching),
    Fault("slow launching host", _OVERHEAD, _launching_host, lambda shape: shape.dp > 2),
)
