"""A kind of fault, and what it struck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import World

Worker = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Struck:
    """The world with the fault, and whom it struck.

    Parameters
    ----------
    world : World
    workers : frozenset of (dp, pp)
        Workers at fault; empty where no worker is.
    stage : int or None
        The stage at fault.
    without : World or None
        The job without its cause; None where it is the healthy world itself.
    usual : World or None
        The job with all workers, links and hosts well, but its layers as they are divided; None
        where it is the healthy world itself.
    """

    world: World
    workers: frozenset[Worker] = field(default=frozenset())
    stage: int | None = None
    without: World | None = None
    usual: World | None = None


def anywhere(_shape: Shape) -> bool:
    """Return True: the fault may strike any job."""
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    Parameters
    ----------
    name : str
    cause : str
        What a diagnosis should call it.
    strike : callable
        Takes a healthy world and a generator.
    fits : callable
        Whether a job of this shape can have it.
    between : bool
        Whether it holds all workers up between steps, and lengthens none.
    shares_experts : bool
        Whether its jobs share experts: then all ranks of a group are as slow as the slowest one,
        whatever is wrong with that.
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
    """Return runs of several steps in about half of the session: shape (steps,)."""
    chosen = np.zeros(shape.steps, dtype=bool)
    step = int(rng.integers(0, 4))
    while step < shape.steps:
        length = int(rng.integers(3, 7))
        chosen[step : step + length] = True
        step += length + int(rng.integers(2, 7))
    return chosen


def some_worker(shape: Shape, rng: np.random.Generator) -> Worker:
    """Return a (dp, pp)."""
    return int(rng.integers(shape.dp)), int(rng.integers(shape.pp))
