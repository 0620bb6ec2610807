"""Injections that hold ranks up between steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from app.analysis.synthesis.execution import HostOperation
from app.analysis.synthesis.injections.base import Injection
from app.analysis.trace.model import CHECKPOINT, DATA_LOADING, EVALUATION

if TYPE_CHECKING:
    from app.analysis.synthesis.execution import StepWork
    from app.analysis.synthesis.job import JobModel


@dataclass(frozen=True, slots=True)
class Standstill(Injection):
    """Before some steps ranks launch nothing, for a reason that no operation says."""

    every: int  # steps from one time to the next
    stall_ns: float  # how long a rank stands still on average
    offset: int = 0  # the number of a step that begins with it
    ranks: tuple[int, ...] = ()  # DP ranks that do; all of them where none is given
    scatter: float = 0.1  # log-normal spread of the time that all take alike
    own: float = 0.0  # …and of what each rank takes by itself
    cause: ClassVar[str] = "between_steps"
    op: ClassVar[str | None] = None  # what ranks record meanwhile

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay what each rank launches first, and with it all of its step."""
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
    """Before some steps ranks wait for their loaders, and record that."""

    cause: ClassVar[str] = "data_loading"
    op: ClassVar[str | None] = DATA_LOADING


@dataclass(frozen=True, slots=True)
class UnrecordedLoaderStall(Standstill):
    """Before some steps some ranks wait for their loaders, and the others for them."""

    cause: ClassVar[str] = "data_loading"


@dataclass(frozen=True, slots=True)
class CheckpointWritten(Standstill):
    """Before some steps ranks write checkpoints, and record that."""

    cause: ClassVar[str] = "checkpoint"
    op: ClassVar[str | None] = CHECKPOINT


@dataclass(frozen=True, slots=True)
class Evaluation(Standstill):
    """Before some steps ranks evaluate, and record that."""

    cause: ClassVar[str] = "evaluation"
    op: ClassVar[str | None] = EVALUATION
