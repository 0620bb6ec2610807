"""A kind of fault, and its place in a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import World

Worker = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Struck:
    """The world with a fault, and the fault's place.

    Parameters
    ----------
    world : World
    workers : frozenset of (dp, pp)
        The faulty workers; empty if no worker is.
    stage : int or None
        The faulty stage.
    without : World or None
        The job without its cause; None if that is the healthy world.
    usual : World or None
        The job with healthy workers, links and hosts, but its division of layers; None if that is
        the healthy world.
    """

    world: World
    workers: frozenset[Worker] = field(default=frozenset())
    stage: int | None = None
    without: World | None = None
    usual: World | None = None


def anywhere(_shape: Shape) -> bool:
    """Return True, for faults that any job can have."""
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    Parameters
    ----------
    name : str
    cause : str
        The cause that a diagnosis should name.
    strike : callable
        Takes a healthy world and a generator.
    fits : callable
        Whether a job of this shape can have it.
    between : bool
        Whether it delays all workers between steps, and makes no step longer.
    shares_experts : bool
        Whether its jobs share experts: then all ranks of a group are as slow as the slowest one,
        for any fault.
    """

    name: str
    cause: str
    strike: Callable[[World, np.random.Generator], Struck]
    fits: Callable[[Shape], bool] = anywhere
    shares_experts: bool = False
    between: bool = False


def some_steps(
    shape: Shape, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return runs of several steps, in about half of the session: shape (steps,)."""
    chosen = np.zeros(shape.steps, dtype=bool)
    step = int(rng.integers(0, 4))
    while step < shape.steps:
        length = int(rng.integers(3, 7))
        chosen[step : step + length] = True
        step += length + int(rng.integers(2, 7))
    return chosen


def some_worker(shape: Shape, rng: np.random.Generator) -> Worker:
    """Return a random worker, (dp, pp)."""
    return int(rng.integers(shape.dp)), int(rng.integers(shape.pp))
