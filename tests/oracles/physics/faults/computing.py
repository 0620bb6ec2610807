"""Slow devices, heavy stages and unequal sequences."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.oracles.physics.faults.kind import Fault, Struck, Worker, some_steps, some_worker
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import Times, World

_WORKER: Final = "slow_worker"
_STAGE: Final = "stage_imbalance"
_TOGETHER: Final = "slow_together"


def has_peers(shape: Shape) -> bool:
    """Return whether a worker has another DP rank to be compared with."""
    return shape.dp > 1


def has_many_peers(shape: Shape) -> bool:
    """Return whether two slow workers leave most of their stage healthy."""
    return shape.dp > 4


def has_hosts(shape: Shape) -> bool:
    """Return whether a host holds several workers, and less than a stage."""
    return 1 < shape.hosts_of <= shape.dp // 2


def has_peers_and_stages(shape: Shape) -> bool:
    """Return whether stages and DP ranks can be told apart."""
    return shape.dp > 1 and shape.pp > 1


def has_a_middle(shape: Shape) -> bool:
    """Return whether there is a stage between first and last."""
    return shape.dp > 1 and shape.pp > 2


def _slowed(
    world: World, worker: Worker, forward: NDArray[np.float64] | float, backward: Times | float
) -> World:
    """Return a world with a slowed worker; factors as (vpp, mb, steps)."""
    dp, pp = worker
    struck = world.copy()
    struck.forward_s[pp, ..., dp] *= forward
    struck.backward_s[pp, ..., dp] *= backward
    return struck


def _factor(rng: np.random.Generator, low: float = 1.2, high: float = 2.6) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _constant(world: World, rng: np.random.Generator) -> Struck:
    worker, factor = some_worker(world.shape, rng), _factor(rng)
    return Struck(_slowed(world, worker, factor, factor), frozenset({worker}), worker[1])


def _from_step(world: World, rng: np.random.Generator) -> Struck:
    worker = some_worker(world.shape, rng)
    first = int(rng.integers(2, max(3, world.shape.steps // 2)))
    factor = np.where(np.arange(world.shape.steps) >= first, _factor(rng, 1.4, 3.0), 1.0)
    return Struck(_slowed(world, worker, factor, factor), frozenset({worker}), worker[1])


def _spells(world: World, rng: np.random.Generator) -> Struck:
    worker = some_worker(world.shape, rng)
    factor = np.where(some_steps(world.shape, rng), _factor(rng, 1.5, 3.2), 1.0)
    return Struck(_slowed(world, worker, factor, factor), frozenset({worker}), worker[1])


def _bursts(world: World, rng: np.random.Generator) -> Struck:
    """Slow down a worker for a few consecutive passes, repeatedly."""
    shape = world.shape
    worker = some_worker(shape, rng)
    factor = _factor(rng, 2.0, 4.5)
    length = max(2, shape.microbatches // int(rng.integers(3, 6)))
    slow = np.ones((shape.vpp, shape.microbatches, shape.steps))
    for step in range(shape.steps):
        if rng.random() < 0.7:
            first = int(rng.integers(0, max(1, shape.microbatches - length)))
            slow[:, first : first + length, step] = factor
    return Struck(_slowed(world, worker, slow, slow), frozenset({worker}), worker[1])


def _forward_only(world: World, rng: np.random.Generator) -> Struck:
    worker = some_worker(world.shape, rng)
    slow = _slowed(world, worker, _factor(rng, 1.6, 3.0), 1 + rng.uniform(0, 0.04))
    return Struck(slow, frozenset({worker}), worker[1])


def _backward_only(world: World, rng: np.random.Generator) -> Struck:
    worker = some_worker(world.shape, rng)
    slow = _slowed(world, worker, 1 + rng.uniform(0, 0.04), _factor(rng, 1.4, 2.6))
    return Struck(slow, frozenset({worker}), worker[1])


def _two_workers(world: World, rng: np.random.Generator) -> Struck:
    shape = world.shape
    cells = [(dp, pp) for dp in range(shape.dp) for pp in range(shape.pp)]
    first, second = (cells[index] for index in rng.permutation(len(cells))[:2])
    slow, other = _factor(rng), _factor(rng)
    struck = _slowed(_slowed(world, first, slow, slow), second, other, other)
    return Struck(struck, frozenset({first, second}))


def _host(world: World, rng: np.random.Generator) -> Struck:
    """Slow down all workers of one machine."""
    shape = world.shape
    machines = shape.pp * shape.dp // shape.hosts_of
    machine, factor = int(rng.integers(machines)), _factor(rng)
    struck, workers = world, set()
    for cell in range(machine * shape.hosts_of, (machine + 1) * shape.hosts_of):
        worker = (cell % shape.dp, cell // shape.dp)
        workers.add(worker)
        struck = _slowed(struck, worker, factor, factor)
    return Struck(struck, frozenset(workers))


def _thermal(world: World, rng: np.random.Generator) -> Struck:
    """Heat a worker up over several steps, throttle it, cool it down, and repeat."""
    shape = world.shape
    worker = some_worker(shape, rng)
    period = float(rng.uniform(0.4, 0.9)) * min(shape.steps, 24)
    phase = (np.arange(shape.steps) + rng.uniform(0, period)) % period / period
    factor = 1 + (_factor(rng, 1.5, 2.4) - 1) * np.clip(1.6 * phase, 0, 1)
    return Struck(_slowed(world, worker, factor, factor), frozenset({worker}), worker[1])


def _all(world: World, factor: NDArray[np.float64]) -> Struck:
    """Slow down all workers, by a factor for each step."""
    struck = world.copy()
    struck.forward_s[:] *= factor[:, None]
    struck.backward_s[:] *= factor[:, None]
    return Struck(struck)


def _all_by_a_spell(world: World, rng: np.random.Generator) -> Struck:
    steps = world.shape.steps
    length = int(np.ceil(steps * rng.uniform(0.3, 0.6)))
    first = int(rng.integers(0, steps - length + 1))
    there = (np.arange(steps) >= first) & (np.arange(steps) < first + length)
    return _all(world, np.where(there, _factor(rng, 1.3, 3.0), 1.0))


def _all_ever_slower(world: World, rng: np.random.Generator) -> Struck:
    end = _factor(rng, 1.25, 2.2)
    return _all(world, np.linspace(1.0, end, world.shape.steps))


def _in_turn(world: World, rng: np.random.Generator) -> Struck:
    """Slow down a random other worker in each step."""
    shape, factor = world.shape, _factor(rng, 1.25, 1.8)
    struck = world.copy()
    for step in range(shape.steps):
        dp, pp = some_worker(shape, rng)
        struck.forward_s[pp, ..., step, dp] *= factor
        struck.backward_s[pp, ..., step, dp] *= factor
    return Struck(struck)


def has_turns(shape: Shape) -> bool:
    """Return whether there are enough workers and peers for another slow worker in each step."""
    return shape.dp > 2 and shape.dp * shape.pp > 3


def _heavy(world: World, stage: int, rng: np.random.Generator) -> Struck:
    """Give a stage more to compute; without the fault all stages share the same work evenly."""
    struck = world.copy()
    last_chunk = world.shape.vpp - 1 if stage == world.shape.pp - 1 else 0
    factor = _factor(rng, 1.2, 2.0) ** world.shape.vpp
    struck.surplus[:, stage, last_chunk] = factor, factor * rng.uniform(0.9, 1.1)
    struck.forward_s[stage, last_chunk] *= struck.surplus[0, stage, last_chunk]
    struck.backward_s[stage, last_chunk] *= struck.surplus[1, stage, last_chunk]
    return Struck(struck, stage=stage, without=evenly_divided(struck, world), usual=struck)


def evenly_divided(struck: World, world: World) -> World:
    """Return the job with the same total work, divided evenly over stages and chunks.

    The total work of a model is constant: the fault is its division.
    """
    even = world.copy()
    even.forward_s[:] *= struck.forward_s.mean() / world.forward_s.mean()
    even.backward_s[:] *= struck.backward_s.mean() / world.backward_s.mean()
    return even


def _last_stage(world: World, rng: np.random.Generator) -> Struck:
    return _heavy(world, world.shape.pp - 1, rng)


def _first_stage(world: World, rng: np.random.Generator) -> Struck:
    return _heavy(world, 0, rng)


def _middle_stage(world: World, rng: np.random.Generator) -> Struck:
    return _heavy(world, int(rng.integers(1, world.shape.pp - 1)), rng)


COMPUTING: Final = (
    Fault("worker constant", _WORKER, _constant, has_peers),
    Fault("worker from a step on", _WORKER, _from_step, has_peers),
    Fault("worker by spells", _WORKER, _spells, has_peers),
    Fault("worker in bursts", _WORKER, _bursts, has_peers),
    Fault("worker forward only", _WORKER, _forward_only, has_peers),
    Fault("worker backward only", _WORKER, _backward_only, has_peers),
    Fault("two workers", _WORKER, _two_workers, has_many_peers),
    Fault("whole host", _WORKER, _host, has_hosts),
    Fault("thermal throttling", "thermal_throttling", _thermal, has_peers),
    Fault("all by a spell", _TOGETHER, _all_by_a_spell),
    Fault("all ever slower", _TOGETHER, _all_ever_slower),
    Fault("another worker in each step", "rotating", _in_turn, has_turns),
    Fault("last stage heavy", _STAGE, _last_stage, has_peers_and_stages),
    Fault("first stage heavy", _STAGE, _first_stage, has_peers_and_stages),
    Fault("middle stage heavy", _STAGE, _middle_stage, has_a_middle),
)
