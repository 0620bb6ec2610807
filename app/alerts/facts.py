"""What rules and messages need of a report, small enough to keep for every session."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from app.analysis.diagnosis.causes.registry import blames_machine
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.document import Report
from app.analysis.report.findings import NamedCause

# A message has room for this number of each.
WORST_WORKERS: Final = 3
EVIDENCE: Final = 2
CAUSES: Final = 5

# A place that many workers share is named by the first ones; the rest is in the report.
PLACES: Final = 16


@dataclass(frozen=True, slots=True)
class CauseFact:
    """A suspected cause.

    Parameters
    ----------
    cause : str
        As in the report: ``slow_worker``, ``stage_imbalance``…
    where : tuple of str
        Hosts, workers or stages that are blamed, the worst first; empty where there is no place,
        or where the cause is the job's own and shows at workers.
    confidence, contribution : float or None
        Shares, 0 to 1; None where the report does not say.
    evidence : tuple of str
        Sentences.
    """

    cause: str
    where: tuple[str, ...] = ()
    confidence: float | None = None
    contribution: float | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """A worker (cell of DP and PP rank), its host where known, and its own slowdown."""

    dp: int
    pp: int
    host: str | None
    slowdown: float


@dataclass(frozen=True, slots=True)
class FixFact:
    """The best recommendation; `gain` is the share of the step time that it is to save.

    With `at_most` it is the most that such a change can.
    """

    title: str
    gain: float
    step_time_s: float | None
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class HeadlineFact:
    """The slowdown that people are told, and what it costs.

    Parameters
    ----------
    slowdown : float
    ci95 : pair of float or None
        None where it is not known.
    gpu_hours_lost : float
        In the session.
    kind : HeadlineKind
        Against the job without its causes, or S.
    """

    slowdown: float
    ci95: tuple[float, float] | None
    gpu_hours_lost: float
    kind: HeadlineKind

    @property
    def waste(self) -> float:
        """Return the share of a step that is lost."""
        return 1 - 1 / self.slowdown


@dataclass(frozen=True, slots=True)
class Facts:
    """A session as rules see it.

    Numbers of the verdict are None where there is no verdict; `discrepancy` is there even so.

    Parameters
    ----------
    session : UUID
    job : str
    attempt, number : int
        What people call the session.
    received_at : datetime
        The database's time.
    labels : mapping of str to str
        Of the job's metadata.
    layout : str
        Sizes of the job; sessions of different sizes are not compared.
    slowdown, waste, gpu_hours_lost, discrepancy, step_time_s : float or None
    slowdown_ci95 : pair of float or None
    causes : tuple of CauseFact
        The leading one first.
    worst : tuple of WorkerFact
        The slowest first.
    worst_step : int or None
        The training step of the largest slowdown.
    fix : FixFact or None
    headline : HeadlineFact or None
        None also in what version 0.1.0 stored; `shown` is what counts.
    """

    session: UUID
    job: str
    attempt: int
    number: int
    received_at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)
    layout: str = ""
    slowdown: float | None = None
    slowdown_ci95: tuple[float, float] | None = None
    waste: float | None = None
    gpu_hours_lost: float | None = None
    discrepancy: float | None = None
    step_time_s: float | None = None
    causes: tuple[CauseFact, ...] = ()
    worst: tuple[WorkerFact, ...] = ()
    worst_step: int | None = None
    fix: FixFact | None = None
    headline: HeadlineFact | None = None

    @property
    def shown(self) -> HeadlineFact | None:
        """Return the headline, or S where version 0.1.0 stored the facts; None without verdict."""
        if self.headline is not None or self.slowdown is None:
            return self.headline
        lost = self.gpu_hours_lost or 0.0
        return HeadlineFact(self.slowdown, self.slowdown_ci95, lost, HeadlineKind.PUBLISHED)

    @property
    def without_verdict(self) -> Facts:
        """Return which session it is and nothing of what was found in it.

        For what is not about the session: that nothing came after it.
        """
        return Facts(
            session=self.session,
            job=self.job,
            attempt=self.attempt,
            number=self.number,
            received_at=self.received_at,
            labels=self.labels,
            layout=self.layout,
        )

    @property
    def leading_cause(self) -> CauseFact:
        """Return the first cause, or the unknown one."""
        return self.causes[0] if self.causes else CauseFact(UNKNOWN)

    @property
    def order(self) -> tuple[datetime, int, int]:
        """Return what sorts sessions of a job by age, whenever they were analyzed."""
        return (self.received_at, self.attempt, self.number)


FACTS: Final = TypeAdapter(Facts)


def facts_of(  # noqa: PLR0913 - the identity of a session, which a report does not have
    report: Report,
    *,
    session: UUID,
    job: str,
    attempt: int,
    number: int,
    received_at: datetime,
    labels: Mapping[str, str],
) -> Facts:
    """Return the facts of a report.

    Parameters
    ----------
    report : Report
    session : UUID
    job : str
    attempt, number : int
    received_at : datetime
    labels : mapping of str to str
    """
    sizes = report.sizes
    facts = Facts(
        session=session,
        job=job,
        attempt=attempt,
        number=number,
        received_at=received_at,
        labels=dict(labels),
        layout=f"dp={sizes.dp} pp={sizes.pp} tp={sizes.tp} cp={sizes.cp} vpp={sizes.vpp}",
        discrepancy=report.fidelity.discrepancy,
    )
    if not report.fidelity.verdict:
        return facts
    return replace(
        facts,
        slowdown=report.slowdown,
        slowdown_ci95=report.slowdown_ci95,
        waste=report.waste,
        gpu_hours_lost=report.gpu_hours_lost,
        step_time_s=statistics.median(report.step_times.recorded),
        causes=tuple(_cause(report, cause) for cause in report.causes[:CAUSES]),
        worst=_worst(report),
        worst_step=_worst_step(report),
        fix=_fix(report),
        headline=HeadlineFact(
            report.headline.slowdown,
            report.headline.ci95,
            report.lost_gpu_hours,
            report.headline.kind,
        ),
    )


def _cause(report: Report, cause: NamedCause) -> CauseFact:
    return CauseFact(
        cause=cause.cause,
        where=_places(report, cause)[:PLACES],
        confidence=cause.confidence,
        contribution=cause.contribution,
        evidence=cause.evidence[:EVIDENCE],
    )


def _places(report: Report, cause: NamedCause) -> tuple[str, ...]:
    """Name hosts rather than workers: the same host is slow in whatever cell it works next.

    What is the job's own shows at other workers in each session, and is one thing all the same.
    """
    where = cause.where
    if where.workers:
        if not blames_machine(cause.cause):
            return ()
        named = (report.host_of((dp, pp)) or f"worker ({dp}, {pp})" for dp, pp in where.workers)
        return tuple(dict.fromkeys(named))
    return () if where.stage is None else (f"stage {where.stage}",)


def _worst(report: Report) -> tuple[WorkerFact, ...]:
    return tuple(
        WorkerFact(dp, pp, report.host_of((dp, pp)), value)
        for value, dp, pp in report.ranked_workers()[:WORST_WORKERS]
    )


def _worst_step(report: Report) -> int:
    slowdowns = report.step_slowdown
    return report.steps.analyzed[slowdowns.index(max(slowdowns))]


def _fix(report: Report) -> FixFact | None:
    best = max(report.recommendations, key=lambda fix: fix.predicted_gain, default=None)
    if best is None:
        return None
    return FixFact(best.title, best.predicted_gain, best.predicted_step_time, best.at_most)
