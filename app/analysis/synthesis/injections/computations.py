"""Injections that lengthen computations or change the number of microbatches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.synthesis.execution import StepWork
from app.analysis.synthesis.injections.base import Injection, Spells, Worker, checked
from app.analysis.synthesis.job import JobModel
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE


@dataclass(frozen=True, slots=True)
class SlowWorker(Injection):
    """One worker computes more slowly than its peers."""

    worker: Worker  # (dp, pp)
    factor: float  # how many times as long its forwards and backwards take
    spells: Spells = field(default_factory=Spells)  # when it does
    backward_share: float = 1.0  # how much of the factor's excess its backwards have
    cause: ClassVar[str] = "slow_worker"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the worker's forwards and backwards."""
        dp, pp = checked(self.worker, job)
        program, active = work.program, self.spells.active(job.steps, rng)
        for name, share in ((FORWARD_COMPUTE, 1.0), (BACKWARD_COMPUTE, self.backward_share)):
            mask = program.of_types(name) & (program.stage == pp)
            work.duration_ns[mask, :, dp] *= np.where(active, 1 + share * (self.factor - 1), 1.0)

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the worker at fault."""
        return (checked(self.worker, job),)


@dataclass(frozen=True, slots=True)
class StageImbalance(Injection):
    """One stage has more to compute, as with a loss layer that the division of layers ignored."""

    # forward_factor, backward_factor: factor of the stage's times; the defaults were measured on a
    # job whose last stage has as many layers as the others
    forward_factor: float = 2.07
    backward_factor: float = 1.41
    at: int = -1  # the stage; negative counts from the last one
    cause: ClassVar[str] = "stage_imbalance"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random
        """Lengthen the forwards and backwards of the stage's last model chunk."""
        program, vpp = work.program, job.sizes.vpp
        place = (program.stage == self.stage(job)) & (program.chunk == vpp - 1)
        for name, factor in (
            (FORWARD_COMPUTE, self.forward_factor),
            (BACKWARD_COMPUTE, self.backward_factor),
        ):
            # The factor applies to the whole stage, but only the last chunk carries the extra time.
            work.duration_ns[program.of_types(name) & place] *= 1 + (factor - 1) * vpp

    def stage(self, job: JobModel) -> int:
        """Return the stage that has more to compute."""
        return self.at % job.sizes.pp


@dataclass(frozen=True, slots=True)
class SequenceLengths(Injection):
    """Microbatches are packed from sequences of very different lengths.

    Lengths are log-normal; sequences fill a microbatch up to `max_length`, the last one cut to fit.
    A microbatch takes a + b·Σs + c·Σs², scaled to a mean of 1 over the job: without the
    imbalance each microbatch takes that mean.
    """

    max_length: int = 32_768  # tokens of a microbatch
    median_length: float = 2_000.0  # tokens of the median sequence
    spread: float = 1.6  # sigma of the lengths' logarithm
    # fixed, linear, quadratic: the weights a, b, c for lengths s in units of `max_length`
    fixed: float = 0.05
    linear: float = 0.6
    quadratic: float = 1.0
    backward_quadratic: float = 1.0  # how many times c is in a backward
    cause: ClassVar[str] = "sequence_length_imbalance"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Scale forward and backward of each microbatch on all stages of its DP rank."""
        program = work.program
        microbatches = int(program.microbatch.max()) + 1
        shape = (microbatches, job.steps, job.sizes.dp)
        drawn = self.draw(int(np.prod(shape)), rng)
        if work.lengths is None:
            work.lengths = drawn.reshape(*shape, -1)
        lengths = drawn / self.max_length
        for name, more in ((FORWARD_COMPUTE, 1.0), (BACKWARD_COMPUTE, self.backward_quadratic)):
            time = self.fixed + self.linear * lengths.sum(axis=1)
            time += self.quadratic * more * np.square(lengths).sum(axis=1)
            factors = (time / time.mean()).reshape(shape)
            mask = program.of_types(name)
            work.duration_ns[mask] *= factors[program.microbatch[mask]]

    def draw(self, microbatches: int, rng: np.random.Generator) -> IntArray:
        """Return random sequence lengths, shape (microbatches, sequences), padded with 0."""
        columns: list[IntArray] = []
        room = np.full(microbatches, self.max_length, np.int64)
        while room.any():
            drawn = rng.lognormal(np.log(self.median_length), self.spread, microbatches)
            taken = np.minimum(np.maximum(drawn.astype(np.int64), 1), room)
            columns.append(taken)
            room = room - taken
        return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True)
class GarbageCollection(Injection):
    """Garbage collection pauses the interpreter on random ranks in random steps.

    Only forwards suffer: backwards are launched by native code.
    """

    pause_ns: float  # mean length of a pause in the first step
    pauses: float  # pauses of one worker in one step, on average; below its number of forwards
    # Relative growth of the pauses from the first step to the last: 1 for twice as long.
    growth: float = 0.0
    cause: ClassVar[str] = "garbage_collection"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen some forwards by a pause."""
        mask = work.program.of_types(FORWARD_COMPUTE)
        shape = (int(mask.sum()), job.steps, job.sizes.dp)
        hit = rng.random(shape) < self.pauses / (job.microbatches * job.sizes.vpp)
        age = np.linspace(0.0, 1.0, job.steps)[None, :, None]
        pause = self.pause_ns * (1 + self.growth * age) * rng.lognormal(-0.02, 0.2, shape)
        work.duration_ns[mask] += np.where(hit, pause, 0.0)


@dataclass(frozen=True, slots=True)
class TensorParallelStraggler(Injection):
    """One tensor-parallel rank computes slowly, and the other ranks of its group wait for it."""

    worker: Worker  # (dp, pp)
    tensor_rank: int
    factor: float  # how many times as long the rank's own computing takes
    spells: Spells = field(default_factory=Spells)  # when it does
    cause: ClassVar[str] = "tensor_parallel_straggler"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the worker's computations by the time that its other ranks wait."""
        checked(self.worker, job)
        if not 0 <= self.tensor_rank < job.sizes.tp:
            raise ValueError(f"tensor-parallel rank {self.tensor_rank} is outside {job.sizes.tp}")
        active = self.spells.active(job.steps, rng)
        _slow_rank_of_worker(work, job, self.worker, (self.tensor_rank, self.factor), active)

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the worker to which the slow rank belongs."""
        return (checked(self.worker, job),)


@dataclass(frozen=True, slots=True)
class MemoryFragmentation(Injection):
    """The allocator on the GPUs of one worker frees and allocates memory again, in spells.

    A rank that allocates launches its kernels late, and the others of its tensor-parallel group
    wait for it. It is another rank each time.
    """

    worker: Worker  # (dp, pp)
    stall_ns: float  # mean time that one computation waits
    share: float = 0.7  # share of the computations that wait while a spell lasts
    spells: Spells = field(default_factory=lambda: Spells(share=0.5))  # when it happens
    cause: ClassVar[str] = "memory_fragmentation"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen some of the worker's computations."""
        dp, pp = checked(self.worker, job)
        program = work.program
        mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE) & (program.stage == pp)
        shape = (int(mask.sum()), job.steps)
        hit = rng.random(shape) < self.share
        late = np.where(hit, self.stall_ns * rng.lognormal(-0.08, 0.4, shape), 0.0)
        late *= self.spells.active(job.steps, rng)
        keep_waiting(work, mask, dp, late, rng.integers(job.sizes.tp, size=shape).astype(np.int16))

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the worker whose GPUs are affected."""
        return (checked(self.worker, job),)


def keep_waiting(
    work: StepWork,
    mask: BoolArray,
    dp: int,
    late_ns: FloatArray,
    rank: NDArray[np.int16],
) -> None:
    """Make a worker's other ranks wait for `rank`; `late_ns` has shape (operations, steps)."""
    work.duration_ns[mask, :, dp] += late_ns
    longer = late_ns > work.late_ns[mask, :, dp]
    work.late_ns[mask, :, dp] += late_ns
    work.late_rank[mask, :, dp] = np.where(longer, rank, work.late_rank[mask, :, dp])


def _slow_rank_of_worker(
    work: StepWork,
    job: JobModel,
    worker: Worker,
    rank_and_factor: tuple[int, float],
    active: BoolArray,
) -> None:
    """Slow down one tensor- or context-parallel rank of a worker in the active steps."""
    (dp, pp), (rank, factor) = worker, rank_and_factor
    program = work.program
    mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE) & (program.stage == pp)
    late = work.duration_ns[mask, :, dp] * ((1 - job.costs.tensor_share) * (factor - 1))
    late *= active
    keep_waiting(work, mask, dp, late, np.array(rank, np.int16))


# Shares of a period in which the device heats up, and in which it cools down. The device is hot in
# between.
_HEATING, _COOLING = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class ThermalThrottling(Injection):
    """The device of one worker heats up, lowers its clock and recovers, periodically."""

    worker: Worker  # (dp, pp)
    factor: float  # how many times as long its forwards and backwards take while it is hot
    period: float  # recorded steps from one time to the next
    offset: float = 0.0  # how many of them it has been heating up for when the first one begins
    cause: ClassVar[str] = "thermal_throttling"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the worker's forwards and backwards in proportion to the heat of its device."""
        dp, pp = checked(self.worker, job)
        phase = (np.arange(job.steps) + self.offset) % self.period / self.period
        # The temperature approaches its equilibrium exponentially while the device heats up.
        heating = (1 - np.exp(-3 * phase / _HEATING)) / (1 - np.exp(-3))
        hot = np.minimum(np.minimum(heating, 1.0), (1 - phase) / _COOLING)
        factor = 1 + (self.factor - 1) * hot * rng.lognormal(-0.0002, 0.02, job.steps)
        program = work.program
        mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE) & (program.stage == pp)
        work.duration_ns[mask, :, dp] *= factor

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the worker at fault."""
        return (checked(self.worker, job),)


@dataclass(frozen=True, slots=True)
class SlowTogether(Injection):
    """All workers compute slowly: in a range of steps, or increasingly during the session."""

    factor: float = 1.0  # how many times as long forwards and backwards take in the stretch
    begin: int = 0  # position of the stretch's first step among the recorded ones
    steps: int | None = None  # how many it has; None if it lasts until the end
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
    """In each step a random worker computes slowly."""

    factor: float  # how many times as long its forwards and backwards take
    spells: Spells = field(default_factory=Spells)  # in which steps any of them does
    cause: ClassVar[str] = "rotating"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the forwards and backwards of a random worker in each step."""
        program, sizes = work.program, job.sizes
        chosen = rng.integers(sizes.workers, size=job.steps)
        active = self.spells.active(job.steps, rng)
        computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        for step in np.flatnonzero(active).tolist():
            dp, pp = divmod(int(chosen[step]), sizes.pp)
            work.duration_ns[computes & (program.stage == pp), step, dp] *= self.factor


@dataclass(frozen=True, slots=True)
class UnevenMicrobatches(Injection):
    """One DP rank runs more microbatches than the others, or every rank a random number."""

    more: int  # largest difference to the job's number of microbatches
    dp: int | None = None  # rank that always runs more; None for random numbers in each step
    cause: ClassVar[str] = "uneven_microbatches"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Scale each rank's computing to its number of microbatches, and record this number."""
        if job.sizes.pp > 1:
            raise ValueError("uneven numbers of microbatches need a job without a pipeline")
        counts = np.full((job.steps, job.sizes.dp), job.microbatches)
        if self.dp is not None:
            counts[:, self.dp] += self.more
        else:
            # Two ranks exchange microbatches, so that the total number does not change.
            half = rng.integers(0, self.more + 1, (job.steps, job.sizes.dp // 2))
            moved = np.zeros_like(counts)
            moved[:, : half.shape[1]], moved[:, half.shape[1] : 2 * half.shape[1]] = half, -half
            counts = counts + rng.permuted(moved, axis=1)
        mask = work.program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        work.duration_ns[mask] *= counts / job.microbatches
        work.microbatches = counts

    def workers(self, job: JobModel) -> tuple[Worker, ...]:  # noqa: ARG002 - of any job
        """Return the worker that always runs more microbatches, if there is one."""
        return () if self.dp is None else ((self.dp, 0),)


@dataclass(frozen=True, slots=True)
class ContextParallelStraggler(Injection):
    """One context-parallel rank computes slowly, and the other ranks of its group wait for it."""

    worker: Worker  # (dp, pp)
    context_rank: int
    factor: float  # how many times as long the rank's own computing takes
    spells: Spells = field(default_factory=Spells)  # when it does
    cause: ClassVar[str] = "context_parallel_straggler"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the worker's computations by the time that its other ranks wait."""
        checked(self.worker, job)
        if not 0 <= self.context_rank < job.sizes.cp:
            raise ValueError(f"context-parallel rank {self.context_rank} is outside {job.sizes.cp}")
        active = self.spells.active(job.steps, rng)
        _slow_rank_of_worker(work, job, self.worker, (self.context_rank, self.factor), active)

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the worker to which the slow rank belongs."""
        return (checked(self.worker, job),)


@dataclass(frozen=True, slots=True)
class UnevenExperts(Injection):
    """Routers send more tokens to the experts of some ranks than to those of others."""

    spread: float  # sigma of the logarithm of the tokens that a rank's experts are sent
    # Share of the spread that lasts, because some experts get more tokens of any text. The rest of
    # the spread changes from microbatch to microbatch.
    lasting: float = 0.5
    share: float = 0.5  # share of a computation that the experts are where tokens are spread evenly
    cause: ClassVar[str] = "expert_parallel_imbalance"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen computations to the time of the experts with the most tokens."""
        over, dp, pp = job.experts_over, job.sizes.dp, job.sizes.pp
        takes, shared = work.duration_ns, work.experts
        if shared is None:
            raise ValueError("uneven experts need DP ranks that share them")
        program = work.program
        mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        # Each stage has its own layers with their own experts, and each group of DP ranks has its
        # own texts.
        lasting = rng.normal(0.0, self.spread * self.lasting, (pp, 1, over))
        own = rng.normal(
            0.0, self.spread * (1 - self.lasting), (int(mask.sum()), job.steps, dp // over, over)
        )
        own += lasting[program.stage[mask]][:, None]
        # The largest logarithm is subtracted first, so that `exp` does not overflow for a large
        # spread.
        tokens = np.exp(own - own.max(axis=-1, keepdims=True))
        tokens /= tokens.mean(axis=-1, keepdims=True)
        # The ranks of a group compute each layer together, so `latest` is the same for all of them;
        # a rank that computed alone would finish earlier by `early`.
        latest = takes[mask].reshape(tokens.shape)
        early = shared.ahead_ns[:, mask].sum(axis=0).reshape(tokens.shape)
        experts = self.share * (latest - early) * tokens
        most = np.broadcast_to(experts.max(axis=-1, keepdims=True), tokens.shape)
        shape = (*tokens.shape[:2], dp)
        shared.ahead_ns[0, mask] = ((1 - self.share) * early).reshape(shape)
        shared.ahead_ns[1, mask] = (most - experts).reshape(shape)
        shared.takes_ns[mask] = most.reshape(shape)
        takes[mask] = ((1 - self.share) * latest + most).reshape(shape)
