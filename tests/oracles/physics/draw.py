"""Jobs by seed: a random shape, random times, and a fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tests.oracles.physics.execute import Execution, execute
from tests.oracles.physics.faults.between import BETWEEN
from tests.oracles.physics.faults.computing import COMPUTING
from tests.oracles.physics.faults.hosts import HOSTS
from tests.oracles.physics.faults.kind import Fault, Struck, Worker, anywhere
from tests.oracles.physics.faults.lengths import LENGTHS
from tests.oracles.physics.faults.links import LINKS
from tests.oracles.physics.faults.mixed import MIXED
from tests.oracles.physics.faults.ranks import RANKS
from tests.oracles.physics.faults.tensor import TENSOR
from tests.oracles.physics.record import Recording, record
from tests.oracles.physics.shape import Posting, Schedule, Shape
from tests.oracles.physics.world import World, draw_world

FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault for fault in (*COMPUTING, *LENGTHS, *HOSTS, *BETWEEN, *LINKS, *TENSOR, *RANKS)
}
# Faults with two causes, and rare ones: they test fixes, not the score of the diagnosis.
MIXED_FAULTS: Final[Mapping[str, Fault]] = {fault.name: fault for fault in MIXED}


def draw_shape(rng: np.random.Generator) -> Shape:
    """Draw a job's sizes and ways of execution."""
    schedule = Schedule(rng.choice([kind.value for kind in Schedule], p=[0.12, 0.46, 0.27, 0.15]))
    interleaved = schedule is Schedule.INTERLEAVED
    pp = int(rng.choice([2, 3, 4, 6, 8])) if interleaved else int(rng.choice([1, 2, 2, 3, 4, 8]))
    dp = int(rng.choice([1, 2, 3, 4, 6, 8, 12]))
    vpp = int(rng.integers(2, 5)) if interleaved else 1
    microbatches = pp * int(rng.integers(2, 5)) if interleaved else int(rng.integers(4, 25))
    # Fused calls need the other direction of the same neighbor, which only 1F1B always has.
    plain = schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
    postings = [Posting.OVERLAP, Posting.WINDOW] + ([Posting.BLOCKING] if plain else [])
    posting = postings[int(rng.integers(len(postings)))]
    traced = rng.random()
    tensor_traced, context_traced = bool(traced < 0.25), bool(0.25 <= traced < 0.35)
    shared = [over for over in (2, 4) if dp % over == 0]
    return Shape(
        dp=dp,
        pp=pp,
        vpp=vpp,
        tp=int(rng.choice([2, 4, 8])) if tensor_traced else 1,
        microbatches=microbatches,
        steps=int(rng.integers(8, 25)),
        schedule=schedule,
        posting=posting,
        host_waits=posting is Posting.BLOCKING or bool(rng.random() < 0.3),
        tensor_traced=tensor_traced,
        scatter_recorded=bool(rng.random() < 0.85),
        lengths_recorded=bool(rng.random() < 0.5),
        hosts_of=int(rng.choice([1, 1, 2, 4])) if dp % 4 == 0 else 1,
        cp=int(rng.choice([2, 4])) if context_traced else 1,
        ep=int(rng.choice(shared)) if shared and rng.random() < 0.1 else 1,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """The worlds of a job: a changed world is executed with all other draws unchanged.

    Parameters
    ----------
    shape : Shape
    fault : Fault or None
    healthy : World
        Without the fault.
    struck : Struck
        With the fault.
    gap_s : float
        Between two steps.
    """

    shape: Shape
    fault: Fault | None
    healthy: World
    struck: Struck
    gap_s: float

    @property
    def without(self) -> World:
        """Return the job without its cause."""
        return self.healthy if self.struck.without is None else self.struck.without

    @property
    def usual(self) -> World:
        """Return the healthy job with its actual division of layers."""
        return self.healthy if self.struck.usual is None else self.struck.usual


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """An executed job, and the truth about it.

    Parameters
    ----------
    drawn : Drawn
    execution : Execution
        With the fault.
    slowdown : float
        Its time ÷ the time of the same job without the fault, with all other draws equal. Faults
        between steps count from the end of the first step on, because nothing before is recorded.
    """

    drawn: Drawn
    execution: Execution
    slowdown: float

    @property
    def shape(self) -> Shape:
        """Return sizes and ways of execution."""
        return self.drawn.shape

    @property
    def fault(self) -> Fault | None:
        """Return the fault; None for a healthy job."""
        return self.drawn.fault

    @property
    def workers(self) -> frozenset[Worker]:
        """Return the faulty workers as (dp, pp)."""
        return self.drawn.struck.workers

    @property
    def stage(self) -> int | None:
        """Return the stage at fault."""
        return self.drawn.struck.stage

    def recording(self) -> Recording:
        """Return a profiler's recording of the job, which takes longer than its execution."""
        return record(self.drawn.struck.world, self.execution, gap_s=self.drawn.gap_s)


def draw_worlds(
    seed: int,
    fault: str | None,
    *,
    fits: Callable[[Shape], bool] = anywhere,
    steps: int | None = None,
) -> Drawn:
    """Return the worlds of a seed's job, healthy or with a fault, with a suitable shape.

    Parameters
    ----------
    seed : int
    fault : str or None
        A name in `FAULTS` or `MIXED_FAULTS`.
    fits : callable
        Whether a shape is wanted.
    steps : int or None
        Number of recorded steps; None for the drawn number.
    """
    rng = np.random.default_rng([seed, 0x9A7A])
    kind = None if fault is None else {**FAULTS, **MIXED_FAULTS}[fault]
    shape = draw_shape(rng)
    while not fits(shape) or (kind is not None and not kind.fits(shape)):
        shape = draw_shape(rng)
    if steps is not None:
        shape = replace(shape, steps=steps)
    if kind is not None and not kind.shares_experts:
        shape = replace(shape, ep=1)
    healthy = draw_world(shape, rng)
    struck = Struck(healthy) if kind is None else kind.strike(healthy, rng)
    return Drawn(shape, kind, healthy, struck, gap_s=float(rng.uniform(0.0005, 0.003)))


def draw_job(seed: int, fault: str | None) -> Job:
    """Return the executed job of a seed; see `draw_worlds`."""
    return run_job(draw_worlds(seed, fault))


def run_job(drawn: Drawn) -> Job:
    """Return a drawn job, executed with and without its fault."""
    execution = execute(drawn.struck.world)
    without = execution if drawn.fault is None else execute(drawn.without)
    if drawn.fault is not None and drawn.fault.between:
        gaps_s = drawn.gap_s * (drawn.shape.steps - 1)
        taken_s, healthy_s = (one.step_s[1:].sum() + gaps_s for one in (execution, without))
        return Job(drawn, execution, float(taken_s / healthy_s))
    return Job(drawn, execution, float(execution.step_s.sum() / without.step_s.sum()))
