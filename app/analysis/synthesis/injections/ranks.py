"""Injections that make ranks of a group wait for one another: of long contexts, and of experts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from app.analysis.synthesis.injections.base import Injection, Spells, Worker, checked
from app.analysis.synthesis.injections.computations import keep_waiting
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

if TYPE_CHECKING:
    from app.analysis.synthesis.execution import StepWork
    from app.analysis.synthesis.job import JobModel


@dataclass(frozen=True, slots=True)
class ContextParallelStraggler(Injection):
    """One context-parallel rank computes slower than the others of its group, which wait for it."""

    worker: Worker  # (dp, pp)
    context_rank: int
    factor: float  # how many times as long the rank's own computing takes
    spells: Spells = field(default_factory=Spells)  # when it does
    cause: ClassVar[str] = "context_parallel_straggler"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the cell's computations by what the rank keeps the others waiting."""
        dp, pp = checked(self.worker, job)
        if not 0 <= self.context_rank < job.sizes.cp:
            raise ValueError(f"context-parallel rank {self.context_rank} is outside {job.sizes.cp}")
        program = work.program
        mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE) & (program.stage == pp)
        extra = (1 - job.costs.tensor_share) * (self.factor - 1)
        late = work.duration_ns[mask, :, dp] * extra
        late *= self.spells.active(job.steps, rng)
        keep_waiting(work, mask, dp, late, np.array(self.context_rank, np.int16))

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the cell of the rank."""
        return (checked(self.worker, job),)


@dataclass(frozen=True, slots=True)
class UnevenExperts(Injection):
    """Routers send the experts of some ranks more tokens than those of others."""

    spread: float  # sigma of the logarithm of the tokens that a rank's experts are sent
    # Share of that which lasts: some experts are sent more of any text. The rest changes from
    # microbatch to microbatch.
    lasting: float = 0.5
    share: float = 0.5  # share of a computation that the experts are where tokens are spread evenly
    cause: ClassVar[str] = "expert_parallel_imbalance"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen computations to those of the experts that have most to do."""
        over, dp, pp = job.experts_over, job.sizes.dp, job.sizes.pp
        takes, shared = work.duration_ns, work.experts
        if shared is None:
            raise ValueError("uneven experts need DP ranks that share them")
        program = work.program
        mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        # Each stage has layers of its own, each group of DP ranks texts of its own.
        lasting = rng.normal(0.0, self.spread * self.lasting, (pp, 1, over))
        own = rng.normal(
            0.0, self.spread * (1 - self.lasting), (int(mask.sum()), job.steps, dp // over, over)
        )
        own += lasting[program.stage[mask]][:, None]
        # Logarithms until here: however much they spread, none is too large.
        tokens = np.exp(own - own.max(axis=-1, keepdims=True))
        tokens /= tokens.mean(axis=-1, keepdims=True)
        # Ranks of a group go through their layers together; what each would take alone is less.
        latest = takes[mask].reshape(tokens.shape)
        early = shared.ahead_ns[:, mask].sum(axis=0).reshape(tokens.shape)
        experts = self.share * (latest - early) * tokens
        most = np.broadcast_to(experts.max(axis=-1, keepdims=True), tokens.shape)
        shape = (*tokens.shape[:2], dp)
        shared.ahead_ns[0, mask] = ((1 - self.share) * early).reshape(shape)
        shared.ahead_ns[1, mask] = (most - experts).reshape(shape)
        shared.takes_ns[mask] = most.reshape(shape)
        takes[mask] = ((1 - self.share) * latest + most).reshape(shape)
