"""Injections that change over time what a device can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from app.analysis.synthesis.injections.base import Injection, Worker, checked
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

if TYPE_CHECKING:
    from app.analysis.synthesis.execution import StepWork
    from app.analysis.synthesis.job import JobModel

# Shares of a period in which a device heats up and cools down; between them it is hot.
_HEATING, _COOLING = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class ThermalThrottling(Injection):
    """One worker's device heats up, lowers its clock, and recovers, again and again."""

    worker: Worker  # (dp, pp)
    factor: float  # how many times as long its forwards and backwards take while it is hot
    period: float  # recorded steps from one time to the next
    offset: float = 0.0  # how many of them it has been heating up for when the first one begins
    cause: ClassVar[str] = "thermal_throttling"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen the worker's forwards and backwards by how hot it is."""
        dp, pp = checked(self.worker, job)
        phase = (np.arange(job.steps) + self.offset) % self.period / self.period
        # Temperatures approach where heat comes and goes alike.
        heating = (1 - np.exp(-3 * phase / _HEATING)) / (1 - np.exp(-3))
        hot = np.minimum(np.minimum(heating, 1.0), (1 - phase) / _COOLING)
        factor = 1 + (self.factor - 1) * hot * rng.lognormal(-0.0002, 0.02, job.steps)
        program = work.program
        mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE) & (program.stage == pp)
        work.duration_ns[mask, :, dp] *= factor

    def workers(self, job: JobModel) -> tuple[Worker, ...]:
        """Return the one worker."""
        return (checked(self.worker, job),)
