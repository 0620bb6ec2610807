"""What can go wrong with a synthetic job: each injection changes the work before it is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from app.analysis.synthesis.costs import PIPELINE_TRANSFERS
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    FORWARD_COMPUTE,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from app.analysis.synthesis.execution import Work
    from app.analysis.synthesis.job import JobModel

Worker = tuple[int, int]


class Injection(Protocol):
    """A cause of straggling with its dials."""

    cause: ClassVar[str]

    def apply(self, work: Work, job: JobModel, rng: np.random.Generator) -> None:
        """Change durations and launch delays of `work` in place."""

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the (dp, pp) cells at fault; empty where the fault has no fixed worker."""

    def stage(self, job: JobModel) -> int | None:
        """Return the pipeline stage at fault, if it is one."""


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """One worker computes slower than its peers, all the time.

    Parameters
    ----------
    worker : tuple of int
        (dp, pp).
    factor : float
        How many times as long its forwards and backwards take.
    """

    worker: Worker
    factor: float
    cause: ClassVar[str] = "slow_worker"

    def apply(self, work: Work, job: JobModel, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random
        """Lengthen the worker's forwards and backwards."""
        dp, pp = _checked(self.worker, job)
        program = work.program
        mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE) & (program.stage == pp)
        work.duration_ns[mask, :, dp] *= self.factor

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the one worker."""
        return (_checked(self.worker, job),)

    def stage(self, job: JobModel) -> int | None:  # noqa: ARG002 - same for every job
        """Return None: the fault is in a worker."""
        return None


@dataclass(frozen=True, slots=True)
class StageImbalance:
    """The last stage has more to compute than the others, as with a loss layer nobody counted.

    Parameters
    ----------
    forward_factor, backward_factor : float
        How many times as long its passes take; the defaults were measured on a job with as many
        layers on the last stage as on the others.
    """

    forward_factor: float = 2.07
    backward_factor: float = 1.41
    cause: ClassVar[str] = "stage_imbalance"

    def apply(self, work: Work, job: JobModel, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random
        """Lengthen the last model chunk's forwards and backwards."""
        program, vpp = work.program, job.sizes.vpp
        place = (program.stage == job.sizes.pp - 1) & (program.chunk == vpp - 1)
        for name, factor in (
            (FORWARD_COMPUTE, self.forward_factor),
            (BACKWARD_COMPUTE, self.backward_factor),
        ):
            # The factor is of the whole stage, and only its last chunk carries the surplus.
            work.duration_ns[program.of_types(name) & place] *= 1 + (factor - 1) * vpp

    def workers(self, job: JobModel) -> tuple[Worker, ...]:  # noqa: ARG002 - same for every job
        """Return nothing: no worker is at fault."""
        return ()

    def stage(self, job: JobModel) -> int | None:
        """Return the last stage."""
        return job.sizes.pp - 1


@dataclass(frozen=True, slots=True)
class SequenceLengths:
    """Microbatches are packed from sequences of very different lengths.

    Lengths are log-normal; sequences fill a microbatch up to `max_length`, the last one cut to fit.
    A microbatch takes a + b·Σs + c·Σs², scaled to a mean of 1 over the job: without the
    imbalance each microbatch takes that mean.

    Parameters
    ----------
    max_length : int
        Tokens of a microbatch.
    median_length : float
        Tokens of the median sequence.
    spread : float
        Sigma of the lengths' logarithm.
    fixed, linear, quadratic : float
        Weights a, b, c, for lengths counted in units of `max_length`.
    """

    max_length: int = 32_768
    median_length: float = 2_000.0
    spread: float = 1.6
    fixed: float = 0.05
    linear: float = 0.6
    quadratic: float = 1.0
    cause: ClassVar[str] = "sequence_length_imbalance"

    def apply(self, work: Work, job: JobModel, rng: np.random.Generator) -> None:
        """Scale both passes of each microbatch on every stage of its DP rank."""
        shape = (job.microbatches, job.steps, job.sizes.dp)
        lengths = self.draw(int(np.prod(shape)), rng) / self.max_length
        time = self.fixed + self.linear * lengths.sum(axis=1)
        time += self.quadratic * np.square(lengths).sum(axis=1)
        factors = (time / time.mean()).reshape(shape)
        program = work.program
        mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        work.duration_ns[mask] *= factors[program.microbatch[mask]]

    def draw(self, microbatches: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return sequence lengths, shape (microbatches, sequences), 0 where there are no more."""
        columns: list[NDArray[np.int64]] = []
        room = np.full(microbatches, self.max_length, np.int64)
        while room.any():
            drawn = rng.lognormal(np.log(self.median_length), self.spread, microbatches)
            taken = np.minimum(np.maximum(drawn.astype(np.int64), 1), room)
            columns.append(taken)
            room = room - taken
        return np.stack(columns, axis=1)

    def workers(self, job: JobModel) -> tuple[Worker, ...]:  # noqa: ARG002 - same for every job
        """Return nothing: the fault moves with the data."""
        return ()

    def stage(self, job: JobModel) -> int | None:  # noqa: ARG002 - same for every job
        """Return None: every stage sees the same sequences."""
        return None


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """The interpreter stops now and then, on ranks and in steps at random.

    Only forwards suffer: backwards are launched by native code.

    Parameters
    ----------
    pause_ns : float
        Mean length of a pause in the first step.
    pauses : float
        Pauses of one worker in one step, on average; below its number of forwards.
    growth : float
        How much longer pauses are in the last step than in the first: 1 for twice as long.
    """

    pause_ns: float
    pauses: float
    growth: float = 0.0
    cause: ClassVar[str] = "garbage_collection"

    def apply(self, work: Work, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen single forwards by a pause."""
        mask = work.program.of_types(FORWARD_COMPUTE)
        shape = (int(mask.sum()), job.steps, job.sizes.dp)
        hit = rng.random(shape) < self.pauses / (job.microbatches * job.sizes.vpp)
        age = np.linspace(0.0, 1.0, job.steps)[None, :, None]
        pause = self.pause_ns * (1 + self.growth * age) * rng.lognormal(-0.02, 0.2, shape)
        work.duration_ns[mask] += np.where(hit, pause, 0.0)

    def workers(self, job: JobModel) -> tuple[Worker, ...]:  # noqa: ARG002 - same for every job
        """Return nothing: every worker stalls at times."""
        return ()

    def stage(self, job: JobModel) -> int | None:  # noqa: ARG002 - same for every job
        """Return None: every stage stalls at times."""
        return None


@dataclass(frozen=True, slots=True)
class SlowLink:
    """One worker's network link is slow: all transfers that it takes part in are.

    Parameters
    ----------
    worker : tuple of int
        (dp, pp).
    factor : float
        How many times as long its pipeline transfers and its collectives over the DP ranks take.
    """

    worker: Worker
    factor: float
    cause: ClassVar[str] = "network"

    def apply(self, work: Work, job: JobModel, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random
        """Lengthen the transfers of the worker and of its peers in them."""
        dp, pp = _checked(self.worker, job)
        program = work.program
        transfers = program.of_types(
            *PIPELINE_TRANSFERS, PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER, SEPARATE_ALL_REDUCE
        )
        own = transfers & (program.stage == pp)
        for group in program.groups:
            members = list(group.members)
            if not own[members].any():
                continue
            if group.across_dp:
                work.duration_ns[members] *= self.factor
            else:
                work.duration_ns[members, :, dp] *= self.factor

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the one worker."""
        return (_checked(self.worker, job),)

    def stage(self, job: JobModel) -> int | None:  # noqa: ARG002 - same for every job
        """Return None: the fault is in a worker's link."""
        return None


@dataclass(frozen=True, slots=True)
class SlowDataLoading:
    """A step's batch arrives late.

    Parameters
    ----------
    delay_ns : float
        Mean delay of a step's first operation, the same on all stages of a DP rank.
    """

    delay_ns: float
    cause: ClassVar[str] = "data_loading"

    def apply(self, work: Work, job: JobModel, rng: np.random.Generator) -> None:
        """Delay the launch of the first forward, or of the first receive on later stages."""
        # Loaders share storage, so that a bad step is bad for all: common times own part.
        common = rng.lognormal(-0.045, 0.3, (job.steps, 1))
        own = rng.lognormal(-0.005, 0.1, (job.steps, job.sizes.dp))
        work.delay_ns[list(work.program.first)] += self.delay_ns * common * own

    def workers(self, job: JobModel) -> tuple[Worker, ...]:  # noqa: ARG002 - same for every job
        """Return nothing: no worker is at fault."""
        return ()

    def stage(self, job: JobModel) -> int | None:  # noqa: ARG002 - same for every job
        """Return None: all stages wait for the batch."""
        return None


def _checked(worker: Worker, job: JobModel) -> Worker:
    dp, pp = worker
    if not (0 <= dp < job.sizes.dp and 0 <= pp < job.sizes.pp):
        raise ValueError(f"worker {worker} is outside DP {job.sizes.dp} by PP {job.sizes.pp}")
    return worker
