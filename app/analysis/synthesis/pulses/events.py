"""What happens to healthy jobs, and must not be noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from app.analysis.synthesis.pulses.job import PulseJob

Event = Callable[[PulseJob, np.random.Generator], None]


def compile_first(job: PulseJob, rng: np.random.Generator) -> None:
    """Compile in the first steps; one rank for longer."""
    job.computing[0] *= rng.uniform(5, 30)
    job.computing[1:3] *= rng.uniform(1.2, 2)
    job.computing[: int(rng.integers(3, 8)), rng.integers(job.dials.world)] *= 3


def checkpoints(job: PulseJob, rng: np.random.Generator) -> None:
    """Save the model every now and then, on rank 0 or on all."""
    every = int(rng.integers(40, 200))
    ranks = slice(0, 1) if rng.random() < 0.5 else slice(None)  # noqa: PLR2004
    job.saving[every::every, ranks] += job.dials.step_s * 1e9 * rng.uniform(0.5, 8)


def evaluations(job: PulseJob, rng: np.random.Generator) -> None:
    """Evaluate between steps."""
    every = int(rng.integers(60, 250))
    job.gap[every::every] += job.dials.step_s * 1e9 * rng.uniform(5, 60)


def loader_bursts(job: PulseJob, rng: np.random.Generator) -> None:
    """Have loaders of all ranks run dry for a few steps, or every 32 steps."""
    longer = job.dials.step_s * 1e9 * rng.uniform(0.2, 2)
    if rng.random() < 0.5:  # noqa: PLR2004
        job.data[31::32] += longer
        return
    for begin in rng.integers(0, job.dials.steps, max(1, job.dials.steps // 400)):
        job.data[begin : begin + int(rng.integers(1, 10))] += longer


def hiccups(job: PulseJob, rng: np.random.Generator) -> None:
    """Have single steps of single ranks take longer."""
    hit = rng.random(job.computing.shape) < 10 ** rng.uniform(-4, -2)
    job.computing[hit] *= rng.uniform(1.1, 3, int(hit.sum()))


def curriculum(job: PulseJob, rng: np.random.Generator) -> None:
    """Have sequences grow, gradually or in a jump."""
    steps, growth = job.dials.steps, rng.uniform(1.2, 2)
    factor = (
        np.linspace(1, growth, steps)
        if rng.random() < 0.5  # noqa: PLR2004
        else np.where(np.arange(steps) < steps * rng.uniform(0.3, 0.8), 1, growth)
    )
    job.computing *= factor[:, None]
    job.tokens = (job.tokens * factor[:, None]).astype(np.int64)


def collections(job: PulseJob, rng: np.random.Generator) -> None:
    """Have garbage collected every some steps: on all ranks at once, or on each by itself."""
    every = int(rng.integers(10, 60))
    steps = np.arange(job.dials.steps)[:, None]
    at_once = rng.random() < 0.5  # noqa: PLR2004
    phase = 0 if at_once else rng.integers(0, every, job.dials.world)
    hit = np.broadcast_to((steps + phase) % every == 0, job.collecting.shape)
    job.collecting[hit] += job.dials.step_s * 1e9 * rng.uniform(0.05, 0.3)


def missing_host(job: PulseJob, rng: np.random.Generator) -> None:
    """Lose the rows of a host for a while, and single rows; of a job's only host single ones."""
    each = min(job.dials.host_ranks, job.dials.world)
    if each == job.dials.world:
        each = 1
    first = each * int(rng.integers(job.dials.world // each))
    begin = int(rng.integers(job.dials.steps))
    job.missing[begin : begin + int(rng.integers(20, 120)), first : first + each] = True
    job.missing |= rng.random(job.missing.shape) < 10 ** rng.uniform(-5, -3)


EVENTS: Final[Mapping[str, Event]] = {
    "compile": compile_first,
    "checkpoints": checkpoints,
    "evaluations": evaluations,
    "loader bursts": loader_bursts,
    "hiccups": hiccups,
    "curriculum": curriculum,
    "collections": collections,
    "missing host": missing_host,
}
