"""Injections that keep hosts from launching: what they write out, and what launching costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from app.analysis.synthesis.injections.base import Injection, Worker, checked
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

if TYPE_CHECKING:
    from app.analysis.synthesis.execution import StepWork
    from app.analysis.synthesis.job import JobModel


@dataclass(frozen=True, slots=True)
class Checkpoint(Injection):
    """Every few steps all stages write their weights out before they go on."""

    every: int  # steps from one time to the next
    stall_ns: float  # how long a stage writes on average
    offset: int = 0  # the number of a step that begins with it
    cause: ClassVar[str] = "checkpoint"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay the launch of each stage's first operation."""
        program = work.program
        numbers = np.arange(job.steps) if work.numbers is None else work.numbers
        saving = (numbers - self.offset) % self.every == 0
        # The slowest writer holds up all: what a save takes differs little from rank to rank.
        common = rng.lognormal(-0.005, 0.1, (job.steps, 1))
        for first in program.first:
            own = rng.lognormal(-0.001, 0.04, (job.steps, job.sizes.dp))
            work.delay_ns[first] += saving[:, None] * self.stall_ns * common * own


@dataclass(frozen=True, slots=True)
class HostOverhead(Injection):
    """A host, or all of them, takes longer to launch a computation than its devices run one."""

    # What a host takes to launch one computation; a device that has more to do than that does not
    # wait for it.
    launch_ns: float
    worker: Worker | None = None  # (dp, pp); its host is slow. None where all are.
    cause: ClassVar[str] = "host_overhead"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay computations until their launch is done, which begins with the one before."""
        program = work.program
        slow = np.ones((job.sizes.pp, job.sizes.dp), dtype=bool)
        if self.worker is not None:
            slow[:] = False
            for dp, pp in self.workers(job):
                slow[pp, dp] = True
        computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        for stage in range(job.sizes.pp):
            # The program holds a stage's computations in the order of their stream.
            nodes = np.flatnonzero(computes & (program.stage == stage))
            shape = (len(nodes), job.steps, job.sizes.dp)
            launch = self.launch_ns * rng.lognormal(-0.003, 0.08, shape)
            launch[1:] -= work.duration_ns[nodes[:-1]]
            # What comes first is launched while its input is on the way.
            launch[0] *= stage == 0
            work.delay_ns[nodes] += np.where(slow[stage], np.maximum(launch, 0.0), 0.0)

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return all workers of the slow host."""
        if self.worker is None:
            return ()
        dp, pp = checked(self.worker, job)
        host = job.traced_rank(dp, pp) // job.gpus_per_host
        return tuple(
            (other, stage)
            for stage in range(job.sizes.pp)
            for other in range(job.sizes.dp)
            if job.traced_rank(other, stage) // job.gpus_per_host == host
        )
