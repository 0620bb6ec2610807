"""DP ranks that run more microbatches in a step than others, as dynamic batches make them do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from app.analysis.synthesis.injections.base import Injection, Worker
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from app.analysis.synthesis.execution import StepWork
    from app.analysis.synthesis.job import JobModel


@dataclass(frozen=True, slots=True)
class UnevenMicrobatches(Injection):
    """One DP rank runs more microbatches than the others, or each as many as it draws."""

    more: int  # the difference to the job's number of microbatches, at most
    dp: int | None = None  # the rank that always runs more; None where all draw in each step
    cause: ClassVar[str] = "uneven_microbatches"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Let ranks compute longer, and record what they compute as more microbatches."""
        if job.sizes.pp > 1:
            raise ValueError("uneven numbers of microbatches need a job without a pipeline")
        counts = self._counts(job, rng)
        mask = work.program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
        work.duration_ns[mask] *= counts / job.microbatches
        work.microbatches = counts

    def _counts(self, job: JobModel, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the microbatches of each step and DP rank."""
        shape = (job.steps, job.sizes.dp)
        if self.dp is not None:
            counts = np.full(shape, job.microbatches)
            counts[:, self.dp] += self.more
            return counts
        # what one has more another one has less
        half = rng.integers(0, self.more + 1, (job.steps, job.sizes.dp // 2))
        drawn = np.zeros(shape, dtype=np.int64)
        drawn[:, : half.shape[1]], drawn[:, half.shape[1] : 2 * half.shape[1]] = half, -half
        return np.asarray(job.microbatches + rng.permuted(drawn, axis=1))

    def workers(self, job: JobModel) -> tuple[Worker, ...]:  # noqa: ARG002 - of any job
        """Return the rank that always runs more."""
        return () if self.dp is None else ((self.dp, 0),)
