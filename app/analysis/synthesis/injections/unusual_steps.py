"""Unusual steps on all ranks (warm-up, profiler start) that are no cause of straggling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from app.analysis.synthesis.execution import StepWork
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.job import JobModel
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE


@dataclass(frozen=True, slots=True)
class WarmUp(Injection):
    """In some steps all workers compute longer, as where kernels are compiled and tuned."""

    steps: tuple[int, ...]  # positions among the recorded ones
    times: float  # how many times as long
    first_only: bool = False  # whether only each stage's first forward and backward does
    cause: ClassVar[str] = ""

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random
        """Lengthen the computations of all workers."""
        program, steps = work.program, np.array(self.steps)
        for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE):
            for stage in range(job.sizes.pp):
                nodes = np.flatnonzero(program.of_types(name) & (program.stage == stage))
                chosen = nodes[:1] if self.first_only else nodes
                work.duration_ns[np.ix_(chosen, steps)] *= self.times

    def odd(self) -> tuple[int, ...]:
        """Return the positions of the steps."""
        return self.steps


@dataclass(frozen=True, slots=True)
class ProfilerStart(Injection):
    """Ranks come to the first recorded step one after another."""

    apart_ns: float  # from the first one to the last
    cause: ClassVar[str] = ""

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay what each rank launches without waiting for anything."""
        program = work.program
        late = rng.uniform(0, self.apart_ns, (job.sizes.pp, job.sizes.dp))
        late[0, 0], late.flat[-1] = 0.0, self.apart_ns
        for node, before in enumerate(program.after):
            if not before:
                work.delay_ns[node, 0] += late[program.stage[node]]

    def odd(self) -> tuple[int, ...]:
        """Return the first step."""
        return (0,)
