"""The paper's figures of a fleet: distributions over its jobs, with the jobs at their ends."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.fleet.statistics import (
    PAPER_CORRELATION,
    PAPER_M_S,
    PAPER_M_W,
    PAPER_STEPS,
    PAPER_WASTE,
    Class,
    Point,
    by_doubling,
    cdf,
    rank_correlation,
)
from app.analysis.report.paper import KINDS

if TYPE_CHECKING:
    from app.services.fleet_report.jobs import JobFigures

# Jobs that a figure names: those at its upper end.
EXAMPLES: Final = 3


class Name(StrEnum):
    """The figures, as addresses and answers name them."""

    WASTE = "waste"
    STEPS = "steps"
    OPERATIONS = "operations"
    M_W = "m_w"
    M_S = "m_s"
    CORRELATION = "correlation"


@dataclass(frozen=True, slots=True)
class Example:
    """A job at the end of a figure, by the session that stands for it."""

    job: str
    session: uuid.UUID
    number: int
    value: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A distribution: (value, share of what is at most so large)."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the paper."""

    name: Name
    jobs: int  # that it is of
    values: Sequence[float]  # what its first curve is of
    curves: Sequence[Curve]
    paper: Sequence[Point]  # what the paper says of its own fleet
    examples: Sequence[Example]  # the largest value first


@dataclass(frozen=True, slots=True)
class Against:
    """S against a size: of jobs in classes that double."""

    jobs: int  # of which the size is known
    classes: Sequence[Class]
    correlation: float | None  # spearman's, of size and S; None where there is nothing to correlate


def figures(jobs: Sequence[JobFigures]) -> tuple[Figure, ...]:
    """Return the figures of jobs."""
    slow = [job for job in jobs if job.straggles]
    return (
        _figure(Name.WASTE, jobs, lambda job: job.waste, PAPER_WASTE),
        _steps(slow),
        _operations(jobs),
        _figure(Name.M_W, slow, lambda job: job.m_w, PAPER_M_W),
        _figure(Name.M_S, slow, lambda job: job.m_s, PAPER_M_S),
        _figure(Name.CORRELATION, slow, lambda job: job.correlation, PAPER_CORRELATION),
    )


def against_gpus(jobs: Sequence[JobFigures]) -> Against:
    """Return S against the number of GPUs."""
    return _against([(float(job.gpus), job.slowdown) for job in jobs])


def against_context(jobs: Sequence[JobFigures]) -> Against:
    """Return S against the longest sequence, of jobs whose metadata say it."""
    return _against([(float(job.context), job.slowdown) for job in jobs if job.context])


def _figure(
    name: Name,
    jobs: Sequence[JobFigures],
    value: Callable[[JobFigures], float | None],
    paper: Sequence[Point],
) -> Figure:
    known = [(found, job) for job in jobs if (found := value(job)) is not None]
    values = [found for found, _ in known]
    return Figure(name, len(known), values, [Curve("", cdf(values))], paper, _largest(known))


def _steps(jobs: Sequence[JobFigures]) -> Figure:
    values = [step for job in jobs for step in job.steps]
    known = [(max(job.steps), job) for job in jobs if job.steps]
    return Figure(
        Name.STEPS, len(known), values, [Curve("", cdf(values))], PAPER_STEPS, _largest(known)
    )


def _operations(jobs: Sequence[JobFigures]) -> Figure:
    """Return the waste by kinds of operations; its examples are the worst job of each."""
    found = {kind: [(job.waste_by.get(kind, 0.0), job) for job in jobs] for kind in KINDS}
    examples = [_largest(known, kind)[0] for kind, known in found.items() if known]
    return Figure(
        Name.OPERATIONS,
        len(jobs),
        [value for value, _ in next(iter(found.values()))],
        [Curve(kind, cdf([value for value, _ in known])) for kind, known in found.items()],
        (),
        examples,
    )


def _largest(known: Sequence[tuple[float, JobFigures]], note: str = "") -> list[Example]:
    ordered = sorted(known, key=lambda one: (-one[0], one[1].job))[:EXAMPLES]
    return [Example(job.job, job.session, job.number, value, note) for value, job in ordered]


def _against(pairs: Sequence[tuple[float, float]]) -> Against:
    sizes, slowdowns = [one for one, _ in pairs], [other for _, other in pairs]
    found = rank_correlation(np.array(sizes), np.array(slowdowns))
    return Against(len(pairs), by_doubling(sizes, slowdowns), None if math.isnan(found) else found)
