"""Injections that make transfers take longer, and launches come late."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from app.analysis.synthesis.costs import PIPELINE_TRANSFERS
from app.analysis.synthesis.injections.base import Injection, Spells, Worker, checked
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    FORWARD_COMPUTE,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
)

if TYPE_CHECKING:
    from app.analysis.synthesis.execution import StepWork
    from app.analysis.synthesis.job import JobModel
    from app.analysis.synthesis.program import JobProgram


@dataclass(frozen=True, slots=True)
class SlowLink(Injection):
    """One worker's network link is slow: all transfers that it takes part in are."""

    worker: Worker  # (dp, pp)
    # How many times as long its pipeline transfers and its collectives over the DP ranks take.
    factor: float
    # When they do: a link that flaps is slow in some steps.
    spells: Spells = field(default_factory=Spells)
    cause: ClassVar[str] = "network"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the transfers of the worker and of its peers in them."""
        dp, pp = checked(self.worker, job)
        program = work.program
        transfers = program.of_types(
            *PIPELINE_TRANSFERS, PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER, SEPARATE_ALL_REDUCE
        )
        own = transfers & (program.stage == pp)
        factors = np.where(self.spells.active(job.steps, rng), self.factor, 1.0)
        for group in program.groups:
            members = list(group.members)
            if not own[members].any():
                continue
            if group.across_dp:
                work.duration_ns[members] *= factors[:, None]
            else:
                work.duration_ns[members, :, dp] *= factors

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the one worker."""
        return (checked(self.worker, job),)


@dataclass(frozen=True, slots=True)
class Congestion(Injection):
    """Other traffic slows the whole network by spells, whose strength comes and goes."""

    factor: float  # how many times as long transfers take at the height of a spell
    period: float  # recorded steps from one spell to the next
    busy: float = 0.5  # share of a period that a spell lasts
    offset: float = 0.0  # how many steps of a period have passed when the first step begins
    cause: ClassVar[str] = "network_congestion"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the transfers of all links."""
        phase = (np.arange(job.steps) + self.offset) % self.period / self.period
        height = np.where(phase < self.busy, np.sin(np.pi * phase / self.busy), 0.0)
        program = work.program
        mask = program.of_types(
            *PIPELINE_TRANSFERS, PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER, SEPARATE_ALL_REDUCE
        )
        # Traffic of others is no steady stream: what it costs differs from step to step.
        height *= rng.lognormal(-0.005, 0.1, job.steps)
        work.duration_ns[mask] *= 1 + (self.factor - 1) * height[:, None]


@dataclass(frozen=True, slots=True)
class SlowDataLoading(Injection):
    """A step's batch arrives late."""

    delay_ns: float  # mean delay of a step's first operation, the same on all stages of a DP rank
    cause: ClassVar[str] = "data_loading"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay the launch of the first forward, or of the first receive on later stages."""
        # Loaders share storage, so that a bad step is bad for all: common times own part.
        common = rng.lognormal(-0.045, 0.3, (job.steps, 1))
        own = rng.lognormal(-0.005, 0.1, (job.steps, job.sizes.dp))
        work.delay_ns[list(work.program.first)] += self.delay_ns * common * own


@dataclass(frozen=True, slots=True)
class FalseKernelDependency(Injection):
    """Computations wait for a reduce-scatter that they do not need, queued before them.

    Needs gradients that overlap the backward pass, and virtual stages: without them nothing is left
    to compute when the gradients of a stage's only chunk are reduced.
    """

    blocked: int = 1  # computations that each reduce-scatter holds up
    cause: ClassVar[str] = "false_kernel_dependency"

    def rewire(self, program: JobProgram, job: JobModel) -> JobProgram:
        """Let the computations after a chunk's last backward wait for its reduce-scatters."""
        if job.sizes.vpp == 1 or not {SEPARATE_ALL_REDUCE, GRADS_REDUCE_SCATTER} <= job.op_types:
            raise ValueError("a false dependency needs virtual stages and overlapped gradients")
        after = list(program.after)
        computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        scatters = program.of_types(GRADS_REDUCE_SCATTER)
        backwards = program.of_types(BACKWARD_COMPUTE)
        for stage in range(job.sizes.pp):
            here = program.stage == stage
            # The program holds a stage's computations in the order of their stream.
            order = np.flatnonzero(computes & here)
            for chunk in range(job.sizes.vpp):
                reduced = np.flatnonzero(scatters & here & (program.chunk == chunk))
                if not len(reduced):
                    continue
                done = np.flatnonzero(backwards & here & (program.chunk == chunk))[-1]
                position = int(np.searchsorted(order, done))
                for held in order[position + 1 : position + 1 + self.blocked].tolist():
                    after[held] = tuple(sorted({*after[held], int(reduced[-1])}))
        return replace(program, after=tuple(after))

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Change nothing: the wait is in the program."""
