"""Injections that are on all workers alike: at once, or on one after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

if TYPE_CHECKING:
    from app.analysis.synthesis.execution import StepWork
    from app.analysis.synthesis.job import JobModel


@dataclass(frozen=True, slots=True)
class SlowTogether(Injection):
    """All workers compute slower: in a stretch of steps, or ever slower over the session."""

    factor: float = 1.0  # how many times as long forwards and backwards take in the stretch
    begin: int = 0  # position of the stretch's first step among the recorded ones
    steps: int | None = None  # how many it has; None where it lasts until the end
    growth: float = 0.0  # by what share each step takes longer than the one before
    cause: ClassVar[str] = "slow_together"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the forwards and backwards of all workers."""
        step = np.arange(job.steps)
        end = job.steps if self.steps is None else self.begin + self.steps
        factor = np.where((step >= self.begin) & (step < end), self.factor, 1.0)
        factor = factor * (1 + self.growth) ** step * rng.lognormal(0.0, 0.003, job.steps)
        mask = work.program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        work.duration_ns[mask] *= factor[:, None]


@dataclass(frozen=True, slots=True)
class RotatingWorker(Injection):
    """In each step another worker computes slower, at random."""

    factor: float  # how many times as long its forwards and backwards take
    spells: Spells = field(default_factory=Spells)  # in which steps any of them does
    cause: ClassVar[str] = "rotating"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the forwards and backwards of a worker that is drawn for each step."""
        program, sizes = work.program, job.sizes
        chosen = rng.integers(sizes.workers, size=job.steps)
        active = self.spells.active(job.steps, rng)
        computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        for step in np.flatnonzero(active).tolist():
            dp, pp = divmod(int(chosen[step]), sizes.pp)
            work.duration_ns[computes & (program.stage == pp), step, dp] *= self.factor
