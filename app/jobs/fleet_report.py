"""The fleet's report: coverage, costs, measured fixes, incidents, and the figures of the paper."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, cast

import numpy as np
from sqlalchemy import ColumnElement, Integer, func, select, true

from app.analysis.fleet import (
    PAPER_CORRELATION,
    PAPER_FEWEST_GPUS,
    PAPER_M_S,
    PAPER_M_W,
    PAPER_MOST_RESTARTS,
    PAPER_STEPS,
    PAPER_WASTE,
    Class,
    LengthClass,
    Point,
    by_doubling,
    cdf,
    length_classes,
    rank_correlation,
)
from app.analysis.report.fix_outcomes import MET_WITHIN, prediction_error
from app.analysis.report.session_verdict import KINDS
from app.fixes.models import AppliedFix
from app.hosts.costs import Span
from app.incidents.models.tables import AlertIncident
from app.incidents.reads import LABELS
from app.jobs.fleet_costs import (
    EVERYTHING,
    Costs,
    FleetHours,
    JobFigures,
    ReportFilter,
    Spent,
    fleet_hours,
    job_figures,
    span_of,
    spent,
)
from app.jobs.models import Job
from app.platform.database.projects import Project
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import OF_SESSION, Session, StoredVerdict
from app.web.lists import Column

MOST_FIXES: Final = 20


@dataclass(frozen=True, slots=True)
class Coverage:
    """Numbers of sessions and jobs with and without a verdict."""

    received: int  # sessions of the time
    counted: int  # sessions with a verdict
    without: Mapping[SessionState, int]  # sessions without a verdict, by state
    jobs: int  # jobs with a session
    counted_jobs: int  # jobs with a verdict
    silent: int  # jobs with an earlier session and none in the time, not archived


@dataclass(frozen=True, slots=True)
class FixLine:
    """A fix whose effect was measured in the period; gains are shares of the step time."""

    job: str
    title: Annotated[str, Column(csv="fix")]
    session: Annotated[uuid.UUID, Column(csv=None)]
    measured_by: Annotated[uuid.UUID, Column(csv=None)]
    predicted: Annotated[float, Column(csv="predicted_gain")]
    at_most: bool
    realized: Annotated[float, Column(csv="realized_gain")]
    unlike: Annotated[str | None, Column(csv="not_comparable")]
    gpus: Annotated[int, Column(csv=None)]
    step_time_s: Annotated[float, Column(csv=None)]

    @property
    def met(self) -> bool | None:
        """Return whether the prediction was met; None for upper bounds and unlike sessions."""
        if self.at_most or self.unlike is not None:
            return None
        return abs(prediction_error(self.predicted, self.realized)) <= MET_WITHIN


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The report of a fleet over a period."""

    now: datetime
    since: datetime
    until: datetime
    filters: ReportFilter
    coverage: Coverage
    spent: Spent
    fixes: Sequence[FixLine]
    opened: int
    """Number of incidents that fired in the period."""
    resolved: int
    """Number of fired incidents that were resolved in the period."""

    @property
    def costs(self) -> Costs:
        """Return the costs of the report's period."""
        return self.spent.trend[-1].costs

    @property
    def before(self) -> Costs:
        """Return the costs of the preceding period of the same length."""
        return self.spent.trend[-2].costs

    @property
    def unexplained(self) -> float:
        """Return the lost GPU-hours that no cause explains; causes may overlap."""
        return max(0.0, self.costs.lost - sum(cause.lost for cause in self.spent.causes))


def fleet_report(
    tx: Reads, since: datetime | None, until: datetime | None, filters: ReportFilter = EVERYTHING
) -> FleetReport:
    """Return the fleet's report over the period of `span_of`."""
    span = span_of(tx, since, until)
    begin, end = cast("tuple[datetime, datetime]", (span.since, span.until))
    opened, resolved = _incidents(tx, span, filters)
    return FleetReport(
        now=tx.now,
        since=begin,
        until=end,
        filters=filters,
        coverage=_coverage(tx, span, filters),
        spent=spent(tx, begin, end, filters),
        fixes=_fixes(tx, span, filters),
        opened=opened,
        resolved=resolved,
    )


def _coverage(tx: Reads, span: Span, filters: ReportFilter) -> Coverage:
    """Return the coverage of a period, read by one statement."""
    of = filters.of(Session.labels.expression)
    counted = StoredVerdict.waste.is_not(None)
    key = (Session.job_id, Session.state, counted)
    # Grouped by job first: otherwise each count of jobs would sort all sessions.
    sent = (
        select(*key[:2], counted.label("counted"), func.count().label("sessions"))
        .outerjoin(*OF_SESSION)
        .where(*span.holds(Session.received_at.expression), *of)
        .group_by(*key)
        .cte("sent")
    )
    columns = sent.c
    before = (
        select(Session.id)
        .where(Session.job_id == Job.id, Session.received_at < span.since, *of)
        .exists()
    )
    silent = select(func.count()).where(
        Job.archived_at.is_(None),
        Job.created_at <= span.until,
        Job.id.not_in(select(columns.job_id)),
        before,
    )
    jobs = select(func.count(columns.job_id.distinct()))
    rows = tx.session.execute(
        select(
            columns.state,
            columns.counted,
            func.sum(columns.sessions).cast(Integer),
            jobs.scalar_subquery(),
            jobs.where(columns.counted).scalar_subquery(),
            silent.scalar_subquery(),
        )
        .select_from(Project)
        .outerjoin(sent, true())
        .where(Project.id == tx.scope.project_id)
        .group_by(columns.state, columns.counted)
    ).all()
    counts = [(state, counted, number) for state, counted, number, *_ in rows if state is not None]
    return Coverage(
        received=sum(number for _, _, number in counts),
        counted=sum(number for _, counted, number in counts if counted),
        without={state: number for state, counted, number in counts if not counted},
        jobs=rows[0][3],
        counted_jobs=rows[0][4],
        silent=rows[0][5],
    )


def _incidents(tx: Reads, span: Span, filters: ReportFilter) -> tuple[int, int]:
    opened, resolved = tx.session.execute(
        select(
            func.count().filter(
                *span.holds(cast("ColumnElement[datetime]", AlertIncident.fired_at.expression))
            ),
            func.count().filter(
                *span.holds(cast("ColumnElement[datetime]", AlertIncident.resolved_at.expression))
            ),
        ).where(AlertIncident.fired_at.is_not(None), *filters.of(LABELS))
    ).one()
    return opened, resolved


def _fixes(tx: Reads, span: Span, filters: ReportFilter) -> tuple[FixLine, ...]:
    """Return the fixes that sessions of the period measured, newest first."""
    rows = tx.session.execute(
        select(
            Job.name,
            AppliedFix.title,
            AppliedFix.session_id,
            AppliedFix.measured_by,
            AppliedFix.predicted_gain,
            AppliedFix.at_most,
            AppliedFix.realized_gain,
            AppliedFix.unlike,
            Session.world,
            AppliedFix.step_time_s,
        )
        .join(Job, Job.id == AppliedFix.job_id)
        .join(Session, Session.id == AppliedFix.measured_by)
        .where(
            AppliedFix.realized_gain.is_not(None),
            *span.holds(Session.received_at.expression),
            *filters.of(Session.labels.expression),
        )
        .order_by(Session.received_at.desc(), AppliedFix.id.desc())
        .limit(MOST_FIXES)
    )
    return tuple(FixLine(*values) for values in map(tuple, rows))


class Sample(StrEnum):
    """Choices of the jobs that the figures count."""

    ALL = "all"
    # Jobs that the paper would analyze: `PAPER_FEWEST_GPUS` or more, at most `PAPER_MOST_RESTARTS`
    PAPER = "paper"

    @classmethod
    def of(cls, text: str) -> Sample:
        """Return the sample that a page's address names; `ALL` if it names none."""
        return cls(text) if text in tuple(cls) else cls.ALL


@dataclass(frozen=True, slots=True)
class SampledJobs:
    """Jobs with a verdict that the figures count, and the jobs of which they are a sample."""

    sample: Sample
    jobs: Sequence[JobFigures]
    fleet: FleetHours

    @property
    def gpu_hours_share(self) -> float:
        """Return the share of the fleet's GPU-hours that the jobs of the sample used."""
        counted = sum(job.gpu_hours for job in self.jobs)
        return counted / self.fleet.gpu_hours if self.fleet.gpu_hours else 0.0


def sampled_jobs(
    tx: Reads,
    since: datetime | None,
    until: datetime | None,
    filters: ReportFilter = EVERYTHING,
    sample: Sample = Sample.ALL,
) -> SampledJobs:
    """Return the jobs of the period of `span_of` that a sample counts."""
    jobs = job_figures(tx, since, until, filters)
    if sample is Sample.PAPER:
        jobs = tuple(
            job
            for job in jobs
            if job.gpus >= PAPER_FEWEST_GPUS and job.restarts <= PAPER_MOST_RESTARTS
        )
    return SampledJobs(sample, jobs, fleet_hours(tx, since, until, filters))


# Number of jobs with the largest values that a figure names.
EXAMPLES: Final = 3


class Name(StrEnum):
    """Names of the figures in addresses and answers."""

    WASTE = "waste"
    STEPS = "steps"
    OPERATIONS = "operations"
    M_W = "m_w"
    M_S = "m_s"
    CORRELATION = "correlation"


@dataclass(frozen=True, slots=True)
class Example:
    """A job at the upper end of a figure, and its median session."""

    job: str
    session: uuid.UUID
    number: int
    value: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A cumulative distribution: points (value, share of the values that are not larger)."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the paper over the jobs of a fleet."""

    name: Name
    jobs: int
    values: Sequence[float]  # of the first curve
    curves: Sequence[Curve]
    paper: Sequence[Point]  # points that the paper reports for its own fleet
    examples: Sequence[Example]  # the largest value first


@dataclass(frozen=True, slots=True)
class Against:
    """S of jobs in classes of their size; the limits of the classes double."""

    jobs: int  # jobs of known size
    classes: Sequence[Class]
    correlation: float | None  # Spearman's, of size and S; None if it is not defined


def figures(jobs: Sequence[JobFigures]) -> tuple[Figure, ...]:
    """Return the paper's figures, computed over these jobs."""
    slow = [job for job in jobs if job.straggles]
    steps = [step for job in slow for step in job.steps]
    slowest_steps = [(max(job.steps), job) for job in slow if job.steps]
    return (
        _figure(Name.WASTE, jobs, lambda job: job.waste, PAPER_WASTE),
        Figure(
            *(Name.STEPS, len(slowest_steps), steps, [Curve("", cdf(steps))], PAPER_STEPS),
            _largest(slowest_steps),
        ),
        _operations(jobs),
        _figure(Name.M_W, slow, lambda job: job.m_w, PAPER_M_W),
        _figure(Name.M_S, slow, lambda job: job.m_s, PAPER_M_S),
        _figure(Name.CORRELATION, slow, lambda job: job.correlation, PAPER_CORRELATION),
    )


def against_gpus(jobs: Sequence[JobFigures]) -> Against:
    """Return S of jobs in classes of their number of GPUs."""
    return _against([(float(job.gpus), job.slowdown) for job in jobs])


def against_context(jobs: Sequence[JobFigures]) -> Against:
    """Return S of jobs in classes of their longest sequence, in tokens, from their metadata."""
    return _against([(float(job.context), job.slowdown) for job in jobs if job.context])


@dataclass(frozen=True, slots=True)
class Lengths:
    """Distribution of sequence lengths over jobs; each job counts alike (the paper's figure 10)."""

    jobs: int  # jobs with recorded lengths
    classes: Sequence[LengthClass]


def sequence_lengths(jobs: Sequence[JobFigures]) -> Lengths:
    """Return the distribution of the lengths in the metadata of the jobs' median sessions."""
    recorded = [job.lengths for job in jobs if job.lengths]
    return Lengths(len(recorded), length_classes(recorded))


def _figure(
    name: Name,
    jobs: Sequence[JobFigures],
    value: Callable[[JobFigures], float | None],
    paper: Sequence[Point],
) -> Figure:
    ranked = [(number, job) for job in jobs if (number := value(job)) is not None]
    values = [number for number, _ in ranked]
    return Figure(name, len(ranked), values, [Curve("", cdf(values))], paper, _largest(ranked))


def _operations(jobs: Sequence[JobFigures]) -> Figure:
    """Return the figure of the waste by kind of operation; it names the worst job of each kind."""
    ranked = {kind: [(job.waste_by.get(kind, 0.0), job) for job in jobs] for kind in KINDS}
    examples = [_largest(pairs, kind)[0] for kind, pairs in ranked.items() if pairs]
    return Figure(
        Name.OPERATIONS,
        len(jobs),
        [value for value, _ in next(iter(ranked.values()))],
        [Curve(kind, cdf([value for value, _ in pairs])) for kind, pairs in ranked.items()],
        (),
        examples,
    )


def _largest(ranked: Sequence[tuple[float, JobFigures]], note: str = "") -> list[Example]:
    ordered = sorted(ranked, key=lambda pair: (-pair[0], pair[1].job))[:EXAMPLES]
    return [Example(job.job, job.session, job.number, value, note) for value, job in ordered]


def _against(pairs: Sequence[tuple[float, float]]) -> Against:
    sizes, slowdowns = [size for size, _ in pairs], [slowdown for _, slowdown in pairs]
    rho = rank_correlation(np.array(sizes), np.array(slowdowns))
    return Against(len(pairs), by_doubling(sizes, slowdowns), None if math.isnan(rho) else rho)
