"""Base class of injected faults of synthetic jobs, and the steps in which they occur."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from app.analysis.quantities import BoolArray
from app.analysis.synthesis.execution import StepWork
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.program import JobProgram

Worker = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Injection(ABC):
    """An injected cause of straggling with its parameters."""

    cause: ClassVar[str]  # empty if the injection is no cause of straggling

    def rewire(self, program: JobProgram, job: JobModel) -> JobProgram:  # noqa: ARG002 - for those that do
        """Return the program with the dependencies that the fault adds."""
        return program

    @abstractmethod
    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Change the durations and delays of `work` in place."""

    def workers(self, job: JobModel) -> tuple[Worker, ...]:  # noqa: ARG002 - for those that have
        """Return the workers (dp, pp) at fault; empty if the fault has no fixed worker."""
        return ()

    def stage(self, job: JobModel) -> int | None:  # noqa: ARG002 - for those that have
        """Return the pipeline stage at fault; None if no stage is."""
        return None

    def odd(self) -> tuple[int, ...]:
        """Return the positions of steps that the fault makes unlike other steps on all ranks."""
        return ()

    def document(self) -> dict[str, Any]:
        """Return the cause and its parameters as data that JSON can represent."""
        return {"cause": self.cause, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Spells:
    """The steps in which a fault is active; all of them by default."""

    from_step: int = 0  # position of the first such step among the recorded ones
    share: float = 1.0  # share of the steps from there on, at most 1
    length: float = 3.0  # mean number of steps in a row, where not all of them are

    def active(self, steps: int, rng: np.random.Generator) -> BoolArray:
        """Return which steps have the fault, bool[steps]; at least one from `from_step` on."""
        there = np.arange(steps) >= self.from_step
        if self.share >= 1 or not there.any():
            return there
        first = int(np.argmax(there))
        ends = 1 / self.length
        begins = min(1.0, ends * self.share / (1 - self.share))
        draws = rng.random(steps)
        on = bool(draws[first] < self.share)
        for step in range(first, steps):
            there[step] = on
            on = draws[step] >= ends if on else draws[step] < begins
        if not there.any():
            there[rng.integers(first, steps)] = True
        return there


def checked(worker: Worker, job: JobModel) -> Worker:
    """Return `worker` after checking that the job has it.

    Raises
    ------
    ValueError
        The job has no such worker.
    """
    dp, pp = worker
    if not (0 <= dp < job.sizes.dp and 0 <= pp < job.sizes.pp):
        raise ValueError(f"worker {worker} is outside DP {job.sizes.dp} by PP {job.sizes.pp}")
    return worker


def any_worker(job: JobModel, rng: np.random.Generator) -> Worker:
    """Return a random worker of the job, (dp, pp)."""
    return int(rng.integers(job.sizes.dp)), int(rng.integers(job.sizes.pp))
