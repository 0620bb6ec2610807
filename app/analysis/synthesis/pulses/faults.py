"""What makes a synthetic job slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from app.analysis.pulse.notices import NoticeKind
from app.analysis.synthesis.pulses.job import PulseJob, PulseTruth

Fault = Callable[[PulseJob, np.random.Generator, int, float], PulseTruth]


def _end(job: PulseJob, rng: np.random.Generator, begin: int) -> int | None:
    """Return where a fault ends; half of them last."""
    left = job.dials.steps - begin
    return None if rng.random() < 0.5 else begin + int(rng.integers(left // 2, left - 30))  # noqa: PLR2004


def slow_rank(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow one rank down."""
    rank, end = int(rng.integers(job.dials.world)), _end(job, rng, begin)
    job.computing[begin:end, rank] *= factor
    return PulseTruth(NoticeKind.SLOW_RANK, (rank,), begin, end, factor)


def slow_host(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow all ranks of a host down."""
    each = min(job.dials.host_ranks, job.dials.world)
    first = each * int(rng.integers(job.dials.world // each))
    ranks, end = tuple(range(first, first + each)), _end(job, rng, begin)
    job.computing[begin:end, first : first + each] *= factor
    return PulseTruth(NoticeKind.SLOW_RANK, ranks, begin, end, factor)


def slow_network(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Have collectives take longer."""
    end = _end(job, rng, begin)
    job.network[begin:end] += (factor - 1) * job.dials.step_s * 1e9
    return PulseTruth(NoticeKind.SLOW_JOB, (), begin, end, factor)


def slow_data(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Have all ranks load their data for longer."""
    end = _end(job, rng, begin)
    job.data[begin:end] += (factor - 1) * job.dials.step_s * 1e9
    return PulseTruth(NoticeKind.SLOW_JOB, (), begin, end, factor)


def spells(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow one rank down for some steps, again and again."""
    rank, period = int(rng.integers(job.dials.world)), int(rng.integers(10, 60))
    long = max(3, int(period * rng.uniform(0.2, 0.5)))
    steps = np.arange(begin, job.dials.steps)
    job.computing[steps[(steps - begin) % period < long], rank] *= factor
    return PulseTruth(NoticeKind.SPELLS, (rank,), begin, None, factor)


def rotating(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow another rank down each time."""
    long, before = int(rng.integers(8, 30)), -1
    for first in range(begin, job.dials.steps, long):
        rank = int(rng.integers(job.dials.world))
        while rank == before:
            rank = int(rng.integers(job.dials.world))
        job.computing[first : first + long, rank] *= factor
        before = rank
    return PulseTruth(NoticeKind.SPELLS, (), begin, None, factor)


def drift(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Have one rank grow slower until the end."""
    rank, left = int(rng.integers(job.dials.world)), job.dials.steps - begin
    job.computing[begin:, rank] *= np.linspace(1, factor, left)
    return PulseTruth(NoticeKind.DRIFT, (rank,), begin, None, factor)


FAULTS: Final[Mapping[str, Fault]] = {
    "rank": slow_rank,
    "host": slow_host,
    "network": slow_network,
    "data": slow_data,
    "spells": spells,
    "rotating": rotating,
    "drift": drift,
}
