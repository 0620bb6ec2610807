"""From a job and what goes wrong with it to a trace with known truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.analysis.synthesis.costs import healthy_work
from app.analysis.synthesis.execution import execute
from app.analysis.synthesis.program import build_program
from app.analysis.synthesis.randomness import stream
from app.analysis.synthesis.recording import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.analysis.synthesis.injections import Injection, Worker
    from app.analysis.synthesis.job import JobModel
    from app.analysis.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Truth:
    """What is wrong with a synthetic job, and what that costs.

    Parameters
    ----------
    causes : tuple of str
        Injected causes by the names that reports use; empty for a healthy job.
    workers : tuple of (dp, pp)
        Workers at fault.
    stage : int or None
        Pipeline stage at fault.
    step_times_s : tuple of float
        Time of each recorded step, in order of the steps.
    healthy_step_times_s : tuple of float
        The same steps executed without the injections: same draws for all the rest.
    """

    causes: tuple[str, ...]
    workers: tuple[Worker, ...]
    stage: int | None
    step_times_s: tuple[float, ...]
    healthy_step_times_s: tuple[float, ...]

    @property
    def slowdown(self) -> float:
        """Return how many times as long the steps take because of the injections."""
        return sum(self.step_times_s) / sum(self.healthy_step_times_s)

    def document(self) -> dict[str, Any]:
        """Return the truth as JSON-able data."""
        return {
            "schema": "paceline.truth/1",
            "causes": list(self.causes),
            "workers": [list(worker) for worker in self.workers],
            "stage": self.stage,
            "slowdown": self.slowdown,
            "step_times_s": list(self.step_times_s),
            "healthy_step_times_s": list(self.healthy_step_times_s),
        }


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticSession:
    """One profiling session of a synthetic job."""

    job: JobModel
    seed: int
    trace: Trace
    truth: Truth


def synthesize(
    job: JobModel, injections: Sequence[Injection] = (), *, seed: int
) -> SyntheticSession:
    """Execute `job` with and without `injections`; equal arguments give equal results.

    Raises
    ------
    ValueError
        An injection names a worker that the job does not have.
    """
    program = build_program(job)
    work = healthy_work(job, program, seed)
    healthy = execute(work)
    execution = healthy
    if injections:
        for number, injection in enumerate(injections):
            injection.apply(work, job, stream(seed, "injection", number, injection.cause))
        execution = execute(work)
    stages = [stage for i in injections if (stage := i.stage(job)) is not None]
    truth = Truth(
        causes=tuple(injection.cause for injection in injections),
        workers=tuple(worker for i in injections for worker in i.workers(job)),
        stage=stages[0] if stages else None,
        step_times_s=tuple((execution.step_times_ns() / 1e9).tolist()),
        healthy_step_times_s=tuple((healthy.step_times_ns() / 1e9).tolist()),
    )
    trace = record(job, program, execution, stream(seed, "recording"))
    return SyntheticSession(job=job, seed=seed, trace=trace, truth=truth)
