"""One draw: a number of healthy jobs, and for each cause a number of jobs that are slow enough."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np

from app.analysis.synthesis.random_sessions import CAUSES as OWN_CAUSES
from benchmarks.score import draw_kind, lead, true_slowdown_of
from tests.oracles.physics.draw import FAULTS, draw_job
from tests.referee.judging import NONE, STRAGGLING, judge_job
from tests.referee.table import CAUSES as INDEPENDENT_CAUSES
from tests.referee.table import is_near

# Jobs of a cause are drawn until enough are slow; a fault that slows hardly any is given up.
_ROUNDS: Final = 24


@dataclass(frozen=True, slots=True)
class Judged:
    """A job and its report.

    Parameters
    ----------
    seed : int
    cause, lead : str
        True cause and first named cause; `NONE` for a healthy job, or without any.
    slow : bool
        Whether the fault makes it slow enough to count; True for a healthy job. Other jobs are not
        analyzed.
    near : bool
        Whether the headline is near the true slowdown.
    worker_right : bool or None
        Whether the first blamed worker is faulty.
    """

    seed: int
    cause: str
    lead: str
    slow: bool
    near: bool
    worker_right: bool | None


@dataclass(frozen=True, slots=True)
class Physics:
    """A simulator whose jobs are judged.

    Parameters
    ----------
    name : str
    causes : tuple of str
    judge : callable
        Takes a seed and a cause, or `NONE`.
    """

    name: str
    causes: tuple[str, ...]
    judge: Callable[[int, str], Judged]


@dataclass(frozen=True, slots=True)
class Draw:
    """The results of one draw.

    Parameters
    ----------
    physics : Physics
    first_seed : int
    jobs : tuple of Judged
        The jobs that count.
    """

    physics: Physics
    first_seed: int
    jobs: tuple[Judged, ...]

    @property
    def healthy(self) -> tuple[Judged, ...]:
        """Return the healthy jobs."""
        return tuple(job for job in self.jobs if job.cause == NONE)

    @property
    def f1(self) -> dict[str, float]:
        """Return F1 of each cause; healthy jobs are among the negatives."""
        return {cause: self._f1(cause) for cause in self.physics.causes}

    def _f1(self, cause: str) -> float:
        true = sum(job.cause == cause for job in self.jobs)
        named = sum(job.lead == cause for job in self.jobs)
        both = sum(job.cause == job.lead == cause for job in self.jobs)
        return 2 * both / (true + named) if true else float("nan")

    @property
    def macro_f1(self) -> float:
        """Return the mean of F1 over the causes."""
        return _share([value for value in self.f1.values() if not math.isnan(value)])

    @property
    def false_alarms(self) -> float:
        """Return the share of healthy jobs with a named cause."""
        return _share([job.lead != NONE for job in self.healthy])

    @property
    def near(self) -> float:
        """Return the share of slow jobs whose headline is near the truth."""
        return _share([job.near for job in self.jobs if job.cause != NONE])

    @property
    def worst_worker(self) -> float:
        """Return the share of jobs with a faulty worker in which that worker is blamed first."""
        return _share([job.worker_right for job in self.jobs if job.worker_right is not None])


def _share(hits: Sequence[float]) -> float:
    return float(np.mean(hits)) if hits else float("nan")


def judge_own(seed: int, cause: str) -> Judged:
    """Judge a job of the product's own synthesizer."""
    job = draw_kind(seed, None if cause == NONE else cause)
    if cause != NONE and true_slowdown_of(job.session) < STRAGGLING:
        return _too_mild(seed, cause)
    scored = job.score()
    return Judged(
        seed, cause, lead(scored), slow=True, near=scored.near, worker_right=scored.worker_right
    )


def judge_independent(seed: int, cause: str) -> Judged:
    """Judge a job of the second physics, with the faults of a cause in turns."""
    faults = [name for name, fault in FAULTS.items() if fault.cause == cause]
    job = draw_job(seed, faults[seed % len(faults)] if faults else None)
    if cause != NONE and job.slowdown < STRAGGLING:
        return _too_mild(seed, cause)
    verdict = judge_job(seed, job)
    near = is_near(verdict.headline, verdict.slowdown)
    return Judged(
        seed, cause, verdict.lead, slow=True, near=near, worker_right=verdict.worker_right
    )


def _too_mild(seed: int, cause: str) -> Judged:
    """Return a job that does not count, and has no report."""
    return Judged(seed, cause, NONE, slow=False, near=False, worker_right=None)


Wanted = tuple[int, str]


class Mapping(Protocol):
    """A function like `map` with one iterable."""

    def __call__(
        self, of: Callable[[Wanted], Judged], wanted: Iterable[Wanted], /
    ) -> Iterable[Judged]:
        """Return the results for all items."""
        ...


PHYSICS: Final = {
    physics.name: physics
    for physics in (
        Physics("own", OWN_CAUSES, judge_own),
        Physics("independent", INDEPENDENT_CAUSES, judge_independent),
    )
}


def draw(
    physics: Physics, first_seed: int, healthy: int, each: int, mapping: Mapping = map
) -> Draw:
    """Draw and judge jobs until there are enough of each cause.

    Parameters
    ----------
    physics : Physics
    first_seed : int
        Jobs have seeds from there on, each its own.
    healthy, each : int
        Healthy jobs; jobs of each cause that count.
    mapping : callable, optional
        Judges many jobs, as `map` does.
    """
    seeds = itertools.count(first_seed)
    missing = {NONE: healthy} | dict.fromkeys(physics.causes, each)
    jobs: list[Judged] = []
    for _ in range(_ROUNDS):
        wanted = list(_wanted(seeds, missing))
        found = mapping(partial(_judged, physics.judge), wanted)
        slow = [job for job in found if job.slow]
        jobs += slow
        for job in slow:
            missing[job.cause] -= 1
        if not any(missing.values()):
            break
    return Draw(physics, first_seed, tuple(jobs))


def _wanted(seeds: Iterator[int], missing: dict[str, int]) -> Iterator[Wanted]:
    for cause, count in missing.items():
        for _ in range(count):
            yield next(seeds), cause


def _judged(judge_job: Callable[[int, str], Judged], wanted: Wanted) -> Judged:
    return judge_job(*wanted)
