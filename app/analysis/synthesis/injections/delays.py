"""Injections that lengthen transfers, delay launches, or hold ranks between steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from app.analysis.synthesis.costs import PIPELINE_TRANSFERS
from app.analysis.synthesis.execution import HostOperation, StepWork
from app.analysis.synthesis.injections.base import Injection, Spells, Worker, checked
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.program import JobProgram
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    CHECKPOINT,
    DATA_LOADING,
    EVALUATION,
    FORWARD_COMPUTE,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
)


@dataclass(frozen=True, slots=True)
class Checkpoint(Injection):
    """All stages write a checkpoint every few steps, and wait until it is written."""

    every: int  # steps from one time to the next
    stall_ns: float  # how long a stage writes on average
    offset: int = 0  # the number of a step that begins with it
    cause: ClassVar[str] = "checkpoint"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay the launch of each stage's first operation."""
        program = work.program
        numbers = np.arange(job.steps) if work.numbers is None else work.numbers
        saving = (numbers - self.offset) % self.every == 0
        # All ranks wait for the slowest writer, so that their times differ only little.
        common = rng.lognormal(-0.005, 0.1, (job.steps, 1))
        for first in program.first:
            own = rng.lognormal(-0.001, 0.04, (job.steps, job.sizes.dp))
            work.delay_ns[first] += saving[:, None] * self.stall_ns * common * own


@dataclass(frozen=True, slots=True)
class HostOverhead(Injection):
    """One host or every host takes longer to launch a computation than the device to run it."""

    # Time to launch one computation; a computation that runs longer hides the launch of the next.
    launch_ns: float
    worker: Worker | None = None  # (dp, pp); its host is slow. None if all are.
    cause: ClassVar[str] = "host_overhead"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay computations until they are launched, which begins with the one before."""
        program = work.program
        slow = np.ones((job.sizes.pp, job.sizes.dp), dtype=bool)
        if self.worker is not None:
            slow[:] = False
            for dp, pp in self.workers(job):
                slow[pp, dp] = True
        computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        for stage in range(job.sizes.pp):
            # The program lists a stage's computations in the order in which they run.
            nodes = np.flatnonzero(computes & (program.stage == stage))
            shape = (len(nodes), job.steps, job.sizes.dp)
            launch = self.launch_ns * rng.lognormal(-0.003, 0.08, shape)
            launch[1:] -= work.duration_ns[nodes[:-1]]
            # The first computation of a later stage is launched while its input is being
            # transferred.
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


@dataclass(frozen=True, slots=True)
class SlowLink(Injection):
    """The network link of one worker is slow, which slows all transfers of the worker."""

    worker: Worker  # (dp, pp)
    # Factor of the durations of the worker's pipeline transfers and of its collectives over DP
    # ranks.
    factor: float
    # Steps in which the link is slow: some of them for a flapping link.
    spells: Spells = field(default_factory=Spells)
    cause: ClassVar[str] = "network"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the transfers in which the worker takes part, for all of their members."""
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
        """Return the worker at fault."""
        return (checked(self.worker, job),)


@dataclass(frozen=True, slots=True)
class Congestion(Injection):
    """Traffic of other jobs slows the whole network in spells of varying strength."""

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
        # The traffic of other jobs varies from step to step.
        height *= rng.lognormal(-0.005, 0.1, job.steps)
        work.duration_ns[mask] *= 1 + (self.factor - 1) * height[:, None]


@dataclass(frozen=True, slots=True)
class SlowDataLoading(Injection):
    """The batch of a step arrives late."""

    delay_ns: float  # mean delay of a step's first operation, the same on all stages of a DP rank
    cause: ClassVar[str] = "data_loading"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay each stage's first operation: the first forward, or the first receive."""
        # All loaders share one storage, so that the delay has a factor common to the step and a
        # smaller one of each DP rank.
        common = rng.lognormal(-0.045, 0.3, (job.steps, 1))
        own = rng.lognormal(-0.005, 0.1, (job.steps, job.sizes.dp))
        work.delay_ns[list(work.program.first)] += self.delay_ns * common * own


@dataclass(frozen=True, slots=True)
class FalseKernelDependency(Injection):
    """Computations wait for a reduce-scatter that was queued before them but is not their input.

    Needs gradients that overlap the backward pass, and virtual stages: without them nothing is left
    to compute when the gradients of a stage's only chunk are reduced.
    """

    blocked: int = 1  # computations that each reduce-scatter holds up
    cause: ClassVar[str] = "false_kernel_dependency"

    def rewire(self, program: JobProgram, job: JobModel) -> JobProgram:
        """Make computations after a chunk's last backward wait for its reduce-scatters."""
        if job.sizes.vpp == 1 or not {SEPARATE_ALL_REDUCE, GRADS_REDUCE_SCATTER} <= job.op_types:
            raise ValueError("a false dependency needs virtual stages and overlapped gradients")
        after = list(program.after)
        computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        scatters = program.of_types(GRADS_REDUCE_SCATTER)
        backwards = program.of_types(BACKWARD_COMPUTE)
        for stage in range(job.sizes.pp):
            on_stage = program.stage == stage
            # The program lists a stage's computations in the order in which they run.
            order = np.flatnonzero(computes & on_stage)
            for chunk in range(job.sizes.vpp):
                reduced = np.flatnonzero(scatters & on_stage & (program.chunk == chunk))
                if not len(reduced):
                    continue
                done = np.flatnonzero(backwards & on_stage & (program.chunk == chunk))[-1]
                position = int(np.searchsorted(order, done))
                for held in order[position + 1 : position + 1 + self.blocked].tolist():
                    after[held] = tuple(sorted({*after[held], int(reduced[-1])}))
        return replace(program, after=tuple(after))

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Change no durations: `rewire` adds the wait to the program."""


@dataclass(frozen=True, slots=True)
class Standstill(Injection):
    """Ranks launch nothing for a while before some steps, and record no operation for this time."""

    every: int  # steps from one time to the next
    stall_ns: float  # how long a rank stands still on average
    offset: int = 0  # the number of a step that begins with it
    ranks: tuple[int, ...] = ()  # DP ranks that stand still; all by default
    scatter: float = 0.1  # log-normal spread of the common duration
    own: float = 0.0  # log-normal spread of the factor of each rank
    cause: ClassVar[str] = "between_steps"
    op: ClassVar[str | None] = None  # operation that ranks record meanwhile

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay the first operation of each rank, and thereby the whole step."""
        program, dp = work.program, job.sizes.dp
        numbers = np.arange(job.steps) if work.numbers is None else work.numbers
        struck = (numbers - self.offset) % self.every == 0
        times = rng.lognormal(-(self.scatter**2) / 2, self.scatter, (job.steps, 1))
        takes_ns = self.stall_ns * times * rng.lognormal(-(self.own**2) / 2, self.own, (1, dp))
        if self.own:
            takes_ns = takes_ns * rng.lognormal(-(self.own**2) / 2, self.own, (job.steps, dp))
        takes_ns = takes_ns * struck[:, None] * np.ones((1, dp))
        if self.ranks:
            others = np.setdiff1d(np.arange(dp), self.ranks)
            takes_ns[:, others] = 0.0
        first = [node for node, before in enumerate(program.after) if not before]
        work.delay_ns[first] += takes_ns
        if self.op is not None:
            opens = bool(rng.random() < 0.5)  # noqa: PLR2004 - either
            work.host_operations += [
                HostOperation(self.op, pp, takes_ns, opens) for pp in range(job.sizes.pp)
            ]


@dataclass(frozen=True, slots=True)
class LoaderStall(Standstill):
    """Ranks wait for their data loaders before some steps, and record this wait."""

    cause: ClassVar[str] = "data_loading"
    op: ClassVar[str | None] = DATA_LOADING


@dataclass(frozen=True, slots=True)
class CheckpointWritten(Standstill):
    """Ranks write checkpoints before some steps, and record this."""

    cause: ClassVar[str] = "checkpoint"
    op: ClassVar[str | None] = CHECKPOINT


@dataclass(frozen=True, slots=True)
class Evaluation(Standstill):
    """Ranks evaluate the model before some steps, and record this."""

    cause: ClassVar[str] = "evaluation"
    op: ClassVar[str | None] = EVALUATION
