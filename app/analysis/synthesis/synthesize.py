"""Synthesis of a session: a job is executed with and without faults, and recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from app.analysis.quantities import BoolArray, IntArray
from app.analysis.synthesis.costs import healthy_work
from app.analysis.synthesis.execution import Execution, StepWork, execute
from app.analysis.synthesis.injections.base import Injection, Worker
from app.analysis.synthesis.job import JobModel, stream
from app.analysis.synthesis.program import build_program
from app.analysis.synthesis.recording import Phase, record, step_ids
from app.analysis.trace.model import Trace

# A step is slow if the injections lengthen it by more than this factor.
_LONGER: Final = 1.001


@dataclass(frozen=True, slots=True)
class Truth:
    """The faults of a synthetic job, and what they cost."""

    # Injected causes by their names in reports; empty for a healthy job.
    causes: tuple[str, ...]
    workers: tuple[Worker, ...]  # tuple of (dp, pp): workers at fault
    stage: int | None  # pipeline stage at fault
    step_times_s: tuple[float, ...]  # time of each recorded training step, in order of the steps
    # Times of the same steps executed without the injections, with all other random draws equal.
    healthy_step_times_s: tuple[float, ...]
    steps: tuple[int, ...]  # numbers of these steps
    # turns_s, healthy_turns_s: times of the same steps from the end of the step before, which
    # include the time between steps
    turns_s: tuple[float, ...] = ()
    healthy_turns_s: tuple[float, ...] = ()
    injections: tuple[dict[str, Any], ...] = ()  # each injection's cause and dials
    # warm_up_steps, evaluation_steps: numbers of recorded steps that are not training steps of full
    # size
    warm_up_steps: tuple[int, ...] = ()
    evaluation_steps: tuple[int, ...] = ()
    odd_steps: tuple[int, ...] = ()  # full ones unlike the others, which have no times here
    lost_operations: int = 0  # operations that the profiler did not write
    # clock_offset_ns, clock_rate_ppm: by how much each host's clock is ahead at the start, and the
    # microseconds it gains a second
    clock_offset_ns: dict[str, float] = field(default_factory=dict)
    clock_rate_ppm: dict[str, float] = field(default_factory=dict)

    @property
    def slowdown(self) -> float:
        """Return the factor by which the injections lengthen the training steps."""
        return sum(self.step_times_s) / sum(self.healthy_step_times_s)

    @property
    def turn_slowdown(self) -> float:
        """Return the factor by which the injections lengthen the time from step end to step end."""
        return sum(self.turns_s) / sum(self.healthy_turns_s)

    @property
    def slow_steps(self) -> tuple[int, ...]:
        """Return the numbers of the steps that the injections lengthen."""
        both = zip(self.steps, self.step_times_s, self.healthy_step_times_s, strict=True)
        return tuple(step for step, taken, healthy in both if taken > _LONGER * healthy)

    def document(self) -> dict[str, Any]:
        """Return the truth as data that JSON can represent."""
        return {
            "schema": "paceline.truth/1",
            "causes": list(self.causes),
            "workers": [list(worker) for worker in self.workers],
            "stage": self.stage,
            "slowdown": self.slowdown,
            "step_times_s": list(self.step_times_s),
            "healthy_step_times_s": list(self.healthy_step_times_s),
            "steps": list(self.steps),
            "turns_s": list(self.turns_s),
            "healthy_turns_s": list(self.healthy_turns_s),
            "slow_steps": list(self.slow_steps),
            "injections": list(self.injections),
            "warm_up_steps": list(self.warm_up_steps),
            "evaluation_steps": list(self.evaluation_steps),
            "odd_steps": list(self.odd_steps),
            "lost_operations": self.lost_operations,
            "clock_offset_ns": self.clock_offset_ns,
            "clock_rate_ppm": self.clock_rate_ppm,
        }


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticSession:
    """A profiling session of a synthetic job, and the faults injected into it."""

    job: JobModel
    seed: int
    trace: Trace
    truth: Truth
    injections: tuple[Injection, ...] = ()


def synthesize(
    job: JobModel, injections: Sequence[Injection] = (), *, seed: int
) -> SyntheticSession:
    """Return a session of `job` with `injections`; equal arguments give equal results.

    Raises
    ------
    ValueError
        An injection names a worker that the job does not have, or needs what the job does not do.
    """
    training = _number_steps(job, seed)
    healthy, phase = _run(job, injections, training.ids, seed)
    phases = [phase]
    if job.warm_up_steps:
        group = job.sizes.pp if job.sizes.vpp > 1 else 1
        fewer = max(group, job.microbatches // 2 // group * group)
        ramp = replace(job, microbatches=fewer, steps=job.warm_up_steps)
        phases.append(_run(ramp, injections, training.warm_up, _other_seed(seed, "warm-up"))[1])
    if job.evaluation_steps:
        forwards = replace(job, steps=job.evaluation_steps)
        seed_of_it = _other_seed(seed, "evaluation")
        phases.append(_run(forwards, (), training.evaluation, seed_of_it, evaluation=True)[1])
    recording = record(phases, seed)
    stages = [stage for i in injections if (stage := i.stage(job)) is not None]
    ordinary = _ordinary(job, injections)
    truth = Truth(
        causes=tuple(dict.fromkeys(i.cause for i in injections if i.cause)),
        workers=tuple(worker for i in injections for worker in i.workers(job)),
        stage=stages[0] if stages else None,
        step_times_s=tuple((phase.execution.step_times_ns()[ordinary] / 1e9).tolist()),
        healthy_step_times_s=tuple((healthy.step_times_ns()[ordinary] / 1e9).tolist()),
        steps=tuple(training.ids[ordinary].tolist()),
        turns_s=_turns_s(job, phase.execution),
        healthy_turns_s=_turns_s(job, healthy),
        injections=tuple(injection.document() for injection in injections),
        warm_up_steps=tuple(training.warm_up.tolist()),
        evaluation_steps=tuple(training.evaluation.tolist()),
        odd_steps=tuple(training.ids[~ordinary].tolist()),
        lost_operations=recording.lost,
        clock_offset_ns=recording.clock_offset_ns,
        clock_rate_ppm=recording.clock_rate_ppm,
    )
    return SyntheticSession(job, seed, recording.trace, truth, tuple(injections))


def _turns_s(job: JobModel, execution: Execution) -> tuple[float, ...]:
    return tuple(((execution.turn_times_ns() + job.costs.step_gap_ns) / 1e9).tolist())


def inject(
    work: StepWork,
    job: JobModel,
    injections: Sequence[Injection],
    seed: int,
    *,
    without: Collection[int] = (),
) -> None:
    """Apply injections to the work in place, except those whose indices are in `without`."""
    for number, injection in enumerate(injections):
        if number in without:
            continue
        work.program = injection.rewire(work.program, job)
        injection.apply(work, job, stream(seed, "injection", number, injection.cause))


def true_slowdown(job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
    """Return the slowdown of the session that `synthesize` would return, without recording it."""
    healthy, phase = _run(job, injections, step_numbers(job, seed), seed)
    ordinary = _ordinary(job, injections)
    taken_ns = phase.execution.step_times_ns()[ordinary]
    return float(taken_ns.sum() / healthy.step_times_ns()[ordinary].sum())


def _ordinary(job: JobModel, injections: Sequence[Injection]) -> BoolArray:
    """Return which steps no injection makes irregular on all ranks, bool[steps]."""
    odd = [position for injection in injections for position in injection.odd()]
    return ~np.isin(np.arange(job.steps), odd)


def true_turn_slowdown(job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
    """Return the factor by which injections lengthen the time from step end to step end."""
    healthy, phase = _run(job, injections, step_numbers(job, seed), seed)
    return sum(_turns_s(job, phase.execution)) / sum(_turns_s(job, healthy))


def step_numbers(job: JobModel, seed: int) -> IntArray:
    """Return the numbers of the training steps of full size in the session of `synthesize`."""
    return _number_steps(job, seed).ids


@dataclass(frozen=True, slots=True, eq=False)
class _StepNumbers:
    ids: IntArray
    warm_up: IntArray
    evaluation: IntArray


def _number_steps(job: JobModel, seed: int) -> _StepNumbers:
    """Return the numbers of recorded steps: warm-up first, evaluation evenly among training."""
    total = job.steps + job.warm_up_steps + job.evaluation_steps
    ids = step_ids(total, stream(seed, "steps"), consecutive=job.consecutive)
    warm_up, rest = ids[: job.warm_up_steps], ids[job.warm_up_steps :]
    places = np.linspace(0, len(rest) - 1, job.evaluation_steps + 2)[1:-1].round().astype(int)
    return _StepNumbers(np.delete(rest, places), warm_up, rest[places])


def _run(
    job: JobModel,
    injections: Sequence[Injection],
    ids: IntArray,
    seed: int,
    *,
    evaluation: bool = False,
) -> tuple[Execution, Phase]:
    """Execute steps without and with the injections; return both executions."""
    program = build_program(job, evaluation=evaluation)
    work: StepWork = healthy_work(job, program, seed)
    work.numbers = ids
    execution = healthy = execute(work, job.costs.contention)
    if injections:
        inject(work, job, injections, seed)
        execution = execute(work, job.costs.contention)
    return healthy, Phase(job, work, execution, ids)


def _other_seed(seed: int, purpose: str) -> int:
    return int(stream(seed, purpose).integers(2**31))
